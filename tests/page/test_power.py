"""Power limits, clocks and grids: fields of the views of kernels, models and services."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow

GEMM = "family=gemm&dtype=bf16&sizes.m=4096&sizes.n=4096&sizes.k=4096"
BERT = "#/model?model=google-bert/bert-base-uncased&phase=forward&batch=64&length=512&model.devices="
LLAMA = "#/llm?model=meta-llama/Llama-3.1-8B&llm.tp=1&output_tokens=64&llm.devices="


def error_at(page, name):
    error = page.tab.locator(f"[data-field='{name}'] > .field-error")
    error.wait_for()
    return error.inner_text()


def test_a_kernel_under_a_limit(visit, server):
    page = visit(f"#/predict?{GEMM}&devices=h200", 360)
    usual = page.tab.locator(".figure .big").first.inner_text()
    page.tab.get_by_text("More settings").focus()
    page.tab.keyboard.press("Enter")
    for _ in range(6):
        page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.name") == "power_limit_w"
    page.tab.keyboard.type("400")
    page.tab.keyboard.press("Tab")
    page.settle()
    assert page.fields()["power_limit_w"] == "400"
    assert "power limit 400\xa0W" in page.tab.locator(".lead").inner_text()
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    body = {"family": "gemm", "device": "h200", "dtype": "bf16", "sizes": sizes, "power_limit_w": 400}
    answer = page.tab.request.post(server + "v1/predict", data=body).json()
    figures = page.tab.locator(".figure .big").all_inner_texts()
    assert figures[0] != usual
    assert figures[1] == f"{answer['power_w']['value']:.0f}\xa0W"
    assert "Without the power limit and the clock." in page.tab.locator(".answers").inner_text()
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert '"power_limit_w":400' in page.tab.get_by_label("The request").inner_text()
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    assert copy.tab.locator("[name=power_limit_w]").is_visible()
    assert copy.tab.locator(".figure .big").all_inner_texts() == figures
    copy.tab.get_by_role("tab", name="Compare").click()
    copy.settle()
    assert "here devices run as they come" in copy.tab.locator(".spec").inner_text()


def test_a_device_that_cannot_be_set_so_stands_beside_the_others(visit):
    page = visit(f"#/predict?{GEMM}&devices=h200,rtx-4090,epyc-9654&power_limit_w=500")
    assert page.tab.locator(".card:not(.refused)").count() == 1
    refused = page.tab.locator(".card.refused").all_inner_texts()
    assert "give 125 to 450 W" in refused[0]
    assert "is a CPU" in refused[1]
    page.goto(f"{BERT}h200,rtx-4090&power_limit_w=500")
    assert "give 125 to 450 W" in page.tab.locator(".refused").inner_text()
    assert page.tab.get_by_role("list", name="Time of a step by device").locator("li").count() == 1
    page.goto(f"{LLAMA}h200,l40s&power_limit_w=500")
    assert "350 W" in page.tab.locator(".refused").inner_text()
    assert page.tab.get_by_role("table", name="Services side by side").locator("tbody tr").count() == 1


def test_grids_are_offered_by_name(visit):
    page = visit(f"{LLAMA}l40s&grid=de")
    grid = page.tab.locator("[name=grid]")
    grid.focus()
    page.tab.locator("datalist option[value=fr]").wait_for(state="attached")
    assert page.tab.locator("datalist option[value=fr]").text_content() == "France"
    assert grid.get_attribute("list") == page.tab.locator("datalist").get_attribute("id")


@pytest.mark.parametrize("address", [f"#/predict?{GEMM}&devices=h200", f"{BERT}h200", f"{LLAMA}h200"])
@pytest.mark.parametrize(("name", "value", "words"), [
    ("power_limit_w", "20", "give 123 to 700 W"),
    ("power_limit_w", "much", "number"),
    ("clock_hz", "1400", "1200 MHz are 1.2e9"),
    ("grid", "germny", "the nearest are de (Germany)"),
])  # fmt: skip
def test_what_cannot_be_is_refused_at_its_field(visit, address, name, value, words):
    page = visit(f"{address}&{name}={value}")
    assert words in error_at(page, name)
    control = page.tab.locator(f"[name={name}]")
    assert control.is_visible()
    assert control.get_attribute("aria-invalid") == "true"
    control.fill("")
    page.settle()
    assert page.tab.locator(".field-error:visible").count() == 0
    assert name not in page.fields() or page.tab.evaluate("document.activeElement.name") == name


def test_a_model_under_a_limit_and_its_emissions(visit):
    page = visit(f"{BERT}h100-sxm,h200")
    before = page.tab.locator("table.compare").inner_text()
    page.tab.get_by_text("More settings").click()
    page.tab.locator("[name=power_limit_w]").fill("300")
    page.tab.locator("[name=grid]").fill("de")
    page.tab.locator("[name=grid]").blur()
    page.settle()
    assert page.fields()["power_limit_w"] == "300"
    assert page.fields()["grid"] == "de"
    assert page.tab.locator("table.compare").inner_text() != before
    assert "power limit 300\xa0W" in page.tab.locator(".lead").inner_text()
    assert "CO2e of a step" in page.tab.locator("table.compare thead").inner_text()
    assert re.search(r"\d\xa0[mµ]?g\b", page.tab.locator("table.compare tbody tr").first.inner_text())
    assert "Germany, 344 g per kWh" in page.tab.locator(".answers").inner_text()


def test_a_service_under_a_clock_and_its_emissions(visit):
    page = visit(f"{LLAMA}h100-sxm")
    page.tab.get_by_text("Power limit and CO2").click()
    page.tab.locator("[name=clock_hz]").fill("1.2e9")
    page.tab.locator("[name=grid]").fill("380")
    page.tab.locator("[name=grid]").blur()
    page.settle()
    assert page.fields()["clock_hz"] == "1.2e9"
    assert "clock 1200\xa0MHz" in page.tab.locator(".lead").inner_text()
    assert "CO2e of a million tokens" in page.tab.locator("table.compare thead").inner_text()
    answers = page.tab.locator(".answers").inner_text()
    assert "a number of the user's, 380 g per kWh" in answers
    assert "it ran without a power limit and a locked clock" in answers
    page.tab.locator("[name='plan.gpus']").fill("1")
    with page.tab.expect_request("**/v1/llm/plan") as asked:
        page.tab.get_by_role("button", name="Find plans").click()
    assert asked.value.post_data_json["clock_hz"] == 1.2e9
    page.tab.get_by_role("table", name="The best plan for each aim, simulated").wait_for()


def test_emissions_of_a_kernel_stand_below_its_energy(visit):
    page = visit(f"#/predict?{GEMM}&devices=h200,epyc-9654&grid=us")
    first, second = page.tab.locator(".figure:last-child .hint").all_inner_texts()
    assert re.match(r"[\d.]+\xa0µg \([\d.]+ to [\d.]+\xa0µg\) CO2e", first)
    assert "latency times power" in second
    assert "United States, 384 g per kWh" in page.tab.locator(".answers").inner_text()


def test_the_curve_of_limits_is_asked_for_when_it_is_opened(visit):
    page = visit(f"#/predict?{GEMM}&devices=h200,epyc-9654")
    asked = []
    page.tab.on("request", lambda request: asked.append(request.url) if "best-cap" in request.url else None)
    page.tab.locator("[name='sizes.m']").fill("2048")
    page.settle()
    assert not asked
    page.tab.get_by_text("Energy and time against the power limit").click()
    picture = page.tab.get_by_role("img", name="Energy and time in percent of those without a limit")
    picture.wait_for()
    assert picture.locator("path.line").count() == 2
    assert "is a CPU" in page.tab.locator(".answers .refused").last.inner_text()
    assert re.search(r"least energy at .*: \d+\xa0% less energy", page.tab.locator(".answers").inner_text())
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    copy.tab.get_by_role("img", name="Energy and time in percent of those without a limit").wait_for()
    copy.tab.get_by_text("Values as a table").last.click()
    assert copy.tab.get_by_role("table", name="Time and energy by power limit").locator("tbody tr").count() > 10


def test_a_kernel_beside_another(visit, server):
    page = visit(f"#/predict?{GEMM}&devices=h200,epyc-7003-vm-2c&threads=1", 360)
    assert not page.tab.get_by_label("The other kernel").count()
    page.tab.get_by_text("Beside another kernel on the same device").focus()
    page.tab.keyboard.press("Enter")
    rows = page.tab.get_by_role("table", name="Each kernel beside the other").locator("tbody tr")
    rows.nth(3).wait_for()
    page.tab.get_by_label("The other kernel").last.select_option("copy")
    page.tab.locator("[name='beside.sizes.rows']").fill("8192")
    page.tab.locator("[name='beside.sizes.rows']").press("Tab")
    rows.filter(has_text="copy bf16, rows\xa08\u202f192").first.wait_for()
    cols = int(page.fields()["beside.sizes.cols"])
    kernels = [
        {"family": "gemm", "dtype": "bf16", "threads": 1, "sizes": {"m": 4096, "n": 4096, "k": 4096}},
        {"family": "copy", "dtype": "bf16", "threads": 1, "sizes": {"rows": 8192, "cols": cols}},
    ]
    answer = page.tab.request.post(f"{server}v1/predict/colocated", data={"device": "h200", "kernels": kernels}).json()
    longer = [float(text.split("\t")[2].split()[0]) for text in rows.all_inner_texts()[:2]]
    assert longer == pytest.approx([kernel["slowdown"]["value"] for kernel in answer["kernels"]], rel=5e-3)
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 360
    # A link holds the neighbour; what it cannot be is said; folding the panel takes it out of the address.
    link = "#/" + page.tab.url.split("#/", 1)[1]
    copy = visit(link)
    copy.tab.get_by_role("table", name="Each kernel beside the other").wait_for()
    assert copy.tab.locator("[name='beside.sizes.rows']").input_value() == "8192"
    assert not copy.tab.locator("#remarks").inner_text()
    # A link that leaves sizes out, or has another family's, is filled in without a step of the history.
    steps = copy.tab.evaluate("history.length")
    copy.goto(f"#/predict?{GEMM}&devices=h200&beside=copy&beside.sizes.m=5")
    copy.tab.get_by_role("table", name="Each kernel beside the other").wait_for()
    assert {"beside.sizes.rows", "beside.sizes.cols"} <= copy.fields().keys()
    assert "beside.sizes.m" not in copy.fields()
    assert copy.tab.evaluate("history.length") <= steps + 1
    copy.goto(link.replace("beside.sizes.rows=8192", "beside.sizes.rows=many"))
    copy.tab.locator(".refused").filter(has_text="whole number").first.wait_for()
    copy.goto(link.replace("&threads=1", ""))
    copy.tab.locator(".refused").filter(has_text="threads").first.wait_for()
    copy.tab.get_by_text("Beside another kernel on the same device").click()
    copy.tab.wait_for_url(re.compile("^(?!.*beside)"))
