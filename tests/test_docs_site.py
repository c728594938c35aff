"""The site of the pages, built as `make docs` does where its packages are installed, and what the service needs of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kernelcast.api.page.openapi import document
from kernelcast.api.page.static_files import page_routes, site_policy
from kernelcast.features.device import catalogue

ROOT = Path(__file__).parents[1]
INSTALLED = all(importlib.util.find_spec(name) for name in ("mkdocs", "material", "mkdocstrings"))


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/")} <= listed


def test_the_built_site_ships_and_is_not_tracked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "site/**/*" in settings["package-data"]["kernelcast.api.page"]
    assert "api/page/site/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not INSTALLED:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    links = ROOT / "build" / "run" / "kernelcast"
    links.parent.mkdir(parents=True, exist_ok=True)
    if not links.exists():
        links.symlink_to(ROOT)
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_references_have_every_command_function_and_route(site: Path) -> None:
    commands, python, rest = (
        (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in ("commands", "python", "rest")
    )
    for words in ("kernelcast predict", "kernelcast llm plan", "--prefill"):
        assert words in commands, words
    for name in ("kernelcast.predict", "kernelcast.llm_plan", "kernelcast.client.client.Client"):
        assert f'id="{name}"' in python, name
    for path in document(catalogue())["paths"]:
        assert path.replace("&", "&amp;") in rest, path


@pytest.mark.slow
def test_the_service_takes_the_site_and_it_loads_nothing_from_elsewhere(site: Path) -> None:
    page_routes(site)
    assert sum(path.stat().st_size for path in site.rglob("*")) < 8_000_000
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//", text), page
        assert " style=" not in text, page
        assert "'sha256-" in site_policy(text.encode())
