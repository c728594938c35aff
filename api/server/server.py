"""Running the service: its own socket, so that a taken port is a clear error; capped threads; one process or several."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn import Server

from ...features.errors import SpecError
from ..settings import Settings
from ..telemetry.request_log import install
from ..telemetry.tracing import require_packages
from .connection import uvicorn_config

if TYPE_CHECKING:
    from starlette.applications import Starlette

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

BACKLOG = 2048
"""Connections that wait to be accepted while every worker is busy; the kernel's `net.core.somaxconn` may allow fewer."""


def cap_threads() -> None:
    """One computing thread, unless the environment says otherwise; only works before numpy and onnxruntime load."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def app_from_env() -> Starlette:
    """The application with settings of the environment, for `uvicorn --factory kernelcast.api.server.server:app_from_env`.

    Give uvicorn `--no-proxy-headers` too: `ProxyHeaders` decides which proxies are trusted.
    """
    settings = Settings.from_env()
    install(settings.log_format, settings.log_level)
    cap_threads()
    from ..app import build

    return build(settings)


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once the port is taken.

    Raises:
        SpecError: the address cannot be listened on, a device file is not one, the environment asks for an engine that is not
            there, or no worker of several comes up.
        KeyboardInterrupt: stopped by Ctrl-C, after running requests were answered.
    """
    install(settings.log_format, settings.log_level)
    cap_threads()
    if settings.workers > 1:
        from ...models.engine.runtime import chosen_engine
        from ..telemetry.worker_metrics import shared_metrics
        from .workers import Supervisor

        # What is wrong with the settings ends the start here, not in each worker.
        settings.devices()
        chosen_engine()
        require_packages(settings.tracing)
        with listen(settings.host, settings.port) as listener, shared_metrics(settings.metrics_dir):
            Supervisor(settings, listener, lambda: ready(_address(listener))).run()
        return
    from ..app import build

    app = build(settings)
    with listen(settings.host, settings.port) as listener:
        ready(_address(listener))
        run(app, listener)


def run(app: Starlette, listener: socket.socket) -> None:
    """Answer on `listener`, in this process, until a signal comes.

    Raises:
        KeyboardInterrupt: stopped by Ctrl-C, after running requests were answered.
    """
    Server(uvicorn_config(app)).run(sockets=[listener])


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        SpecError: the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SpecError(f"port {port} of {host} is in use; choose another with --port", field="port") from error
        reason = error.strerror or str(error)
        raise SpecError(f"cannot listen on {host} port {port}: {reason}", field="host") from error
