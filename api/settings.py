"""Settings of the service: environment variables `KERNELCAST_*`, which command-line options override."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..features.errors import SpecError
from . import keys, proxy

PREFIX = "KERNELCAST_"
MAX_MLIR_B = 4 << 20
"""Largest MLIR text that is read, bytes. Written here too, as reading it from `features.mlir.limits` would load numpy, which
must come after `server.cap_threads`."""

MAX_CONCURRENCY = 38
"""Most requests worked on at once. Each has at most one thread of the pool of 40 that everything shares (anyio's), and what
takes no place, such as /metrics, needs one too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the service runs. Field `x` is read from `KERNELCAST_X`; `docs/service.md` lists them all.

    `model` is an artifact directory (None: the champion, or the shipped model). `device_files` add devices to the
    catalogue. `max_body_b` and `max_specs` bound one request, `max_mlir_b` the MLIR text in one, `max_columns_b` and
    `max_columns_rows` one in columns; `reload_s` is how often the model is looked at for change.
    `workers` processes answer (`supervisor`), the first of them within `start_s` seconds of the start.
    `access_log` writes a line per request; `log_format` and `log_level` are those of all lines (`request_log`). `tracing` sends
    spans (None: where the environment names a collector), `metrics_dir` is where several workers keep their counts.
    `api_keys` (`name:scope:hash`) and those of `api_keys_file` open it (`keys`, `access`); `allow_open` lets it listen to
    others without any, `allowed_hosts` are names it may be asked by. `max_concurrency` requests are worked on at once, each
    answered within `request_timeout_s` once its body is there, which may take `body_timeout_s`; `max_held_b` bounds all bodies
    (`limits`).
    `usage_log` is the folder that kernels asked for are counted in (None: they are not), its files kept `usage_days` days
    (`usage_log.UsageLog`); `nights` is the folder of nights that are shown (None: `nights` in `KERNELCAST_HOME`).
    `root_path` is the prefix a proxy serves it under, `trusted_proxies` whose forwarded headers count (`proxy.BehindProxy`).
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
        given: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            variable = PREFIX + name.upper()
            if text := env.get(variable, "").strip():
                try:
                    given[name] = parse(text)
                except ValueError as error:
                    # What stands among keys may be a key itself, by mistake: it is not shown.
                    shown = "" if name == "api_keys" else f" is {text!r}"
                    raise SpecError(f"{variable}{shown}: {error}", field=variable) from error
        return cls(**given)


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
