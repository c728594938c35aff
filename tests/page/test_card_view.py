"""The model's card, and that no text of it becomes anything but text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

STATIC = Path(__file__).parents[2] / "api" / "page" / "static"
HOSTILE = """# Title <img src=x onerror=alert(1)>

<script>alert(1)</script>

<iframe src="https://example.org"></iframe>

[script](javascript:alert(1)) [encoded](java&#115;cript:alert(1)) [newline](<java
script:alert(1)>) [data](data:text/html,<script>alert(1)</script>) [file](../../etc/passwd) [good](https://example.org/a?b=1)
![picture](https://example.org/x.png) <https://example.org/auto> <javascript:alert(2)>

| a<b onclick=alert(1)> | b |
|---|---|
| <svg onload=alert(1)> | `<script>` |

> quoted &lt;b&gt; &#x3c;i&#x3e; &bogus;

```html
<script>alert(3)</script>
```

1. one
   - [x] two

#### Deep
"""


def with_card(visit, text, **answer):
    page = visit("#/accuracy")
    show_card(page, text, **answer)
    return page


def show_card(page, text, **answer):
    page.tab.unroute("**/v1/model-card")
    fulfilled = {"body": text, "content_type": "text/markdown"} | answer
    page.tab.route("**/v1/model-card", lambda route: route.fulfill(**fulfilled))
    page.tab.get_by_role("tab", name="Accuracy").click()
    page.tab.get_by_role("tab", name="Model card").click()
    page.settle()


def test_the_card_and_the_facts_are_shown(visit):
    page = visit("#/card")
    card = page.tab.locator("article .markdown")
    assert card.locator("h2").first.inner_text() == "Model pretrained"
    assert card.locator("table").count() > 3
    assert card.locator("th", has_text="gemm").count() >= 1
    facts = page.tab.locator("aside.facts")
    assert facts.get_by_text("pretrained", exact=True).is_visible()
    facts.get_by_text("kernel families").click()
    assert facts.locator("table tbody tr").count() >= 9


def test_hostile_text_stays_text(visit):
    page = with_card(visit, HOSTILE)
    card = page.tab.locator("article .markdown")
    assert card.locator("script, img, iframe, svg, b, i").count() == 0
    assert [link.get_attribute("href") for link in card.locator("a").all()] == [
        "https://example.org/a?b=1",
        "https://example.org/auto",
    ]
    inside = page.tab.evaluate(
        "[...document.querySelectorAll('article .markdown *')].flatMap((one) => one.getAttributeNames())"
    )
    assert [name for name in inside if name.startswith("on")] == []
    text = card.inner_text()
    for shown in ("<script>alert(1)</script>", "<script>alert(3)</script>", "<svg onload=alert(1)>", "[picture: picture]",
                  "quoted <b> <i> &bogus;", "<img src=x onerror=alert(1)>"):  # fmt: skip
        assert shown in text


def test_headings_leave_no_level_out(visit):
    page = with_card(visit, "#### A\n\n# B\n\n##### C\n\n###### D")
    names = page.tab.evaluate("[...document.querySelectorAll('.markdown > *')].map((one) => one.tagName)")
    assert names == ["H2", "H2", "H3", "H4"]


def test_odd_cards_are_shown(visit):
    page = with_card(visit, "")
    for text in ("   ", ">" * 30_000, "[" * 5000, "*a " * 3000, "|" * 2000 + "\n|-|\n", "\x00\ud7ff", "<" * 20_000):
        show_card(page, text)
        assert page.tab.locator(".markdown").count() == 1, text[:9]
        assert page.tab.locator("aside.facts").is_visible()


def test_a_model_without_a_card_has_facts(visit):
    words = "the served predictor has no card <b>"
    page = with_card(visit, "", status=404, json={"detail": words}, body=None)
    assert page.tab.locator("article").inner_text() == words
    assert page.tab.locator("aside.facts").is_visible()


def test_vendored_files_are_as_they_were_published():
    listed = re.findall(
        r"\| `(\S+)` \| `([0-9a-f]{64})` \|", (STATIC / "vendor" / "VENDORED.md").read_text(encoding="utf-8")
    )
    assert {name for name, _ in listed} == {path.name for path in (STATIC / "vendor").iterdir()} - {"VENDORED.md"}
    for name, digest in listed:
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
