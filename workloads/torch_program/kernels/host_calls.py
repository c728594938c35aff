"""What the host takes to call a program's operators: beside kernels on a GPU, between them on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from ....features.device import Device
from ....features.kernel import KernelSpec
from ....models.predict.prediction import Interval, Predictor
from ...memory_reads import answer_on
from ...savings import HOST_CALL_S

HOST_VIEW_S = Interval(2.2e-6, 1.1e-6, 4.4e-6)
"""The same as `HOST_CALL_S` of a CPU for a call that only gives another view of a tensor, of the same programs."""

_BACKWARD_S = Interval(35e-6, 12e-6, 70e-6)
"""What a CPU takes to begin a backward pass and to end a step, beyond its operators: 83 µs on a Zen 3 that copies a tiny tensor
in 1.9 µs, in the time of `_TINY_S`."""

_GPU_VIEW_S, _GPU_LAUNCH_S, _GPU_TENSOR_S = 7e-6, 5.3e-6, 4e-6
_GPU_BACKWARD_S, _GPU_STEP_S, _GPU_GRAPH_S = 250e-6, 350e-6, 200e-6
"""Beside `HOST_CALL_S["gpu"]` for an operator with its kernel, on a GPU's host: a view, a further kernel of an operator, a
tensor of an operator on lists; a backward pass, a step of an optimiser, a call of a compiled graph. Of 26 small programs beside
an H200 (benchmarks/torch_programs.py), but the launch, which was measured alone (docs/h200.md). What begins and ends a pass and
a step was told apart on a CPU: a backward pass costs there as much as 40 additions, a step of AdamW as 70 to 130."""

_TINY = KernelSpec.of("copy", "fp32", rows=4, cols=32, threads=1)
_TINY_S = 0.84e-6
"""A copy of 128 numbers, which is a call and nothing else, on the Xeon on which the host's costs were fitted."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the host does in one run of a program.

    Attributes:
        operators: Operators it calls.
        launches: Kernels that these run.
        views: Calls that only gave another view of a tensor.
        listed: Tensors in all lists of operators on lists.
        graphs: Calls of what was compiled as one.
        trains: Whether there is a backward pass.
        optimizes: Whether there is a step of an optimiser.
    """

    operators: int
    launches: int
    views: int
    listed: int = 0
    graphs: int = 0
    trains: bool = False
    optimizes: bool = False


def host_s(predictor: Predictor, device: Device, work: HostWork) -> Interval:
    """Seconds of the host for one run of a program.

    On a CPU they go with the device's own smallest kernel, since both are instructions of the interpreter and the dispatcher.
    """
    call = HOST_CALL_S[device.kind]
    if device.kind != "cpu":
        seconds = (
            call.value * work.operators + _GPU_LAUNCH_S * max(0, work.launches - work.operators) + _GPU_VIEW_S * work.views
            + _GPU_TENSOR_S * work.listed + _GPU_GRAPH_S * work.graphs + _GPU_BACKWARD_S * work.trains
            + _GPU_STEP_S * work.optimizes
        )  # fmt: skip
        return call.scaled(seconds / call.value)
    calls = call.scaled(work.launches) + HOST_VIEW_S.scaled(work.views)
    return (calls + _BACKWARD_S if work.trains else calls).scaled(_slowness(predictor, device))


def _slowness(predictor: Predictor, device: Device) -> float:
    """How many times as long a CPU takes for a tiny kernel as the one that the constants are of; 1 where copies are unknown."""
    answer = answer_on(predictor, _TINY, device)
    return 1.0 if answer is None else answer.latency_s.value / _TINY_S
