"""What a client sends beside its body, and how slowly: everything ends within a limit, and nothing of it is believed."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from contextlib import ExitStack, suppress

import pytest

pytestmark = pytest.mark.slow

_HASTY = (
    "import sys; from kernelcast.api.transport import connection; "
    "connection.HEAD_S = connection.REST_S = connection.READ_S = 1.0; "
    "from kernelcast.cli import main; sys.exit(main(sys.argv[1:]))"
)
HEAD = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
MIB = 1 << 20


@pytest.fixture(scope="module")
def service(launch, models, wait):
    service = launch("--model", str(models / "a"), code=_HASTY)
    wait(lambda: service.ask("GET", "/readyz")[0] == 200)
    yield service
    assert service.process.poll() is None
    assert service.ask("GET", "/readyz")[0] == 200
    assert "Traceback" not in service.log.read_text()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def test_a_chunked_body_is_taken_however_it_is_cut(service, gemm):
    body = json.dumps(gemm).encode()
    raw = CHUNKED + chunk(body[:50]) + b"1a;name=value\r\n" + body[50:76] + b"\r\n" + chunk(body[76:]) + b"0\r\n\r\n"
    close = raw.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
    assert service.statuses(service.reply_to(raw + close)) == [200, 200]
    assert service.statuses(service.reply_to(*(close[at : at + 1] for at in range(len(close))))) == [200]


@pytest.mark.parametrize("parts", [1, 3, 0], ids=["in one part", "in three", "byte by byte"])
@pytest.mark.parametrize("trailer", [b"authorization: Bearer kc_x\r\n", b"host: other\r\n", b"x", b"x: " + b"y" * 5000])
def test_a_trailer_is_refused_as_soon_as_it_begins(service, gemm, trailer, parts):
    raw = CHUNKED + chunk(json.dumps(gemm).encode()) + b"0\r\n"
    cut = [raw + trailer] if parts == 1 else [raw[:-3], raw[-3:], trailer]
    if not parts:
        cut = [raw, *(trailer[at : at + 1] for at in range(min(len(trailer), 40)))]
    said = service.reply_to(*cut)
    assert service.statuses(said) == [400]
    assert b"fields after the body are not taken" in said


def test_megabytes_of_trailers_take_no_memory(service, gemm):
    before = service.resident_b()
    with service.connect() as client:
        client.sendall(CHUNKED + chunk(json.dumps(gemm).encode()) + b"0\r\n")
        sent = 0
        with suppress(OSError):
            while sent < 36 * MIB:
                client.sendall(b"x-trailer: 0123456789\r\n" * 4096)
                sent += 23 * 4096
        assert service.statuses(service.read_all(client)) in ([400], [])
    assert sent < 36 * MIB
    assert service.resident_b() - before < 16 * MIB


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        (b"GET /healthz HTTP/2.0\r\nhost: x\r\n\r\n", 505, b"not 2.0"),
        (b"GET /healthz HTTP/0.9\r\nhost: x\r\n\r\n", 505, b"not 0.9"),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, b"may be chunked, once"),
        (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, b""),
        (HEAD + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, b""),
        (HEAD + b"transfer-encoding: identity\r\n\r\n", 400, b""),
        (HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400, b""),
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400, b""),
        (HEALTH + b"authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400, b"one authorization header"),
        (HEAD + b"content-type: text/plain\r\ncontent-length: 0\r\n\r\n", 400, b"one content-type header"),
        (CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n", 400, b"is one of HTTP/1.1"),
    ],
)  # fmt: skip
def test_what_two_readers_may_understand_differently_is_refused(service, head, status, words):
    said = service.reply_to(head + HEALTH + b"\r\n")
    assert service.statuses(said) == [status]
    assert b"connection: close" in said
    assert words in said


@pytest.mark.parametrize(
    "endless",
    [HEALTH + b"x: ", HEALTH, b"GET /", CHUNKED + b"1;x=", CHUNKED + b"1;x=y\r\n", b"\r\n"],
    ids=["a header", "headers", "an address", "an extension", "extensions", "empty lines"],
)
def test_nothing_beside_a_body_is_endless(service, endless):
    filler = {HEALTH: b"a: b\r\n", CHUNKED + b"1;x=y\r\n": b"z\r\n1;x=" + b"y" * 500 + b"\r\n", b"\r\n": b"\r\n"}.get(
        endless, b"a"
    )
    sent = 0
    with service.connect() as client:
        with suppress(OSError):
            client.sendall(endless)
            while sent < 30 * MIB:
                client.sendall(filler * (65536 // len(filler)))
                sent += 65536
        said = service.read_all(client)
    assert sent < 30 * MIB
    assert service.statuses(said) in ([431], [])


@pytest.mark.parametrize("begin", [b"", b"G", HEALTH, b"\r\n", HEALTH + b"\r\nGET"])
def test_a_head_that_never_ends_is_cut_off(service, begin):
    with service.connect() as client:
        client.sendall(begin)
        client.settimeout(0.1)
        said, started = b"", time.monotonic()
        while time.monotonic() - started < 60:
            try:
                part = client.recv(65536)
            except TimeoutError:
                with suppress(OSError):
                    client.sendall(b"\r\n" if begin in (b"\r\n", b"") else b"a")
                continue
            except ConnectionResetError:
                break
            if not part:
                break
            said += part
        else:
            pytest.fail("it was never closed")
    assert set(service.statuses(said)) <= {200, 400, 408}


def test_the_rest_of_a_body_that_was_answered_ends(service):
    with service.connect() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n")
        assert service.statuses(client.recv(65536)) == [200]
        sent, started = 0, time.monotonic()
        with suppress(OSError):
            while time.monotonic() - started < 60:
                sent += client.send(b"x")
                time.sleep(0.05)
    assert 0 < sent < 500


def test_a_connection_goes_on_after_a_body_that_came_behind_its_answer(service):
    with service.connect() as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n")
        assert service.statuses(client.recv(65536)) == [200]
        client.sendall(b"abcd" + HEALTH + b"connection: close\r\n\r\n")
        assert service.statuses(service.read_all(client)) == [200]


def test_one_who_does_not_read_gives_everything_back(service, gemm, wait):
    body = json.dumps({"requests": [gemm] * 4000}).encode()
    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", service.port))
            client.sendall(b"".join([HEAD, b"content-length: %d\r\n\r\n" % len(body), body] * 4))
        wait(lambda: service.predict()[0] == 200)
        wait(lambda: not in_flight(service))


def in_flight(service) -> bool:
    text = service.ask("GET", "/metrics")[1].decode()
    # The question itself is one.
    return float(re.findall(r"^kernelcast_http_requests_in_flight\S* (\S+)", text, re.MULTILINE)[0]) > 1


def test_thousands_of_pipelined_requests_are_not_all_kept(service):
    before = service.resident_b()
    with ExitStack() as stack:
        for _ in range(10):
            client = stack.enter_context(service.connect())
            with suppress(OSError):
                client.sendall((HEALTH + b"\r\n") * 5000)
            assert set(service.statuses(service.read_all(client))) <= {200}
    assert service.resident_b() - before < 32 * MIB


def test_a_refusal_never_stands_within_an_answer(service, gemm):
    body = json.dumps({"requests": [gemm] * 500}).encode()
    raw = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with service.connect() as client:
        client.sendall(raw + b"NONSENSE\r\n\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert len(json.loads(answer.read())["predictions"]) == 500
        assert service.read_all(client) == b""


def test_nothing_waits_behind_a_wish_for_another_protocol(service):
    said = service.reply_to(HEALTH + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" + HEALTH + b"\r\n")
    assert service.statuses(said) == [200]
    assert b"connection: close" in said


def test_small_chunks_earn_no_long_extensions(service):
    with service.connect() as client, suppress(OSError):
        client.sendall(CHUNKED + b"1\r\n \r\n" * 30_000 + b"1;" + b"e" * 260_000)
        assert service.statuses(service.read_all(client)) == [431]


def test_a_request_answered_early_gets_no_second_answer(service):
    head = b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with service.connect() as client:
        client.sendall(head)
        reply = client.recv(65536)
        with suppress(OSError):
            client.sendall(b"no chunk\r\n")
        reply += service.read_all(client)
    assert service.statuses(reply) == [404]
