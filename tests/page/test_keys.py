"""A service with API keys, under a proxy's prefix: the page asks for one, keeps it for the tab, and never shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def locked(tmp_path_factory, serve_with) -> Iterator[tuple[str, str]]:
    """The address of a service with keys, and a key that opens it."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    made = subprocess.run([sys.executable, "-P", "-m", "kernelcast", "keys", "new", "--scope", "read", "--name", "page",
                           "--file", str(file)], capture_output=True, text=True, check=True, cwd="/", timeout=240)  # fmt: skip
    key = re.search(r"kc_[\w-]+", made.stdout)
    assert key is not None
    with serve_with("--keys", str(file), "--root-path", "/under/here") as address:
        yield address + "under/here/", key.group()


def test_the_key_is_asked_for_kept_for_the_tab_and_not_shown(visit, locked):
    address, key = locked
    page = visit("#/predict", at=address, wait=False)
    dialog = page.tab.get_by_role("dialog", name="This service asks for an API key")
    dialog.wait_for()
    field = dialog.get_by_label("API key")
    assert field.evaluate("one => one === document.activeElement")
    field.fill("kc_" + "0" * 43)
    field.press("Enter")
    page.tab.locator("#key-trouble:visible").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill(key)
    field.press("Enter")
    page.settle()
    assert page.tab.locator(".figure .big").count() == 3
    assert key not in page.tab.content()
    assert key not in page.tab.url
    page.tab.reload()
    page.settle()
    assert dialog.is_hidden()
    assert page.tab.evaluate("Object.keys(localStorage).filter(name => name.includes('key'))") == []
    command = page.tab.locator("pre").inner_text()
    assert key not in command
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=True,
                          env=os.environ | {"KERNELCAST_API_KEY": key})  # fmt: skip
    assert "latency_s" in done.stdout
    page.tab.get_by_role("button", name="Forget the API key").click()
    assert page.tab.evaluate("Object.keys(sessionStorage).filter(name => name.includes('key'))") == []
    page.tab.reload()
    dialog.wait_for()


def test_who_has_no_key_is_told_so(visit, locked):
    page = visit("", at=locked[0], wait=False)
    page.tab.get_by_role("dialog").wait_for()
    page.tab.keyboard.press("Escape")
    page.tab.get_by_text("reload the page to enter one").wait_for()
