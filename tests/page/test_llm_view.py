"""The view of LLM services: curves over the load, measured points, prices, presets, and refusals."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from kernelcast.api.page.static_files import STATIC_DIR
from kernelcast.features.device import catalogue
from kernelcast.workloads.architectures.config.catalogue import model_names
from kernelcast.workloads.serving.batching.load import MAX_REQUESTS, MAX_TOKENS
from kernelcast.workloads.serving.planning.question import MAX_GPUS
from kernelcast.workloads.serving.speculation import MAX_GUESSES
from kernelcast.workloads.units import MAX_PRICE

pytestmark = pytest.mark.slow

LLAMA = "#/llm?model=meta-llama/Llama-3.1-70B&weights=fp8&llm.devices=h100-sxm,b200&llm.tp=4"
SMALL = "#/llm?model=meta-llama/Llama-3.1-8B&llm.devices=h100-sxm,l40s&llm.tp=1&output_tokens=64&concurrency=8"
SHARED = Path(__file__).parents[3] / "shared" / "benchmarks" / "serving" / "serving.parquet"


def services():
    return json.loads((STATIC_DIR / "services.json").read_text(encoding="utf-8"))


def row(page, place):
    cells = page.tab.get_by_role("table", name="Services side by side").locator("tbody tr").nth(place)
    return cells.locator("th, td").all_inner_texts()


def test_the_page_opens_on_a_service_with_curves_and_measured_points(visit):
    page = visit("")
    assert page.fields()["view"] == "llm"
    assert page.fields()["model"] == "meta-llama/Llama-3.1-70B"
    picture = page.tab.get_by_role("img", name="Tokens per second of one GPU against tokens per second of one user")
    assert picture.locator("path.line").count() == 4
    assert picture.locator("circle.hollow").count() == 15
    assert re.search(r"Of 15 measured loads, \d+ are inside the interval", page.tab.locator(".answers").inner_text())
    assert page.tab.get_by_role("button", name="Llama 3.1 70B, fp8").get_attribute("aria-pressed") == "true"


def test_figures_are_those_of_the_service(visit, server):
    page = visit(SMALL)
    body = {"model": "meta-llama/Llama-3.1-8B", "device": "l40s", "gpus": 1, "plan": {"tp": 1}, "engine": "vllm",
            "input_tokens": 1024, "output_tokens": 64, "concurrency": 8}  # fmt: skip
    answer = page.tab.request.post(server + "v1/llm/predict", data=body).json()
    shown = row(page, 1)
    assert shown[0] == "NVIDIA L40S"
    assert shown[3].split("\n")[0].strip().replace("\u202f", "") == f"{answer['throughput_per_gpu_tok_s']['value']:.3g}"


def test_an_address_restores_the_service(visit):
    page = visit(SMALL)
    page.tab.locator("[name=concurrency]").fill("16")
    page.tab.locator("[name=concurrency]").blur()
    page.settle()
    assert page.fields()["concurrency"] == "16"
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    assert copy.tab.locator(".answers").inner_text() == page.tab.locator(".answers").inner_text()


def test_a_price_gives_a_cost_and_its_curve(visit):
    page = visit(SMALL)
    assert row(page, 0)[-1] == "—"
    page.tab.get_by_label("Price per hour of NVIDIA H100 SXM5 80 GB").fill("2.5")
    page.tab.get_by_role("img", name="Cost of a million tokens against").wait_for()
    assert re.match(r"[\d.]+", row(page, 0)[-1])
    assert page.fields()["price_per_hour.nvidia-h100-sxm-80gb"] == "2.5"


@pytest.mark.parametrize("text", ["-3", "abc", "1e7"])
def test_what_is_no_price_is_refused_at_its_field(visit, text):
    page = visit(f"{SMALL}&price_per_hour.nvidia-h100-sxm-80gb=2")
    price = page.tab.get_by_label("Price per hour of NVIDIA H100 SXM5 80 GB")
    price.fill(text)
    words = page.tab.locator("td", has=price).locator(".field-error").inner_text()
    assert words == f"A price is a number from 0 to {MAX_PRICE:.0f}. The cost is still that of 2."
    page.tab.get_by_label("Axes").select_option("log")
    page.tab.get_by_label("Axes").select_option("linear")
    assert price.input_value() == text
    assert page.tab.get_by_text(words, exact=True).is_visible()
    price.fill("3")
    page.tab.get_by_text(words, exact=True).wait_for(state="hidden")


def test_a_price_that_the_service_refuses_leaves_the_results(visit):
    page = visit(SMALL)
    errors = [{"field": "price_per_hour", "detail": "must be lower"}]

    def refuse(route):
        if "price_per_hour" not in route.request.post_data_json:
            return route.continue_()
        return route.fulfill(status=422, json={"detail": "price_per_hour: must be lower", "errors": errors})

    page.tab.route("**/v1/llm/predict", refuse)
    price = page.tab.get_by_label("Price per hour of NVIDIA H100 SXM5 80 GB")
    price.fill("5")
    page.tab.locator(".outdated", has_text="price_per_hour: must be lower").wait_for()
    assert page.tab.get_by_role("table", name="Services side by side").locator("tbody tr").count() == 2
    price.fill("")
    page.tab.locator(".outdated").wait_for(state="detached")


def test_a_refusal_of_no_field_is_told_in_full(visit):
    refused = "are too many for one answer; at most 100,000 are simulated, give fewer `requests`"
    page = visit(SMALL.replace("concurrency=8", f"concurrency={MAX_REQUESTS}"))
    words = page.tab.locator(".outdated").inner_text()
    assert words.startswith("There is no answer to this yet. ")
    assert refused in words
    assert "beside the fields" not in words
    page.tab.locator("[name=concurrency]").fill("8")
    page.tab.locator(".outdated").wait_for(state="detached")
    page.tab.locator("[name=concurrency]").fill(str(MAX_REQUESTS))
    page.tab.locator(".outdated", has_text=refused).wait_for()


def test_what_was_not_measured_names_the_nearest_and_leads_there(visit):
    page = visit("#/llm?model=Qwen/Qwen3-32B&llm.devices=h200&llm.tp=2&input_tokens=2048")
    assert "2.0 steps away" in page.tab.locator(".answers").inner_text()
    page.tab.get_by_role("button", name="Show it").click()
    page.tab.get_by_text("measured loads").wait_for()
    assert page.fields()["llm.devices"] == "nvidia-h100-sxm-80gb"
    page.goto("#/llm?model=google/gemma-2-9b&llm.devices=h200&llm.tp=1")
    assert "No service of google/gemma-2-9b was measured" in page.tab.locator(".answers").inner_text()


def test_a_plan_that_does_not_fit_says_so_beside_those_that_do(visit):
    page = visit("#/llm?model=meta-llama/Llama-3.1-70B&weights=fp8&llm.devices=h200,l40s&llm.tp=1")
    refused = page.tab.locator(".refused").inner_text()
    assert "NVIDIA L40S" in refused
    assert "memory" in refused.lower() or "GB" in refused
    assert len(row(page, 0)) > 5


@pytest.mark.parametrize(("change", "name", "words"), [
    ("concurrency=none", "concurrency", f"a whole number from 1 to {MAX_REQUESTS}, not “none”"),
    ("concurrency=2.5", "concurrency", f"a whole number from 1 to {MAX_REQUESTS}, not “2.5”"),
    ("input_tokens=0", "input_tokens", f"a whole number from 1 to {MAX_TOKENS}"),
    ("speculate=33", "speculate", f"a whole number from 1 to {MAX_GUESSES}"),
    ("acceptance=0.5", "speculate", "say how many tokens a step guesses"),
    ("draft=meta-llama/Llama-3.2-1B", "speculate", "say how many tokens a step guesses"),
    ("engine=ollama", "engine", "vllm"),
    ("llm.tp=3", "plan.tp", "3"),
    ("model=nobody/nothing", "model", "nobody/nothing"),
])  # fmt: skip
def test_what_cannot_be_is_refused_at_its_field(visit, change, name, words):
    name_of_change = change.split("=")[0]
    kept = "&".join(part for part in SMALL.split("?")[1].split("&") if not part.startswith(f"{name_of_change}="))
    page = visit(f"#/llm?{kept}&{change}")
    error = page.tab.locator(f"[data-field='{name}'] .field-error")
    error.wait_for()
    assert words in error.inner_text()


def test_a_preset_is_pressed_as_long_as_it_is_what_is_asked(visit):
    page = visit("")
    preset = page.tab.get_by_role("button", name="Llama 3.1 8B")
    preset.click()
    page.tab.locator(".lead", has_text="Llama-3.1-8B").wait_for()
    assert preset.get_attribute("aria-pressed") == "true"
    page.tab.locator("[name=output_tokens]").fill("128")
    page.settle()
    assert preset.get_attribute("aria-pressed") == "false"


def test_guesses_are_a_part_of_a_step(visit):
    page = visit(
        f"{SMALL.replace('h100-sxm,l40s', 'h100-sxm')}&speculate=3&acceptance=0.7&draft=meta-llama/Llama-3.2-1B"
    )
    assert page.fields()["draft"] == "meta-llama/Llama-3.2-1B"
    shares = page.tab.get_by_role("list", name="Shares of a decode step").inner_text()
    assert re.search(r"draft: \d", shares)
    assert "acceptance of 0.7 is taken as given" in page.tab.locator(".answers").inner_text()
    page.tab.locator("[name=acceptance]").fill("")
    error = page.tab.locator("[data-field='acceptance'] .field-error")
    error.wait_for()
    assert "what share of guesses" in error.inner_text()


def test_plans_are_searched_for_when_asked_and_shared_by_address(visit, server):
    page = visit(SMALL.replace("h100-sxm,l40s", "h100-sxm") + "&grid=de")
    assert page.tab.get_by_role("table", name="The best plan for each aim, simulated").count() == 0
    page.tab.locator("[name='plan.gpus']").fill("abc")
    page.tab.get_by_role("button", name="Find plans").click()
    error = page.tab.locator("[data-field=gpus] .field-error")
    error.wait_for()
    assert error.inner_text() == f"must be a whole number from 1 to {MAX_GPUS}, not “abc”"
    page.tab.locator("[name='plan.gpus']").fill("1")
    page.tab.locator("[name='plan.tpot_s']").fill("0.05")
    page.tab.get_by_role("button", name="Find plans").click()
    best = page.tab.get_by_role("table", name="The best plan for each aim, simulated")
    best.wait_for()
    body = {"model": "meta-llama/Llama-3.1-8B", "devices": ["h100-sxm"], "gpus": 1, "input_tokens": 1024, "output_tokens": 64,
            "engines": ["vllm"], "tpot_s": 0.05, "grid": "de"}  # fmt: skip
    answer = page.tab.request.post(server + "v1/llm/plan", data=body).json()
    assert best.locator("tbody tr").count() == len(answer["choices"])
    assert "CO2e of a million tokens" in best.locator("thead").inner_text()
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Download CSV").last.click()
    lines = csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines())
    assert [float(line["carbon_g_per_million_tokens"]) for line in lines] == pytest.approx(
        [plan["carbon_g_per_million_tokens"] for plan in answer["front"]]
    )
    front = page.tab.get_by_role("img", name="GPU hours of a million tokens against time per token")
    assert front.locator("circle.dot").count() == len(answer["front"])
    page.tab.get_by_text("Command lines of their engines").click()
    assert answer["choices"][0]["command"] in page.tab.locator(".answers").inner_text()
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    copy.tab.get_by_role("table", name="The best plan for each aim, simulated").wait_for()
    copy.tab.locator("[name=output_tokens]").fill("128")
    copy.settle()
    copy.tab.get_by_text("these plans are not for it any more").wait_for()
    copy.tab.locator("[name='plan.tpot_s']").fill("0.00001")
    copy.tab.get_by_role("button", name="Find plans").click()
    copy.tab.locator(".answers [role=alert]:visible").wait_for()
    assert "per token" in copy.tab.locator(".answers [role=alert]").inner_text()


def test_the_curves_are_downloaded(visit):
    page = visit(SMALL + "&grid=de")
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Download CSV").click()
    lines = list(csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 18
    assert all(float(line["carbon_g_per_million_tokens"]) > 0 for line in lines)
    assert {float(line["concurrency"]) for line in lines} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Download SVG").click()
    picture = download.value.path().read_text(encoding="utf-8")
    assert "NVIDIA L40S" in picture
    assert "stroke-dasharray" in picture


def test_shipped_measurements_are_of_models_and_devices_that_are_known():
    shipped = services()
    assert "Apache-2.0" in shipped["licence"]
    assert 50 <= sum(len(one["points"]) for one in shipped["services"]) <= 100
    for one in shipped["services"]:
        assert one["model"] in model_names()
        assert one["device"] in catalogue().names()
        assert [point[0] for point in one["points"]] == sorted({point[0] for point in one["points"]})
        assert all(0 < tpot < ttft for _, ttft, tpot in one["points"])


def test_shipped_measurements_are_those_of_their_source():
    parquet = pytest.importorskip("pyarrow.parquet", reason="the tables are Parquet files")
    if not SHARED.is_file():
        pytest.skip("the tables that they were taken from are not beside this repository")
    names = ("device", "tp", "engine", "isl", "osl", "concurrency")
    rows = [
        one
        for one in parquet.read_table(SHARED).to_pylist()
        if one["table"] == "aic_silicon" and one["quality"] == "ok"
    ]
    published = {(*(one[name] for name in names), float(f"{one['ttft_s']:.4g}"), float(f"{one['tpot_s']:.4g}"))
                 for one in rows if one["ttft_s"] and one["tpot_s"]}  # fmt: skip
    for one in services()["services"]:
        for concurrency, ttft_s, tpot_s in one["points"]:
            key = (one["device"], one["tp"], one["engine"], one["input_tokens"], one["output_tokens"], concurrency)
            assert (*key, ttft_s, tpot_s) in published, key
