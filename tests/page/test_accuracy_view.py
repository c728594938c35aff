"""What the model is off by: pictures and a table of what the service says."""

from __future__ import annotations

import json
import urllib.request

import pytest

pytestmark = pytest.mark.slow

ACCURACY = "**/v1/accuracy"


def answer_of(server):
    with urllib.request.urlopen(server + "v1/accuracy", timeout=120) as answer:
        return json.load(answer)


def opened_with(visit, answer, fragment="#/accuracy"):
    page = visit("#/card")
    page.tab.route(ACCURACY, lambda route: route.fulfill(json=answer))
    page.goto(fragment)
    return page


def test_table_and_pictures_show_what_the_service_says(visit, server):
    page = visit("#/accuracy")
    [first, *_] = answer_of(server)["splits"]
    slices = [item for item in first["slices"] if item["target"] == "latency_s"]
    assert page.tab.locator("tbody tr").count() == len(slices)
    points = sum(len(item["measured"]) for item in first["parity"] if item["target"] == "latency_s")
    assert page.tab.locator("circle.cloud").count() == points
    whole = [item for item in slices if item["device"] is None]
    assert page.tab.locator(".holds li").count() == len(whole)
    picture = page.tab.locator("svg[role=img]").get_attribute("aria-label")
    assert "within 10 %" in picture
    assert "inside their interval" in picture
    assert first["doc"] in page.tab.locator(".answers").inner_text()


def test_choices_are_in_the_address(visit, server):
    page = visit("#/accuracy")
    page.tab.get_by_label("Kernel family").select_option("gemm")
    page.tab.get_by_label("Predicted", exact=True).select_option("energy_j")
    assert page.tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Predicted"
    fields = page.fields()
    assert (fields["accuracy.family"], fields["accuracy.target"]) == ("gemm", "energy_j")
    page.settle()
    words = page.tab.locator(".answers").inner_text()
    page.tab.reload()
    page.settle()
    assert page.tab.locator(".answers").inner_text() == words
    page.tab.get_by_label("Rows held out").select_option(answer_of(server)["splits"][-1]["name"])
    assert "errors are kept alone" in page.tab.locator(".answers").inner_text()
    assert page.tab.locator(".holds").count() == 0
    page.tab.go_back()
    assert page.tab.get_by_label("Rows held out").input_value() == "hash"


def test_values_are_read_with_the_keyboard(visit):
    page = visit("#/accuracy?accuracy.family=copy")
    page.tab.get_by_text("Values as a table").click()
    points = page.tab.locator("circle.cloud").count()
    assert page.tab.get_by_role("region", name="Measured and predicted values").locator("tbody tr").count() == points
    reader = page.tab.get_by_role("slider", name="Values of: Latency")
    reader.focus()
    page.tab.keyboard.press("End")
    words = reader.get_attribute("aria-valuetext")
    assert words.startswith("measured ")
    assert "predicted " in words
    page.tab.keyboard.press("ArrowLeft")
    assert reader.get_attribute("aria-valuetext") != words


def test_shares_are_written_as_percent_and_notes_as_text(visit, server):
    answer = answer_of(server)
    item = {"family": "<b>gemm</b>", "device": None, "target": "latency_s", "n": 1200, "mean": 0.123, "median": 0.051,
           "within_10": 0.8, "covered": None, "coverage": None, "width": None}  # fmt: skip
    answer["splits"] = [{"name": "<i>one</i>", "doc": "<img src=x>", "slices": [item], "parity": []}]
    answer["notes"] = ["<script>alert(1)</script>"]
    page = opened_with(visit, answer)
    words = "<b>gemm</b>\tall devices\t1\u202f200\t12\xa0%\t5.1\xa0%\t80\xa0%"
    assert page.tab.locator("tbody tr").all_inner_texts() == [words]
    assert page.tab.locator(".notes li").inner_text() == "<script>alert(1)</script>"
    assert page.tab.locator("#panel script, #panel img, #panel b, #panel i").count() == 0


def test_a_model_without_errors_says_so(visit, server):
    page = opened_with(visit, answer_of(server) | {"splits": []}, "#/accuracy?accuracy.split=constructor")
    assert "holds no errors" in page.tab.locator(".answers").inner_text()
    page.tab.unroute(ACCURACY)
    page.tab.route(ACCURACY, lambda route: route.fulfill(status=404, json={"detail": "no accuracy data"}))
    page.goto("#/card")
    page.goto("#/accuracy")
    assert page.tab.locator("[role=alert]:visible").inner_text() == "no accuracy data"
