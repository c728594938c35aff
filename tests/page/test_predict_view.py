"""The first view: one kernel on one device or several."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BIG = "#/predict?family=gemm&dtype=bf16&sizes.m=512&sizes.n=12288&sizes.k=4096&sizes.batch=1&devices="
REFUSED = [
    ("sizes.m", "0", "between 1 and"),
    ("sizes.k", "many", "whole number"),
    ("sizes.n", "99999999999999", "between 1 and"),
    ("threads", "-1", "threads"),
    ("config.tile_m", "x", "whole number"),
]


def ask(server: str, path: str, body: Any) -> Any:
    request = urllib.request.Request(server + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def shown_seconds(text: str) -> float:
    number, unit = text.replace("\u202f", "").split("\xa0")
    return float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


def test_the_first_visit_shows_an_answer_and_an_address_that_holds_it(visit):
    page = visit("#/predict")
    assert page.fields()["view"] == "predict"
    assert {"family", "dtype", "devices", "sizes.m", "sizes.n", "sizes.k"} <= page.fields().keys()
    assert page.tab.locator(".figure .big").count() == 3
    page.tab.get_by_text("Answers come from the model").wait_for()


def test_numbers_are_those_of_the_service(visit, server):
    page = visit(BIG + "h200")
    answer = ask(server, "v1/predict", {"family": "gemm", "device": "h200", "dtype": "bf16",
                                        "sizes": {"m": 512, "n": 12288, "k": 4096}})  # fmt: skip
    figures = page.tab.locator(".figure")
    assert shown_seconds(figures.nth(0).locator(".big").inner_text()) == pytest.approx(
        answer["latency_s"]["value"], rel=5e-3
    )
    ends = [shown_seconds(text) for text in figures.nth(0).locator(".ends span:not(.to)").all_inner_texts()]
    assert ends == pytest.approx([answer["latency_s"]["lower"], answer["latency_s"]["upper"]], rel=5e-3)
    assert answer["bound"] in page.tab.locator(".why summary").inner_text()
    assert answer["method"] in page.tab.locator(".why").inner_text()
    assert page.tab.get_by_role("img", name=re.compile("Roofline")).count() == 1


def test_several_devices_are_several_cards_on_one_scale(visit):
    page = visit(BIG + "h200")
    page.choose_device("l40s")
    page.choose_device("mi300x")
    cards = page.tab.locator("article.card")
    assert cards.count() == 3
    assert page.fields()["devices"] == "nvidia-h200-sxm-141gb,nvidia-l40s,amd-mi300x"
    assert "Outside what was measured" in cards.nth(2).inner_text()
    page.tab.get_by_role("button", name="Remove NVIDIA L40S").click()
    page.settle()
    assert cards.count() == 2


def test_a_device_that_cannot_is_answered_in_words_beside_the_others(visit):
    page = visit(BIG + "h200")
    words = "no int4 on this device; it has bf16"

    def refuse_the_second(route):
        if "l40s" in route.request.post_data:
            error = {"field": "requests[1].dtype", "detail": words, "index": 1}
            route.fulfill(status=422, json={"detail": words, "errors": [error]})
        else:
            route.continue_()

    page.tab.route("**/v1/predict", refuse_the_second)
    page.choose_device("l40s")
    assert page.tab.locator("article.card").count() == 2
    assert words in page.tab.locator(".card.refused").inner_text()
    assert page.tab.locator("article.card .big").count() == 3
    assert page.tab.locator(".spec .alert").is_hidden()


def test_a_device_nobody_knows_is_said_at_the_field(visit):
    page = visit(BIG + "h900", wait=False)
    error = page.tab.locator("[data-field=devices] > .field-error")
    error.wait_for()
    assert "h900" in error.inner_text()
    assert "h900" in page.tab.locator(".chips").inner_text()


def test_no_device_at_all_is_said_at_the_field(visit):
    page = visit(BIG + "h200")
    page.tab.get_by_role("button", name="Remove NVIDIA H200 SXM 141 GB").click()
    error = page.tab.locator("[data-field=devices] > .field-error")
    error.wait_for()
    assert error.inner_text() == "Choose a device."
    assert "earlier question" in page.tab.locator(".outdated").inner_text()
    page.choose_device("l40s")
    assert page.tab.locator(".outdated").count() == 0


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_what_is_refused_is_said_at_its_field(visit, name, value, words):
    page = visit(BIG + "h200")
    page.tab.locator("details.more > summary").click()
    control = page.tab.locator(f"[name='{name}']")
    before = control.input_value()
    control.fill(value)
    error = page.tab.locator(f"[data-field='{name}'] > .field-error")
    error.wait_for()
    assert words in error.inner_text()
    assert control.get_attribute("aria-invalid") == "true"
    assert control.get_attribute("aria-describedby") == error.get_attribute("id")
    control.fill(before)
    page.settle()
    assert page.tab.locator(".field-error:visible").count() == 0
    assert page.tab.locator("[aria-invalid]").count() == 0


def test_every_family_can_be_chosen_and_is_answered(visit):
    page = visit(BIG + "h200")
    families = page.tab.locator("[name=family] option").all_inner_texts()
    assert len(families) >= 9
    for family in families:
        page.tab.locator("[name=family]").select_option(family)
        page.settle()
        answered = page.tab.locator(".lead strong").inner_text() == family
        assert answered or page.tab.locator(".spec .alert:visible").count() == 1, family


def test_the_shape_of_a_real_model_fills_the_sizes(visit):
    page = visit("#/predict?family=attention&devices=h200")
    presets = page.tab.get_by_label("Sizes of well-known models")
    assert presets.locator("option").count() > 20
    place = (
        presets.locator("option")
        .all_inner_texts()
        .index(next(text for text in presets.locator("option").all_inner_texts() if "kv_len" in text))
    )
    presets.select_option(index=place)
    page.settle()
    shape = dict(
        re.findall(r"(\w+)\s([\d\u202f]+)", presets.locator("option").nth(place).inner_text().replace("\xa0", " "))
    )
    assert shape
    for name, size in shape.items():
        assert page.tab.locator(f"[name='sizes.{name}']").input_value() == size.replace("\u202f", "")
        assert page.fields()[f"sizes.{name}"] == size.replace("\u202f", "")


def test_a_shape_leaves_the_variant_alone(visit):
    page = visit("#/predict?family=layernorm&variant=rmsnorm&devices=h200")
    page.tab.get_by_label("Sizes of well-known models").select_option(index=5)
    page.settle()
    assert page.fields()["variant"] == "rmsnorm"
    assert page.tab.locator("[name=variant]").input_value() == "rmsnorm"


def test_an_answer_that_comes_too_late_is_not_shown(visit):
    page = visit(BIG + "h200")
    stored = []

    def slow(route):
        if '"m":7,' in (route.request.post_data or ""):
            stored.append(route)
        else:
            route.continue_()

    page.tab.route("**/v1/predict", slow)
    page.tab.locator("[name='sizes.m']").fill("7")
    page.tab.wait_for_timeout(300)
    page.tab.locator("[name='sizes.m']").fill("8")
    page.settle()
    assert stored
    assert "m\xa08" in page.tab.locator(".lead").inner_text()


@pytest.mark.parametrize("devices", ["h200", "h200,l40s"])
def test_the_copied_curl_command_gives_the_same_answer(visit, devices):
    page = visit(BIG + devices)
    page.tab.get_by_role("button", name="Copy").click()
    page.tab.get_by_role("button", name="Copied").wait_for()
    command = page.tab.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True)
    answer = json.loads(done.stdout)
    first = answer["predictions"][0] if "," in devices else answer
    shown = page.tab.locator(".figure .big").first.inner_text()
    assert shown_seconds(shown) == pytest.approx(first["latency_s"]["value"], rel=5e-3)


def test_the_copied_python_runs(visit, tmp_path):
    page = visit(BIG + "h200")
    page.tab.get_by_role("radio", name="Python").check(force=True)
    page.tab.get_by_role("button", name="Copy").click()
    page.tab.get_by_role("button", name="Copied").wait_for()
    script = tmp_path / "ask.py"
    script.write_text(page.tab.evaluate("navigator.clipboard.readText()"), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "latency_s" in done.stdout


def test_the_json_is_the_request(visit, server):
    page = visit(BIG + "h200")
    page.tab.get_by_role("radio", name="JSON").check(force=True)
    assert ask(server, "v1/predict", json.loads(page.tab.locator("pre").inner_text()))["bound"]


@pytest.mark.parametrize("family", ["gemm", "attention", "layernorm"])
def test_named_sizes_of_well_known_models_are_answered(visit, family):
    page = visit(f"#/predict?family={family}&devices=h200")
    presets = page.tab.get_by_label("Sizes of well-known models")
    names = presets.locator("optgroup[label='By name'] option").all_inner_texts()
    assert any(name.startswith("Llama 3.1 70B: ") for name in names)
    for name in names:
        presets.select_option(label=name)
        page.settle()
        assert page.tab.locator(".spec .alert").is_hidden(), name
    # Sizes that are edited are those of no model any more.
    assert presets.locator("option:checked").inner_text() == names[-1]
    page.tab.locator("[name^='sizes.']").last.fill("77")
    page.settle()
    assert presets.input_value() == ""


def test_implementations_are_listed_by_device_and_format(visit):
    page = visit(BIG + "h200")
    page.tab.get_by_text("More settings").click()
    impl = page.tab.locator("[name=impl]")
    measured = impl.locator("optgroup[label='Measured here'] option")
    measured.first.wait_for(state="attached")
    assert any(re.match(r"torch \([\d\u202f]+ rows\)", text) for text in measured.all_inner_texts())
    impl.select_option("torch")
    page.settle()
    assert page.fields()["impl"] == "torch"
    copy = visit("#/predict?family=gemm&devices=h200&impl=mine")
    assert copy.tab.locator("[name=impl]").input_value() == "mine"
    error = copy.tab.locator("[data-field='impl'] > .field-error")
    error.wait_for()
    assert "no gemm of impl 'mine' was measured" in error.inner_text()


def test_the_nearest_measured_case_is_shown_with_its_distance(visit):
    page = visit("#/predict?family=gemm&dtype=bf16&sizes.m=500&sizes.n=4096&sizes.k=4096&devices=h200,gb200&impl=torch")
    nearby = page.tab.get_by_role("table", name="The nearest measured cases")
    assert "a factor of" in nearby.inner_text()
    assert "NVIDIA GB200" in page.tab.get_by_text("Nothing that is like this ships").inner_text()


def test_an_implementation_that_is_no_name_is_refused_at_its_field(visit):
    page = visit(f"{BIG}h200&impl=a%20b")
    error = page.tab.locator("[data-field='impl'] > .field-error")
    error.wait_for()
    assert "it is a name such as torch" in error.inner_text()


def test_a_number_that_is_huge_is_called_a_number(visit):
    page = visit(BIG.replace("sizes.m=", "sizes.m=99999999999999999999") + "h200")
    error = page.tab.locator("[data-field='sizes.m'] .field-error")
    error.wait_for()
    assert "text" not in error.inner_text()
    assert "2^53" in error.inner_text()
