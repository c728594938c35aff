"""The documentation that `make docs` built, as the service gives it out under /docs/, and what is there where it is missing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import httpx
import pytest
from kernelcast.api.page.static_files import DOCS_POLICY, page_routes, site_policy
from starlette.applications import Starlette

PAGE = "<!doctype html><script>var a = 1</script><script src='x.js'></script><p>text</p>"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "how-to").mkdir()
    (tmp_path / "index.html").write_text(PAGE, encoding="utf-8")
    (tmp_path / "how-to" / "slo.html").write_text("<p>second</p>", encoding="utf-8")
    (tmp_path / "x.js").write_text("var b", encoding="utf-8")
    return tmp_path


def ask(folder: Path, *paths: str) -> list[httpx.Response]:
    import anyio

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(Starlette(routes=page_routes(folder)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [await client.get(path) for path in paths]

    return anyio.run(answers)


def test_the_built_pages_are_served_and_the_bare_address_leads_to_them(site: Path) -> None:
    bare, first, second, script, routes, unknown = ask(
        site, "/docs", "/docs/", "/docs/how-to/slo.html", "/docs/x.js", "/docs/api", "/docs/how-to/"
    )
    assert (bare.status_code, bare.headers["location"]) == (307, "docs/")
    assert first.text == PAGE
    assert second.text == "<p>second</p>"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "kernelcast: the REST interface" in routes.text
    assert unknown.status_code == 404


def test_where_nothing_was_built_the_routes_are_shown(tmp_path: Path) -> None:
    bare, folder, routes = ask(tmp_path / "none", "/docs", "/docs/", "/docs/api")
    assert (bare.status_code, bare.headers["location"]) == (307, "docs/api")
    assert (folder.status_code, folder.headers["location"]) == (307, "api")
    assert routes.status_code == 200


def test_inline_scripts_are_allowed_by_their_hash_alone(site: Path) -> None:
    (first,) = ask(site, "/docs/")
    digest = base64.b64encode(hashlib.sha256(b"var a = 1").digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in first.headers["content-security-policy"]
    assert "unsafe" not in first.headers["content-security-policy"]
    assert site_policy(b"<p>no script</p>") == DOCS_POLICY


def test_a_file_of_an_unknown_kind_is_a_mistake_of_the_build(site: Path) -> None:
    (site / "font.woff2").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"font\.woff2: static files end in"):
        page_routes(site)
