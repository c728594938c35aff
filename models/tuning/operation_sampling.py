"""Operations to ask a trained predictor about, so that a small model can learn its answers: what a compiler might meet.

Sizes are those of measured cases, as they are or a little off; they fill the ranges that a family is measured in, and the
space in which there are any measured cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Device
from ...features.kernel import KernelFamily, get_family
from ..family_model.artifact import FamilyModel
from ..predict.predictor import ArtifactPredictor
from ..regressor import Progress
from ..selection.candidates import runnable, space_filling, tidy

MOST_LATENCY_S = 1.0
"""Longer operations are not learnt: no compiler decides anything by the time of one."""

COVERAGE = 0.9
"""Coverage of the intervals whose widths are kept."""

NO_MLIR_DTYPES = frozenset({"fp8_block", "nvfp4"})
"""Formats with scales beside the numbers: no element type of MLIR, so no compiler asks about them."""

_NEAR_SHARE, _RANGES_SHARE = 0.4, 0.4
"""Shares of sizes near measured ones and within the family's ranges; the rest fills the space of all measured cases."""

_AS_MEASURED, _JITTER_OCTAVES = 1 / 3, 0.5
"""Share of measured sizes that are kept as they are, and the standard deviation of the others' distance in log2."""

_FINISHED_SHARE = 1 / 2
"""Share of the rest that is made like a family's measured cases (square images, usual kernels), as all within its ranges are:
compilers pad images in an operation of its own, and cut them."""

_STEPS_PER_OCTAVE = (8.0, 64.0, 1024.0)
"""Sizes in programs are mostly round, and not always."""

_MOST_COUNTS = 8
"""Most different thread counts asked about on one device."""


def dtypes_on(model: FamilyModel, device: Device, family: KernelFamily) -> list[str]:
    """Dtypes of the family that were measured on a device of this kind and that the device has a peak for."""
    dtypes = []
    for dtype in model.schema.dtypes:
        if dtype in NO_MLIR_DTYPES or not any(f" {dtype} {device.kind}" in word for word in model.schema.settings):
            continue
        if device.runs(dtype, family.unit):
            dtypes.append(dtype)
    return dtypes


def is_measured(model: FamilyModel, device: str, dtype: str) -> bool:
    """Whether the family was measured on the device in the dtype."""
    return any(
        (name, pair) == (device, f"{dtype}/{dtype}")
        for name, _, _, pair, *_ in (word.split(" ") for word in model.measured["latency"])
    )


def usual_impl(model: FamilyModel, device: Device, dtype: str) -> str:
    """What runs a family in a dtype where nothing is said: the first of the model's that was measured there without knobs.

    On a device where the dtype was not measured, the first that was measured in it on a device of its kind; empty where none
    was.
    """
    plain = [impl for impl in model.schema.impls if f"{impl} {dtype} {device.kind}" in model.schema.settings]
    here = [impl for impl in plain if f"{device.name} {impl} {dtype}/{dtype}" in model.schema.groups]
    return (*here, *plain, "")[0]


def drawn_operations(
    family: KernelFamily, model: FamilyModel, device: Device, dtype: str, n: int, rng: np.random.Generator
) -> Cases:
    """At most `n` operations of a family in one dtype on one device, all possible and small enough for its memory.

    Variants that the model knows are all equally likely. On a CPU thread counts are those of `thread_counts`.
    """
    minimum = np.array([dim.minimum for dim in family.dims], dtype=np.float64)
    sizes = np.maximum(_sizes(family, model, n, rng), minimum)
    possible = [not family.impossible(dict(zip(family.dim_names, row, strict=True))) for row in sizes.tolist()]
    sizes = sizes[np.array(possible, dtype=np.bool_)]
    columns = dict(zip(family.dim_names, sizes.T, strict=True))
    count = len(sizes)
    known = [word for word in family.variants if word in model.schema.variants]
    variants = np.array(known, dtype=np.str_)[rng.integers(len(known), size=count)]
    if "batched" in known:
        columns["batch"] = np.where(rng.random(count) < 0.5, 1.0, columns["batch"])
        single = columns["batch"] == 1.0
        variants = np.where(single & (variants == "batched"), "", variants)
        variants = np.where(~single & np.isin(variants, ("", "bias")), "batched", variants)
    threads = np.full(count, np.nan)
    if device.kind == "cpu":
        threads = np.array(thread_counts(device), dtype=np.float64)[
            rng.integers(len(thread_counts(device)), size=count)
        ]
    words = {"device": device.name, "dtype": dtype, "kv_dtype": dtype, "cache_state": "hot", "timing": "device",
             "impl": usual_impl(model, device, dtype)}  # fmt: skip
    cases = Cases(
        family=family, variant=variants, threads=threads, sizes=columns,
        config={name: np.full(count, np.nan) for name in family.config},
        **{key: np.full(count, word) for key, word in words.items()},
    )  # fmt: skip
    return cases.take(runnable(cases, device))


def thread_counts(device: Device) -> Sequence[int]:
    """Thread counts of a CPU to ask about: powers of two and all cores."""
    cores = int(device.required("compute_units"))
    return sorted({*(2**i for i in range(_MOST_COUNTS - 1) if 2**i < cores), cores})


def _sizes(family: KernelFamily, model: FamilyModel, n: int, rng: np.random.Generator) -> Floats:
    columns = [model.domain.names.index(f"log {name}") for name in family.dim_names]
    low, high = model.domain.low[columns], model.domain.high[columns]
    measured = model.domain.points[rng.integers(len(model.domain.points), size=round(n * _NEAR_SHARE))][:, columns]
    off = (rng.random(len(measured)) >= _AS_MEASURED)[:, None]
    near = _tidy(np.clip(measured + off * rng.normal(0.0, _JITTER_OCTAVES, measured.shape), low, high), rng)
    ranges = [family.ranges.get(dim.name, (dim.default or dim.minimum,) * 2) for dim in family.dims]
    least, most = np.log2(np.maximum(np.array(ranges, dtype=np.float64), 0.5)).T
    inner = space_filling(least, most, round(n * _RANGES_SHARE), rng)
    outer = space_filling(low, high, n - len(near) - len(inner), rng)
    filling = _tidy(np.concatenate([inner, outer]), rng)
    finished = np.concatenate([np.ones(len(inner), np.bool_), rng.random(len(outer)) < _FINISHED_SHARE])
    for i in np.flatnonzero(finished).tolist():
        complete = family.finish({name: int(size) for name, size in zip(family.dim_names, filling[i], strict=True)})
        filling[i] = [complete[name] for name in family.dim_names]
    both = np.concatenate([near, filling])
    return both[rng.permutation(len(both))]


def _tidy(logs: Floats, rng: np.random.Generator) -> Floats:
    """Whole sizes from their log2, each in steps of its own: hidden sizes are round where numbers of tokens are not."""
    return tidy(logs, np.array(_STEPS_PER_OCTAVE)[rng.integers(len(_STEPS_PER_OCTAVE), size=logs.shape)])


@dataclass(frozen=True, slots=True)
class TeacherAnswers:
    """What the teacher answered for operations of one device and dtype; columns of shape `(n,)`.

    Attributes:
        cases: The operations.
        latency_s: Seconds.
        lower_s: Lower end of the interval.
        upper_s: Upper end.
        power_w: Watts, NaN where unknown.
        measured: Whether the teacher was measured there.
    """

    cases: Cases
    latency_s: Floats
    lower_s: Floats
    upper_s: Floats
    power_w: Floats
    measured: bool

    @property
    def key(self) -> tuple[str, str]:
        """Device and dtype."""
        return str(self.cases.device[0]), str(self.cases.dtype[0])


def asked_teacher(
    predictor: ArtifactPredictor, family: str, devices: Sequence[Device], rows: tuple[int, int],
    rng: np.random.Generator, progress: Progress,
) -> Iterator[TeacherAnswers]:  # fmt: skip
    """The teacher's answers by device and dtype; `rows` where it was measured, and elsewhere.

    Args:
        predictor: The teacher.
        family: Name of the kernel family.
        devices: Devices to ask about.
        rows: Operations per device and dtype where the teacher was measured, and elsewhere.
        rng: Draws the operations.
        progress: Called with what is being done, devices done, and devices in all.
    """
    teacher, fam = predictor.family(family).model, get_family(family)
    for done, device in enumerate(devices):
        progress(f"asking about {family}", done, len(devices))
        for dtype in dtypes_on(teacher, device, fam):
            measured = is_measured(teacher, device.name, dtype)
            cases = drawn_operations(fam, teacher, device, dtype, rows[0] if measured else rows[1], rng)
            if not len(cases):
                continue
            targets = predictor.predict_cases(cases, coverage=COVERAGE).targets
            latency, power = targets["latency_s"], targets["power_w"]
            short = np.flatnonzero(latency.value <= MOST_LATENCY_S)
            if len(short):
                yield TeacherAnswers(cases.take(short), latency.value[short], latency.lower[short], latency.upper[short],
                              power.value[short], measured)  # fmt: skip
