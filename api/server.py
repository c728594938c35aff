"""Running the service: its own socket, so that a taken port is a clear error; capped threads; one process or several workers.

uvicorn serves, with its limits, connections that end without losing a request, and its supervisor of several workers, which
restarts those that die or hang and replaces them one by one on SIGHUP. Added here: the start waits for the first worker that
answers, a worker takes connections only once it has a model, and none outlives its supervisor.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from math import ceil
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from ..features.errors import SpecError
from .settings import Settings
from .telemetry.request_log import install
from .telemetry.tracing import require_packages
from .transport.connection import LimitedProtocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

SHUTDOWN_S = 10
"""Longest time that running requests may still take after the process was told to stop."""

KEEP_ALIVE_S = 30
"""How long an idle connection is kept. A proxy in front must close its own idle connections sooner."""

MAX_CONNECTIONS = 8000
"""Most connections of one process; fewer where it may open fewer files."""

_SPARE_FILES = 128
"""Files the process opens beside its connections: the model, pipes, sockets of exporters."""

_MOST_FILES = 65536


def uvicorn_config(app: Callable[..., Any], *, workers: int = 1, health_timeout_s: int = 5) -> Config:
    """Configuration of uvicorn for `app`: an application, or with several `workers` what makes one in each of them."""
    return Config(
        app, factory=workers > 1, workers=workers, http=LimitedProtocol, ws="none", lifespan="on",
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


THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

BACKLOG = 2048
"""Connections that wait to be accepted while every worker is busy; the kernel's `net.core.somaxconn` may allow fewer."""


def cap_threads() -> None:
    """One computing thread, unless the environment says otherwise; only works before numpy and onnxruntime load."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, "1")


def app_from_env() -> Starlette:
    """The application with settings of the environment, for `uvicorn --factory kernelcast.api.server:app_from_env`.

    Give uvicorn `--no-proxy-headers` too: `ProxyHeaders` decides which proxies are trusted.
    """
    settings = Settings.from_env()
    install(settings.log_format, settings.log_level)
    cap_threads()
    from .app import build

    return build(settings)


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address once the port is taken.

    Raises:
        SpecError: the settings name a directory that is no model, the address cannot be listened on, a device file is not one,
            the environment asks for an engine that is not there, or no worker of several comes up.
        KeyboardInterrupt: stopped by Ctrl-C, after running requests were answered.
    """
    install(settings.log_format, settings.log_level)
    cap_threads()
    if settings.model is not None:
        _check_model(settings.model)
    if settings.workers > 1:
        from ..models.engine.runtime import chosen_engine
        from .telemetry.metrics import shared_metrics

        # What is wrong with the settings ends the start here, not in each worker.
        settings.devices()
        chosen_engine()
        require_packages(settings.tracing)
        with listen(settings.host, settings.port) as listener, shared_metrics(settings.metrics_dir):
            Supervisor(settings, listener, lambda: ready(_address(listener))).run()
        return
    from .app import build

    app = build(settings)
    with listen(settings.host, settings.port) as listener:
        ready(_address(listener))
        run(app, listener)


def _check_model(directory: Path) -> None:
    """That a directory named for the service is a model; a promoted one may still come, this one was meant to be there.

    Raises:
        SpecError: it is none; the message says what else can serve.
    """
    from ..models.family_model.artifact import read_manifest
    from ..models.family_model.artifact_files import ArtifactError

    try:
        read_manifest(directory)
    except ArtifactError as error:
        advice = "without --model and KERNELCAST_MODEL the promoted model serves, or the one that comes with kernelcast"
        raise SpecError(str(error), field="model", advice=advice) from error


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


HEALTH_TIMEOUT_S = 30
"""A worker that does not answer its supervisor for so long hangs and is replaced."""

_TRIES = 3
"""Looks for a model, of every worker, after which the start is given up."""


def worker_app(settings: Settings, tries: int | None = None) -> Starlette:
    """The application of one worker, once it has a model; without one after `tries` looks (None: never) the process ends.

    A worker without a model would answer 503 while others have one, so it takes no connection until it can answer.
    """
    install(settings.log_format, settings.log_level)
    threading.Thread(target=_end_with_parent, name="supervisor-watch", daemon=True).start()
    from .app import build

    app = build(settings)
    source = app.state.source
    looks = 0
    while source.current is None:
        source.refresh()
        looks += 1
        if source.current is None:
            if looks == tries:
                sys.exit(STARTUP_FAILURE)
            time.sleep(settings.reload_s)
    return app


def _end_with_parent() -> None:
    """Stop this worker when its supervisor is gone; it would hold the port for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor(Multiprocess):
    """Keeps `settings.workers` workers answering on `listener`; `on_ready` is called once the first of them does."""

    def __init__(self, settings: Settings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        if sys.platform == "win32":
            raise SpecError("several workers need a POSIX system; serve with one here", field="workers")
        self._settings = settings
        self._on_ready = on_ready
        self._problem: str | None = None
        self._stop_signal: int | None = None
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        super().__init__(
            uvicorn_config(
                partial(worker_app, settings, _TRIES), workers=settings.workers, health_timeout_s=HEALTH_TIMEOUT_S
            ),
            [listener],
        )
        self._handlers = handlers

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP replaces the workers one by one.

        Raises:
            SpecError: no worker answers within `settings.start_s`, or none finds a model.
            KeyboardInterrupt: stopped by SIGINT, after running requests were answered.
        """
        logging.getLogger("uvicorn.error").setLevel(logging.INFO)
        super().run()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._problem is not None:
            raise SpecError(self._problem, field="workers")
        if self._stop_signal is not None:
            # As in a program without a handler: the parent process sees which signal ended this one.
            signal.raise_signal(self._stop_signal)

    def init_processes(self) -> None:
        """Start the workers and wait until one answers."""
        super().init_processes()
        give_up_at = time.monotonic() + self._settings.start_s
        while not any(process.process.is_alive() and process.is_ready(timeout=0.2) for process in self.processes):
            self.handle_signals()
            is_late = time.monotonic() > give_up_at
            if is_late or not any(process.process.is_alive() for process in self.processes):
                limit = f"within {self._settings.start_s:g} s" if is_late else f"in {_TRIES} tries each"
                self._problem = f"none of {len(self.processes)} workers could answer {limit}; their messages are above"
                self.should_exit.set()
            if self.should_exit.is_set():
                return
            time.sleep(0.1)
        # A worker that is started later waits for a model: the others answer meanwhile.
        self.config.app = partial(worker_app, self._settings)
        self._on_ready()

    def restart_all(self) -> None:
        """Replace the workers one by one; each successor has `settings.start_s` seconds to come up."""
        self.config.timeout_worker_healthcheck = ceil(self._settings.start_s)
        super().restart_all()
        self.config.timeout_worker_healthcheck = HEALTH_TIMEOUT_S

    def join_all(self) -> None:
        """Wait for the workers to end; one that does not in time is killed."""
        give_up_at = time.monotonic() + SHUTDOWN_S + 5.0
        for process in self.processes:
            process.process.join(max(0.0, give_up_at - time.monotonic()))
            if process.process.is_alive():
                process.kill()
        super().join_all()

    def handle_int(self) -> None:
        """Stop, and end as an interrupted program does."""
        self._stop_signal = signal.SIGINT
        super().handle_int()

    def handle_term(self) -> None:
        """Stop, and end as a terminated program does."""
        self._stop_signal = signal.SIGTERM
        super().handle_term()
