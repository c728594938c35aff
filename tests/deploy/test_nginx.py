"""The service behind a real nginx, under a prefix, with the very file of deploy/nginx."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

ROOT = Path(__file__).parents[2]
CONF = (ROOT / "deploy" / "nginx" / "kernelcast.conf").read_text(encoding="utf-8")
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
SPEC = {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}}
JSON = {"content-type": "application/json"}

# What Debian's own nginx.conf is around a site, in a folder of ours and without a daemon.
_AROUND = """
{user}
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    include /etc/nginx/mime.types;
    default_type application/octet-stream;
    access_log {folder}/access.log;
    {temporary}
    include {folder}/site.conf;
}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt-get install nginx-light)"),
]


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free port that is given to nobody else meanwhile; a program that allows addresses to be used again may listen there."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield int(reserved.getsockname()[1])


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is in the file {text.count(old)} times"
    return text.replace(old, new)


class Site:
    """One address behind the proxy; connections are made anew for each request unless one is given."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder

    def ask(self, path: str, body: bytes | None = None, method: str = "", **headers: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(
                method or ("GET" if body is None else "POST"), path, body, JSON | named if body else named
            )
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()


@pytest.fixture(scope="module", params=["prefix taken off", "prefix passed on"])
def site(request: pytest.FixtureRequest, serving: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("nginx")
    passed_on = request.param == "prefix passed on"
    env = {"KERNELCAST_ROOT_PATH": "/kernelcast/"} if passed_on else {}
    with serving(folder, env) as behind, reserved_port() as port:
        conf = replaced(
            replaced(CONF, "127.0.0.1:8000;", f"127.0.0.1:{behind};"), "listen 80;", f"listen 127.0.0.1:{port};"
        )
        if passed_on:
            conf = replaced(conf, "proxy_pass http://kernelcast/;", "proxy_pass http://kernelcast;")
        (folder / "site.conf").write_text(conf)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        # Its workers would become another user, who cannot write in pytest's folders.
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, user=user, temporary=temporary))
        assert NGINX is not None
        command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False, timeout=120)
        assert checked.returncode == 0, checked.stderr
        assert "[warn]" not in checked.stderr, checked.stderr
        process = subprocess.Popen(command)
        try:
            until(lambda: socket.create_connection(("127.0.0.1", port), timeout=1).close())
            yield Site(port, folder)
        finally:
            process.terminate()
            process.wait(120)


def until(attempt: Callable[[], None]) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            return attempt()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def test_a_prediction_is_answered(site: Site) -> None:
    status, headers, body = site.ask("/kernelcast/v1/predict", json.dumps(SPEC).encode())
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["latency_s"]["value"] > 0


def test_the_page_and_all_it_links_to_are_there(site: Site) -> None:
    status, headers, page = site.ask("/kernelcast/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert headers["x-content-type-options"] == "nosniff"
    links = re.findall(r'(?:href|src)="([^"#]+)"', page.decode())
    assert any("static/" in link for link in links)
    for link in links:
        assert not link.startswith(("/", "http")), f"{link} leads out of the prefix"
        status, headers, _ = site.ask(f"/kernelcast/{link}")
        if status == 307:
            # Relative, so that it stays below the prefix.
            status, _, _ = site.ask(urljoin(f"/kernelcast/{link}", headers["location"]))
        assert status == 200, link


def test_no_script_asks_outside_the_prefix() -> None:
    for path in (ROOT / "api" / "page" / "static").rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        result = re.findall(r"""["'`]/(?:v1|v2|static|docs|metrics|openapi)[^"'`]*""", text)
        assert not result, f"{path.relative_to(ROOT)} asks {result}"


def test_the_description_names_the_prefix_as_its_server(site: Site) -> None:
    status, _, body = site.ask("/kernelcast/openapi.json")
    document = json.loads(body)
    assert (status, document["servers"]) == (200, [{"url": "/kernelcast"}])
    assert "/v1/predict" in document["paths"]


def test_the_prefix_without_its_slash_leads_to_the_page(site: Site) -> None:
    status, headers, _ = site.ask("/kernelcast?view=sweep")
    assert status == 308
    assert headers["location"] == "/kernelcast/?view=sweep"


def test_what_callers_forward_themselves_is_not_believed(site: Site) -> None:
    assert b"/evil" not in site.ask("/kernelcast/openapi.json", x_forwarded_prefix="/evil")[2]


def test_refusals_come_through_as_problems(site: Site) -> None:
    status, headers, body = site.ask("/kernelcast/v1/predict", json.dumps(SPEC | {"family": "gem"}).encode())
    assert (status, headers["content-type"]) == (422, "application/problem+json")
    assert "family" in {item["field"] for item in json.loads(body)["errors"]}
    status, headers, body = site.ask("/kernelcast/nowhere")
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    assert "/kernelcast/openapi.json" in json.loads(body)["detail"]


@pytest.mark.parametrize("length_b", [3 << 20, 12 << 20])
def test_a_body_over_the_service_s_limit_is_its_own_413(site: Site, length_b: int) -> None:
    status, headers, body = site.ask("/kernelcast/v1/predict", b" " * length_b)
    assert (status, headers["content-type"]) == (413, "application/problem+json"), (
        site.folder / "error.log"
    ).read_text()
    assert "bytes" in json.loads(body)["detail"]


def test_metrics_are_not_for_the_world(site: Site) -> None:
    assert site.ask("/kernelcast/metrics")[0] == 404


def test_long_answers_are_compressed_for_those_who_can_read_them(site: Site) -> None:
    _, headers, packed = site.ask("/kernelcast/v1/kernels", accept_encoding="gzip")
    _, plain_headers, plain = site.ask("/kernelcast/v1/kernels")
    assert headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain_headers
    assert json.loads(gzip.decompress(packed)) == json.loads(plain)
    assert len(packed) < len(plain) / 3


def test_one_connection_serves_many_requests(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)
    connection.connect()
    remaining = connection.sock
    for _ in range(20):
        connection.request("POST", "/kernelcast/v1/predict", json.dumps(SPEC), JSON)
        assert connection.getresponse().read()
        assert connection.sock is remaining
    connection.close()
