"""What all views share: the address, history, tabs, themes, what the browser is allowed, and the width of a phone."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

SPEC = "family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096&devices=h200"


def test_tabs_keep_the_spec_and_back_returns(visit):
    page = visit(f"#/predict?{SPEC}")
    page.tab.get_by_role("tab", name="Sweep").click()
    page.settle()
    assert page.fields()["view"] == "sweep"
    assert page.fields()["sizes.m"] == "512"
    page.tab.get_by_role("tab", name="Compare").click()
    page.settle()
    page.tab.go_back()
    page.tab.go_back()
    page.settle()
    assert page.fields()["view"] == "predict"
    assert page.tab.get_by_role("tab", name="Kernel").get_attribute("aria-selected") == "true"
    page.tab.go_forward()
    page.settle()
    assert page.fields()["view"] == "sweep"


def test_an_edit_is_one_step_back(visit):
    page = visit(f"#/predict?{SPEC}")
    size = page.tab.locator("[name='sizes.m']")
    size.fill("1024")
    size.blur()
    page.settle()
    assert page.fields()["sizes.m"] == "1024"
    page.tab.go_back()
    page.settle()
    assert page.tab.locator("[name='sizes.m']").input_value() == "512"


def test_a_copied_address_restores_everything(visit):
    page = visit(f"#/predict?{SPEC},l40s&variant=bias&impl=torch&cache_state=cold&coverage=0.8&threads=2")
    page.settle()
    copy = visit("#/" + page.tab.url.split("#/", 1)[1])
    for name in ("family", "dtype", "variant", "impl", "cache_state", "coverage", "threads", "sizes.m", "sizes.k"):
        assert copy.tab.locator(f"[name='{name}']").input_value() == page.tab.locator(f"[name='{name}']").input_value()
    assert copy.tab.locator(".answers").inner_text() == page.tab.locator(".answers").inner_text()


@pytest.mark.parametrize("fragment", [
    "#/nothing?family=nothing", "#?&&==", "#/predict?family=<script>alert(1)</script>", "#/predict?devices=" + "x" * 3000,
    "#/sweep?sweep.dim=__proto__&sweep.from=x", "#/compare?sort=constructor&picture=__proto__&among=,,", "#/%E0%A4%A",
])  # fmt: skip
def test_a_broken_address_breaks_nothing(visit, fragment):
    page = visit(fragment, wait=False)
    page.tab.locator(".spec").wait_for()
    page.tab.get_by_role("tab", name="Compare").click()
    page.tab.locator(".answers").wait_for()
    assert page.tab.locator("script").count() == 2


def test_answers_cannot_become_elements(visit):
    page = visit(f"#/predict?{SPEC}")
    errors = [{"field": "sizes.m", "detail": "<b id=evil>no</b>"}]
    problem = {"detail": "<img src=x onerror=alert(1)>", "errors": errors}
    page.tab.route("**/v1/predict", lambda route: route.fulfill(status=422, json=problem))
    page.tab.locator("[name='sizes.m']").fill("5")
    page.tab.locator("[data-field='sizes.m'] .field-error").wait_for()
    assert page.tab.locator("#evil").count() == 0
    assert "<b id=evil>" in page.tab.locator("[data-field='sizes.m'] .field-error").inner_text()


@pytest.mark.parametrize(
    "answer", [{"status": 500, "body": "<html>bad gateway</html>"}, {"status": 200, "body": "not json"}]
)
def test_an_answer_that_is_none_is_said(visit, answer):
    page = visit(f"#/predict?{SPEC}")
    page.tab.route("**/v1/predict", lambda route: route.fulfill(**answer))
    page.tab.locator("[name='sizes.m']").fill("5")
    page.tab.locator(".spec .alert").wait_for()
    assert page.tab.locator(".spec .alert").inner_text()


def test_a_server_that_is_gone_is_said(visit):
    page = visit(f"#/predict?{SPEC}")
    page.tab.route("**/v1/predict", lambda route: route.abort())
    page.tab.locator("[name='sizes.m']").fill("5")
    page.tab.get_by_role("alert").get_by_text("The service did not answer").wait_for()


def test_the_theme_is_chosen_and_kept(visit):
    page = visit(f"#/predict?{SPEC}")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.tab.evaluate(ground)
    page.tab.get_by_role("button", name="Change between light and dark").click()
    dark = page.tab.evaluate(ground)
    assert light != dark
    page.tab.reload()
    page.tab.locator(".spec").wait_for()
    assert page.tab.evaluate(ground) == dark


def test_the_policy_forbids_inline_code_and_other_hosts(visit, server):
    page = visit(f"#/predict?{SPEC}", wait=False)
    with page.tab.expect_response(lambda response: response.url == server) as result:
        page.tab.reload()
    policy = result.value.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
    page.tab.locator(".spec").wait_for()


def test_nothing_is_wider_than_a_phone(visit, view):
    page = visit(view, 360)
    page.settle()
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 360


def test_paper_shows_answers_without_controls(visit):
    page = visit(f"#/predict?{SPEC}")
    page.tab.emulate_media(media="print")
    assert page.tab.locator(".spec").is_hidden()
    assert page.tab.locator(".figure .big").first.is_visible()
    assert page.tab.locator("svg[role=img]").is_visible()


@pytest.mark.parametrize(("fragment", "said"), [
    ("#/nothing", "There is no view “nothing”; LLM service is shown."),
    (f"#/predict?{SPEC}&size.m=5", "fields that this page does not know: size.m"),
    (f"#/predict?{SPEC}&llm.gpus=8&sweep.low=1", "fields that this page does not know: llm.gpus, sweep.low"),
    (f"#/compare?{SPEC}&among=h200&picture=beauty", "picture cannot be “beauty”; latency_s is shown."),
    (f"#/compare?{SPEC}&among=h200&price_per_hour.h200=cheap", "price_per_hour.h200 cannot be “cheap”"),
    ("#/model?model.devices=h200&phase=sleep", "phase cannot be “sleep”; decode is shown."),
    (f"#/sweep?{SPEC}&sweep.points=5&sweep.target=joy", "sweep.target cannot be “joy”; latency_s is shown."),
])  # fmt: skip
def test_what_an_address_asks_for_and_does_not_get_is_said(visit, fragment, said):
    page = visit(fragment)
    assert said in page.tab.locator("#remarks").inner_text()
    page.goto(f"#/predict?{SPEC}")
    page.tab.locator("#remarks").wait_for(state="hidden")


def test_what_a_view_writes_into_its_address_is_known(visit, view):
    page = visit(view)
    assert page.tab.locator("#remarks").is_hidden()


def test_fields_of_plans_and_of_guesses_are_known(visit):
    page = visit("#/llm?llm.devices=h100-sxm&llm.tp=1&output_tokens=64&speculate=3&acceptance=0.7&plan.tpot_s=0.05")
    assert page.tab.locator("#remarks").is_hidden()


def test_questions_lead_to_the_views_that_answer_them(visit):
    page = visit("")
    questions = page.tab.get_by_role("navigation", name="What do you want to know?").get_by_role("link")
    assert [link.split("\n")[0] for link in questions.all_inner_texts()] == [
        "An LLM service", "A model on GPUs", "A kernel",
    ]  # fmt: skip
    for place, view in ((2, "predict"), (1, "model"), (0, "llm")):
        questions.nth(place).click()
        page.settle()
        assert page.fields()["view"] == view
        assert questions.nth(place).get_attribute("aria-current") == "page"


def test_the_first_view_needs_few_requests(visit, server):
    page = visit("", wait=False)
    asked = []
    page.tab.on("request", lambda request: asked.append(request.url.removeprefix(server)))
    page.tab.reload()
    page.tab.locator(".spec").wait_for()
    before_form = asked[: next(place for place, url in enumerate(asked) if url.startswith("v1/llm"))]
    assert len(before_form) <= 9, before_form
    sizes = page.tab.evaluate(
        "performance.getEntriesByType('resource').filter((one) => !one.name.includes('v1/llm'))"
        ".map((one) => one.encodedBodySize)"
    )
    assert sum(sizes) < 70_000
