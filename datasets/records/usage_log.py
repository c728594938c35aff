"""What kernels a service was asked for, read from the folder of its usage log.

`api/telemetry/usage_log.py` says what its files hold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...features.errors import SpecError
from ...features.kernel import KernelSpec

FORMAT_VERSION = 1
MAX_FILE_B = 16 << 20
"""Longest file that is read, several times what a service writes."""

_FILE_NAME = re.compile(r"\d{4}-\d{2}-\d{2}-\d+-[0-9a-f]{8}\.jsonl")


class _Head(msgspec.Struct):
    format_version: int


class _Kernel(msgspec.Struct):
    """A line of a usage log: a kernel, its device, and how often it was asked for."""

    family: str
    dtype: str
    variant: str
    impl: str
    cache_state: str
    device: str
    sizes: dict[str, int]
    config: dict[str, int]
    count: Annotated[float, msgspec.Meta(gt=0)]
    kv_dtype: str | None = None
    threads: int | None = None

    def counted(self) -> tuple[KernelSpec, str, float]:
        """The kernel, its device and the count.

        Raises:
            SpecError: this kernelcast does not know the kernel.
        """
        spec = KernelSpec.of(
            self.family, self.dtype, kv_dtype=self.kv_dtype, variant=self.variant, impl=self.impl, config=self.config,
            threads=self.threads, cache_state=self.cache_state, **dict[str, Any](self.sizes),
        )  # fmt: skip
        return spec, self.device, self.count


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
    try:
        version = msgspec.json.decode(first, type=_Head).format_version
    except msgspec.DecodeError:
        usage.refused.append(f"{path.name} has no head that can be read")
        return
    if version != FORMAT_VERSION:
        usage.refused.append(f"{path.name} has format version {version!r}; this kernelcast reads {FORMAT_VERSION}")
        return
    usage.files += 1
    for line in lines:
        if not line.strip():
            continue
        try:
            spec, device, count = msgspec.json.decode(line, type=_Kernel).counted()
        except (msgspec.DecodeError, SpecError, TypeError, OverflowError, RecursionError):
            usage.damaged += 1
            continue
        for counts in (usage.total, usage.by_device.setdefault(device, {})):
            counts[spec] = counts.get(spec, 0.0) + count
