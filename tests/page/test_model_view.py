"""The view of whole models: a step on several devices, sliders, bars, memory, prices."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.slow

BERT = "#/model?model=google-bert/bert-base-uncased&batch=8&length=128&model.devices=h200,l40s"
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024,
    "vocab_size": 1000,
}  # fmt: skip


def rows(page, name):
    return page.tab.get_by_role("list", name=name).locator("li")


def test_it_opens_on_a_well_known_model_and_several_gpus(visit):
    page = visit("#/model")
    assert page.fields()["model"] == "meta-llama/Llama-3.1-8B"
    assert page.fields()["phase"] == "decode"
    for name in ("Time of a step by device", "Time by part of the model", "Memory by what it holds"):
        assert rows(page, name).count() == 4
    assert "does not fit" in rows(page, "Memory by what it holds").last.inner_text()
    assert re.search(r"\d+ sequences fit", rows(page, "Memory by what it holds").first.inner_text())
    assert "attention: " in rows(page, "Time by part of the model").first.inner_text()
    assert page.tab.get_by_text("fp8 in place of bf16").count() > 0


def test_a_slider_is_followed_at_once_and_the_address_keeps_it(visit):
    page = visit("#/model?model.devices=h100-sxm,rtx-4090")
    before = rows(page, "Time of a step by device").first.inner_text()
    slider = page.tab.get_by_role("slider", name="Sequences at a time, slider")
    assert slider.get_attribute("aria-valuetext") == "16"
    slider.focus()
    page.tab.evaluate("window.began = performance.now()")
    page.tab.keyboard.press("ArrowRight")
    page.settle()
    # Some 150 ms on an idle core; this machine may be busy.
    assert page.tab.evaluate("performance.now() - window.began") < 3000
    assert rows(page, "Time of a step by device").first.inner_text() != before
    assert page.fields()["batch"] == "32"
    assert page.tab.locator("[name=batch]").input_value() == "32"
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    assert copy.tab.locator(".answers").inner_text() == page.tab.locator(".answers").inner_text()


def test_a_number_may_be_typed_and_what_is_none_is_refused_beside_it(visit):
    page = visit("#/model?model.devices=h100-sxm")
    page.tab.locator("[name=length]").fill("1000")
    page.settle()
    assert "after 1\u202f000" in page.tab.locator(".lead").inner_text()
    page.tab.locator("[name=length]").fill("x")
    error = page.tab.locator("[data-field=length] .field-error")
    error.wait_for()
    assert "whole number" in error.inner_text()


def test_phases_are_those_of_the_model(visit):
    page = visit("#/model?model.devices=h200")
    assert page.tab.get_by_role("radio").evaluate_all("all => all.slice(0, 3).map((one) => one.value)") == [
        "prefill", "decode", "train",
    ]  # fmt: skip
    page.tab.locator("[name=model]").select_option("google-bert/bert-base-uncased")
    page.settle()
    assert page.fields()["phase"] == "forward"
    page.tab.get_by_role("radio", name="Train").check(force=True)
    page.settle()
    assert "a training step" in page.tab.locator(".lead").inner_text()
    assert "optimiser state" in page.tab.locator(".answers").inner_text()
    page.tab.locator("[name=model]").select_option("google/vit-base-patch16-224")
    page.settle()
    assert page.tab.locator("[name=length]").count() == 0
    assert "197" in page.tab.locator(".spec").inner_text()


def test_an_encoder_alone(visit):
    page = visit("#/model?model=openai/whisper-large-v3&phase=encode&batch=4&model.devices=h200")
    assert "4 sequences of 1\u202f500" in page.tab.locator(".lead").inner_text()
    assert page.tab.locator("[name=length]").count() == 0


def test_prices_give_costs_and_pictures_change(visit):
    page = visit(BERT)
    page.tab.get_by_label("Price per hour of NVIDIA L40S").fill("1.5")
    page.settle()
    page.tab.get_by_role("table", name="Devices side by side").wait_for()
    cell = page.tab.locator("table.compare tbody tr").last.locator("td").last
    assert re.match(r"[\d.e-]+", cell.inner_text())
    page.tab.get_by_label("Picture of").select_option("energy_per_token_j")
    assert rows(page, "Energy per token by device").count() == 2
    page.tab.get_by_label("Bars").select_option("share")
    widths = (
        page.tab.locator(".stacks")
        .first.locator(".parts")
        .evaluate_all("all => all.map((one) => [...one.children].reduce((sum, part) => sum + part.offsetWidth, 0))")
    )
    assert max(widths) - min(widths) <= 2
    assert page.fields()["price_per_hour.nvidia-l40s"] == "1.5"


def test_a_configuration_of_ones_own(visit):
    page = visit("#/model?model.devices=h200&phase=prefill&batch=4&length=256")
    page.tab.get_by_text("More settings").click()
    page.tab.locator("[name=config]").fill(json.dumps(CONFIG))
    page.settle()
    page.tab.locator(".lead", has_text="4 sequences of 256 new tokens").wait_for()
    page.tab.locator("[name=config]").fill(json.dumps(CONFIG | {"model_type": "lama"}))
    alert = page.tab.locator(".spec .alert")
    alert.wait_for()
    assert "nearest: llama" in alert.inner_text()


def test_every_part_is_in_the_table(visit):
    page = visit(BERT)
    page.tab.get_by_text("Every part as a table").click()
    parts = page.tab.get_by_role("table", name="Parts of the step by device").locator("tbody tr")
    assert parts.count() > 8
    assert re.search(r"s · \d", parts.first.locator("td").first.inner_text())


def test_a_device_that_cannot_answer_says_why(visit):
    page = visit(BERT)

    def refuse_the_last(route):
        answer = route.fetch().json()
        answer["answers"][-1] |= {"latency_s": None, "refusal": "<b>no bf16 here</b>"}
        route.fulfill(json=answer)

    page.tab.route("**/v1/estimate", refuse_the_last)
    page.tab.locator("[name=batch]").fill("4")
    page.tab.locator(".refused").wait_for()
    assert "<b>no bf16 here</b>" in page.tab.locator(".refused").inner_text()
    assert rows(page, "Time of a step by device").count() == 1
