"""A real server, a real browser, and pages that notice what a user would: errors in the console, requests to elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from kernelcast.nightly.record.record import STAGES, Finding, NightRecord, StageRecord
from kernelcast.nightly.report_page import report_page

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright, which is missing")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDE, NARROW = 1440, 360
SETTLED = """() => {
  const answers = document.querySelector('.answers');
  if (answers?.getAttribute('aria-busy') !== 'false') return false;
  return [...answers.querySelectorAll('.canvas')].every((picture) => !picture.clientWidth || picture.childElementCount);
}"""
"""The answer has come, and its pictures, which are drawn only when the browser has given them their size."""
_WAIT_MS = 30_000
_MOST_POLLS = 240

_PROGRAM = (Path(__file__).parents[2] / "examples" / "mlp.mlir").read_text(encoding="utf-8")
_GEMM = "family=gemm&dtype=bf16&sizes.m=512&sizes.n=4096&sizes.k=4096"
VIEWS = {
    "llm": "#/llm?model=meta-llama/Llama-3.1-8B&llm.devices=h100-sxm,l40s&llm.tp=1&output_tokens=64&grid=de",
    "llm-refused": "#/llm?model=google-bert/bert-base-uncased&llm.devices=h100-sxm&llm.tp=1",
    "predict": f"#/predict?{_GEMM}&devices=h200",
    "predict-several": f"#/predict?{_GEMM}&devices=h200,l40s,mi300x",
    "predict-refused": f"#/predict?{_GEMM.replace('512', '0')}&devices=h200",
    "predict-limited": f"#/predict?{_GEMM}&devices=h200,rtx-4090&power_limit_w=500&grid=de&caps=open&beside=copy",
    "sweep": f"#/sweep?{_GEMM}&devices=h200,l40s&sweep.dim=m&sweep.points=9",
    "compare": f"#/compare?{_GEMM}&among=h200,l40s,mi300x,p4",
    "tiles": f"#/tiles?{_GEMM}&devices=h200&tiles.top=5",
    "model": "#/model",
    "model-trained": "#/model?model=google-bert/bert-base-uncased&phase=train&batch=8&length=128&model.devices=h200,l40s"
    "&power_limit_w=300&grid=de",
    "mlir": f"#/mlir?devices=h200,epyc-9005-vm-2c&text={quote(_PROGRAM)}",
    "data": "#/data?data.set=shipped&data.family=gemm&data.row=3",
    "accuracy": "#/accuracy",
    "device": "#/device?device=h200",
    "nights": "#/nights",
    "card": "#/card",
}
"""Addresses of every view, with an answer in it, for the checks that all views are to pass."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `view` on every view."""
    if "view" in metafunc.fixturenames:
        metafunc.parametrize("view", VIEWS.values(), ids=VIEWS.keys())


def write_nights(folder: Path) -> list[NightRecord]:
    """Four nights, newest first: one that runs, one that asks for a person, a kept one, and one whose file is damaged."""
    result = []
    for day, outcome in ((22, "running"), (21, "promoted"), (20, "kept")):
        checked = {"model_drift": {"all": {"n": 640, "mean_ape_pct": 5.0 + day / 10}}}
        requested = (Finding("gate", "needs-person", "gemm", "Half of the answers <b>change</b>: look at them."),)
        stages = tuple(
            StageRecord("collect", "done", "", 60.0, "", {"rows": {"ok": 630 + day, "failed": 10}}) if name == "collect" else
            StageRecord("check", "done", "", 5.0, "", checked, requested if day == 21 else ()) if name == "check" else
            StageRecord(name)
            for name in STAGES
        )  # fmt: skip
        began, ended = (
            f"2026-11-{day}T22:00:00+00:00",
            None if outcome == "running" else f"2026-11-{day}T23:00:00+00:00",
        )
        night = NightRecord(f"202611{day}T220000Z-rack", "rack", "nvidia-h200-sxm-141gb, some-other", outcome, began, ended,
                            3600.0, "v12", "v13", stages)  # fmt: skip
        night.write(folder / night.id / ("state.json" if ended is None else "report.json"))
        if ended is not None:
            (folder / night.id / "report.html").write_text(report_page(night), encoding="utf-8")
        result.append(night)
    damaged = folder / "20261119T220000Z-rack"
    damaged.mkdir()
    (damaged / "report.json").write_text("{", encoding="utf-8")
    return result


def _wait_for_model(address: str) -> None:
    """Wait until the server, which listens before it has loaded its model, answers."""
    for _ in range(_MOST_POLLS):
        try:
            urllib.request.urlopen(address + "readyz").close()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(0.5)
    raise TimeoutError(f"the server at {address} has no model after {_MOST_POLLS} questions")


@contextlib.contextmanager
def serving(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a server of the shipped model in a process of its own."""
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd="/", env=os.environ | dict(env or {})
    ) as process:
        assert process.stdout is not None
        try:
            result = next((line for line in process.stdout if '"address"' in line), None)
            assert result is not None, f"the server ended with {process.wait(120)} before it listened"
            address = result.split('"')[3] + "/"
            _wait_for_model(address)
            yield address
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def serve_with() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Starts a server with further options of the command line."""
    return serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the shipped model, with the nights of `write_nights`."""
    nights = tmp_path_factory.mktemp("nights")
    write_nights(nights)
    with serving(env={"KERNELCAST_NIGHTS": str(nights)}) as address:
        yield address


# One a file: while playwright runs, its event loop runs in this thread, and no test beside it could have one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("the page is tested in chromium, which is not installed")
    with playwright.sync_playwright() as driver:
        # The sandbox needs a user who is not root; containers that run tests have none.
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@dataclass
class Visit:
    """A tab of the browser on the page, and what went wrong in it."""

    tab: Any
    address: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the answer to what is shown has come."""
        self.tab.wait_for_function(SETTLED)

    def goto(self, fragment: str) -> None:
        self.tab.goto(self.address + fragment)
        self.settle()

    def fields(self) -> dict[str, str]:
        """What the address says, by field, and the view as `view`."""
        view, _, query = urlsplit(self.tab.url).fragment.partition("?")
        return {"view": view.strip("/")} | {name: values[0] for name, values in parse_qs(query).items()}

    def choose_device(self, words: str) -> None:
        """Tick the only device that a search for `words` leaves."""
        picker = self.tab.locator(".picker")
        if picker.get_attribute("open") is None:
            picker.locator("summary").click()
        search = picker.get_by_role("searchbox", name="Search devices")
        search.fill(words)
        search.press("Enter")
        search.fill("")
        self.settle()


@pytest.fixture
def visit(browser: Any, server: str) -> Iterator[Callable[..., Visit]]:
    """Opens the page in a tab of its own; at the end, no tab may have logged an error or asked anyone else."""
    visits: list[Visit] = []

    def open_page(fragment: str = "", width: int = WIDE, theme: str = "light", *, at: str = server,
                  wait: bool = True, **options: Any) -> Visit:  # fmt: skip
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme,
                                      permissions=["clipboard-read", "clipboard-write"], **options)  # fmt: skip
        context.set_default_timeout(_WAIT_MS)
        tab = context.new_page()
        made = Visit(tab, at)
        visits.append(made)
        tab.on("pageerror", lambda error: made.errors.append(str(error)))
        tab.on("console", lambda line: made.errors.append(line.text) if line.type in ("error", "warning") else None)
        tab.on("request", lambda one: made.elsewhere.append(one.url) if not one.url.startswith((at, "blob:")) else None)
        if wait:
            made.goto(fragment)
        else:
            tab.goto(at + fragment)
        return made

    yield open_page
    for one in visits:
        one.tab.context.close()
        # The browser itself logs every refusal that the page shows in words.
        assert [text for text in one.errors if not text.startswith("Failed to load resource")] == []
        assert one.elsewhere == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what people with other senses and tools cannot use."""
    return (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
