"""Clients that are slow, silent, or wrong: each gets what it deserves, and everyone else is answered in time."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest

pytestmark = pytest.mark.slow

_TIMELY_S = 15.0
"""Longest that others may wait meanwhile. On an idle machine it is milliseconds; this bears a busy one."""


@pytest.fixture(scope="module")
def service(launch, models, wait):
    service = launch("--model", str(models / "a"), BODY_TIMEOUT_S="1")
    wait(lambda: service.ask("GET", "/readyz")[0] == 200)
    yield service
    # Whatever was sent to it, it is the same process, and it never showed a traceback.
    assert service.process.poll() is None
    assert service.ask("GET", "/readyz")[0] == 200
    assert "Traceback" not in service.log.read_text()


def post(body: bytes, extra: str = "") -> bytes:
    kind = "host: localhost\r\ncontent-type: application/json\r\n"
    head = f"POST /v1/predict HTTP/1.1\r\n{kind}content-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def timely(service) -> None:
    started = time.monotonic()
    assert service.predict()[0] == 200
    assert time.monotonic() - started < _TIMELY_S


def test_a_body_of_one_byte_at_a_time_is_cut_off(service, gemm):
    raw = post(json.dumps(gemm).encode())
    started = time.monotonic()
    said = b""
    with service.connect() as client:
        client.sendall(raw[:-60])
        client.settimeout(0.1)
        for byte in raw[-60:]:
            try:
                client.sendall(bytes([byte]))
                said += client.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if said:
                break
    assert service.statuses(said) == [408]
    assert 0.9 < time.monotonic() - started < 60


def test_hundreds_of_half_open_connections_hold_nobody_up(service, wait):
    with ExitStack() as stack:
        silent = [stack.enter_context(service.connect()) for _ in range(200)]
        for client in silent[:100]:
            client.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\nconte")
        for _ in range(10):
            timely(service)
    wait(lambda: open_connections(service) <= 1)


def open_connections(service) -> int:
    """Established connections at the server's end, from the kernel's table."""
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - the kernel's
        lines = [line.split() for line in table.readlines()[1:]]
    return sum(line[1].endswith(f":{service.port:04X}") and line[3] == "01" for line in lines)


def test_one_who_reads_slowly_gets_all_of_it(service, gemm):
    body = json.dumps({"requests": [gemm] * 1000}).encode()
    with service.connect() as client:
        client.sendall(post(body, "connection: close\r\n"))
        said = b""
        while part := client.recv(65536):
            said += part
            time.sleep(0.01)
    head, _, answer = said.partition(b"\r\n\r\n")
    assert service.statuses(head) == [200]
    assert len(json.loads(answer)["predictions"]) == 1000


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("raw", "expected", "words"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400], "Invalid HTTP request", id="TLS"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", [400], "has one host header, this one has none", id="no host"),
        pytest.param(HEALTH + b"host: y\r\n\r\n", [400], "has one host header, this one has 2", id="two hosts"),
        pytest.param(HEALTH + b"x: y\x00z\r\n\r\n", [400], "Invalid HTTP request", id="NUL in a header"),
        pytest.param(HEALTH + b"bad name: y\r\n\r\n", [400], "Invalid HTTP request", id="space in a header's name"),
        pytest.param(HEALTH + b" folded: y\r\n\r\n", [400], "Invalid HTTP request", id="folded header"),
        pytest.param(
            b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n", [400], "Invalid HTTP request", id="address not ASCII"
        ),
        pytest.param(b"GET healthz HTTP/1.1\r\nhost: x\r\n\r\n", [400], "Invalid HTTP request", id="relative address"),
        pytest.param(b"BREW /healthz HTTP/1.1\r\nhost: x\r\n\r\n", [400], "Invalid HTTP request", id="unknown method"),
        pytest.param(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", [400], "Invalid HTTP request", id="CONNECT"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], "Invalid HTTP request", id="HTTP/2"),
        pytest.param(
            b"GET /healthz HTTP/1.1 \r\nhost: x\r\n\r\n", [400], "Invalid HTTP request", id="version with a space"
        ),
        pytest.param(HEALTH + b"a: " + b"x" * 40_000 + b"\r\n\r\n", [431], "32768 bytes", id="a huge header"),
        pytest.param(HEALTH + b"a: b\r\n" * 101 + b"\r\n", [431], "100 headers", id="too many headers"),
        pytest.param(
            b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", [431], "32768 bytes", id="a huge address"
        ),
        # Shapes of request smuggling: two readers of one stream must not see different requests.
        pytest.param(
            post(b"{}", "transfer-encoding: chunked\r\n"), [400], "Invalid HTTP request", id="length and chunks"
        ),
        pytest.param(post(b"{}", "content-length: 3\r\n"), [400], "Invalid HTTP request", id="two lengths"),
        pytest.param(HEALTH + b"content-length: +1\r\n\r\nx", [400], "Invalid HTTP request", id="length with a sign"),
        pytest.param(HEALTH + b"content-length: 1,1\r\n\r\nx", [400], "Invalid HTTP request", id="a list of lengths"),
        pytest.param(HEALTH + b"content-length: 0x1\r\n\r\nx", [400], "Invalid HTTP request", id="length in hex"),
        pytest.param(
            HEALTH + b"content-length: 99999999999999999999\r\n\r\n",
            [400],
            "Invalid HTTP request",
            id="length overflow",
        ),
        pytest.param(
            HEALTH + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", [400], "Invalid HTTP request", id="xchunked"
        ),
        pytest.param(
            HEALTH + b"transfer-encoding: chunked, x\r\n\r\n0\r\n\r\n", [400], "Invalid HTTP request", id="chunked, x"
        ),
        pytest.param(
            HEALTH + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
            [400],
            "Invalid HTTP request",
            id="space before colon",
        ),
        pytest.param(b"GET /healthz HTTP/1.1\nhost: x\n\n", [400], "Invalid HTTP request", id="bare line feeds"),
    ],
)
def test_what_is_no_proper_request_is_refused_and_the_connection_closed(service, raw, expected, words):
    said = service.reply_to(raw + HEALTH + b"\r\n")
    assert service.statuses(said) == expected
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert words in body.decode()
    assert len(body) < 2000


def test_pipelined_requests_are_answered_in_order(service, gemm):
    raw = (
        HEALTH
        + b"\r\n"
        + post(json.dumps(gemm).encode())
        + b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert service.statuses(service.reply_to(raw)) == [200, 200, 404]


def test_a_wish_for_another_protocol_is_answered_in_this_one(service):
    with service.connect() as client:
        client.sendall(HEALTH + b"connection: upgrade, close\r\nupgrade: h2c\r\n\r\n")
        said = service.read_all(client)
    assert service.statuses(said) == [200]
    assert b"connection: close" in said


def test_a_client_that_leaves_in_the_middle_leaves_nothing(service, gemm, wait):
    for cut in (20, 80, 150):
        with service.connect() as client:
            client.sendall(post(json.dumps(gemm).encode())[:cut])
    wait(lambda: open_connections(service) <= 1)
    timely(service)


@pytest.mark.parametrize("experts", [16_385, 10**9, 2**40])
def test_a_number_of_experts_that_would_take_all_memory_is_refused(service, gemm, experts):
    sizes = {"tokens": 1, "hidden": 64, "inter": 64, "topk": 1, "experts": experts}
    status, answer = service.ask("POST", "/v1/predict", gemm | {"family": "moe", "sizes": sizes})
    assert status == 422
    assert f"experts must be at most 16384, got {experts}" in answer["detail"]
