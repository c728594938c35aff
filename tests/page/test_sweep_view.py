"""The second view: one number of the spec as a curve."""

from __future__ import annotations

import csv
import json
import re
import subprocess

import pytest

pytestmark = pytest.mark.slow

SWEEP = (
    "#/sweep?family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096&devices=h200,l40s"
    "&sweep.dim=m&sweep.from=16&sweep.to=4096&sweep.points=9"
)

# Rows of this repository's own campaign on an H200.
MEASURED = (
    "#/sweep?family=layernorm&variant=rmsnorm&impl=torch&dtype=bf16&sizes.rows=512&sizes.cols=8192&devices=h200"
    "&sweep.dim=rows&sweep.from=1&sweep.to=65536"
)


def test_curves_of_two_devices_with_their_table(visit):
    page = visit(SWEEP)
    picture = page.tab.get_by_role("img", name=re.compile("Latency against m"))
    assert picture.locator("path.band").count() == 2
    assert "NVIDIA L40S" in picture.get_attribute("aria-label")
    page.tab.get_by_text("Values as a table").click()
    rows = page.tab.locator("tbody tr")
    assert rows.count() == 9
    assert rows.first.locator("th").inner_text() == "16"
    assert rows.last.locator("th").inner_text() == "4\u202f096"


def test_values_are_read_with_the_arrow_keys(visit):
    page = visit(SWEEP)
    slider = page.tab.get_by_role("slider", name="Values of: Latency against m")
    slider.focus()
    message = [slider.get_attribute("aria-valuetext")]
    for key in ("ArrowRight", "End", "Home"):
        slider.press(key)
        message.append(slider.get_attribute("aria-valuetext"))
    assert message[0].startswith("m = 16;")
    assert message[1] != message[0]
    assert message[2].startswith("m = 4\u202f096;")
    assert message[3] == message[0]
    assert "µs" in message[0]
    assert page.tab.locator(".tip").is_visible()
    slider.press("Escape")
    assert page.tab.locator(".tip").is_hidden()


def test_the_pointer_reads_the_nearest_value(visit):
    page = visit(SWEEP)
    box = page.tab.locator(".reader").bounding_box()
    page.tab.mouse.move(box["x"] + box["width"] - 20, box["y"] + 100)
    assert page.tab.locator(".tip strong").inner_text() == "m = 4\u202f096"


def test_the_csv_holds_every_number_of_the_answer(visit, tmp_path):
    page = visit(SWEEP)
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Download CSV", exact=True).click()
    assert download.value.suggested_filename == "gemm-m.csv"
    path = tmp_path / "curve.csv"
    download.value.save_as(path)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 18
    assert {row["device"] for row in rows} == {"nvidia-h200-sxm-141gb", "nvidia-l40s"}
    for row in rows:
        assert float(row["latency_s_lower"]) <= float(row["latency_s"]) <= float(row["latency_s_upper"])


def test_another_dimension_gets_a_range_of_its_own(visit):
    page = visit(SWEEP)
    page.tab.get_by_label("Vary").select_option("k")
    page.settle()
    assert page.fields()["sweep.dim"] == "k"
    assert page.fields()["sweep.from"] == "256"
    assert page.tab.get_by_role("img", name=re.compile("Latency against k")).count() == 1


def test_power_and_linear_axes_are_kept_in_the_address(visit):
    page = visit(SWEEP)
    page.tab.get_by_label("Show", exact=True).select_option("power_w")
    page.tab.get_by_label("Upright axis").select_option("linear")
    page.settle()
    assert page.tab.get_by_role("img", name=re.compile("Power against m")).count() == 1
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    assert copy.tab.get_by_role("img", name=re.compile("Power against m")).count() == 1
    assert copy.tab.get_by_label("Upright axis").input_value() == "linear"


def test_what_was_measured_is_drawn_over_the_curve(visit):
    page = visit(MEASURED)
    rings = page.tab.locator("circle.hollow").count()
    assert rings >= 5
    assert "Rings: measured." in page.tab.locator(".plot + .hint").inner_text()
    page.tab.get_by_text(f"{rings} measured values as a table").click()
    assert page.tab.get_by_role("region", name="Measured").locator("tbody tr").count() == rings


def test_where_nothing_like_it_was_measured_the_page_says_so(visit):
    page = visit(MEASURED.replace("8192", "8191"))
    assert page.tab.locator("circle.hollow").count() == 0
    assert "Nothing was measured that is like this spec." in page.tab.locator(".plot + .hint").inner_text()


def test_a_range_that_cannot_be_swept_is_said(visit):
    page = visit(SWEEP)
    control = page.tab.locator("[name='sweep.from']")
    control.fill("0")
    page.tab.locator(".spec .alert").wait_for()
    assert page.tab.locator(".spec").inner_text().count("0")
    control.fill("16")
    page.settle()
    assert page.tab.locator(".spec .alert").is_hidden()


def test_the_copied_curl_command_gives_the_curve(visit):
    page = visit(SWEEP)
    command = page.tab.locator("pre").inner_text()
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    assert len(json.loads(done.stdout)["curves"]) == 2
