"""/docs/api in a real browser: it shows every route, asks no one else, and breaks no rule of its policy."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from kernelcast.api.page.static_files import DOCS_POLICY, SWAGGER_DIR

pytestmark = pytest.mark.slow

CHROMIUM = Path("/usr/bin/chromium")

# Serves the fake predictor of conftest.py under the prefix it is given; prints its port.
_SERVER = """
import importlib.util, sys
from kernelcast.api.server import cap_threads, listen, run
cap_threads()
from kernelcast.api.app import create_app
from kernelcast.api.settings import Settings
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
app = create_app(FixedSource(fakes.FakePredictor(), catalogue()), Settings(root_path=sys.argv[2]))
listener = listen("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
run(app, listener)
"""


def test_the_vendored_files_are_those_that_were_published():
    rows = re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", (SWAGGER_DIR / "VENDORED.md").read_text(), re.MULTILINE)
    ours = {"VENDORED.md", "page.html", "page.js"}
    assert {name for name, _ in rows} == {path.name for path in SWAGGER_DIR.iterdir()} - ours
    for name, digest in rows:
        assert hashlib.sha256((SWAGGER_DIR / name).read_bytes()).hexdigest() == digest, name
    assert sum(path.stat().st_size for path in SWAGGER_DIR.iterdir()) < 2_000_000
    assert "Apache License" in (SWAGGER_DIR / "LICENSE").read_text()


def test_the_page_is_held_as_tightly_as_the_other(client):
    page = client.get("/docs/api")
    assert page.headers["content-security-policy"] == DOCS_POLICY
    assert "unsafe" not in DOCS_POLICY
    assert DOCS_POLICY.count("data:") == 1
    linked = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(linked) == 5
    for path in linked:
        assert not path.startswith(("/", "http"))
        assert client.get(urljoin("/docs/api", path)).status_code == 200
    assert not re.search(r"<script(?![^>]*src=)|style=|\son\w+=", page.text)


@pytest.mark.parametrize(
    "path", ["/docs/api/", "/docs/api/page.html", "/docs/../app.py", "/docs/%2e%2e/app.py", "/docs/x", "/docs/a/b"]
)
def test_nothing_else_is_served_there(client, path):
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_the_script_travels_packed(client):
    response = client.request("GET", "/docs/api/swagger-ui-bundle.js", headers={"accept-encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"
    assert int(response.headers["content-length"]) < 600_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=["", "/tools/kernelcast"], ids=["at the root", "under a prefix"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    fakes = Path(__file__).parents[1] / "conftest.py"
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(fakes), request.param], stdout=subprocess.PIPE, text=True,
                               cwd=fakes.parent)  # fmt: skip
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}{request.param}"
    process.terminate()
    process.wait(120)
    process.stdout.close()


class Visit:
    """A page that remembers what it asked for and what it complained of."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    visit = Visit(browser)
    yield visit
    visit.page.close()


def test_every_operation_is_shown_and_can_be_tried(visit, address):
    page = visit.page
    page.goto(f"{address}/docs/api")
    page.wait_for_selector(".opblock", timeout=60_000)
    document = page.evaluate("fetch('../openapi.json').then((answer) => answer.json())")
    operations = sum(len(operations) for operations in document["paths"].values())
    assert page.locator(".opblock").count() == operations
    shown = page.locator(".opblock-summary-path").all_inner_texts()
    assert {path.replace("\u200b", "") for path in shown} == set(document["paths"])
    # As a reader would: open one, try it, and read the service's own answer.
    page.locator(".opblock-summary-control", has_text="/healthz").first.click()
    page.locator("button.try-out__btn").click()
    page.locator("button.execute").click()
    live = page.locator(".live-responses-table .response-col_status").last
    live.wait_for(timeout=60_000)
    assert "200" in live.inner_text()
    assert f"{address}/healthz" in visit.asked
    assert all(url.startswith((f"{address}/", "data:")) for url in visit.asked), visit.asked
    assert visit.complaints == []


@pytest.mark.parametrize("address", [""], indirect=True)
def test_a_service_with_keys_is_asked_with_the_key_that_is_given(visit, address):
    page, sent = visit.page, []

    def guarded(route: Any) -> None:
        sent.append(route.request.headers.get("authorization"))
        if sent[-1] == "Bearer kc_right":
            route.continue_()
        else:
            route.fulfill(status=401, content_type="application/problem+json", body=json.dumps({"status": 401}))

    page.route("**/openapi.json", guarded)
    page.goto(f"{address}/docs/api")
    page.locator("#key-form").wait_for(timeout=60_000)
    assert page.locator(".opblock").count() == 0
    page.fill("#key", "kc_right")
    page.keyboard.press("Enter")
    page.wait_for_selector(".opblock", timeout=60_000)
    assert sent[0] is None
    assert set(sent[1:]) == {"Bearer kc_right"}
    assert page.locator("#key-form").is_hidden()
    assert page.evaluate("sessionStorage.getItem('kernelcast-key')") == "kc_right"
    assert "kc_right" not in page.url


@pytest.mark.parametrize("address", [""], indirect=True)
def test_a_description_that_cannot_be_had_is_said(visit, address):
    visit.page.route("**/openapi.json", lambda route: route.fulfill(status=503, body=""))
    visit.page.goto(f"{address}/docs/api")
    problem = visit.page.locator("#problem")
    problem.wait_for(timeout=60_000)
    assert "answered with 503" in problem.inner_text()
