"""The best configurations of a kernel on a device."""

from __future__ import annotations

import json
import subprocess

import pytest

pytestmark = pytest.mark.slow

TILES = "#/tiles?family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096&devices=h200"
RANK = "**/v1/rank"


def rows(page):
    return page.tab.locator("table.ranking tbody tr")


def answer_of(page):
    """What the service answers to the request that the page shows."""
    shown = page.tab.locator("pre[aria-label='The request']").inner_text()
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def test_the_ranking_is_that_of_the_service(visit):
    page = visit(TILES + "&tiles.top=5")
    answer = answer_of(page)
    assert rows(page).count() == len(answer["ranked"]) == 5
    # Where all that are shown are tied, the sentence above them says so, and no line is marked.
    assert page.tab.locator(".badge").count() == (answer["tied"] if 1 < answer["tied"] < 5 else 0)
    assert f"{answer['considered']} configurations considered" in page.tab.locator(".lead").inner_text()
    assert answer["method"] in page.tab.locator(".lead").inner_text()
    best = answer["ranked"][0]
    heads = page.tab.locator("table.ranking thead th").all_inner_texts()
    assert rows(page).first.locator("td").nth(heads.index("tile_m") - 1).inner_text() == str(best["config"]["tile_m"])
    assert page.tab.locator(".bar-cell .interval").count() == 5


def test_what_is_tied_is_said_in_words(visit):
    page = visit(TILES)
    words = page.tab.locator(".tied")
    assert "marked “tied”" in words.inner_text()

    def one_ahead(route):
        answer = route.fetch().json()
        route.fulfill(json=answer | {"tied": 1})

    page.tab.route(RANK, one_ahead)
    page.tab.locator("[name='sizes.m']").fill("1024")
    page.tab.locator(".tied", has_text="faster than the others").wait_for()
    assert page.tab.locator(".badge").count() == 0


def test_own_configurations_are_ranked_and_kept_in_the_address(visit):
    page = visit(TILES)
    page.tab.get_by_text("Configurations of your own").click()
    own = [{"tile_m": 64, "tile_n": 64, "tile_k": 32}, {"tile_m": 128, "tile_n": 64, "tile_k": 32}]
    page.tab.get_by_label("A JSON list").fill(json.dumps(own))
    page.tab.get_by_label("A JSON list").blur()
    page.settle()
    assert rows(page).count() == 2
    page.tab.reload()
    page.settle()
    assert rows(page).count() == 2
    assert json.loads(page.tab.get_by_label("A JSON list").input_value()) == own


def test_own_configurations_that_are_wrong_are_refused_at_their_field(visit):
    page = visit(TILES)
    page.tab.get_by_text("Configurations of your own").click()
    box = page.tab.get_by_label("A JSON list")
    error = page.tab.locator("[data-field=configs] .field-error")
    for text, words in (
        ("[{", "This is no JSON"),
        ('[{"tile_m": 64}, {"tile_z": 3}]', "tile_z of configuration 2: gemm has no config 'tile_z'"),
        ("[]", "at least one configuration"),
        ("[3]", "configuration 1: a configuration must be an object"),
    ):
        box.fill(text)
        error.filter(has_text=words).wait_for()
        assert box.get_attribute("aria-invalid") == "true"
    box.fill("")
    page.settle()
    assert error.is_hidden()
    assert rows(page).count() == 20


def test_a_family_without_known_configurations_says_so(visit):
    page = visit("#/tiles?family=layernorm&devices=h200")
    assert "no configurations are known" in page.tab.locator("[data-field=configs] .field-error").inner_text()


def test_predict_takes_a_configuration_over(visit):
    page = visit(TILES)
    page.tab.get_by_role("link", name="Predict configuration 2", exact=True).click()
    page.tab.locator(".figure .big").first.wait_for()
    fields = page.fields()
    assert fields["view"] == "predict"
    assert fields["impl"] == "triton"
    assert int(fields["config.tile_m"]) > 0
    page.tab.go_back()
    page.tab.locator("table.ranking").wait_for()


def test_device_and_count_are_chosen_and_downloaded(visit):
    page = visit(TILES)
    page.tab.get_by_label("Device", exact=True).select_option("nvidia-l40s")
    page.settle()
    page.tab.get_by_label("How many of the best").select_option("5")
    page.settle()
    assert page.fields()["tiles.device"] == "nvidia-l40s"
    assert "L40S" in page.tab.locator(".lead").inner_text()
    with page.tab.expect_download() as result:
        page.tab.get_by_role("button", name="Download JSON").click()
    assert len(json.loads(result.value.path().read_text(encoding="utf-8"))) == 5
