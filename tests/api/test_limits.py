"""How much a server takes on at once and for how long: a real server with small limits and a predictor that takes its time."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

# Its predictor sleeps as many milliseconds as `m` says, on the thread that the work is done on.
SERVER = """
import importlib.util, sys, time
from kernelcast.api.server import cap_threads, listen
cap_threads()
from kernelcast.api import limits
from kernelcast.api.app import create_app
from kernelcast.api.settings import Settings
from kernelcast.api.source import FixedSource
from kernelcast.api.worker import run
from kernelcast.features.device import catalogue
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
class Slow(fakes.FakePredictor):
    def predict_cases(self, cases, *, coverage=0.9):
        time.sleep(float(cases.sizes["m"][0]) / 1000)
        if cases.sizes["n"][0] == 13:
            raise RuntimeError("boom: a secret")
        return super().predict_cases(cases, coverage=coverage)
limits.WAIT_S, limits.MAX_WAITING = 0.4, 2
settings = Settings(port=0, request_timeout_s=0.6, body_timeout_s=0.8, max_concurrency=2, max_held_b=1 << 20)
with listen("127.0.0.1", 0) as sock:
    print(sock.getsockname()[1], flush=True)
    run(create_app(FixedSource(Slow(), catalogue()), settings), sock)
"""
COLUMNS = "/v1/predict/columns"
ALWAYS = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/metrics")


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], str, float]:
        """Status, headers, body and seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        started = time.monotonic()
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text, time.monotonic() - started

    def slow(self, ms: int, n: int = 64) -> tuple[int, dict[str, str], str, float]:
        columns = {"device": "h100-sxm", "dtype": "bf16", "sizes": {"m": [ms], "n": n, "k": 64}}
        return self.ask("POST", COLUMNS, {"family": "gemm", "columns": columns})

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics")[2].splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    def refusals(self, reason: str) -> float:
        return self.metric(f'kernelcast_http_refusals_total{{reason="{reason}"}}')

    def settle(self) -> None:
        """Wait until nothing is worked on any more but the question whether."""
        deadline = time.monotonic() + 10
        while self.metric("kernelcast_http_requests_in_flight") > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    fakes = Path(__file__).with_name("conftest.py")
    process = subprocess.Popen([sys.executable, "-P", "-c", SERVER, str(fakes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, cwd="/")  # fmt: skip
    assert process.stdout is not None
    yield Server(process, int(process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    # What failed after its time was up is in the log once, and never in an answer.
    assert said.count("Traceback") <= 2 + said.count("KeyboardInterrupt")


@pytest.fixture
def server(started) -> Server:
    started.settle()
    return started


def test_an_answer_that_takes_too_long_is_said_to(server):
    before = server.refusals("time")
    status, headers, text, seconds = server.slow(1500)
    assert (status, headers["content-type"]) == (504, "application/problem+json")
    problem = json.loads(text)
    assert problem["type"] == "urn:kernelcast:problem:took-too-long"
    for words in ("longer than 0.6 s", "ask for fewer rows at once", "KERNELCAST_REQUEST_TIMEOUT_S", "one of the 2"):
        assert words in problem["detail"]
    assert 0.55 < seconds < 1.4
    assert server.refusals("time") == before + 1


def test_a_connection_goes_on_after_an_answer_that_was_late(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    body = {
        "family": "gemm",
        "columns": {"device": "h100-sxm", "dtype": "bf16", "sizes": {"m": [1200], "n": 64, "k": 64}},
    }
    statuses = []
    for path, sent in ((COLUMNS, json.dumps(body)), ("/healthz", None), ("/v1/models", None)):
        connection.request("GET" if sent is None else "POST", path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [504, 200, 200]


def test_late_work_keeps_its_place_and_is_bounded(server):
    """Three calls of 1.5 s on two places: all are answered long before, and no more than two ever work."""
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.slow, 1500) for _ in range(2)]
        time.sleep(0.1)
        late = pool.submit(server.slow, 1)
        health = [
            server.ask("GET", path)
            for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/metrics")
        ]
        status, headers, text, seconds = late.result()
        assert [one.result()[0] for one in running] == [504, 504]
    assert [one[0] for one in health] == [200] * 5
    assert max(one[3] for one in health) < 1
    assert status == 503
    assert headers["retry-after"] == "2"
    assert "2 requests are being answered, the most this server works on at once" in json.loads(text)["detail"]
    assert seconds < 1.2
    assert server.slow(1)[0] == 503  # the two go on, though their callers were answered
    server.settle()


def test_beyond_those_that_wait_requests_are_sent_away_at_once(server):
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.slow, 500) for _ in range(2)]
        time.sleep(0.1)
        waiting = [pool.submit(server.slow, 1) for _ in range(2)]
        time.sleep(0.1)
        status, _, _, seconds = server.slow(1)
        page = server.ask("GET", "/v1/models")[0]
        assert [one.result()[0] for one in running] == [200, 200]
        assert {one.result()[0] for one in waiting} <= {200, 503}
    assert (status, page) == (503, 503)
    assert seconds < 0.35


def test_work_that_fails_after_its_time_is_logged_and_the_server_goes_on(server):
    status, _, text, _ = server.slow(900, n=13)
    assert (status, "secret" in text) == (504, False)
    server.settle()
    status, _, text, _ = server.slow(1, n=13)
    assert (status, "secret" in text) == (500, False)


def raw(server: Server, head: str, *parts: bytes, pause_s: float = 0.0) -> tuple[bytes, float]:
    """What is answered until the connection is closed, and after how long."""
    started = time.monotonic()
    said = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(
            f"POST {COLUMNS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}\r\n\r\n".encode()
        )
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(pause_s)
        except OSError:
            pass  # it is closed
        while part := sock.recv(65536):
            said += part
    return said, time.monotonic() - started


@pytest.mark.parametrize(("head", "parts", "pause_s"), [
    pytest.param("content-length: 1000", (b"{",), 0, id="a body that stops"),
    pytest.param("content-length: 1000", (b" ",) * 14, 0.1, id="a byte now and then"),
    pytest.param("transfer-encoding: chunked", (b"1\r\n{\r\n",) * 14, 0.1, id="chunks now and then"),
    pytest.param("content-length: 1000\r\nexpect: 100-continue", (), 0, id="a body that never comes"),
])  # fmt: skip
def test_a_body_that_comes_too_slowly_is_cut_off(server, head, parts, pause_s):
    said, seconds = raw(server, head, *parts, pause_s=pause_s)
    assert b"HTTP/1.1 408 " in said
    assert b"connection: close" in said.lower()
    assert b"the body did not come within 0.8 s; send it faster, or in parts" in said
    assert 0.7 < seconds < 6
    assert server.slow(1)[0] == 200


def test_slow_bodies_hold_no_place(server):
    with ThreadPoolExecutor(10) as pool:
        slow = [pool.submit(raw, server, "content-length: 1000", b"{") for _ in range(10)]
        time.sleep(0.2)
        status = server.slow(1)[0]
        assert all(b" 408 " in one.result()[0] for one in slow)
    assert status == 200


def test_bodies_have_bounds_together_too(server):
    part = b" " * 600_000
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(raw, server, "content-length: 2000000", part)
        time.sleep(0.3)
        said, _ = raw(server, "content-length: 2000000", part)
        assert b"HTTP/1.1 503 " in said
        assert b"have 1048576 bytes in all, the most this server holds" in said
        assert b" 408 " in first.result()[0]
    assert server.slow(1)[0] == 200
    assert server.refusals("concurrency") >= 1


def test_waiting_for_a_body_ends_with_its_connection(server):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(f"POST {COLUMNS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n"
                         "content-type: application/json\r\n\r\n{".encode())  # fmt: skip
    assert server.slow(1)[0] == 200
    server.settle()
