"""Running the service: one process, one worker, capped threads, its own socket so that a taken port is a clear error."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..features.device import Catalogue, load_device_file
from ..features.errors import SpecError
from .settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_SHUTDOWN_S = 10
_KEEP_ALIVE_S = 30


def cap_threads() -> None:
    """One computing thread, unless the environment says otherwise; only works before numpy and onnxruntime load."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def app_from_env() -> FastAPI:
    """The application with settings of the environment, for `uvicorn --factory kernelcast.api.server:app_from_env`."""
    return build(Settings.from_env())


def build(settings: Settings) -> FastAPI:
    """The application that answers from the settings' artifact directory.

    Raises:
        SpecError: a device file is no device file.
    """
    cap_threads()
    from .app import create_app
    from .source import DirectorySource

    devices = Catalogue(extra=tuple(load_device_file(path) for path in settings.device_files))
    # Read all files now, so that no request waits for them.
    devices.names()
    return create_app(DirectorySource(_locator(settings.model), devices), settings, devices)


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once the port is taken.

    Raises:
        SpecError: the address cannot be listened on, or a device file is not one.
        KeyboardInterrupt: stopped by Ctrl-C, after open requests were answered.
    """
    app = build(settings)
    import uvicorn

    config = uvicorn.Config(
        app, access_log=settings.access_log, log_level="warning", ws="none", lifespan="on", server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_SHUTDOWN_S,
    )  # fmt: skip
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        uvicorn.Server(config).run(sockets=[listener])


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
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SpecError(f"port {port} of {host} is in use; choose another with --port", field="port") from error
        reason = error.strerror or str(error)
        raise SpecError(f"cannot listen on {host} port {port}: {reason}", field="host") from error
