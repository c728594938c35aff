"""Settings of the service: environment variables `KERNELCAST_*`, which command-line options override."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..features.errors import SpecError

PREFIX = "KERNELCAST_"
MAX_MLIR_B = 4 << 20
"""Largest MLIR text that is read, bytes. Written here too, as reading it from `features.mlir.limits` would load numpy, which
must come after `server.cap_threads`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the service runs. Field `x` is read from `KERNELCAST_X`; `docs/` lists them all.

    `model` is an artifact directory (None: the champion, or the shipped model). `device_files` add devices to the
    catalogue. `max_body_b` and `max_specs` bound one request, `max_mlir_b` the MLIR text in one; `reload_s` is how often the
    model is looked at for change.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model: Path | None = None
    device_files: tuple[Path, ...] = ()
    max_body_b: int = 2**20
    max_specs: int = 10_000
    max_mlir_b: int = MAX_MLIR_B
    reload_s: float = 2.0
    access_log: bool = False

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
                    raise SpecError(f"{variable} is {text!r}: {error}", field=variable) from error
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


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError("it must be true or false")
    return words[text.lower()]


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "host": str,
    "port": _whole(0, 65535),
    "model": Path,
    "device_files": lambda text: tuple(Path(part) for part in text.split(os.pathsep) if part),
    "max_body_b": _whole(1024, 2**30),
    "max_specs": _whole(1, 1_000_000),
    "max_mlir_b": _whole(1024, MAX_MLIR_B),
    "reload_s": _seconds,
    "access_log": _flag,
}
