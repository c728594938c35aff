"""Settings of the service: environment variables `KERNELCAST_*`, which command-line options override."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..features.errors import SpecError
from .middleware import api_keys as keys
from .middleware import proxy

if TYPE_CHECKING:
    from ..features.device import Catalogue

PREFIX = "KERNELCAST_"
MAX_MLIR_B = 4 << 20
"""Largest MLIR text that is read, bytes. Written here too: `features.mlir.parse.text_limits` loads numpy, which must come
after `server.cap_threads`."""

MAX_CONCURRENCY = 38
"""Most requests worked on at once. Each has at most one thread of the pool of 40 that everything shares (anyio's), and what
takes no slot, such as /metrics, needs one too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the service runs. Field `x` is read from `KERNELCAST_X`; `docs/service.md` lists them all.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        model: Artifact directory; None: the champion, or the shipped model.
        device_files: Files that add devices to the catalogue.
        max_body_b: Longest JSON body of one request.
        max_specs: Most specs in one request.
        max_mlir_b: Longest MLIR text in one request.
        max_columns_b: Longest body of a request in columns.
        max_columns_rows: Most rows of a request in columns.
        reload_s: How often the model and the key file are looked at for change.
        access_log: Whether a line is logged per request.
        log_format: "text" or "json", of all lines.
        log_level: Least level that is logged.
        tracing: Whether spans are sent; None: where the environment names a collector.
        metrics_dir: Where several workers make the folder of their common metrics; None: among temporary files.
        workers: Number of processes that answer.
        start_s: Longest time until the first of several workers answers.
        api_keys: Keys that open the service, `name:scope:hash` each.
        api_keys_file: File of further keys.
        allow_open: Whether it may listen to others without keys.
        allowed_hosts: Names it may be addressed by.
        request_timeout_s: Longest time for an answer once the body has arrived.
        body_timeout_s: Longest time for a body to arrive.
        max_concurrency: Requests worked on at once.
        max_held_b: Bytes of all request bodies held at once.
        usage_log: Folder in which the kernels asked for are counted; None: they are not.
        usage_days: How long files of the usage log are kept.
        nights: Folder of nights that are shown; None: `nights` in `KERNELCAST_HOME`.
        root_path: Prefix a proxy serves it under.
        trusted_proxies: Proxies whose forwarded headers are believed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: Path | None = None
    device_files: tuple[Path, ...] = ()
    max_body_b: int = 2**20
    max_specs: int = 10_000
    max_mlir_b: int = MAX_MLIR_B
    max_columns_b: int = 16 << 20
    max_columns_rows: int = 100_000
    reload_s: float = 2.0
    access_log: bool = False
    log_format: str = "text"
    log_level: str = "info"
    tracing: bool | None = None
    metrics_dir: Path | None = None
    workers: int = 1
    start_s: float = 60.0
    api_keys: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    allow_open: bool = False
    allowed_hosts: tuple[str, ...] = ()
    request_timeout_s: float = 30.0
    body_timeout_s: float = 20.0
    max_concurrency: int = 32
    max_held_b: int = 256 << 20
    usage_log: Path | None = None
    usage_days: int = 30
    nights: Path | None = None
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ("127.0.0.1", "::1")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Settings of the environment, defaults where it says nothing.

        Raises:
            SpecError: a variable has a value that cannot be used; the message names it.
        """
        env = os.environ if env is None else env
        values: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            variable = PREFIX + name.upper()
            if text := env.get(variable, "").strip():
                try:
                    values[name] = parse(text)
                except ValueError as error:
                    # What stands among keys may be a key itself, by mistake: it is not shown.
                    shown = "" if name == "api_keys" else f" is {text!r}"
                    raise SpecError(f"{variable}{shown}: {error}", field=variable) from error
        return cls(**values)

    def devices(self) -> Catalogue:
        """The shipped devices and those of `device_files`, all read now, so that no request waits for them.

        Raises:
            SpecError: a device file is no device file.
        """
        # Here, as reading settings must not load numpy: `server.cap_threads` comes before it.
        from ..features.device import catalogue_with

        devices = catalogue_with(self.device_files)
        devices.names()
        return devices


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text[:20]) <= high:
            raise ValueError(f"it must be a whole number between {low} and {high}")
        return int(text)

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise ValueError("it must be a number of seconds between 0.05 and 3600")
    return value


def _hosts(text: str) -> tuple[str, ...]:
    names = tuple(part.strip("[]").lower() for word in text.split(",") if (part := word.strip()))
    for name in names:
        if not re.fullmatch(r"[a-z0-9_.:-]{1,253}", name) or re.search(r"^[^:]*:[0-9]+$", name):
            raise ValueError(f"{name[:80]!r} is no host name or address without its port; put commas between several")
    return names


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("it must be true or false")
    return words[text.lower()]


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it must be one of {', '.join(words)}")
        return text.lower()

    return parse


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "host": str,
    "port": _whole(0, 65535),
    "model": Path,
    "device_files": lambda text: tuple(Path(part) for part in text.split(os.pathsep) if part),
    "max_body_b": _whole(1024, 2**30),
    "max_specs": _whole(1, 1_000_000),
    "max_mlir_b": _whole(1024, MAX_MLIR_B),
    "max_columns_b": _whole(1024, 2**30),
    "max_columns_rows": _whole(1, 1_000_000),
    "reload_s": _seconds,
    "access_log": _flag,
    "log_format": _one_of("text", "json"),
    "log_level": _one_of("debug", "info", "warning", "error", "critical"),
    "tracing": _flag,
    "metrics_dir": Path,
    "workers": _whole(1, 256),
    "start_s": _seconds,
    "api_keys": lambda text: tuple(key.line() for key in keys.read_keys(text)),
    "api_keys_file": Path,
    "allow_open": _flag,
    "allowed_hosts": _hosts,
    "request_timeout_s": _seconds,
    "body_timeout_s": _seconds,
    "max_concurrency": _whole(1, MAX_CONCURRENCY),
    "max_held_b": _whole(1 << 20, 2**40),
    "usage_log": lambda text: Path(text).expanduser(),
    "usage_days": _whole(1, 3650),
    "nights": lambda text: Path(text).expanduser(),
    "root_path": proxy.root_path,
    "trusted_proxies": proxy.trusted_proxies,
}
