"""A training step: a forward pass over every position, the gradients behind it, and a step of the optimiser.

Gradients are listed from the kernels of the forward pass, each by what its derivative computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ..whole_model import Kernel
from .facts import ModelFacts
from .forward import Forward, forward
from .kernel_list import MOVED, StandIn
from .plan import ONE_DEVICE, Collective, ParallelPlan
from .step import ACTIVATIONS, Formats, Step

OPTIMIZER_B = 28.0
"""Bytes that AdamW moves for each parameter. In half precision: reads the gradient (2) and the weight and both moments in fp32
(12), writes these (12) and the weight (2); in fp32: reads four values and writes three."""

_LIKE = 1.25
"""Factor of kernels that are only like the gradient, as of operators of PyTorch programs (`torch_program/kernels`)."""
_ATTENTION = StandIn("the backward of attention and scans is estimated as 2.5 times the forward", _LIKE, 2.5)
"""Five products where the forward has two (Dao et al., FlashAttention, 2022, algorithm 4)."""
_EXPERTS = StandIn(
    "the backward of experts is estimated as twice the forward, two gradients of each product", _LIKE, 2.0
)
_ROWS = StandIn(
    "the backward of norms and softmax is estimated as 1.5 times the forward, by the bytes it moves", _LIKE, 1.5
)
_PASS = StandIn("the backward of element-by-element kernels is estimated as 1.5 times the forward", _LIKE, 1.5)
_COPY = StandIn("the backward of copies and gathers is estimated as twice the forward, as it also adds", MOVED, 2.0)
_OPTIMIZER = StandIn(
    f"a step of AdamW is estimated by the {OPTIMIZER_B:g} bytes that it moves for each parameter", MOVED
)

_LAYERS = ("layers.", "encoder.")
"""How names of kernels inside layers begin."""

_GRADIENTS: Mapping[str, StandIn] = {
    "attention": _ATTENTION, "latent_attention": _ATTENTION, "linear_attention": _ATTENTION, "causal_conv1d": _PASS,
    "moe": _EXPERTS, "layernorm": _ROWS, "softmax": _ROWS, "elementwise": _PASS, "copy": _COPY,
}  # fmt: skip
"""By family of the forward kernel; products have gradients of their own."""


def training_step(
    facts: ModelFacts,
    step: Step,
    formats: Formats,
    plan: ParallelPlan = ONE_DEVICE,
    *,
    recompute: bool = False,
    **options: Any,
) -> Forward:
    """What a model runs in one training step; `options` are those of `forward`.

    With `recompute` each layer keeps its input alone, and runs forwards again before its gradients.

    Raises:
        SpecError: weights are quantised, sequences have cached positions, or `forward` refuses.
    """
    for field, value in (("weights", formats.weights), ("weights", formats.experts)):
        if value not in ACTIVATIONS:
            raise SpecError(
                f"weights are {value}; training takes them in the format of activations: give weights {formats.dtype}",
                field=field,
            )
    if any(group.context for group in step):
        raise SpecError("a training step has no cached positions; its context is 0", field="context")
    run = forward(facts, step, formats, plan, training=True, **options)
    kernels, stand_ins = list(run.kernels), dict(run.stand_ins)
    collectives = [*run.collectives, *_backward_collectives(facts, formats, plan, run)]
    if recompute:
        again = [kernel for kernel in run.kernels if kernel.name.startswith(_LAYERS)]
        kernels += [replace(kernel, name=_again(kernel.name)) for kernel in again]
        stand_ins |= {
            _again(kernel.name): run.stand_ins[kernel.name] for kernel in again if kernel.name in run.stand_ins
        }
        collectives += [
            replace(item, name=_again(item.name)) for item in run.collectives if item.name.startswith(_LAYERS)
        ]
    for kernel in run.kernels:
        for gradient, stands_for in _gradients(kernel, run.stand_ins.get(kernel.name)):
            kernels.append(gradient)
            if stands_for is not None:
                stand_ins[gradient.name] = stands_for
    kernels.append(_optimizer(facts, plan, options.get("threads")))
    stand_ins["optimizer"] = _OPTIMIZER
    return Forward(tuple(kernels), stand_ins, tuple(collectives))


def _again(name: str) -> str:
    """The name of what runs forwards again in the backward pass."""
    return f"backward.{name}.recompute"


def _gradients(kernel: Kernel, forward_stand_in: StandIn | None) -> Iterator[tuple[Kernel, StandIn | None]]:
    """The kernels behind one of the forward pass, with what they stand in for."""
    spec, name = kernel.spec, f"backward.{kernel.name}"
    if spec.family == "gemm":
        sizes = dict(spec.dims)
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        for of_input in (True, False):
            # dX = dY·Wᵀ has k columns, dW = Xᵀ·dY contracts the rows.
            swapped = {"m": m, "n": k, "k": n} if of_input else {"m": k, "n": n, "k": m}
            yield (
                replace(kernel, spec=_resized(spec, swapped), name=f"{name}.{'input' if of_input else 'weight'}"),
                forward_stand_in,
            )
        return
    gradient = _GRADIENTS[spec.family]
    factor = max(gradient.factor, 1.0 if forward_stand_in is None else forward_stand_in.factor)
    yield replace(kernel, name=name), replace(gradient, factor=factor)


def _resized(spec: KernelSpec, sizes: Mapping[str, int]) -> KernelSpec:
    variant = "" if spec.variant == "bias" else spec.variant
    return replace(spec, dims=tuple((name, sizes.get(name, size)) for name, size in spec.dims), variant=variant)


def _optimizer(facts: ModelFacts, plan: ParallelPlan, threads: int | None) -> Kernel:
    """One pass for each layer over its share of the parameters: reads and writes of fp32, eight bytes an element."""
    layers = max(1, facts.layers)
    elements = facts.weights_of(plan).total * OPTIMIZER_B / 8 / layers
    spec = KernelSpec.of(
        "elementwise", "fp32", variant="mulu", threads=threads, timing="device" if threads is None else "",
        rows=max(1, ceil(elements / facts.hidden)), cols=facts.hidden,
    )  # fmt: skip
    return Kernel(spec, layers, "optimizer")


def _backward_collectives(
    facts: ModelFacts, formats: Formats, plan: ParallelPlan, run: Forward
) -> Iterator[Collective]:
    """As many as forwards between the ranks of a layer, and the sum of gradients over groups with sequences of their own."""
    for item in run.collectives:
        yield replace(item, name=f"backward.{item.name}")
    if plan.dp > 1:
        size_b = facts.weights_of(plan).total * formats.itemsize_b
        yield Collective("gradients", "all_reduce", plan.dp, size_b, 1)
