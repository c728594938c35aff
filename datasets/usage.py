"""What kernels a service was asked for, read from the folder of its usage log; `api/usage_log.py` says what its files hold."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..features.errors import SpecError
from ..features.kernel import KernelSpec

FORMAT_VERSION = 1
MAX_FILE_B = 16 << 20
"""Longest file that is read, several times what a service writes."""

_FILE_NAME = re.compile(r"\d{4}-\d{2}-\d{2}-\d+-[0-9a-f]{8}\.jsonl")
_SPEC = ("family", "dtype", "kv_dtype", "variant", "impl", "config", "threads", "cache_state")


@dataclass(slots=True)
class Usage:
    """What was asked for: how often each kernel, by device too; and what of the folder could not be read.

    `asked` adds up all devices. `damaged` counts lines that are no kernels, and `refused` says why whole files were left out.
    """

    asked: dict[KernelSpec, float] = field(default_factory=dict)
    by_device: dict[str, dict[KernelSpec, float]] = field(default_factory=dict)
    files: int = 0
    damaged: int = 0
    refused: list[str] = field(default_factory=list)


def read_usage(folder: Path, device: str | None = None) -> dict[KernelSpec, float]:
    """How often each kernel was asked for about `device` (catalogue name; None: about any); empty where nothing was logged.

    Damaged lines and files are passed over; `read_usage_log` counts them.
    """
    found = read_usage_log(folder)
    return found.asked if device is None else found.by_device.get(device, {})


def read_usage_log(folder: Path) -> Usage:
    """Everything the folder tells: see `Usage`. A folder that is not there tells nothing."""
    found = Usage()
    try:
        paths = sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
    except FileNotFoundError:
        return found
    except OSError as error:
        found.refused.append(f"{folder} cannot be read: {error.strerror or error}")
        return found
    for path in paths:
        _read_file(path, found)
    return found


def _read_file(path: Path, found: Usage) -> None:
    try:
        if not path.is_file():
            found.refused.append(f"{path.name} is no file")
            return
        with path.open("rb") as file:
            content = file.read(MAX_FILE_B + 1)
    except OSError as error:
        found.refused.append(f"{path.name} cannot be read: {error.strerror or error}")
        return
    if len(content) > MAX_FILE_B:
        found.refused.append(f"{path.name} is longer than {MAX_FILE_B >> 20} MiB, which no service writes")
        return
    first, *lines = content.split(b"\n")
    head = _object(first)
    version = None if head is None else head.get("format_version")
    if version != FORMAT_VERSION:
        found.refused.append(
            f"{path.name} has no head that can be read"
            if version is None
            else f"{path.name} has format version {version!r}; this kernelcast reads {FORMAT_VERSION}"
        )
        return
    found.files += 1
    for line in lines:
        if not line.strip():
            continue
        one = _kernel(line)
        if one is None:
            found.damaged += 1
            continue
        spec, device, count = one
        for counts in (found.asked, found.by_device.setdefault(device, {})):
            counts[spec] = counts.get(spec, 0.0) + count


def _kernel(line: bytes) -> tuple[KernelSpec, str, float] | None:
    """The kernel, device and count of a line; None where it holds none that this kernelcast knows."""
    given = _object(line)
    if given is None:
        return None
    sizes, device, count = given.get("sizes"), given.get("device"), given.get("count")
    if not isinstance(sizes, dict) or not isinstance(device, str) or isinstance(count, bool):
        return None
    if not isinstance(count, int | float) or not math.isfinite(count) or count <= 0:
        return None
    if not all(isinstance(given.get(name), str) for name in ("family", "dtype", "variant", "impl", "cache_state")):
        return None
    if not isinstance(given.get("config"), dict) or not isinstance(given.get("kv_dtype"), str | None):
        return None
    if set(sizes) & set(_SPEC):
        return None
    try:
        fields: dict[str, Any] = {name: given.get(name) for name in _SPEC}
        return KernelSpec.of(**fields, **sizes), device, float(count)
    except (SpecError, OverflowError):
        return None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
