"""One listening socket for all workers, or one each (SO_REUSEPORT): what happens to new connections when a worker stands still.

`python -P benchmarks/listening.py` starts workers that do nothing but answer who they are, in both ways, and counts: how many
of many connections each worker gets; how many get no answer within a second while one worker is stopped; how many of those
that wait in its queue are lost when it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import uvloop

CONNECTIONS = 200
WAIT_S = 1.0


def main() -> None:
    """Measure both ways and print what was counted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--listener", type=int, help="used by the program itself: serve on this inherited socket")
    args = parser.parse_args()
    if args.listener is not None:
        uvloop.run(_serve(socket.socket(fileno=args.listener)))
    for name, item in (("one shared socket", False), ("one socket each (SO_REUSEPORT)", True)):
        print(name, json.dumps(measure(args.workers, item)), flush=True)


async def _serve(listener: socket.socket) -> None:
    async def who(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"%d\n" % os.getpid())
        await writer.drain()

    server = await asyncio.start_server(who, sock=listener, backlog=2048)
    await server.serve_forever()


def measure(workers: int, own: bool) -> dict[str, Any]:
    """What happens with sockets of their `own`, or one for all."""
    listeners = [_listener(0, own)]
    port = listeners[0].getsockname()[1]
    if own:
        listeners += [_listener(port, own) for _ in range(workers - 1)]
    pool = [_start(listeners[index if own else 0]) for index in range(workers)]
    for listener in listeners:
        if own:
            listener.close()
    try:
        time.sleep(1.0 + 0.3 * workers)
        clients = [_connect(port) for _ in range(CONNECTIONS)]
        shares = Counter(who for who in _answered(clients) if who)
        _close(clients)
        pool[0].send_signal(signal.SIGSTOP)
        clients = [_connect(port) for _ in range(CONNECTIONS)]
        waiting = [client for client, who in zip(clients, _answered(clients), strict=True) if not who]
        pool[0].kill()
        pool[0].wait()
        lost = sum(not who for who in _answered(waiting))
        _close(clients)
    finally:
        for process in pool:
            process.kill()
            process.wait()
    return {"per worker": sorted(shares.values()), "of": CONNECTIONS, "no answer while one is stopped": len(waiting),
            "lost when it is killed": lost}  # fmt: skip


def _listener(port: int, own: bool) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), reuse_port=own, backlog=2048)


def _start(listener: socket.socket) -> subprocess.Popen[bytes]:
    number = listener.fileno()
    return subprocess.Popen([sys.executable, "-P", __file__, "--listener", str(number)], pass_fds=[number])


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def _answered(clients: list[socket.socket]) -> list[bytes]:
    """Who answers each, in `WAIT_S` for all of them together; nothing where nobody does."""
    deadline = time.monotonic() + WAIT_S
    return [_answer(client, max(0.001, deadline - time.monotonic())) for client in clients]


def _answer(client: socket.socket, within_s: float) -> bytes:
    client.settimeout(within_s)
    try:
        return client.recv(100)
    except OSError:
        return b""


def _close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
