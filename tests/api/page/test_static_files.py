"""The files of the page as the service gives them out."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from kernelcast.api.page.static_files import MEDIA_TYPES, STATIC_DIR, files_below, media_type, static_files

PAGE = [path for path in sorted(STATIC_DIR.rglob("*")) if path.suffix in (".js", ".css", ".html", ".svg")]
OURS = [
    path
    for path in PAGE
    if path.suffix == ".js" and "vendor" not in path.parts and path.parent.name in ("static", "views")
]
NOT_THERE = (
    "static/", "static/nothing.js", "static/../app.py", "static/..%2fapp.py", "static/%2e%2e/app.py", "static//shell.js",
    "static/views", "static/views/", "static/SHELL.js", "static/shell.js/", "static/.hidden", "shell.js",
)  # fmt: skip


def test_every_file_has_an_address_and_its_kind(client):
    for address, path in static_files():
        answer = client.get(address)
        assert answer.status_code == 200, address
        is_module = path in OURS
        if is_module:
            # Without comments, and with what is joined taken from there.
            exports = re.findall(r"^export .*", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert re.findall(r"^export .*", answer.text, re.MULTILINE) == exports
        elif address != "/":
            assert answer.content == path.read_bytes()
        assert answer.headers["content-type"] == media_type(path)
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_first_script_is_in_the_page_before_its_styles_and_allowed_by_its_hash_alone(client):
    answer = client.get("/")
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    assert "devicesUnderWay = fetch" in script
    assert answer.text.index("<script>") < answer.text.index('rel="stylesheet"')
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in answer.headers["content-security-policy"]
    assert "img-src 'self';" in answer.headers["content-security-policy"]


def test_the_names_of_grids_come_with_the_page(client):
    assert client.get("/static/grids.json").json()["de"] == "Germany"


@pytest.mark.parametrize("address", NOT_THERE)
def test_nothing_else_is_given_out(client, address):
    answer = client.get(f"/{address}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_hidden_files_are_left_out_and_unknown_kinds_refused(tmp_path):
    for name in ("index.html", "icon.svg", ".hidden", "deep/er/one.js", ".git/config", "LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    result = [address for address, _ in files_below("/static", tmp_path)]
    assert result == ["/static/LICENSE", "/static/deep/er/one.js", "/static/icon.svg", "/static/index.html"]
    assert media_type(Path("LICENSE")) == MEDIA_TYPES[".txt"]
    with pytest.raises(ValueError, match=r"one\.exe: static files end in \.html"):
        media_type(Path("one.exe"))


def test_modules_import_only_files_that_are_there():
    assert OURS
    for path in OURS:
        for target in re.findall(
            r'^import .*? from "([^"]+)"|^import "([^"]+)"', path.read_text(encoding="utf-8"), re.M | re.S
        ):
            name = "".join(target)
            assert name.startswith("."), (path.name, name)
            assert (path.parent / name).resolve().is_file(), (path.name, name)


def test_the_page_names_no_other_host_and_no_inline_style():
    for path in PAGE:
        if path.parent.name not in ("static", "views", "css"):
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path.name
        assert "style=" not in text, path.name
        assert "innerHTML" not in text, path.name


def test_files_stay_small():
    for path in OURS:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path.name
