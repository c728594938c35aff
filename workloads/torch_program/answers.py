"""A program on devices side by side: totals, memory, and where time could be won."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...features.device import Device
from ...models.predict.power_law import PowerSetting
from ...models.predict.prediction import Interval, Predictor
from ..savings import HOST_CALL_S, Saving, saved_time, worthwhile
from .captured import Program
from .device_estimate import DeviceEstimate, estimate_on
from .kernels.kernel_use import KernelUse
from .memory import Memory
from .operation import OPTIMIZER
from .shares import Priced, priced

SECONDS_PER_HOUR = 3600.0
_LOWER = {"fp32": "bf16", "tf32": "bf16", "bf16": "fp8", "fp16": "fp8"}
"""The next lower format of products, by the one they are in."""
_IN_BF16 = frozenset({"gemm", "conv2d", "attention"})
_IN_FP8 = frozenset({"gemm"})
_FILLED = 0.9
"""A batch fills a device where it saves this share of the most that any larger one saves which fits."""
_MOST_TIMES = 1024
"""How many times as large a batch is looked at."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known of a program.

    Attributes:
        operators: Operators it ran.
        flops: Arithmetic of products and attention.
        batch: Samples of one run; None where it was not given.
        memory: Its peak.
        totals: Its cost by device, in the order they were named.
        savings: By device, changes that would save time, the largest first.
        notes: What to know of how it was recorded.
        prices: Price of an hour by device, where one was given.
    """

    operators: int
    flops: float
    batch: int | None
    memory: Memory
    totals: Mapping[str, DeviceEstimate]
    savings: Mapping[str, tuple[Saving, ...]]
    notes: tuple[str, ...]
    prices: Mapping[str, float]

    def cost(self, device: str) -> Interval | None:
        """What one run costs on a device at its price; None where there is no price or no total."""
        latency = self.totals[device].latency_s
        price = self.prices.get(device)
        return None if price is None or latency is None else latency.scaled(price / SECONDS_PER_HOUR)

    @property
    def any_savings(self) -> bool:
        """Whether time could be won anywhere."""
        return any(self.savings.values())


def answer(
    predictor: Predictor, program: Program, devices: Sequence[Device], *, threads: int | None = None,
    coverage: float = 0.9, compiled: bool = False, prices: Mapping[str, float] | None = None,
    setting: PowerSetting | None = None,
) -> Answers:  # fmt: skip
    """What one run of a program costs on each device.

    Args:
        predictor: the kernel model.
        program: what runs.
        devices: where.
        threads: CPU threads, of the CPUs among the devices; None for all cores.
        coverage: share of programs the intervals are to contain.
        compiled: take everything as compiled.
        prices: price of an hour by catalogue name, in any one currency.
        setting: how the devices are set; None: as they come.

    Raises:
        SpecError: nothing runs, coverage is outside what is possible, or a device cannot be set so.
    """
    totals: dict[str, DeviceEstimate] = {}
    savings: dict[str, tuple[Saving, ...]] = {}
    runs = {kind: priced(program, kind, compiled=compiled) for kind in dict.fromkeys(each.kind for each in devices)}
    for device in devices:
        ask = _Question(predictor, program, device, threads, coverage, setting)
        run = runs[device.kind]
        total = totals[device.name] = ask.estimate(run)
        changes = [] if total.latency_s is None else [*_compiled(ask, total, compiled), *_products(ask, run, total)]
        savings[device.name] = worthwhile([*changes, *_launches(device, total), *_batch(device, total, program)])
    return Answers(
        program.operators, program.flops, program.batch, program.memory, totals, savings, program.notes, dict(prices or {})
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Question:
    """A program on one device."""

    predictor: Predictor
    program: Program
    device: Device
    threads: int | None
    coverage: float
    setting: PowerSetting | None

    def estimate(self, run: Priced) -> DeviceEstimate:
        """What it costs with these kernels."""
        threads = self.threads if self.device.kind == "cpu" else None
        return estimate_on(
            self.predictor, run, self.device, self.program.memory, threads=threads, coverage=self.coverage,
            setting=self.setting,
        )  # fmt: skip


def _compiled(ask: _Question, total: DeviceEstimate, compiled: bool) -> Iterator[Saving]:
    """The whole program compiled, where it is not."""
    if compiled or not ask.program.whole_fusion.passes:
        return
    after = ask.estimate(priced(ask.program, ask.device.kind, compiled=True))
    yield from _saving("compiled", f"torch.compile: {ask.program.whole_fusion.words()}", ask.device, total, after)


def _products(ask: _Question, run: Priced, total: DeviceEstimate) -> Iterator[Saving]:
    """Products in the next lower format that the device has for them."""
    formats = {use.spec.dtype for uses in run.uses for use in uses if use.spec.family in _IN_BF16}
    for before in sorted(formats & set(_LOWER)):
        lower = _LOWER[before]
        if not ask.device.runs(lower, "matrix") or ask.device.peak_flops_per_s(lower, "matrix")[1] != lower:
            continue
        families = _IN_FP8 if lower == "fp8" else _IN_BF16
        uses = [[_in_format(use, before, lower, families) for use in some] for some in run.uses]
        words = f"products in {lower} in place of {before}, without what casts operands"
        yield from _saving("products", words, ask.device, total, ask.estimate(replace(run, uses=uses)))


def _in_format(use: KernelUse, before: str, lower: str, families: frozenset[str]) -> KernelUse:
    changes = use.spec.family in families and use.spec.dtype == before
    return replace(use, spec=replace(use.spec, dtype=lower)) if changes else use


def _saving(kind: str, change: str, device: Device, before: DeviceEstimate, after: DeviceEstimate) -> Iterator[Saving]:
    """What a change of the kernels saves; where the host is the slower one, it is the host's calls that are fewer."""
    if before.latency_s is None or after.latency_s is None or before.whole is None or after.whole is None:
        return
    kernels = saved_time(before.whole.parts, after.whole.parts)
    calls = HOST_CALL_S[device.kind].scaled(abs(before.launches - after.launches))
    if device.kind == "cpu":
        saved = Interval(kernels.value + calls.value, kernels.lower + calls.lower, kernels.upper + calls.upper)
    elif before.bound_by == "device":
        saved = kernels
    else:
        value = before.latency_s.value - after.latency_s.value
        saved = Interval(
            value, value * calls.lower / max(calls.value, 1e-12), value * calls.upper / max(calls.value, 1e-12)
        )
    yield Saving(kind, change, saved, saved.value / before.latency_s.value)


def _launches(device: Device, total: DeviceEstimate) -> Iterator[Saving]:
    """A graph of kernels, whose launches the host does not wait for."""
    if device.kind != "gpu" or total.latency_s is None or total.bound_by != "host" or total.whole is None:
        return
    call, kernels_s = HOST_CALL_S["gpu"], total.kernels_s
    host = call.scaled(total.host_s / call.value)
    value = total.latency_s.value - kernels_s
    saved = Interval(value, min(value, host.lower - kernels_s), max(value, host.upper - kernels_s))
    words = f"a CUDA graph in place of {total.launches} launches that the GPU waits for"
    yield Saving("launches", words, saved, value / total.latency_s.value)


def _batch(device: Device, total: DeviceEstimate, program: Program) -> Iterator[Saving]:
    """The least larger batch that fills the device, as seconds of this batch's work.

    Kernels are taken to grow in proportion to the batch beyond their launches, but for the optimiser's, and the host's calls to
    stay as they are; so do weights, gradients and the optimiser's state in memory.
    """
    memory, memory_b = program.memory, device.fact("memory_b")
    if device.kind != "gpu" or program.batch is None or memory_b is None or not memory.of_batch_b:
        return
    if total.latency_s is None or total.whole is None:
        return
    launches_s = sum(
        part.kernel.count * min(part.prediction.breakdown.get("launch", 0.0), part.prediction.latency_s.value)
        for part in total.whole.parts
    )
    optimizer_s = sum(share.latency_s for share in total.by_phase if share.name == OPTIMIZER)
    stays_s = optimizer_s + launches_s * (1 - optimizer_s / total.kernels_s)
    grows_s = max(0.0, total.latency_s.value * (1 - (total.idle_share or 0.0)) - stays_s)
    times, each_s = 1, {}
    while times <= _MOST_TIMES and memory.states_b + times * memory.of_batch_b <= memory_b:
        each_s[times] = max(total.host_s, stays_s + times * grows_s) / times
        times *= 2
    if len(each_s) < 2:
        return
    now_s, least_s = total.latency_s.value, min(each_s.values())
    times = next(each for each, time_s in each_s.items() if now_s - time_s >= _FILLED * (now_s - least_s))
    saved = total.latency_s.scaled(1 - each_s[times] / now_s)
    words = f"a batch of {times * program.batch} in place of {program.batch}, for as many samples"
    yield Saving("batch", words, saved, saved.value / now_s)
