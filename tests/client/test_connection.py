"""What the client does with the ways in which a service, or a network, can misbehave: a scripted server answers."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from kernelcast.client import Client, ClientError

PREDICTION = {
    "family": "gemm", "device": "d", "latency_s": {"value": 1.0, "lower": 0.5, "upper": 2.0}, "power_w": None,
    "energy_j": None, "coverage": 0.9, "bound": "dram", "breakdown": {"dram": 0.4}, "method": "m", "timing": "device",
    "in_domain": True,
    "notes": [], "a_field_of_a_newer_service": 1,
}  # fmt: skip


def http_answer(status: int, body: bytes, **headers: str) -> bytes:
    named = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body


def problem(status: int, detail: str, **headers: str) -> bytes:
    body = json.dumps({"detail": detail, "errors": [{"field": "sizes.m", "detail": "is odd"}]}).encode()
    return http_answer(status, body, **{"content_type": "application/problem+json", **headers})


GOOD = http_answer(200, json.dumps(PREDICTION).encode())
BUSY = problem(503, "no model is loaded", retry_after="2")


class Scripted:
    """Answers requests with `script`, one after the other; None closes the connection instead."""

    def __init__(self) -> None:
        self.script: list[bytes | None] = []
        self.heads: list[str] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while head := self._head(lines):
                self.heads.append(head)
                answer = self.script.pop(0)
                if answer is None:
                    return
                connection.sendall(answer)

    def _head(self, lines: Any) -> str:
        head = ""
        while (line := lines.readline().decode()) not in ("", "\r\n"):
            head += line
        length = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")]
        lines.read(int(length[0]) if length else 0)
        return head

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def service() -> Iterator[Scripted]:
    result = Scripted()
    yield result
    result.close()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def make(service: Scripted, waits: list[float]) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def client(url: str | None = None, **options: Any) -> Client:
        made.append(Client(service.url if url is None else url, **options))
        made[-1]._connections._sleep = waits.append
        return made[-1]

    yield client
    for item in made:
        item.close()


def ask(client: Client) -> Any:
    return client.predict("gemm", device="d", dtype="bf16", m=1, n=1, k=1)


def test_it_waits_as_long_as_it_is_asked_to(service, make, waits):
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=9.5), usegmt=True)
    service.script = [BUSY, problem(429, "too many", retry_after=later), BUSY, GOOD]
    assert ask(make()).latency_s.value == 1.0
    assert waits[0] == waits[2] == 2
    assert 7 <= waits[1] <= 10


@pytest.mark.parametrize(
    ("answers", "options", "slept"),
    [
        ([BUSY] * 4, {}, 3),
        ([BUSY], {"retries": 0}, 0),
        ([problem(503, "busy")], {}, 0),
        ([problem(503, "busy", retry_after="soon")], {}, 0),
        ([problem(503, "busy", retry_after="-5")], {}, 0),
        ([problem(503, "busy", retry_after="9" * 300)], {}, 0),
        ([problem(503, "busy", retry_after="31")], {}, 0),
        ([BUSY], {"longest_wait_s": 1}, 0),
        ([problem(500, "failed", retry_after="1")], {}, 0),
        ([problem(422, "sizes.m is odd", retry_after="1")], {}, 0),
    ],
)  # fmt: skip
def test_it_gives_up_when_waiting_is_not_asked_for_or_too_long(service, make, waits, answers, options, slept):
    service.script = list(answers)
    with pytest.raises(ClientError) as caught:
        ask(make(**options))
    assert caught.value.status in (422, 500, 503)
    assert caught.value.errors[0].field == "sizes.m"
    assert len(waits) == slept
    assert not service.script


def test_a_service_that_is_not_ready_is_not_waited_for(service, make, waits):
    service.script = [BUSY, http_answer(200, b"{}"), problem(500, "failed")]
    client = make()
    assert client.ready() is False
    assert client.ready() is True
    with pytest.raises(ClientError, match="500: failed"):
        client.ready()
    assert not waits


def test_a_connection_that_was_closed_meanwhile_is_replaced(service, make):
    service.script = [GOOD, None, GOOD]
    client = make()
    ask(client)
    assert ask(client).latency_s.value == 1.0
    assert service.connections == 2
    service.script = [None, None]
    with pytest.raises(ClientError, match=r"no answer from http://127\.0\.0\.1") as caught:
        ask(client)
    assert caught.value.status is None


def test_an_answer_that_closes_the_connection_is_the_last_on_it(service, make):
    service.script = [http_answer(200, json.dumps(PREDICTION).encode(), connection="close"), GOOD]
    client = make()
    ask(client)
    ask(client)
    assert service.connections == 2


def test_packed_answers_are_unpacked(service, make):
    packed = gzip.compress(json.dumps(PREDICTION).encode())
    service.script = [http_answer(200, packed, content_encoding="gzip")]
    assert ask(make()).bound == "dram"
    assert "accept-encoding: gzip" in service.heads[0].lower()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http_answer(200, b"<html>hello</html>"), "is not what version"),
        (http_answer(200, b"\xff\xfe"), "is not what version"),
        (http_answer(200, b'{"family": "gemm"}'), "is not what version"),
        (http_answer(200, gzip.compress(b"{}", mtime=0)[:-6], content_encoding="gzip"), "the packed answer ends too early"),
        (http_answer(200, b"no gzip", content_encoding="gzip"), "incorrect header check"),
        (http_answer(200, b"{}", content_encoding="br"), "packed with br, which was not asked for"),
        (http_answer(502, b"<html>Bad Gateway</html>"), "502: http://127.0.0.1"),
        (http_answer(302, b"", location="http://example.org/"), "answered with no reason that is known"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\nconnection: close\r\n\r\nshort", "no answer from"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no answer from"),
    ],
)  # fmt: skip
def test_answers_that_are_none(service, make, answer, words):
    service.script = [answer, None]
    with pytest.raises(ClientError) as caught:
        ask(make(timeout_s=1))
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_answer_that_does_not_come_ends_in_a_sentence(service, make):
    service.script = [b""]
    with pytest.raises(ClientError, match=r"no answer from http://127.0.0.1:\d+ in 0.2 s; set timeout_s"):
        ask(make(timeout_s=0.2))


def test_an_answer_that_is_too_long_is_not_read_to_its_end(service, make, monkeypatch):
    monkeypatch.setattr("kernelcast.client.connection.MAX_ANSWER_B", 10_000)
    service.script = [http_answer(200, gzip.compress(b" " * 10**7), content_encoding="gzip")]
    with pytest.raises(ClientError, match="the answer is longer than 10000 bytes"):
        ask(make())


def test_the_key_is_sent_and_never_shown(service, make, monkeypatch):
    service.script = [GOOD, GOOD, GOOD, problem(401, "send a key", x_request_id="r-7")]
    ask(make(api_key="kc_argument"))
    monkeypatch.setenv("KERNELCAST_API_KEY", "kc_environment\n")
    ask(make())
    ask(make(api_key=""))
    with pytest.raises(ClientError) as caught:
        ask(make())
    sent = [[line for line in head.splitlines() if line.lower().startswith("authorization")] for head in service.heads]
    assert sent == [["authorization: Bearer kc_argument"], ["authorization: Bearer kc_environment"], [],
                    ["authorization: Bearer kc_environment"]]  # fmt: skip
    assert (caught.value.status, caught.value.request_id) == (401, "r-7")
    assert "kc_" not in f"{caught.value!r} {make()!r}"
    with pytest.raises(ClientError, match="holds a character that keys do not have") as caught:
        make(api_key="kc_secret\r\nx: y")
    assert "secret" not in str(caught.value)


def test_a_prefix_is_kept_before_every_path(service, make):
    service.script = [GOOD]
    ask(make(f"{service.url}/prefix/"))
    assert service.heads[0].startswith("POST /prefix/v1/predict HTTP/1.1")


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://[::1",
                                 "http://h/?q=1", "http://user:word@h", "http://h/#x"])  # fmt: skip
def test_addresses_that_are_none(url):
    with pytest.raises(ClientError, match="the address"):
        Client(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://a..b", "https://127.0.0.1:1", "http://no-such-host.invalid"]
)
def test_nobody_there(url):
    with Client(url, timeout_s=2) as client, pytest.raises(ClientError, match="no answer from http") as caught:
        client.ready()
    assert caught.value.status is None


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"retries": -1}, {"longest_wait_s": -1}]
)
def test_options_that_are_refused(options):
    with pytest.raises(ClientError, match="must be"):
        Client(**options)
