"""What the host takes to call a program's operators: beside kernels on a GPU, between them on a CPU."""

from __future__ import annotations

from ....features.device import Device
from ....features.kernel import KernelSpec
from ....models.predict.prediction import Interval, Predictor
from ...savings import HOST_CALL_S
from ...streamed_weights import answer_on

HOST_VIEW_S = Interval(2.2e-6, 1.1e-6, 4.4e-6)
"""The same as `HOST_CALL_S` for a call that only gives another view of a tensor, of the same programs."""

_BACKWARD_S = Interval(35e-6, 12e-6, 70e-6)
"""What a CPU takes to begin a backward pass and to end a step, beyond its operators: 83 µs on a Zen 3 that copies a tiny tensor
in 1.9 µs, in the time of `_TINY_S`."""

_TINY = KernelSpec.of("copy", "fp32", rows=4, cols=32, threads=1)
_TINY_S = 0.84e-6
"""A copy of 128 numbers, which is a call and nothing else, on the Xeon on which the host's costs were fitted."""


def host_s(predictor: Predictor, device: Device, launches: int, views: int, *, trains: bool) -> Interval:
    """Seconds of the host for one run of a program.

    On a CPU they go with the device's own smallest kernel, since both are instructions of the interpreter and the dispatcher.

    Args:
        predictor: the kernel model.
        device: where kernels run.
        launches: kernels that run.
        views: calls that only gave another view of a tensor.
        trains: whether there is a backward pass.
    """
    calls = plus(HOST_CALL_S[device.kind].scaled(launches), HOST_VIEW_S.scaled(views))
    if device.kind != "cpu":
        return calls
    return (plus(calls, _BACKWARD_S) if trains else calls).scaled(_slowness(predictor, device))


def _slowness(predictor: Predictor, device: Device) -> float:
    """How many times as long a CPU takes for a tiny kernel as the one that the constants are of; 1 where copies are unknown."""
    answer = answer_on(predictor, _TINY, device)
    return 1.0 if answer is None else answer.latency_s.value / _TINY_S


def plus(a: Interval, b: Interval) -> Interval:
    """A sum whose parts err together: each end is the sum of theirs."""
    return Interval(a.value + b.value, a.lower + b.lower, a.upper + b.upper)
