"""How XLA runs a program on a GPU: where its kernels are not the libraries', and the host's call that starts them.

Constants are of programs that jaxlib ran on an H200 (datasets/data/programs/xla-gpu.md).
"""

from __future__ import annotations

from dataclasses import replace

from ...features.dtypes import DTYPES
from ...features.kernel import KernelSpec
from ...features.mlir.program import Group, Program
from ...features.mlir.vectors.device_limits import Hardware
from ...models.predict.prediction import Interval
from ..savings import IDLE_SHARE
from ..units import seconds
from .composition import normal_width
from .prediction import GroupCost, ProgramCost

_CALL_S, _BUFFER_S, _KERNEL_S, _CONVOLUTION_S = 32e-6, 3.4e-6, 2.0e-6, 21e-6
"""What the host takes for a call of an executable, for an argument or result of it, for a kernel, which is one of a recorded
graph, and for a convolution, which is a call of cuDNN."""

_HOST_FACTOR = 2.0
"""By how much the host may be faster or slower, at a coverage of 90 %."""

_KERNELS_FACTOR = 1.5
"""By how much further off kernels are that XLA writes itself, and not the libraries that were measured, likewise."""

_SCAN_PASSES = 3.0
"""Times that all data of a prefix sum are moved: XLA adds up blocks of sixteen, then those blocks, and both again."""

_LINE, _SHORT = 4096, 16.0
"""Elements in a row of a copy that stands for a pass over data; and in rows so short that a thread reduces several."""


def as_xla_runs(program: Program, on: Hardware) -> Program:
    """The program with the kernels that XLA makes of it on a GPU.

    Products and convolutions of fp32 are computed in TF32 where a GPU has it, unless the text asks for more precision. A
    transpose takes what a copy takes, a sliding window one pass over its operand, and a prefix sum, which StableHLO writes as a
    window as long as its axis, some passes.
    """
    return replace(program, groups=tuple(_as_run(group, program, on) for group in program.groups))


def _as_run(group: Group, program: Program, on: Hardware) -> Group:
    nodes, spec = [program.nodes[i] for i in group.nodes], group.spec
    if group.kind in ("contraction", "convolution") and group.dtype == "fp32":
        if "tf32" not in on.device.matrix_flops_per_s or any(node.detail.get("precise") for node in nodes):
            return group
        return replace(group, dtype="tf32", spec=None if spec is None else replace(spec, dtype="tf32"))
    if spec is not None and spec.family == "copy" and spec.variant == "transpose":
        return replace(group, spec=replace(spec, variant=""), stand_in="")
    reduced = next((node for node in nodes if node.kind == "reduction"), None)
    if reduced is None:
        return group
    if "window" in reduced.detail:
        if not reduced.detail.get("cumulative"):
            return replace(group, spec=_copy(group), stand_in="a copy stands in for a sliding window")
        what = "a copy stands in for each pass of a prefix sum"
        return replace(group, spec=_copy(group), stand_in=what, flops=reduced.loops[1], runs=group.runs * _SCAN_PASSES)
    _, rows, _, length = reduced.loops
    is_short = length <= _SHORT and reduced.detail.get("axis") == "inner"
    if is_short or group.bytes_in < rows * length * _itemsize_b(group) / 2:
        return replace(
            group, spec=_copy(group), stand_in="a copy stands in for a reduction of what its kernel computes itself"
        )
    return group


def _copy(group: Group) -> KernelSpec:
    """A kernel that reads the operands of a group once and writes its results, whatever it adds up on the way."""
    elements = max(1, round((group.bytes_in + group.bytes_out) / 2 / _itemsize_b(group)))
    return KernelSpec.of("copy", _dtype(group), rows=max(1, elements // _LINE), cols=min(elements, _LINE))


def _dtype(group: Group) -> str:
    return group.dtype if group.dtype in DTYPES else "fp32"


def _itemsize_b(group: Group) -> float:
    return DTYPES[_dtype(group)].itemsize_b


def called(cost: ProgramCost, program: Program, on: Hardware, coverage: float) -> ProgramCost:
    """The cost of a call of the program: its kernels', or the host's where that takes longer to start them.

    Args:
        cost: What its kernels take.
        program: The program, as XLA runs it.
        on: The GPU.
        coverage: Share of programs that the intervals are to contain.
    """
    buffers = len(program.arguments) + len(program.outputs)
    launches_s = sum(
        group.runs * (_CONVOLUTION_S if group.kind == "convolution" else _KERNEL_S) for group in program.groups
    )
    kernels = cost.latency_s if program.groups else Interval(0.0, 0.0, 0.0)
    host_s = _CALL_S + _BUFFER_S * buffers + launches_s
    kernels_factor, host_factor = (factor ** normal_width(coverage) for factor in (_KERNELS_FACTOR, _HOST_FACTOR))
    value = max(kernels.value, host_s)
    least = min(max(kernels.lower / kernels_factor, cost.bound_s, host_s / host_factor), value)
    latency = Interval(value, least, max(kernels.upper * kernels_factor, host_s * host_factor))
    gap_s, limit_w = value - kernels.value, on.device.fact("tdp_w")
    energy, power, notes, idle = cost.energy_j, cost.power_w, cost.notes, None
    if energy is not None and power is not None and limit_w is not None:
        idle = IDLE_SHARE.scaled(limit_w)
        wider = Interval(energy.value, energy.lower / kernels_factor, energy.upper * kernels_factor)
        energy = wider + idle.scaled(gap_s)
        drawn = power.scaled(kernels.value / value) + idle.scaled(gap_s / value)
        power = Interval(*(min(end, limit_w) for end in (drawn.value, drawn.lower, drawn.upper)))
    if any(group.dtype == "tf32" for group in program.groups):
        notes = (*notes, "products of fp32 run in TF32, as XLA does where a text asks for no precision")
    groups = cost.groups
    if gap_s:
        notes = (*notes, f"the host takes {seconds(host_s)} to start a call, its kernels {seconds(kernels.value)}")
        waiting = _waiting(gap_s, None if idle is None else idle.value * gap_s, gap_s / value)
        groups = (*(replace(group, time_share=group.latency_s / value) for group in groups), waiting)
    return replace(cost, latency_s=latency, energy_j=energy, power_w=power, notes=notes, groups=groups)


def _waiting(gap_s: float, energy_j: float | None, share: float) -> GroupCost:
    """The part of a call in which the GPU waits for the host."""
    return GroupCost(
        title="waiting for the host", kind="control", ops=("execute",), lines=(), runs=1.0, latency_s=gap_s, energy_j=energy_j,
        time_share=share, flops=0.0, bytes=0.0, bound="launch", spec="", stand_in="", understood=True, op_shares=(1.0,),
        line_shares=(),
    )  # fmt: skip
