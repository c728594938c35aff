"""How much a server takes on at once and for how long: a real server with small limits and a predictor that takes its time."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# Where `n` is HELD or FAILS_LATE its predictor works until the file `open` lies in the folder named, on the work's own thread,
# and a file of the folder says that it does. It fails where `n` is FAILS or FAILS_LATE.
HELD, FAILS, FAILS_LATE = 17, 13, 19
REQUEST_S, BODY_S, WAIT_S = 5, 2, 3
SERVER = """
import importlib.util, pathlib, sys, time, uuid
from kernelcast.api.server import cap_threads, listen, run
cap_threads()
from kernelcast.api.app import create_app
from kernelcast.api.middleware import admission
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
folder = pathlib.Path(sys.argv[2])
class Slow(fakes.FakePredictor):
    def predict_cases(self, cases, *, coverage=0.9):
        n = cases.sizes["n"][0]
        if n in (17, 19):
            begun = folder / f"begun-{uuid.uuid4()}"
            begun.touch()
            while not (folder / "open").exists():
                time.sleep(0.01)
            begun.unlink()
        if n in (13, 19):
            raise RuntimeError("boom: a secret")
        return super().predict_cases(cases, coverage=coverage)
admission.WAIT_S, admission.MAX_WAITING = 3.0, 2
settings = Settings(port=0, request_timeout_s=5.0, body_timeout_s=2.0, max_concurrency=2, max_held_b=1 << 20)
with listen("127.0.0.1", 0) as sock:
    print(sock.getsockname()[1], flush=True)
    run(create_app(FixedSource(Slow(), catalogue()), settings), sock)
"""
COLUMNS = "/v1/predict/columns"
ALWAYS = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/metrics")


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], str, float]:
        """Status, headers, body and seconds."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        started = time.monotonic()
        raw = None if body is None else json.dumps(body)
        connection.request(method, path, raw, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text, time.monotonic() - started

    def predict(self, n: int = 64) -> tuple[int, dict[str, str], str, float]:
        return self.ask("POST", COLUMNS, body_of(n))

    def metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics")[2].splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    def refusals(self, reason: str) -> float:
        return self.metric(f'kernelcast_http_refusals_total{{reason="{reason}"}}')

    def in_flight(self) -> float:
        """Requests that came and were not answered, but for the one that asks."""
        return self.metric("kernelcast_http_requests_in_flight") - 1

    def close(self) -> None:
        """Hold the works that begin from now on."""
        (self.folder / "open").unlink(missing_ok=True)

    def open(self) -> None:
        """Let all works go on to their end."""
        (self.folder / "open").touch()
        until(lambda: self.begun() == 0)

    def begun(self) -> int:
        """Works that are held, whether or not someone waits for them still."""
        return len(list(self.folder.glob("begun-*")))


def body_of(n: int) -> dict[str, Any]:
    columns = {"device": "h100-sxm", "dtype": "bf16", "sizes": {"m": [1], "n": n, "k": 64}}
    return {"family": "gemm", "columns": columns}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    fakes, folder = Path(__file__).parents[1] / "conftest.py", tmp_path_factory.mktemp("works")
    process = subprocess.Popen([sys.executable, "-P", "-c", SERVER, str(fakes), str(folder)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd="/")  # fmt: skip
    assert process.stdout is not None
    yield Server(process, int(process.stdout.readline()), folder)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    # What failed after its time was up is in the log once, and never in an answer.
    assert said.count("Traceback") <= 2 + said.count("KeyboardInterrupt")


@pytest.fixture
def server(started) -> Iterator[Server]:
    started.close()
    yield started
    started.open()
    until(lambda: started.in_flight() == 0)


def test_an_answer_that_takes_too_long_is_said_to(server):
    before = server.refusals("time")
    status, headers, text, seconds = server.predict(HELD)
    assert (status, headers["content-type"]) == (504, "application/problem+json")
    problem = json.loads(text)
    assert problem["type"] == "urn:kernelcast:problem:took-too-long"
    for words in ("longer than 5 s", "send fewer rows at once", "KERNELCAST_REQUEST_TIMEOUT_S", "one of the 2"):
        assert words in problem["detail"]
    assert seconds > 0.9 * REQUEST_S
    assert server.refusals("time") == before + 1


def test_a_connection_goes_on_after_an_answer_that_was_late(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    statuses = []
    for path, sent in ((COLUMNS, json.dumps(body_of(HELD))), ("/healthz", None), ("/v1/models", None)):
        connection.request("GET" if sent is None else "POST", path, sent, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    assert statuses == [504, 200, 200]


def test_late_work_keeps_its_place_and_is_bounded(server):
    """Two works that are held keep both places: all callers are answered before their end, and no third ever works."""
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.predict, HELD) for _ in range(2)]
        until(lambda: server.begun() == 2)
        late = pool.submit(server.predict)
        health = [
            server.ask("GET", path)
            for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/metrics")
        ]
        status, headers, text, _ = late.result()
        assert [answer.result()[0] for answer in running] == [504, 504]
    assert [answer[0] for answer in health] == [200] * 5
    assert status == 503
    assert headers["retry-after"] == "2"
    assert "2 requests are being answered, the most this server works on at once" in json.loads(text)["detail"]
    assert server.predict()[0] == 503  # the two go on, though their callers were answered
    server.open()
    until(lambda: server.predict()[0] == 200)


def test_beyond_those_that_wait_requests_are_sent_away_at_once(server):
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.predict, HELD) for _ in range(2)]
        until(lambda: server.begun() == 2)
        waiting = [pool.submit(server.predict) for _ in range(2)]
        until(lambda: server.in_flight() == 4)
        status, _, _, seconds = server.predict()
        page = server.ask("GET", "/v1/models")[0]
        server.open()
        assert [answer.result()[0] for answer in running] == [200, 200]
        assert {answer.result()[0] for answer in waiting} <= {200, 503}
    assert (status, page) == (503, 503)
    assert seconds < WAIT_S


def test_work_that_fails_after_its_time_is_logged_and_the_server_goes_on(server):
    status, _, text, _ = server.predict(FAILS_LATE)
    assert (status, "secret" in text) == (504, False)
    server.open()
    status, _, text, _ = server.predict(FAILS)
    assert (status, "secret" in text) == (500, False)


def raw(server: Server, head: str, *parts: bytes, pause_s: float = 0.0) -> tuple[bytes, float]:
    """What is answered until the connection is closed, and after how long."""
    started = time.monotonic()
    said = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as sock:
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
    pytest.param("content-length: 1000", (b" ",) * 30, 0.1, id="a byte now and then"),
    pytest.param("transfer-encoding: chunked", (b"1\r\n{\r\n",) * 30, 0.1, id="chunks now and then"),
    pytest.param("content-length: 1000\r\nexpect: 100-continue", (), 0, id="a body that never comes"),
])  # fmt: skip
def test_a_body_that_comes_too_slowly_is_cut_off(server, head, parts, pause_s):
    said, seconds = raw(server, head, *parts, pause_s=pause_s)
    assert b"HTTP/1.1 408 " in said
    assert b"connection: close" in said.lower()
    assert b"the body did not come within 2 s; send it faster, or in parts" in said
    assert 0.9 * BODY_S < seconds < 60
    assert server.predict()[0] == 200


def test_slow_bodies_hold_no_place(server):
    with ThreadPoolExecutor(10) as pool:
        slow = [pool.submit(raw, server, "content-length: 1000", b"{") for _ in range(10)]
        until(lambda: server.in_flight() == 10)
        status = server.predict()[0]
        assert all(b" 408 " in item.result()[0] for item in slow)
    assert status == 200


def test_bodies_have_bounds_together_too(server):
    part = b" " * 600_000
    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(raw, server, "content-length: 2000000", part) for _ in range(2)]
        refused, late = sorted(
            (answer.result()[0] for answer in sending), key=lambda said: b"HTTP/1.1 503 " not in said
        )
        assert b"HTTP/1.1 503 " in refused
        assert b"have 1048576 bytes in all, the most this server holds" in refused
        # The other waits for the rest of its body, unless both grew beyond the bound at the same moment.
        assert b" 408 " in late or b" 503 " in late
    assert server.predict()[0] == 200
    assert server.refusals("concurrency") >= 1


def test_waiting_for_a_body_ends_with_its_connection(server):
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as sock:
            sock.sendall(f"POST {COLUMNS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n"
                         "content-type: application/json\r\n\r\n{".encode())  # fmt: skip
    assert server.predict()[0] == 200
    until(lambda: server.in_flight() == 0)
