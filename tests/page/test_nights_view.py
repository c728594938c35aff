"""What nights did, as the page shows it, and the report of one in a browser that holds it to its policy."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

NIGHTS = "**/v1/nights?*"


def shown(visit, answer):
    page = visit("#/card")
    page.tab.route(NIGHTS, lambda route: route.fulfill(json=answer))
    page.goto("#/nights")
    return page


def test_nights_are_listed_newest_first_with_what_came_of_them(visit):
    page = visit("#/nights")
    assert page.tab.locator(".newest h2").inner_text() == "Newest night: running"
    rows = page.tab.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [
        ["2026-11-22 22:00", "running"], ["2026-11-21 22:00", "promoted"], ["2026-11-20 22:00", "kept"],
        ["2026-11-19 22:00", "cannot be read"],
    ]  # fmt: skip
    assert rows[1].split("\t")[2:] == [
        "rack",
        "NVIDIA H200 SXM 141 GB, some-other",
        "661",
        "7.1\xa0%",
        "1",
        "v13",
        "Report",
    ]
    assert "damaged" in rows[3]
    # One that still runs has neither all of its rows nor a report.
    assert page.tab.get_by_role("link", name="Report of").count() == 2
    pictures = page.tab.locator("svg[role=img]").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert pictures == [
        "Mean error by night, %. From 7.0\xa0% to 7.1\xa0% over 2 nights.",
        "Rows by night. 1\u202f321 rows over 2 nights.",
    ]
    assert page.tab.locator("#said").inner_text().endswith("the newest: running")


def test_values_are_read_with_the_keyboard(visit):
    page = visit("#/nights")
    reader = page.tab.get_by_role("slider", name="Values of: Rows by night")
    reader.focus()
    page.tab.keyboard.press("End")
    assert reader.get_attribute("aria-valuetext") == "2026-11-21 22:00; 651 ok; 10 failed"


def test_what_needs_a_person_is_said_as_text(visit, server):
    page = visit("#/nights")
    with page.tab.expect_response(NIGHTS) as result:
        page.tab.reload()
    page.settle()
    answer = result.value.json()
    answer["nights"] = answer["nights"][1:]
    answer["nights"][0]["plan"] = "<img src=x onerror=alert(1)>"
    page = shown(visit, answer)
    assert page.tab.locator(".newest .cautions li").inner_text() == "Half of the answers <b>change</b>: look at them."
    assert page.tab.locator("#panel img, #panel b, #panel script").count() == 0


def test_the_report_opens_and_keeps_to_its_policy(visit):
    page = visit("#/nights")
    with page.tab.context.expect_page() as opened:
        page.tab.get_by_role("link", name="Report of 20261121T220000Z-rack").click()
    report = opened.value
    errors = []
    report.on("console", lambda line: errors.append(line.text) if line.type in ("error", "warning") else None)
    # Once more, now that what it says to the console is heard. A tab that has not loaded yet cannot be reloaded.
    report.wait_for_load_state()
    answer = report.goto(report.url)
    assert "script-src" not in answer.headers["content-security-policy"]
    assert report.locator("h1").inner_text() == "Night 20261121T220000Z-rack"
    # The style sheet inside the page is taken, though nothing else inline would be.
    width = "getComputedStyle(document.querySelector('main')).maxWidth"
    add = (
        "const s = document.createElement('style'); s.textContent = 'main { max-width: 5px }'; document.head.append(s)"
    )
    assert report.evaluate(width) == "1160px"
    assert report.evaluate(f"() => {{ {add}; return {width} }}") == "1160px"
    assert all("style-src" in text for text in errors)


def test_the_report_of_a_night_is_for_everyone(visit, server, axe):
    page = visit("#/nights")
    page.tab.goto(server + "nights/20261121T220000Z-rack")
    page.tab.evaluate(axe)
    for width in (360, 1440):
        page.tab.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.tab.emulate_media(color_scheme=theme)
            result = page.tab.evaluate(
                "() => axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa']})"
            )
            assert [(one["id"], one["nodes"][0]["target"], theme) for one in result["violations"]] == []


def test_pages_of_nights_and_a_report_behind_a_key(visit, server):
    page = visit("#/nights")
    with page.tab.expect_response(NIGHTS) as result:
        page.tab.reload()
    page.settle()
    answer = result.value.json()
    page = shown(visit, answer | {"total": 70})
    query = []
    page.tab.on("request", lambda one: query.append(one.url.rpartition("/")[2]))
    page.tab.get_by_role("button", name="Older").click()
    page.settle()
    # The page also asks now and then which model serves.
    assert [one for one in query if one.startswith("nights")] == ["nights?offset=30&limit=30"]
    assert page.fields()["nights.offset"] == "30"
    page.tab.evaluate("sessionStorage.setItem('kernelcast-key', 'kc_whatever')")
    with page.tab.expect_download() as remaining:
        page.tab.get_by_role("link", name="Report of 20261121T220000Z-rack").click()
    assert remaining.value.suggested_filename == "20261121T220000Z-rack.html"


def test_without_any_night_the_page_says_how_to_have_one(visit):
    page = shown(visit, {"total": 0, "offset": 0, "nights": []})
    assert "kernelcast measure nightly PLAN.yaml" in page.tab.locator(".answers").inner_text()
    page.tab.unroute(NIGHTS)
    page.tab.route(
        NIGHTS, lambda route: route.fulfill(status=500, json={"detail": "the folder of nights cannot be read"})
    )
    page.goto("#/card")
    page.goto("#/nights")
    assert page.tab.locator("[role=alert]:visible").inner_text() == "the folder of nights cannot be read"
