"""What hardware counters counted: the output of Nsight Compute (`ncu --csv`) summed over the kernels of each case.

Names of metrics are those of the Nsight Compute documentation (Kernel Profiling Guide, metrics decoder). Chips differ in
some; what one does not have is left out or comes back as `n/a`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MARKER = "spin_kernel"
"""Part of the name of the kernel that is launched before each case, to tell whose the kernels after it are."""

QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "time_s": ("gpu__time_duration.sum",),
    "dram_read_b": ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_write_b": ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "l2_b": ("lts__t_bytes.sum",),
    "tensor_utilisation": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "sm_utilisation": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
}
"""What is kept of a kernel, and the metrics that tell it, the first that a chip has."""

_THREAD = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_TENSOR = "sm__ops_path_tensor_src_{}.sum"
FLOPS: Mapping[str, float] = {
    **{_THREAD.format(f"{kind}{what}"): 2.0 if what == "fma" else 1.0
       for kind in "fdh" for what in ("add", "mul", "fma")},
    **{_TENSOR.format(path): 1.0 for path in ("bf16_dst_fp32", "fp16_dst_fp16", "fp16_dst_fp32", "tf32_dst_fp32", "fp64",
                                             "int8", "fp8_dst_fp32", "fp8_dst_fp16")},
}  # fmt: skip
"""Metrics that count arithmetic, and operations per count; those of tensor paths count both halves of a multiply-add."""

METRICS = (*(metric for candidates in QUANTITIES.values() for metric in candidates), *FLOPS)
"""Every metric asked for."""

_SHARES = ("tensor_utilisation", "sm_utilisation")
_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS = {"byte": 1.0, "second": 1.0, "s": 1.0, "inst": 1.0, "%": 0.01, "": 1.0}


class CounterOutputError(Exception):
    """Nsight Compute's output is not what it was; the message says what cannot be read."""


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """What was counted of one kernel.

    Attributes:
        name: Its name.
        counts: By metric, in SI units and shares.
    """

    name: str
    counts: Mapping[str, float] = field(default_factory=dict)

    def quantity(self, name: str) -> float | None:
        """One of `QUANTITIES`, by the first metric that was counted."""
        return next((self.counts[metric] for metric in QUANTITIES[name] if metric in self.counts), None)

    @property
    def flops(self) -> float | None:
        """Operations by all metrics that count them, None where none does."""
        counted = [self.counts[metric] * weight for metric, weight in FLOPS.items() if metric in self.counts]
        return sum(counted) if counted else None


def parse_kernels(lines: Iterable[str]) -> list[CountedKernel]:
    """Kernels in the order they ran, out of `ncu --csv` output, whatever else was printed before its header.

    Raises:
        CounterOutputError: the table lacks a column, or has a number or a unit that is not known.
    """
    table = _table(lines)
    kernels: dict[str, tuple[str, dict[str, float]]] = {}
    for row in table:
        try:
            key, name, metric = row["ID"], row["Kernel Name"], row["Metric Name"]
            unit, value = row["Metric Unit"], row["Metric Value"]
        except KeyError as error:
            raise CounterOutputError(f"ncu's table has no column {error}") from error
        counts = kernels.setdefault(key, (name, {}))[1]
        if value and value != "n/a" and metric:
            counts[metric] = _number(value, metric) * _scale(unit or "", metric)
    return [CountedKernel(name, counts) for name, counts in kernels.values()]


def by_case(kernels: Sequence[CountedKernel]) -> list[list[CountedKernel]]:
    """Kernels after each marker, a list per marker; what ran before the first belongs to no case."""
    cases: list[list[CountedKernel]] = []
    for kernel in kernels:
        if MARKER in kernel.name:
            cases.append([])
        elif cases:
            cases[-1].append(kernel)
    return cases


def summed(kernels: Sequence[CountedKernel]) -> dict[str, float | None]:
    """`QUANTITIES` and `flops` over the kernels of a case; None where a kernel lacks one. Shares are weighted by time."""
    times = [kernel.quantity("time_s") for kernel in kernels]
    total: dict[str, float | None] = {}
    for name in QUANTITIES:
        values = [kernel.quantity(name) for kernel in kernels]
        total[name] = _mean(values, times) if name in _SHARES else _sum(values)
    return total | {"flops": _sum([kernel.flops for kernel in kernels])}


def _table(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Rows below the header; lines of ncu's own (`==PROF== ...`) are left out wherever they stand."""
    rows = iter(line for line in lines if not line.startswith("=="))
    for line in rows:
        if line.startswith('"ID"'):
            return iter(csv.DictReader(rows, fieldnames=next(csv.reader([line]))))
    return iter(())


def _number(text: str, metric: str) -> float:
    """A number with commas between thousands, as ncu prints them in the C locale."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise CounterOutputError(f"ncu gives {text!r} for {metric}, which is no number") from None


def _scale(unit: str, metric: str) -> float:
    """What a value in `unit` is multiplied by; prefixes are decimal (`Kbyte`, `usecond`, `ns`)."""
    for prefix, factor in _PREFIXES.items():
        if unit.startswith(prefix) and unit[len(prefix) :] in _UNITS and (unit[len(prefix) :] or not prefix):
            return factor * _UNITS[unit[len(prefix) :]]
    raise CounterOutputError(f"ncu gives {metric} in {unit!r}, a unit that is not known")


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None], weights: Sequence[float | None]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None and weight]
    if not known or len(known) < len(values):
        return None
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
