"""What keyboards, screen readers and other eyes need."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

# Rules beyond WCAG's that a page like this is to keep as well. The themes differ in colours alone.
RULES = {
    "light": {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
    "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}},
}
WHERE = "(({tagName, id, name, className}) => tagName + (id || name || className))(document.activeElement)"
OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"


def test_axe_finds_nothing(visit, axe, view):
    page = visit(view)
    # Through the debugger, which the page's policy does not bind.
    page.tab.evaluate(axe)
    result = {}
    for width in (360, 1440):
        page.tab.set_viewport_size({"width": width, "height": 900})
        for theme, rules in RULES.items():
            page.tab.emulate_media(color_scheme=theme)
            page.tab.evaluate(OPEN_ALL)
            options = rules | {"resultTypes": ["violations"]}
            for item in page.tab.evaluate("(options) => axe.run(document, options)", options)["violations"]:
                for node in item["nodes"]:
                    result[item["id"], str(node["target"])] = (width, theme, node["failureSummary"])
    assert result == {}


def test_the_keyboard_alone_is_enough(visit):
    page = visit("#/predict?family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096&devices=h200")
    press = page.tab.keyboard.press

    def focused():
        return page.tab.evaluate("(({ name, id, className }) => name || id || className)(document.activeElement)")

    press("Tab")
    assert focused() == "skip"
    press("Enter")
    assert focused() == "panel"
    page.tab.get_by_role("tab", name="Kernel").focus()
    press("ArrowRight")
    assert focused() == "tab-sweep"
    press("Enter")
    page.settle()
    assert page.fields()["view"] == "sweep"
    press("End")
    press("Home")
    assert focused() == "tab-llm"
    press("ArrowRight")
    press("ArrowRight")
    assert focused() == "tab-predict"
    press(" ")
    page.settle()
    # Past the three questions.
    for _ in range(4):
        press("Tab")
    assert focused() == "family"
    press("Tab")
    assert page.tab.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove NVIDIA H200 SXM 141 GB"
    press("Tab")
    press("Enter")
    press("Tab")
    page.tab.keyboard.type("l40s")
    press("Enter")
    page.settle()
    assert page.tab.locator("article.card").count() == 2


def test_tab_goes_through_the_whole_page_and_leaves_it(visit):
    page = visit("#/sweep?family=gemm&devices=h200&sweep.points=5")
    seen = []
    for _ in range(80):
        page.tab.keyboard.press("Tab")
        seen.append(page.tab.evaluate(WHERE))
        if seen[-1].startswith("BODY"):
            break
    assert seen[-1].startswith("BODY"), seen
    assert any("reader" in item for item in seen)
    assert len(seen) > 15


def test_answers_and_refusals_are_read_out(visit):
    page = visit("#/predict?family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096&devices=h200")
    message = page.tab.locator("#said")
    assert message.get_attribute("role") == "status"
    assert "NVIDIA H200 SXM 141 GB" in message.inner_text()
    page.tab.locator("[name='sizes.m']").fill("0")
    alert = page.tab.locator(".spec .alert")
    alert.wait_for()
    assert alert.get_attribute("role") == "alert"


def test_nothing_moves_for_those_who_asked_for_that(visit):
    page = visit("", reduced_motion="reduce")
    assert page.tab.evaluate("getComputedStyle(document.querySelector('.answers')).transitionDuration") in (
        "0s",
        "1e-06s",
    )
