"""Answers that readers do not take are bounded together, and it is the slowest who lose theirs."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from kernelcast.api import connection
from uvicorn.config import Config

ANSWER_B = 16 << 20
ASK = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % ANSWER_B)]})
    await send({"type": "http.response.body", "body": b"x" * ANSWER_B})


def small(buffer: int) -> socket.socket:
    """A socket whose buffer holds little of an answer, whatever the machine's settings."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, buffer, 64 << 10)
    return made


async def all_read(n: int) -> tuple[list[int], connection.Limits]:
    """How many bytes each of `n` clients gets, of which each asks when the one before has, and none reads until all have."""
    limits = connection.Limits()
    config = Config(answer, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    listening = small(socket.SO_SNDBUF)
    listening.bind(("127.0.0.1", 0))
    server = await loop.create_server(lambda: connection.Connection(config, limits, {}), sock=listening)
    address = listening.getsockname()
    clients = []
    for _ in range(n):
        caller = small(socket.SO_RCVBUF)
        await loop.sock_connect(caller, address)
        reader, writer = await asyncio.open_connection(sock=caller, limit=1024)
        clients.append((reader, writer))
        writer.write(ASK)
        await asyncio.sleep(0.2)
    found = []
    for reader, writer in clients:
        said = 0
        try:
            while part := await asyncio.wait_for(reader.read(1 << 20), 10):
                said += len(part)
        except ConnectionResetError:
            pass
        found.append(said)
        writer.close()
    server.close()
    await asyncio.sleep(0.05)
    return found, limits


@pytest.mark.parametrize(("most_b", "dropped"), [(1 << 30, 0), (5 * ANSWER_B // 2, 1), (0, 2)])
def test_the_slowest_readers_lose_their_answers_when_all_of_them_wait_for_too_much(monkeypatch, most_b, dropped):
    monkeypatch.setattr(connection, "MAX_UNREAD_B", most_b)
    found, limits = asyncio.run(all_read(3))
    assert [said < ANSWER_B for said in found] == [True] * dropped + [False] * (3 - dropped)
    assert not limits.unread
