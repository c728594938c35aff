"""The third view: one kernel on every device."""

from __future__ import annotations

import csv
import json
import subprocess
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow
GEMM = "family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096"

COMPARE = "#/compare?family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096"
H200 = "nvidia-h200-sxm-141gb"


def first_column(page):
    return [text.split("\n")[0] for text in page.tab.locator("table.compare tbody th").all_inner_texts()]


def test_every_device_is_in_the_table_and_the_picture(visit):
    page = visit(COMPARE)
    devices = page.tab.locator("table.compare tbody tr").count()
    assert devices > 20
    assert page.tab.locator(".ranges li").count() == devices


def test_heads_sort_and_the_address_holds_it(visit):
    page = visit(COMPARE)
    by_time = first_column(page)
    page.tab.get_by_role("button", name="Energy", exact=False).first.click()
    by_energy = first_column(page)
    assert sorted(by_time) == sorted(by_energy)
    assert by_time != by_energy
    head = page.tab.locator("th[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    page.tab.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert page.fields()["sort"] == "energy_j"
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    assert first_column(copy) == first_column(page)


def test_what_cannot_be_answered_is_last_in_either_direction(visit):
    page = visit(COMPARE + "&among=h200,epyc-9005-vm-2c&sort=power_w")
    first = first_column(page)
    page.goto(COMPARE + "&among=h200,epyc-9005-vm-2c&sort=power_w&descending=true")
    unknown = page.tab.locator("table.compare tbody tr").last.inner_text()
    if "unknown" in unknown:
        assert first_column(page) == first


def test_refusals_are_in_words(visit):
    page = visit(COMPARE + "&among=h200")
    words = "no int4 on this device; it has bf16"

    def refuse_the_last(route):
        answer = route.fetch().json()
        answer["answers"][-1] |= {"prediction": None, "refusal": words, "flops_per_s": None, "of_bound": None}
        route.fulfill(json=answer)

    page.tab.route("**/v1/compare", refuse_the_last)
    page.choose_device("l40s")
    refused = page.tab.locator(".panel.refused")
    assert refused.locator("dt").all_inner_texts() == ["NVIDIA L40S"]
    assert refused.locator("dd").inner_text() == words
    assert page.tab.locator("table.compare tbody tr").count() == 1


def test_a_price_gives_the_cost_and_is_kept(visit):
    page = visit(COMPARE + "&among=h200,l40s")
    price = page.tab.get_by_label("Price per hour of NVIDIA H200 SXM 141 GB")
    price.fill("3.6")
    price.blur()
    page.settle()
    assert page.fields()[f"price_per_hour.{H200}"] == "3.6"
    row = page.tab.locator("table.compare tbody tr", has_text="H200")
    micros = row.locator("td strong").first.inner_text()
    # 3.6 an hour is 0.001 a second: a million calls of so many microseconds cost a thousandth of as many.
    assert micros.endswith("µs")
    cost = float(row.locator("td strong").last.inner_text())
    assert abs(cost - float(micros.split("\xa0")[0]) / 1000) <= 0.006 * cost
    page.tab.get_by_label("Picture of").select_option("cost_per_million_calls")
    assert page.tab.locator(".ranges li").count() == 1
    assert "no price yet" in page.tab.locator(".answers").inner_text()


def test_typing_a_price_keeps_the_focus(visit):
    page = visit(COMPARE + "&among=h200,l40s")
    price = page.tab.get_by_label("Price per hour of NVIDIA L40S")
    price.focus()
    page.tab.keyboard.type("2")
    page.settle()
    page.tab.keyboard.type("5")
    assert price.input_value() == "25"


def test_a_price_that_is_none_is_marked_and_not_sent(visit):
    page = visit(COMPARE + "&among=h200")
    price = page.tab.get_by_label("Price per hour of NVIDIA H200 SXM 141 GB")
    price.fill("cheap")
    assert price.get_attribute("aria-invalid") == "true"
    assert "cheap" not in page.tab.url


def test_a_price_in_the_address_of_a_device_that_is_not_compared_is_left_out(visit):
    page = visit(COMPARE + f"&among=l40s&price_per_hour.{H200}=3")
    assert page.tab.locator("table.compare tbody tr").count() == 1


def test_the_copied_curl_command_compares(visit):
    page = visit(COMPARE + "&among=h200,l40s")
    done = subprocess.run(["bash", "-c", page.tab.locator("pre").inner_text()], capture_output=True, text=True,
                          timeout=120, check=True)  # fmt: skip
    assert [item["device"] for item in json.loads(done.stdout)["answers"]] == [H200, "nvidia-l40s"]


def test_a_comparison_is_downloaded_as_picture_and_numbers(visit, tmp_path):
    page = visit(f"#/compare?{GEMM}&among=h200,l40s,gb200")
    files = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.tab.expect_download() as download:
            page.tab.get_by_role("button", name=f"Download {kind}").click()
        files[kind] = download.value.path().read_bytes()
        assert download.value.suggested_filename == f"compare.{kind.lower()}"
    picture = ElementTree.fromstring(files["SVG"])
    texts = [node.text or "" for node in picture.iter() if node.tag.endswith("text")]
    assert "Latency by device" in texts
    assert "NVIDIA L40S" in texts
    assert b"class=" not in files["SVG"]
    assert b"var(" not in files["SVG"]
    assert files["PNG"].startswith(b"\x89PNG")
    assert int.from_bytes(files["PNG"][16:20], "big") > 2000
    lines = list(csv.DictReader(files["CSV"].decode().splitlines()))
    assert {line["device"] for line in lines} == {"nvidia-h200-sxm-141gb", "nvidia-l40s", "nvidia-gb200"}
    assert all(float(line["latency_s_lower"]) <= float(line["latency_s"]) for line in lines)


def test_why_two_devices_have_the_same_answer_is_said(visit):
    add = "family=elementwise&variant=add&dtype=fp32&sizes.rows=4096&sizes.cols=4096"
    page = visit(f"#/compare?{add}&among=v100-sxm-16gb,v100-sxm-32gb,h200")
    words = page.tab.get_by_text("have the same answer").inner_text()
    assert "16 GB" in words
    assert "32 GB" in words
    assert "H200" not in words
    assert "none of them was measured" in words
