"""How uvicorn serves this application: httptools, its limits, and connections that end without losing a request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SHUTDOWN_S = 10
"""Longest time that running requests may still take after the process was told to stop."""

KEEP_ALIVE_S = 30
"""How long an idle connection is kept. A proxy in front must close its own idle connections sooner."""

LINGER_S = 0.5
"""How long an idle connection stays open after its worker was told to stop, so that a request on its way is answered."""

MAX_CONNECTIONS = 8000
"""Most connections of one process; fewer where it may open fewer files."""

_SPARE_FILES = 128
"""Files the process opens beside its connections: the model, pipes, sockets of exporters."""

_MOST_FILES = 65536


class DrainingProtocol(HttpToolsProtocol):
    """uvicorn's connection, which at shutdown waits `LINGER_S` for a request on its way instead of closing at once.

    Requests that arrive meanwhile see `is_draining` in their state; `ErrorBoundary` answers them with `connection: close`.
    """

    def shutdown(self) -> None:
        """End the connection: after its running request, or after `LINGER_S` where it is idle."""
        self.app_state["is_draining"] = True
        if self.cycle is None or self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self.loop.call_later(LINGER_S, super().shutdown)
        else:
            super().shutdown()


def uvicorn_config(app: Callable[..., Any], *, workers: int = 1, health_timeout_s: int = 5) -> Config:
    """Configuration of uvicorn for `app`: an application, or with several `workers` what makes one in each of them."""
    return Config(
        app, factory=workers > 1, workers=workers, http=DrainingProtocol, ws="none", lifespan="on",
        access_log=False, log_config=None, log_level="error", server_header=False, proxy_headers=False,
        limit_concurrency=most_connections(), timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_worker_healthcheck=health_timeout_s,
    )  # fmt: skip


def most_connections() -> int:
    """How many connections this process can hold, after raising its limit of open files as far as it may."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - _SPARE_FILES))
