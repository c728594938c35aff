"""Measures a chunk of modules together, as kernels are: block 1 of each, block 2 of each, every block on fresh operands.

`finished` makes the row that is stored of what was measured: machine code counted, results compared with another compiler's.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ....datasets.records.mlir_modules import ModuleRun, ModuleText
from ...cpu.timing import Clock, Sampler, StoppingRule, quiet_interpreter, steady_energy
from ...host import utc_now
from ...meters.protocol import EnergyMeter, NoMeter
from ...runner import first_line, status_of
from ..compiler import Built, Job, Loaded, ModuleRunner
from ..compilers.iree import Compiled
from ..machine_code import CodeCounts, count_files
from ..operands import Array, operands

RULE = StoppingRule(
    blocks=3, samples_per_block=10, fewest_per_block=2, extra_blocks=2, warm_up_s=0.015, warm_up_calls=2, rewarm_s=0.003,
    rewarm_calls=1, block_s=0.03, case_s=0.3,
)  # fmt: skip
"""About 0.2 s of sampling for a module: thousands of modules measured fairly well teach more than hundreds measured to a
percent, and blocks of a module lie seconds apart because a chunk's modules take turns."""

LONGEST_CALL_S = 1.5
"""A module whose call takes longer is given up on: in its time dozens of others are measured."""

Beat = Callable[[str], None]


class HandoffClock(Clock):
    """The clock for calls that run on several threads: every sample counts.

    Threads of a program that wake each other preempt each other, which the kernel counts as it counts other programs: not one
    sample of IREE on two threads of two cores was free of it. What others take shows as blocks that disagree.
    """

    def preemptions(self) -> int:
        """None are told apart."""
        return 0


class SlowModuleError(Exception):
    """A call takes longer than `LONGEST_CALL_S`."""


ALLOWED_ERROR = 0.1
"""Largest ‖a − b‖ / ‖b‖ (over the sampled elements) between two compilers' results. Loose on purpose: both may reorder sums and
use their own approximations of exp or tanh, in formats as coarse as bfloat16; a wrong result is off by its whole size."""

SAMPLED = 64
"""Elements kept of each result."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled elements of the results of a module.

    Attributes:
        values: Of every floating-point result, in order.
        finite: Whether all elements of all results are finite.
    """

    values: tuple[float, ...]
    finite: bool


def sample(results: Sequence[Array]) -> Sample:
    """Up to `SAMPLED` elements of each floating-point result, at places that depend on its size alone.

    Integers and truth values are left out: rounding decides ties, so two right programs may differ in them entirely.
    """
    values: list[float] = []
    finite = True
    for result in results:
        if not np.issubdtype(result.dtype, np.floating):
            continue
        flat = result.reshape(-1)
        finite = finite and bool(np.isfinite(flat).all())
        places = np.arange(flat.size)
        if flat.size > SAMPLED:
            places = np.sort(np.random.default_rng(flat.size).choice(flat.size, SAMPLED, replace=False))
        values += flat[places].astype(np.float64).tolist()
    return Sample(tuple(values), finite)


def relative_error(got: Sequence[float], wanted: Sequence[float]) -> float | None:
    """‖got − wanted‖ / ‖wanted‖ over the elements that are finite in both; infinite where the counts differ.

    None where nothing can be compared: no element is finite in both, or all wanted ones are 0 and the others as well.
    """
    if len(got) != len(wanted):
        return float("inf")
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    difference, size = float(np.linalg.norm(a[both] - b[both])), float(np.linalg.norm(b[both]))
    if size == 0.0:
        return float("inf") if difference > 0.0 else None
    return difference / size


@dataclass(frozen=True, slots=True)
class ModuleBench:
    """What one process measures modules with.

    Attributes:
        runner: The compiler and its runtime.
        device: The name rows carry.
        rule: When a module has been measured well enough.
        meter: The energy sensor.
        clock: What times are read from.
    """

    runner: ModuleRunner
    device: str
    rule: StoppingRule = RULE
    meter: EnergyMeter = field(default_factory=NoMeter)
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring a module gave.

    Attributes:
        row: Its row.
        sample: A sample of its results where it ran.
        objects: Files of its machine code.
    """

    row: ModuleRun
    sample: Sample | None = None
    objects: tuple[str, ...] = ()


def measure_modules(jobs: Sequence[Job], bench: ModuleBench, beat: Beat) -> list[Measured]:
    """Measure `jobs` interleaved; every one becomes a row, whatever happens to it.

    `beat` is called with a module's id before every step on it, so that a supervisor can tell which one hangs.
    """
    cases = [_Case(job, bench, beat) for job in jobs]
    order = random.Random(0)  # noqa: S311  seeded: the order should differ between rounds, not between runs
    with quiet_interpreter():
        for case in cases:
            case.guarded(case.load)
        while live := [case for case in cases if case.row is None]:
            for case in order.sample(live, len(live)):
                case.guarded(case.place)
            for case in live:
                case.guarded(case.take_block)
            for case in live:
                case.release()
    return [Measured(case.row, case.seen, tuple(map(str, case.objects))) for case in cases if case.row is not None]


@dataclass(slots=True)
class _Case:
    """One module of the chunk; it is finished when its row is known."""

    job: Job
    bench: ModuleBench
    beat: Beat
    loaded: Loaded | None = None
    inputs: list[Array] = field(default_factory=list)
    sampler: Sampler = field(init=False)
    row: ModuleRun | None = None
    seen: Sample | None = None
    objects: tuple[object, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.bench.rule, self.bench.clock)

    def guarded(self, step: Callable[[], Any]) -> None:
        """Run one step; an error becomes the row."""
        if self.row is not None:
            return
        self.beat(self.job.module.module_id)
        try:
            step()
        except Exception as error:  # noqa: BLE001  whatever a compiler raises is this module's result, not the campaign's end
            status = "timeout" if isinstance(error, SlowModuleError) else status_of(error)
            self.row = replace(self._blank(), status=status, message=first_line(error))
            self.loaded, self.inputs = None, []
            self.release()

    def load(self) -> None:
        """Load it, make its operands, and see what it computes: twice, on operands in different places."""
        self.loaded = self.bench.runner.load(self.job)
        self.objects = self.loaded.built.objects
        self.inputs = operands(self.loaded.arguments, int(self.job.module.module_id, 16))
        began = time.perf_counter()
        first = sample(self.loaded.results(self.loaded.place(self.inputs)))
        if time.perf_counter() - began > LONGEST_CALL_S:
            raise SlowModuleError(f"a call takes longer than {LONGEST_CALL_S:g} s")
        self.beat(self.job.module.module_id)
        self.seen = sample(self.loaded.results(self.loaded.place(self.inputs)))
        error = relative_error(self.seen.values, first.values)
        if error is not None and error > 1e-6:
            raise ArithmeticError(f"two runs on the same operands differ: relative error {error:.2g}")

    def place(self) -> None:
        """Put its operands into fresh memory."""
        if self.loaded is not None:
            self.sampler.call = self.loaded.place(self.inputs)

    def take_block(self) -> None:
        """One block of samples; its row when it needs no more."""
        self.sampler.take_block()
        if self.sampler.blocks == [[]] and not isinstance(self.sampler.clock, HandoffClock):
            # Its own threads preempt each other in every call, so it is begun again with a clock that lets that pass.
            self.sampler = Sampler(self.bench.rule, HandoffClock(), call=self.sampler.call)
            self.notes += ("every call switches between threads, so preempted samples count",)
            self.sampler.take_block()
        if self.sampler.done:
            self._finish()

    def release(self) -> None:
        """Let operands on the device go."""
        self.sampler.call = _nothing
        if self.row is not None:
            self.loaded, self.inputs = None, []

    def _finish(self) -> None:
        summary = self.sampler.summary()
        energy, why = steady_energy(self.sampler.call, self.sampler.call_s, self.bench.meter)
        if self.seen is not None and not self.seen.finite:
            self.notes += ("some results are not finite",)
        self.row = replace(
            self._blank(), status="ok", **summary.columns(), **energy,
            message="; ".join(filter(None, (*self.notes, why))) or None,
        )  # fmt: skip

    def _blank(self) -> ModuleRun:
        job, built = self.job, Built() if self.loaded is None else self.loaded.built
        return ModuleRun(
            module_id=job.module.module_id, compiler=job.compiler, device=self.bench.device, threads=job.threads,
            status="failed", block="", measured_at=utc_now(), compile_s=built.compile_s, binary_b=built.binary_b,
            dispatches=built.dispatches,
        )  # fmt: skip


def _nothing() -> None:
    """What a sampler calls between blocks: nothing, so that operands are not kept alive."""


Samples = MutableMapping[str, tuple[str, Sample]]
"""By module id: the compiler that ran it first in this campaign, and a sample of what it computed."""


def finished(measured: Measured, compiled: Compiled | None, samples: Samples) -> ModuleRun:
    """The row with all that is known of its build; `failed` where its results are not those of the first compiler in `samples`.

    Files of machine code are removed.
    """
    row = measured.row
    objects = [Path(path) for path in measured.objects]
    if compiled is not None:
        row = replace(row, compile_s=compiled.compile_s, binary_b=compiled.binary_b, dispatches=compiled.dispatches)
    counts = _counts(objects) if compiled is None else compiled.counts
    for path in objects:
        path.unlink(missing_ok=True)
    if counts is not None:
        row = replace(row, code_b=counts.code_b, code_instructions=counts.instructions,
                      vector_instructions=counts.vector_instructions, spills=counts.spills)  # fmt: skip
    return _compared(row, measured.sample, samples)


def _counts(objects: list[Path]) -> CodeCounts | None:
    try:
        return count_files(objects)
    except (subprocess.SubprocessError, OSError):  # what cannot be disassembled is not counted
        return None


def _compared(row: ModuleRun, seen: Sample | None, samples: Samples) -> ModuleRun:
    if seen is None or row.status != "ok":
        return row
    first, wanted = samples.setdefault(row.module_id, (row.compiler, seen))
    error = relative_error(seen.values, wanted.values) if first != row.compiler else None
    if error is None or error <= ALLOWED_ERROR:
        return row
    return replace(
        row, status="failed", latency_s=None, latency_q1_s=None, latency_q3_s=None, latency_min_s=None,
        power_w=None, energy_j=None, energy_source=None,
        message=f"results differ from those of {first}: relative error {error:.2g}, allowed {ALLOWED_ERROR:g}",
    )  # fmt: skip


_EMPTY = """func.func @main(%a: tensor<1xf32>) -> tensor<1xf32> {
  return %a : tensor<1xf32>
}
"""

_ADD = """func.func @main(%a: tensor<1xf32>) -> tensor<1xf32> {
  %sum = stablehlo.add %a, %a : tensor<1xf32>
  return %sum : tensor<1xf32>
}
"""

_PRODUCT = """func.func @main(%a: tensor<256x256xf32>, %b: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %c : tensor<256x256xf32>
}
"""

REFERENCES = MappingProxyType({
    ModuleText(text, f"kernelcast/{name}", "kernelcast", "stablehlo").module_id: ModuleText(
        text, f"kernelcast/{name}", "kernelcast", "stablehlo"
    )
    for name, text in (("empty", _EMPTY), ("add-one-number", _ADD), ("product-256", _PRODUCT))
})  # fmt: skip
"""By module id. `empty` is a runtime's floor, `add-one-number` that of a module with one kernel, `product-256` does work."""
