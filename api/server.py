"""Running the service: its own socket so that a taken port is a clear error, capped threads, one process or several."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..features.device import Catalogue, load_device_file
from ..features.errors import SpecError
from .request_log import install
from .settings import Settings
from .tracing import require

if TYPE_CHECKING:
    from fastapi import FastAPI

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

BACKLOG = 2048
"""Connections that wait to be accepted while every worker is busy; the kernel's `net.core.somaxconn` may allow fewer."""


def cap_threads() -> None:
    """One computing thread, unless the environment says otherwise; only works before numpy and onnxruntime load."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def app_from_env() -> FastAPI:
    """The application with settings of the environment, for `uvicorn --factory kernelcast.api.server:app_from_env`.

    Give uvicorn `--no-proxy-headers` too: whose word counts is decided in `proxy.BehindProxy`.
    """
    settings = Settings.from_env()
    install(settings.log_format, settings.log_level)
    return build(settings)


def build(settings: Settings) -> FastAPI:
    """The application that answers from the settings' artifact directory.

    Raises:
        SpecError: a device file is no device file, or the environment asks for an engine that is not there.
    """
    cap_threads()
    from ..models.engine import chosen_engine
    from .app import create_app
    from .source import DirectorySource

    chosen_engine()
    devices = devices_of(settings)
    source = DirectorySource(_locator(settings.model), devices)
    app = create_app(source, settings, devices)
    app.state.source = source
    return app


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once the port is taken.

    Raises:
        SpecError: the address cannot be listened on, a device file is not one, the environment asks for an engine that is not
            there, or no worker of several comes up.
        KeyboardInterrupt: stopped by Ctrl-C, after open requests were answered.
    """
    install(settings.log_format, settings.log_level)
    if settings.workers > 1:
        from ..models.engine import chosen_engine
        from .metrics_files import common_folder
        from .supervisor import Supervisor

        # What is wrong with the settings ends it here, not in each worker.
        devices_of(settings)
        require(settings.tracing)
        chosen_engine()
        with listen(settings.host, settings.port) as listener, common_folder(settings) as settings:
            Supervisor(settings, listener).run(lambda: ready(_address(listener)))
        return
    app = build(settings)
    from .worker import run

    with listen(settings.host, settings.port) as listener:
        ready(_address(listener))
        run(app, listener)


def devices_of(settings: Settings) -> Catalogue:
    """The shipped devices and those of the settings' files, all read now, so that no request waits for them.

    Raises:
        SpecError: a device file is no device file.
    """
    devices = Catalogue(extra=tuple(load_device_file(path) for path in settings.device_files))
    devices.names()
    return devices


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _locator(model: Path | None) -> Callable[[], Path]:
    if model is not None:
        return lambda: model
    from ..models.artifact import default_model_dir

    return default_model_dir


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
