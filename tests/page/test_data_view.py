"""Measured rows: filtered, sorted and paged by the service."""

from __future__ import annotations

import csv
import io
import json
import urllib.request

import pytest

pytestmark = pytest.mark.slow

GEMM = "#/data?data.set=shipped&data.family=gemm"


def column(page, name):
    heads = [text.strip(" ↓↑↕") for text in page.tab.locator("table.measured thead th").all_inner_texts()]
    return page.tab.locator(f"table.measured tbody tr > :nth-child({1 + heads.index(name)})").all_inner_texts()


def total(page):
    return int(
        page.tab.locator(".answers h2").first.inner_text().split(" of ")[1].removesuffix(" rows").replace("\u202f", "")
    )


def asked(server, path):
    with urllib.request.urlopen(server + path, timeout=120) as answer:
        return json.load(answer)


def test_sets_and_their_cards_are_shown(visit, server):
    page = visit("#/data")
    sets = asked(server, "v1/measurements/sets")["sets"]
    assert page.tab.locator(".set h2").all_inner_texts() == [item["title"] for item in sets]
    assert total(page) == sum(item["rows"] for item in sets)
    card = sets[0]["cards"][0]["title"]
    page.tab.locator(".set summary", has_text=card).click()
    assert page.tab.locator(".set .markdown h3").first.inner_text() == card
    page.tab.get_by_role("button", name=f"Show rows of: {sets[1]['title']}").click()
    page.settle()
    assert page.fields()["data.set"] == sets[1]["name"]
    assert total(page) == sets[1]["rows"]


def test_filters_sorting_and_pages_are_in_the_address(visit):
    page = visit(GEMM)
    every = total(page)
    page.tab.get_by_label("Number format").select_option("fp8")
    page.settle()
    assert 0 < total(page) < every
    assert set(column(page, "Format")) == {"fp8"}
    page.tab.get_by_role("button", name="Latency").click()
    page.settle()
    first = column(page, "Latency")[0]
    page.tab.get_by_role("button", name="Latency").press("Enter")
    page.settle()
    assert page.tab.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    assert column(page, "Latency")[0] != first
    page.tab.get_by_role("button", name="Next").click()
    page.settle()
    assert column(page, "Row")[0] == "26"
    fields = page.fields()
    assert (fields["data.sort"], fields["data.offset"], fields["data.dtype"]) == ("latency_s", "25", "fp8")
    shown = column(page, "Latency")
    page.tab.reload()
    page.settle()
    assert column(page, "Latency") == shown
    page.tab.go_back()
    page.settle()
    assert column(page, "Row")[0] == "1"
    page.tab.get_by_role("button", name="Last").click()
    page.settle()
    assert page.tab.get_by_role("button", name="Next").is_disabled()
    page.tab.get_by_role("button", name="Clear").click()
    page.settle()
    assert total(page) > every


def test_a_row_in_full_leads_to_its_prediction(visit):
    page = visit(GEMM + "&data.device=nvidia-h200-sxm-141gb&data.impl=triton")
    page.tab.get_by_role("button", name="Row 3 in full").press("Enter")
    detail = page.tab.locator(".facts")
    assert page.tab.evaluate("document.activeElement.textContent") == "Row 3"
    assert "NVIDIA H200" in detail.inner_text()
    assert page.fields()["data.row"] == "2"
    m = column(page, "m")[2]
    detail.get_by_role("link", name="Predict this row").click()
    page.tab.locator(".figure .big").first.wait_for()
    fields = page.fields()
    assert (fields["view"], fields["impl"], fields["devices"]) == ("predict", "triton", "nvidia-h200-sxm-141gb")
    assert fields["sizes.m"] == m.replace("\u202f", "")
    assert int(fields["config.tile_m"]) > 0
    page.tab.go_back()
    page.settle()
    page.tab.locator(".facts").get_by_role("button", name="Close").click()
    assert "data.row" not in page.fields()


def test_rows_of_all_families_have_sizes_in_words(visit):
    page = visit("#/data?data.set=tiles&data.limit=10&data.row=1")
    assert page.tab.locator("table.measured tbody tr").count() == 10
    assert "batch" in column(page, "Sizes")[0]
    assert page.tab.locator("th", has_text="Sizes").get_by_role("button").count() == 0
    assert "sizes." in page.tab.get_by_role("link", name="Predict this row").get_attribute("href")


def test_the_page_is_downloaded_as_csv(visit, server):
    page = visit(GEMM + "&data.limit=10")
    answer = asked(server, "v1/measurements?set=shipped&family=gemm&limit=10")
    answer["rows"][1][answer["columns"].index("message")] = '=cmd|" /C calc"!A0, and more'
    page.tab.route("**/v1/measurements?*", lambda route: route.fulfill(json=answer))
    page.tab.reload()
    page.tab.locator("table.measured").wait_for()
    with page.tab.expect_download() as result:
        page.tab.get_by_role("button", name="Download CSV").click()
    rows = list(csv.reader(io.StringIO(result.value.path().read_text(encoding="utf-8"), newline="")))
    assert rows[0] == answer["columns"]
    assert len(rows) == 11
    at = answer["columns"].index("latency_s")
    assert [float(row[at]) for row in rows[1:]] == [row[at] for row in answer["rows"]]
    assert rows[2][answer["columns"].index("message")] == '\'=cmd|" /C calc"!A0, and more'


def test_what_the_service_refuses_is_said_and_names_stay_text(visit):
    page = visit("#/data?data.device=%3Cimg%20src=x%3E")
    alert = page.tab.locator("[role=alert]:visible")
    assert "no measured row has the device '<img src=x>'" in alert.inner_text()
    page.tab.get_by_role("button", name="Clear").click()
    page.settle()
    assert total(page) > 0
    page.goto("#/data?data.offset=999999999")
    page.tab.get_by_text("fewer rows than this page starts at").wait_for()
    page.tab.get_by_role("button", name="First").click()
    page.settle()
    assert column(page, "Row")[0] == "1"
