"""What the service believes of a proxy, and which addresses it answers under a prefix."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.app import create_app
from kernelcast.api.middleware.api_keys import new_key
from kernelcast.api.middleware.proxy import ProxyHeaders, check_prefix, prefix_of, root_path, trusted_proxies
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.transport.responses import SAFE_HEADERS
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from starlette.applications import Starlette
from starlette.routing import Mount

ROUTES = ("/", "/v1/predict", "/static/app.js", "/healthz")


class Seen:
    """An application that keeps the scope it was called with."""

    scope: dict[str, Any]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope


def through(
    path: str, prefix: str = "", trusted: tuple[str, ...] = ("10.0.0.0/8",), peer: str | None = "10.1.2.3",
    query: bytes = b"", **headers: str,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:  # fmt: skip
    """The scope that reaches the application, and what was answered in its stead."""
    app, sent = Seen(), []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": named, "scheme": "http",
             "root_path": "", "client": (peer, 5) if peer else None}  # fmt: skip
    asyncio.run(ProxyHeaders(app, prefix, trusted, ROUTES)(scope, None, send))
    return getattr(app, "scope", {}), sent


@pytest.mark.parametrize(
    ("given", "path", "inside"),
    [
        ("", "/v1/predict", "/v1/predict"),
        ("/kc", "/kc/v1/predict", "/v1/predict"),
        ("/kc", "/v1/predict", "/v1/predict"),
        ("/kc", "/kc/", "/"),
        ("/kc", "/kcx/v1", "/kcx/v1"),
        ("/a/b", "/a/b/healthz", "/healthz"),
        ("/a/b", "/a/healthz", "/a/healthz"),
        ("/kc", "/kc//healthz", "//healthz"),
    ],
)
def test_the_path_inside_has_no_prefix_either_way(given: str, path: str, inside: str) -> None:
    scope, sent = through(path, given)
    assert (scope["path"], scope["root_path"], prefix_of(scope), sent) == (inside, "", given, [])


def test_the_prefix_alone_leads_to_the_page() -> None:
    scope, sent = through("/kc", "/kc", query=b"a=1&b=%2f", x_request_id="mine")
    assert scope == {}
    assert sent[0]["status"] == 308
    headers = dict(sent[0]["headers"])
    assert headers[b"location"] == b"/kc/?a=1&b=%2f"
    assert headers[b"x-request-id"] == b"mine"
    assert headers[b"content-security-policy"].startswith(b"default-src 'none'")
    assert headers.items() >= dict(SAFE_HEADERS).items()


@pytest.mark.parametrize(
    ("headers", "peer", "found"),
    [
        ({"x_forwarded_prefix": "/kc"}, "10.1.2.3", "/kc"),
        ({"x_forwarded_prefix": "/kc/"}, "10.1.2.3", "/kc"),
        ({"x_forwarded_prefix": "/kc"}, "192.0.2.1", ""),
        ({"x_forwarded_prefix": "/kc"}, None, ""),
        ({"x_forwarded_prefix": "//evil.example"}, "10.1.2.3", ""),
        ({"x_forwarded_prefix": "https://evil.example"}, "10.1.2.3", ""),
        ({"x_forwarded_prefix": "/kc, /other"}, "10.1.2.3", ""),
        ({"x_forwarded_prefix": "/v1"}, "10.1.2.3", ""),
        ({"x_forwarded_prefix": "/" + "a" * 300}, "10.1.2.3", ""),
    ],
)
def test_a_forwarded_prefix_counts_from_trusted_proxies_alone(headers: Any, peer: str | None, found: str) -> None:
    scope, _ = through("/healthz", peer=peer, **headers)
    assert (scope["root_path"], prefix_of(scope), scope["path"]) == ("", found, "/healthz")


def test_a_prefix_that_was_set_is_not_overruled() -> None:
    assert prefix_of(through("/healthz", "/kc", x_forwarded_prefix="/other")[0]) == "/kc"


def test_a_prefix_that_cannot_be_used_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = ProxyHeaders(Seen(), "", ("10.0.0.0/8",), ROUTES)
    scope = {
        "type": "http",
        "path": "/",
        "client": ("10.0.0.1", 1),
        "headers": [(b"x-forwarded-prefix", b"/a\r\nb" * 50)],
    }
    with caplog.at_level(logging.WARNING, logger="kernelcast.api"):
        for _ in range(3):
            asyncio.run(app(scope, None, None))
    (message,) = caplog.messages
    assert "it must be a path such as /kernelcast" in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("headers", "peer", "client", "scheme"),
    [
        ({"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https"}, "10.1.2.3", "203.0.113.9", "https"),
        ({"x_forwarded_for": "1.1.1.1, 203.0.113.9, 10.9.9.9"}, "10.1.2.3", "203.0.113.9", "http"),
        ({"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https"}, "192.0.2.1", "192.0.2.1", "http"),
    ],
)
def test_a_forwarded_client_counts_from_trusted_proxies_alone(
    headers: Any, peer: str, client: str, scheme: str
) -> None:
    scope, _ = through("/healthz", peer=peer, **headers)
    assert (scope["client"][0], scope["scheme"]) == (client, scheme)


@pytest.mark.parametrize(("given", "used"), [("", ""), ("/", ""), ("/kc/", "/kc"), (" /a/b-c.d~e_f ", "/a/b-c.d~e_f")])
def test_prefixes(given: str, used: str) -> None:
    assert root_path(given) == used


@pytest.mark.parametrize(
    "given", ["kc", "//kc", "/kc//x", "/../x", "/kc?x", "/k c", "/.", "/ü", "/%2e", "/" + "a" * 200, "/a\n"]
)
def test_what_is_no_prefix_is_refused_in_words(given: str) -> None:
    if given == "/a\n":
        assert root_path(given) == "/a"
        return
    with pytest.raises(SpecError, match=r"KERNELCAST_ROOT_PATH is .*: it must be a path such as /kernelcast"):
        Settings.from_env({"KERNELCAST_ROOT_PATH": given})


@pytest.mark.parametrize("prefix", ["/v1", "/v1/kc", "/static", "/healthz"])
def test_a_prefix_like_a_route_is_refused(prefix: str) -> None:
    with pytest.raises(SpecError, match=f"the prefix {prefix} begins like the service's own /"):
        check_prefix(prefix, ROUTES)


def test_trusted_proxies_are_read() -> None:
    assert trusted_proxies("10.0.0.1, fd00::/8 ,192.168.0.0/16") == ("10.0.0.1", "fd00::/8", "192.168.0.0/16")
    assert (trusted_proxies("*"), trusted_proxies("none")) == (("*",), ())
    assert Settings().trusted_proxies == trusted_proxies("127.0.0.1,::1")


@pytest.mark.parametrize(
    ("given", "says"),
    [("proxy.example", "'proxy.example' is no IP address"), ("10.0.0.1/8", "has host bits set"), ("*,10.0.0.1", "is no IP"),
     ("none,10.0.0.1", "'none' is no IP")],
)  # fmt: skip
def test_who_is_trusted_is_refused_in_words(given: str, says: str) -> None:
    with pytest.raises(SpecError, match=f"KERNELCAST_TRUSTED_PROXIES is .*{says}"):
        Settings.from_env({"KERNELCAST_TRUSTED_PROXIES": given})


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--root-path", "kc"], "--root-path is 'kc': it must be a path such as /kernelcast"),
     (["--root-path", "/v1"], "the prefix /v1 begins like the service's own /v1; choose another")],
)  # fmt: skip
def test_the_command_line_refuses_in_one_sentence(options: list[str], says: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", *options], cwd=tmp_path,
                          capture_output=True, text=True, check=False, timeout=240)  # fmt: skip
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_the_description_s_server_follows_the_request() -> None:
    app = create_app(FixedSource(None, catalogue()), Settings(trusted_proxies=("10.0.0.0/8",)))

    def servers(peer: str) -> Any:
        return json.loads(answered(app, "GET", "/openapi.json", peer=peer, x_forwarded_prefix="/kc")[1]).get("servers")

    assert servers("10.0.0.1") == [{"url": "/kc"}]
    assert servers("192.0.2.1") is None


def answered(
    app: Any, method: str, path: str, root: str = "", peer: str = "127.0.0.1", **headers: str
) -> tuple[int, bytes]:
    """Status and body of what `app` answers; `root` is what the server has put before the path."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": root + path, "query_string": b"", "scheme": "http", "root_path": root,
             "client": (peer, 5), "server": ("127.0.0.1", 80), "http_version": "1.1",
             "headers": [(b"host", b"localhost"), *named]}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


READ, READ_KEY = new_key("reader", "read")
SPELLINGS = (
    "/v1/admin/reload", "//v1/admin/reload", "/v1/admin/reload/", "/v1/admin/reload\n", "/v1/admin//reload",
    "/v1/./admin/reload", "/x/../v1/admin/reload", "/V1/admin/reload", "/v1/admin/reload;x",
)  # fmt: skip


@pytest.mark.parametrize("is_keyed", [True, False], ids=["a read key", "no keys"])
@pytest.mark.parametrize("prefix", ["", "/kc", "/a/b"])
@pytest.mark.parametrize("way", ["setting", "header", "server", "mount", "setting and server", "setting and header"])
def test_no_spelling_of_an_admin_path_is_taken_for_another_path(way: str, prefix: str, is_keyed: bool) -> None:
    source = FixedSource(None, catalogue())
    app: Any = create_app(source, Settings(
        root_path=prefix if "setting" in way else "", api_keys=(READ_KEY.line(),) if is_keyed else ()
    ))  # fmt: skip
    if way == "mount":
        app = Starlette(routes=[Mount(prefix, app)])
    root = prefix if "server" in way else ""
    headers = {"x_forwarded_prefix": prefix} if "header" in way and prefix else {}
    if is_keyed:
        headers["authorization"] = f"Bearer {READ}"
    for spelling in SPELLINGS:
        for times in range(4):
            status, body = answered(app, "POST", prefix * times + spelling, root, **headers)
            assert status in (403, 404), (spelling, times, status)
            assert b"model" not in body
    once = {"setting": 1, "header": 1, "mount": 1}.get(way, 0)
    assert answered(app, "GET", prefix * once + "/v1/kernels", root, **headers)[0] == 200
    assert answered(app, "POST", prefix * once + "/v1/admin/reload", root, **headers)[0] == 403
