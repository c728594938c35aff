"""gzip both ways: which answers are packed and for whom, which packed requests are taken."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
import zlib
from timeit import timeit
from typing import Any

import anyio.to_thread
import pytest
from kernelcast.api.app import create_app
from kernelcast.api.middleware.error_boundary import ErrorBoundary
from kernelcast.api.model_source import FixedSource
from kernelcast.api.telemetry.metrics import Metrics
from kernelcast.api.transport.bodies import unpack
from kernelcast.api.transport.problems import ProblemError
from kernelcast.features.device import catalogue
from starlette.middleware.gzip import GZipMiddleware

Parts = list[tuple[bytes, bool]]


def packing(app: Any) -> ErrorBoundary:
    """The application as the service packs its answers."""
    (options,) = [
        item.kwargs for item in create_app(FixedSource(None, catalogue())).user_middleware if item.cls is GZipMiddleware
    ]
    return ErrorBoundary(GZipMiddleware(app, **options), Metrics(), ["/x"])  # type: ignore[arg-type]


def answered(
    parts: Parts, headers: dict[str, str], accept: str = "gzip", status: int = 200
) -> tuple[dict[str, str], list[bytes]]:
    """What comes out of the boundary around an application that answers with these parts: headers, and bytes sent."""
    out: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for body, more in parts:
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def keep(message: Any) -> None:
        out.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "headers": [(b"host", b"x"), (b"accept-encoding", accept.encode())],
    }
    asyncio.run(packing(app)(scope, receive, keep))  # type: ignore[arg-type]
    start, *rest = out
    return {name.decode(): value.decode() for name, value in start["headers"]}, [item["body"] for item in rest]


LONG = json.dumps(list(range(1000))).encode()
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", [LONG, LONG * 100], ids=["on the loop", "on a thread"])
def test_a_long_answer_is_packed_and_says_so(body):
    headers, sent = answered([(body, False)], JSON | {"content-length": str(len(body)), "etag": 'W/"a"'})
    assert gzip.decompress(b"".join(sent)) == body
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Accept-Encoding"
    assert int(headers["content-length"]) == len(b"".join(sent)) < len(body) / 2
    assert headers["etag"] == 'W/"a"'


@pytest.mark.parametrize(
    ("body", "headers", "accept", "status", "vary"),
    [
        (b"x" * 1023, JSON | {"content-length": "1023"}, "gzip", 200, False),
        (b"x" * 1023, JSON, "gzip", 200, False),
        (LONG, {"content-type": "application/problem+json"}, "gzip", 422, False),
        (LONG, JSON | {"content-length": str(len(LONG))}, "identity", 200, True),
        (LONG, JSON | {"content-length": str(len(LONG))}, "br", 200, True),
        (LONG, {"content-type": "image/png", "content-length": str(len(LONG))}, "gzip", 200, False),
        (LONG, {"content-type": "application/octet-stream"}, "gzip", 200, False),
        (LONG, JSON | {"content-encoding": "br"}, "gzip", 200, False),
        (LONG, JSON, "gzip", 206, False),
    ],
)
def test_an_answer_that_is_sent_as_it_is(body, headers, accept, status, vary):
    result, sent = answered([(body, False)], headers, accept, status)
    assert sent == [body]
    assert result.get("content-encoding") == headers.get("content-encoding")
    assert ("vary" in result) is vary
    assert result.get("content-length") == headers.get("content-length")


@pytest.mark.parametrize(("body_b", "is_on_thread"), [(2000, False), (32 << 10, True), (31 << 10, False)])
def test_only_large_answers_leave_the_event_loop(monkeypatch, body_b, is_on_thread):
    left: list[int] = []
    run_sync = anyio.to_thread.run_sync

    async def counted(work: Any, body: bytes, *more: Any, **options: Any) -> bytes:
        left.append(len(body))
        return await run_sync(work, body, *more, **options)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    answered([(b"x" * body_b, False)], JSON)
    assert left == ([body_b] if is_on_thread else [])


def test_a_small_answer_is_not_held_up():
    """Ids, counts, headers and the look at Accept-Encoding take twice the processor time of a thousand additions."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": small})
        await send({"type": "http.response.body", "body": b"x" * 700})

    async def nothing(*_: Any) -> Any: ...

    async def seconds(times: int) -> float:
        started = time.process_time()
        for _ in range(times):
            scope = {"type": "http", "method": "POST", "path": "/x", "headers": sent}
            await boundary(scope, nothing, nothing)
        return (time.process_time() - started) / times

    small = [(b"content-type", b"application/json"), (b"content-length", b"700")]
    sent = [(b"accept-encoding", b"gzip, deflate, br"), (b"content-length", b"200"), (b"host", b"x")]
    boundary = packing(app)
    pairs = [
        (asyncio.run(seconds(200)), timeit(lambda: sum(range(1000)), timer=time.process_time, number=200) / 200)
        for _ in range(20)
    ]
    assert min(ours / additions for ours, additions in pairs) < 5


def test_each_part_of_a_stream_can_be_read_when_it_comes():
    parts = [(LONG, True), (b"second " * 50, True), (b"", True), (b"end", False)]
    headers, sent = answered(parts, JSON | {"content-length": "999999"})
    assert "content-length" not in headers
    reader = zlib.decompressobj(31)
    assert [reader.decompress(part) for part in sent] == [body for body, _ in parts]
    assert reader.eof


def test_an_answer_that_fails_before_its_first_byte_is_a_problem():
    out: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        raise RuntimeError("boom")

    async def keep(message: Any) -> None:
        out.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"host", b"x"), (b"accept-encoding", b"gzip")]}
    asyncio.run(packing(app)(scope, keep, keep))  # type: ignore[arg-type]
    assert out[0]["status"] == 500
    assert b"boom" not in out[1]["body"]


def post(client: Any, body: bytes, encoding: str, path: str = "/v1/predict") -> Any:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return client.request("POST", path, content=body, headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "identity"])
def test_a_packed_request_is_answered_as_one_that_is_not(client, gemm, encoding):
    body = json.dumps({"requests": [gemm] * 300}).encode()
    assert len(body) > 8192
    sent = body if encoding == "identity" else gzip.compress(body)
    assert post(client, sent, encoding).json() == client.post(body).json()


def test_every_route_takes_packed_requests(client, gemm):
    model = {"devices": [gemm.pop("device")], "kernels": [gemm]}
    assert post(client, gzip.compress(json.dumps(model).encode()), "gzip", "/v1/predict/model").status_code == 200


BOMB = gzip.compress(b" " * 50_000_000)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "said"),
    [
        (b"{}", "deflate", 415, "content-encoding gzip; got 'deflate'"),
        (b"{}", "br", 415, "got 'br'"),
        (b"{}", "zstd", 415, "got 'zstd'"),
        (b"{}", "gzip, gzip", 415, "got 'gzip, gzip'"),
        (b"{}", "gzip", 400, "not valid gzip"),
        (b"", "gzip", 400, "cut short; send all of it"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400, "cut short; send all of it"),
        (gzip.compress(b"{}", mtime=0)[:-5] + b"abcde", "gzip", 400, "not valid gzip"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", 400, "one gzip member"),
        (gzip.compress(b"{}", mtime=0) + b"tail", "gzip", 400, "4 bytes follow"),
        (zlib.compress(b"{}"), "gzip", 400, "not valid gzip"),
        (gzip.compress(b"{", mtime=0), "gzip", 400, "JSON"),
        (BOMB, "gzip", 413, "longer than 200000 bytes when it is unpacked"),
        (b"x" * 200_001, "gzip", 413, "longer than 200000 bytes"),
    ],
)
def test_packed_requests_that_are_refused(client, body, encoding, status, said):
    response = post(client, body, encoding)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert said in response.json()["detail"]
    assert response.headers.get("accept-encoding") == ("gzip" if status == 415 else None)


def test_unpacking_stops_at_the_limit_and_not_before():
    assert unpack(gzip.compress(b"x" * 1000), 1000, "") == b"x" * 1000
    with pytest.raises(ProblemError) as refused:
        unpack(gzip.compress(b"x" * 1001), 1000, "send less")
    assert (refused.value.status, refused.value.detail[-9:]) == (413, "send less")


def test_a_bomb_of_ten_gigabytes_is_never_unpacked():
    """10 GB of zeros are 10 MB packed. In a process that may not have 1 GB: more than the limit would end it."""
    code = """
import resource, zlib
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from kernelcast.api.transport.bodies import unpack
from kernelcast.api.transport.problems import ProblemError
from kernelcast.features.device import catalogue
from starlette.middleware.gzip import GZipMiddleware
packer = zlib.compressobj(1, zlib.DEFLATED, 31)
block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
again = zlib.compressobj(1, zlib.DEFLATED, -15)
repeated = again.compress(bytes(1 << 20)) + again.flush(zlib.Z_FULL_FLUSH)
bomb = block + repeated * 10239
assert zlib.decompressobj(31).decompress(bomb, 1 << 24) == bytes(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    unpack(bomb, 1 << 20, "")
except ProblemError as error:
    print(len(bomb), error.status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", timeout=240)
    assert done.returncode == 0, done.stderr
    packed_b, status, more_kib = map(int, done.stdout.split())
    assert packed_b > 10_000_000
    assert status == 413
    assert more_kib < 20_000
