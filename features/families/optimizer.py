"""Fused step of an optimiser over a list of tensors: Adam (or AdamW), SGD, and SGD with momentum.

Parameters, gradients and states have one dtype; each is read, and all but gradients are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View

STATES = {"adam": 2, "sgd": 0, "momentum": 1}
"""Numbers that an optimiser keeps per parameter: Adam's two moments (Kingma and Ba, arXiv 1412.6980), and momentum."""

_FLOPS = {"adam": 13.0, "sgd": 2.0, "momentum": 4.0}
"""Per parameter. Adam: two operations for weight decay, seven for the moments, four for the quotient and the update."""


def _lists(v: View, count: int, fill: Any = "normal") -> tuple[Array, ...]:
    return tuple(Array((v["tensors"], v["elements"]), v.dtype, fill) for _ in range(count))


def _torch(torch: Any, spec: KernelSpec, weights: Any, grads: Any, *states: Any) -> Callable[[], Any]:
    aten, lists = torch.ops.aten, [each.unbind(0) for each in (weights, grads, *states)]
    common = {"amsgrad": False, "maximize": False}
    if spec.variant == "adam":
        steps = [torch.ones((), device=weights.device) for _ in lists[0]]
        rates = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}

        def run() -> Any:
            aten._fused_adamw_(*lists, [], steps, **rates, **common)
            return weights

        return run
    momentum = {"momentum": 0.9 if states else 0.0, "dampening": 0.0, "nesterov": False, "is_first_step": False}

    def descend() -> Any:
        aten._fused_sgd_(*lists[:2], lists[2] if states else [], weight_decay=0.0, lr=1e-3, maximize=False, **momentum)
        return weights

    return descend


FAMILY = KernelFamily(
    name="optimizer",
    doc=__doc__,
    dims=(Dim("tensors", "tensors of the list"), Dim("elements", "elements of each, on average")),
    variants=tuple(STATES),
    default_variant="adam",
    # A moment under a root is not negative.
    inputs=lambda v: (*_lists(v, 2), *_lists(v, STATES[v.variant], "positive")),
    outputs=lambda v: _lists(v, 1 + STATES[v.variant], "zeros"),
    flops=lambda v: _FLOPS[v.variant] * v["tensors"] * v["elements"],
    run={"torch": _torch},
    launches=lambda v: 1,
    ranges={"tensors": (1, 64), "elements": (16, 2**20)},
    # Layers of GPT-2, ResNet-18 and small perceptrons, on average.
    model_shapes=[
        {"tensors": tensors, "elements": elements}
        for tensors in (1, 4, 24, 62)
        for elements in (1000, 65536, 187_000, 590_000)
    ],
)
