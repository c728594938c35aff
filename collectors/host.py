"""Provenance of a CPU campaign: the machine, its state, the versions and the code that measured; imports no torch."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import runpy
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from ..features.device import cpu_info
from ..process import core_count
from ..version import __version__, versions

_PACKAGE = Path(__file__).resolve().parent.parent
_CPU = Path("/sys/devices/system/cpu")
_VERSIONS = ("numpy", "torch", "iree-base-compiler", "iree-base-runtime")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# The instruction sets that decide how fast arithmetic kernels run; the full list is pages long.
_TELLING_FLAGS = re.compile(r"avx\w*|fma|f16c|amx\w*|sve\w*|asimd\w*|bf16|i8mm|hypervisor")
INPUT_DISTRIBUTION = "seeded standard normal"


STEADY_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**12), "MALLOC_TOP_PAD_": str(64 * 2**20)}
"""Environment of a worker: glibc keeps what is freed and hands it out again, so a call in steady state faults no page in.

By default glibc maps blocks above a threshold afresh on every call, where the threshold and the trimming of its heap depend
on what the process freed before: the same addition of 33 MB was seen at 1.9 and at 7.7 ms (mallopt(3) describes the
settings). A caching allocator, as deep-learning runtimes use, behaves like the steady state measured here."""


def utc_now() -> str:
    """Now, in UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def torch_library() -> str | None:
    """What the installed torch runs GPUs by: `cuda`, `hip` (ROCm) or `xpu`; None without torch and of a build for CPUs."""
    try:
        package = importlib.util.find_spec("torch")
    except ImportError:  # something keeps it from being imported
        return None
    if package is None or package.origin is None:
        return None
    # The file that torch.version is; reading it imports nothing of torch.
    built = runpy.run_path(str(Path(package.origin).with_name("version.py")))
    return next((library for library in ("cuda", "hip", "xpu") if built.get(library)), None)


def cache_sizes_b(root: Path = _CPU) -> dict[str, int]:
    """Bytes of each data cache of the first core (`l1`, `l2`, `l3`); a level the system does not show is left out."""
    sizes: dict[str, int] = {}
    for index in sorted((root / "cpu0" / "cache").glob("index*")):
        kind, size = _text(index / "type"), _text(index / "size")
        if kind in ("Data", "Unified") and size is not None:
            sizes[f"l{_text(index / 'level')}"] = int(size[:-1]) * _UNITS[size[-1]]
    return sizes


def steal_ticks(path: Path = Path("/proc/stat")) -> int | None:
    """Clock ticks the hypervisor took from this machine since boot (proc(5): eighth value of the `cpu` line)."""
    values = (_text(path) or "").split("\n")[0].split()
    return int(values[8]) if len(values) > 8 else None


def memory_b(what: str = "MemAvailable", path: Path = Path("/proc/meminfo")) -> int | None:
    """One entry of /proc/meminfo in bytes."""
    match = re.search(rf"^{what}:\s+(\d+) kB", _text(path) or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


@cache
def source_hash() -> str:
    """16 hex digits over the collectors' and the families' source: what a row's number depends on in this project."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in ("collectors", "features/families"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def git_commit() -> str | None:
    """Commit of the source tree, None where there is no repository."""
    command = ["git", "-C", str(_PACKAGE), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine_facts(device: str) -> dict[str, Any]:
    """What stays the same over a campaign: plain JSON; None where the system does not say."""
    info = cpu_info()
    flags = info.get("flags") or info.get("Features") or ""
    return {
        "device": device,
        "cpu_model": info.get("model name"),
        "cpu_family": info.get("cpu family"),
        "cpu_model_number": info.get("model"),
        "microcode": info.get("microcode"),
        "cpu_flags": [flag for flag in flags.split() if _TELLING_FLAGS.fullmatch(flag)],
        "cores": core_count(),
        "caches_b": cache_sizes_b(),
        "memory_b": memory_b("MemTotal"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "transparent_hugepages": _text(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "python": platform.python_version(),
        "versions": versions(*_VERSIONS),
        "collector_version": __version__,
        "source_hash": source_hash(),
        "git_commit": git_commit(),
        "input_distribution": INPUT_DISTRIBUTION,
        "allocator": STEADY_MEMORY,
    }


def state_facts() -> dict[str, Any]:
    """What changes from block to block: time, load, clock, stolen ticks."""
    frequency = cpu_info().get("cpu MHz")
    return {
        "utc": utc_now(),
        "load_average": list(os.getloadavg()),
        "clock_mhz": float(frequency) if frequency else None,
        "governor": _text(_CPU / "cpu0" / "cpufreq" / "scaling_governor"),
        "steal_ticks": steal_ticks(),
        "memory_available_b": memory_b(),
    }


def measured_fact(value: float | None, note: str = "", otherwise: str = "") -> dict[str, Any]:
    """A fact as a device file has it; `note` says how it was measured, `otherwise` why there is no value."""
    if value is None:
        return {"value": None, "source": f"not measured: {otherwise or note}"}
    how = f": {note}" if note else ""
    return {"value": value, "source": f"measured {datetime.now(UTC):%Y-%m-%d}, kernelcast {__version__}{how}"}


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
