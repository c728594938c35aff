"""Where time of a model's step could be won: quantised weights, another batch, launches that nothing waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...models.predict.prediction import Interval, Predictor
from ..savings import HOST_CALL_S, Saving, saved_time, worthwhile
from .estimate import Estimate, estimate_steps, formats_of
from .memory import memory
from .step import Step

FILLED = 0.9
"""A batch fills a device where it gives this share of the most tokens per second of any that fits."""
MAX_BATCH = 4096
"""Largest batch looked at."""
_QUANTISED = "fp8"


def savings(predictor: Predictor, item: Estimate, *, coverage: float = 0.9) -> tuple[Saving, ...]:
    """Changes that would save time of an estimated step on its device, the largest saving first."""
    return worthwhile([*_weights(predictor, item, coverage), *_batch(predictor, item, coverage), *_launches(item)])


def _weights(predictor: Predictor, item: Estimate, coverage: float) -> Iterator[Saving]:
    """The same step with weights in fp8, where they are not quantised and the device multiplies fp8."""
    formats, device = item.formats, predictor.devices.get(item.device)
    if item.training or formats.weights != formats.dtype or not device.runs(_QUANTISED, "matrix"):
        return
    changed = _again(predictor, item, [item.step], coverage, weights=_QUANTISED)[0]
    saved = saved_time(item.whole.parts, changed.whole.parts)
    words = f"weights and activations of the products in {_QUANTISED} in place of {formats.weights}"
    yield Saving("weights", words, saved, saved.value / item.whole.latency_s.value)


def _batch(predictor: Predictor, item: Estimate, coverage: float) -> Iterator[Saving]:
    """The least larger batch that fills the device, as seconds of this step's work."""
    if len(item.step.groups) != 1:
        return
    (group,) = item.step.groups
    steps = []
    count = 2 * group.count
    while count <= MAX_BATCH * item.plan.dp and _fits(predictor, item, step := Step((replace(group, count=count),))):
        steps.append(step)
        count *= 2
    if not steps:
        return
    larger = _again(predictor, item, steps, coverage)
    most = max(other.tokens_per_s.value for other in larger)
    if item.tokens_per_s.value >= FILLED * most:
        return
    chosen = next(other for other in larger if other.tokens_per_s.value >= FILLED * most)
    work = group.count / chosen.step.sequences
    saved = saved_time(item.whole.parts, chosen.whole.parts, work)
    words = f"{chosen.step.sequences} sequences at a time in place of {group.count}, for the same number of tokens"
    yield Saving("batch", words, saved, saved.value / item.whole.latency_s.value)


def _launches(item: Estimate) -> Iterator[Saving]:
    """What calling kernel by kernel from Python would add, which compiled code or a graph of kernels does not."""
    if not all(part.kernel.spec.timing == "device" for part in item.whole.parts):
        return
    host, kernels = HOST_CALL_S["gpu"].scaled(item.whole.launches), item.whole.latency_s
    saved = Interval(host.value - kernels.value, host.lower - kernels.upper, host.upper - kernels.lower)
    if saved.value > 0:
        words = f"compiled, or in a CUDA graph, in place of {item.whole.launches} calls of eager PyTorch"
        yield Saving("launches", words, saved, saved.value / host.value)


def _again(
    predictor: Predictor, item: Estimate, steps: list[Step], coverage: float, weights: str | None = None
) -> list[Estimate]:
    formats = item.formats if weights is None else formats_of(item.facts, dtype=item.formats.dtype, weights=weights)
    spec = item.whole.parts[0].kernel.spec
    return estimate_steps(
        predictor, item.facts, steps, item.device, formats=formats, plan=item.plan, impl=item.impl, threads=spec.threads,
        coverage=coverage, training=item.training, recompute=item.recompute,
    )  # fmt: skip


def _fits(predictor: Predictor, item: Estimate, step: Step) -> bool:
    device = predictor.devices.get(item.device)
    needed = memory(
        item.facts, step, item.formats, item.plan, device, training=item.training, recompute=item.recompute
    )  # fmt: skip
    return needed.fits is not False
