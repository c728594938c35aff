"""One process that answers: uvicorn with this service's limits; under a supervisor it says how it is, and ends when told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn

from .connection import MAX_CONNECTIONS, Connection, Limits
from .request_log import install
from .settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .source import PredictorSource

SHUTDOWN_S = 10
"""Longest that requests which are being answered may still take when the process is told to stop."""

_KEEP_ALIVE_S = 30
_SPARE_FILES = 128
"""Files the process opens beside its connections: the model, pipes, sockets of exporters."""

_MOST_FILES = 65536
_BEAT_TICKS = 10
"""uvicorn ticks ten times a second; how it is, is said once a second."""


class Server(uvicorn.Server):
    """uvicorn's server with our state of connections; `tell` is called about once a second."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self.limits = Limits(most_connections())
        self.server_state = self.limits
        self._tell = tell

    async def on_tick(self, counter: int) -> bool:
        """Tell, and let uvicorn do its own."""
        if self._tell is not None and counter % _BEAT_TICKS == 0:
            self._tell()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: connections know it, so that the ones made in this moment end too."""
        self.limits.is_draining = True
        await super().shutdown(sockets)


def run(app: FastAPI, listener: socket.socket, link: Link | None = None) -> None:
    """Answer on `listener` until a signal comes, or the supervisor at the other end of `link` is gone.

    Raises:
        KeyboardInterrupt: stopped by Ctrl-C, after open requests were answered.
    """
    config = uvicorn.Config(
        app, http=Connection, access_log=False, log_config=None, log_level="warning", ws="none", lifespan="on",
        server_header=False, timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=SHUTDOWN_S, proxy_headers=False,
    )  # fmt: skip
    server = Server(config, None if link is None else lambda: link.tell(app.state.source))
    if link is not None:
        link.when_alone(lambda: setattr(server, "should_exit", True))
    server.run(sockets=[listener])


def most_connections() -> int:
    """How many connections this process can hold, after it asked for as many files as it may have."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - _SPARE_FILES))


class Link:
    """The worker's end of its socket to the supervisor: settings come in, lines of JSON on how it is go out."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def settings(self) -> Settings:
        """The settings, one line; nothing else ever comes."""
        with self._end.makefile("rb") as lines:
            return decode_settings(lines.readline())

    def tell(self, source: PredictorSource, *, is_serving: bool = True) -> None:
        """Say whether a model answers here; what the supervisor has no room for is not said."""
        report = {"ready": is_serving and source.current() is not None, "problem": source.problem}
        with contextlib.suppress(OSError):  # it is busy, or gone, which `when_alone` sees
            self._end.send(json.dumps(report).encode() + b"\n", socket.MSG_DONTWAIT)

    def when_alone(self, end: Callable[[], Any]) -> None:
        """Call `end` once the supervisor is gone, however it went: a worker without one would hold the port for ever."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                while self._end.recv(1):
                    pass
            end()

        threading.Thread(target=wait, name="supervisor-watch", daemon=True).start()


def encode_settings(settings: Settings) -> bytes:
    """The settings as one line, for `decode_settings`."""
    return msgspec.json.encode(settings, enc_hook=_plain) + b"\n"


def decode_settings(line: bytes) -> Settings:
    """The settings `encode_settings` wrote."""
    return msgspec.json.decode(line, type=Settings, dec_hook=lambda kind, text: kind(text))


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a setting of type {type(value).__name__} cannot be handed to a worker")


def main() -> None:
    """A worker: `python -m kernelcast.api.worker LISTENER LINK`, both numbers of inherited sockets."""
    listener, end = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    link = Link(end)
    settings = link.settings()
    install(settings.log_format, settings.log_level)
    from .server import build

    app = build(settings)
    source: PredictorSource = app.state.source
    link.when_alone(lambda: None if source.current() else os._exit(0))
    # A worker without a model would answer 503 while others have one: it takes no connection until it can answer.
    while source.current() is None:
        source.refresh()
        if source.current() is None:
            link.tell(source, is_serving=False)
            time.sleep(settings.reload_s)
    run(app, listener, link)


if __name__ == "__main__":
    main()
