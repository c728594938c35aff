"""What kernels a service was asked for, read from the folder of its usage log.

`api/telemetry/usage_log.py` says what its files hold.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...features.errors import SpecError
from ...features.kernel import KernelSpec

FORMAT_VERSION = 1
MAX_FILE_B = 16 << 20
"""Longest file that is read, several times what a service writes."""

_FILE_NAME = re.compile(r"\d{4}-\d{2}-\d{2}-\d+-[0-9a-f]{8}\.jsonl")
_SPEC = ("family", "dtype", "kv_dtype", "variant", "impl", "config", "threads", "cache_state")


@dataclass(slots=True)
class Usage:
    """Kernels that a service was asked for, and what of the folder could not be read.

    Attributes:
        total: Requests by kernel, over all devices.
        by_device: Requests by device and kernel.
        files: Files read.
        damaged: Lines that hold no kernel.
        refused: Why whole files were left out.
    """

    total: dict[KernelSpec, float] = field(default_factory=dict)
    by_device: dict[str, dict[KernelSpec, float]] = field(default_factory=dict)
    files: int = 0
    damaged: int = 0
    refused: list[str] = field(default_factory=list)


def read_usage(folder: Path, device: str | None = None) -> dict[KernelSpec, float]:
    """How often each kernel was asked for about `device` (catalogue name; None: about any); empty where nothing was logged.

    Damaged lines and files are passed over; `read_usage_log` counts them.
    """
    usage = read_usage_log(folder)
    return usage.total if device is None else usage.by_device.get(device, {})


def read_usage_log(folder: Path) -> Usage:
    """Everything the folder tells: see `Usage`. A folder that is not there tells nothing."""
    usage = Usage()
    try:
        paths = sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
    except FileNotFoundError:
        return usage
    except OSError as error:
        usage.refused.append(f"{folder} cannot be read: {error.strerror or error}")
        return usage
    for path in paths:
        _read_file(path, usage)
    return usage


def _read_file(path: Path, usage: Usage) -> None:
    try:
        if not path.is_file():
            usage.refused.append(f"{path.name} is no file")
            return
        with path.open("rb") as file:
            content = file.read(MAX_FILE_B + 1)
    except OSError as error:
        usage.refused.append(f"{path.name} cannot be read: {error.strerror or error}")
        return
    if len(content) > MAX_FILE_B:
        usage.refused.append(f"{path.name} is longer than {MAX_FILE_B >> 20} MiB, which no service writes")
        return
    first, *lines = content.split(b"\n")
    head = _object(first)
    version = None if head is None else head.get("format_version")
    if version != FORMAT_VERSION:
        usage.refused.append(
            f"{path.name} has no head that can be read"
            if version is None
            else f"{path.name} has format version {version!r}; this kernelcast reads {FORMAT_VERSION}"
        )
        return
    usage.files += 1
    for line in lines:
        if not line.strip():
            continue
        counted = _kernel(line)
        if counted is None:
            usage.damaged += 1
            continue
        spec, device, count = counted
        for counts in (usage.total, usage.by_device.setdefault(device, {})):
            counts[spec] = counts.get(spec, 0.0) + count


def _kernel(line: bytes) -> tuple[KernelSpec, str, float] | None:
    """The kernel, device and count of a line; None where it holds none that this kernelcast knows."""
    fields_of_line = _object(line)
    if fields_of_line is None:
        return None
    sizes, device, count = fields_of_line.get("sizes"), fields_of_line.get("device"), fields_of_line.get("count")
    if not isinstance(sizes, dict) or not isinstance(device, str) or isinstance(count, bool):
        return None
    if not isinstance(count, int | float) or not math.isfinite(count) or count <= 0:
        return None
    if not all(
        isinstance(fields_of_line.get(name), str) for name in ("family", "dtype", "variant", "impl", "cache_state")
    ):
        return None
    if not isinstance(fields_of_line.get("config"), dict) or not isinstance(fields_of_line.get("kv_dtype"), str | None):
        return None
    if set(sizes) & set(_SPEC):
        return None
    try:
        fields: dict[str, Any] = {name: fields_of_line.get(name) for name in _SPEC}
        return KernelSpec.of(**fields, **sizes), device, float(count)
    except (SpecError, OverflowError):
        return None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
