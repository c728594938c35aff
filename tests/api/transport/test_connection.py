"""A connection, without a server around it: what of a real network takes minutes to happen."""

from __future__ import annotations

import asyncio
import socket

import pytest
from kernelcast.api.transport import connection
from uvicorn.config import Config
from uvicorn.server import ServerState

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def _answer(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"60000")]})
    await send({"type": "http.response.body", "body": b"x" * 60_000})


@pytest.mark.parametrize("request_bytes", [REQUEST, REQUEST.replace(b"close", b"keep-alive")], ids=["close", "idle"])
def test_an_answer_nobody_takes_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch, request_bytes: bytes) -> None:
    monkeypatch.setattr(connection, "READ_S", 0.05)

    async def serve_one() -> None:
        config = Config(_answer, lifespan="off", timeout_keep_alive=0)
        config.load()
        server, client = socket.socketpair()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with client:
            client.sendall(request_bytes)
            state = ServerState()
            loop = asyncio.get_running_loop()
            protocol = connection.LimitedProtocol(config=config, server_state=state, app_state={}, _loop=loop)
            await loop.connect_accepted_socket(lambda: protocol, server)
            while state.connections or not state.total_requests:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(serve_one(), 30))
