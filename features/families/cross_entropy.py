"""Cross-entropy of rows of logits with a class each: log-probabilities and the loss; `backward` is the gradient of the logits.

The forward keeps the log-probabilities, as PyTorch's `cross_entropy` does for its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernel import Array, Dim, KernelFamily, KernelSpec, View


def _rows(v: View) -> Array:
    return Array((v["rows"], v["cols"]), v.dtype)


def _torch(torch: Any, spec: KernelSpec, x: Any, index: Any) -> Callable[[], Any]:
    aten = torch.ops.aten
    target = torch.randint(spec["cols"], (spec["rows"],), generator=torch.Generator().manual_seed(0)).to(index.device)

    def forward() -> Any:
        logs = aten._log_softmax(x, 1, False)
        aten.nll_loss_forward(logs, target, None, 1, -100)
        return logs

    saved, above = torch.log_softmax(x, 1), torch.ones((), dtype=x.dtype, device=x.device)
    count = torch.full((), float(spec["rows"]), dtype=x.dtype, device=x.device)

    def backward() -> Any:
        grad = aten.nll_loss_backward(above, saved, target, None, 1, -100, count)
        return aten._log_softmax_backward_data(grad, saved, 1, x.dtype)

    return backward if spec.variant == "backward" else forward


FAMILY = KernelFamily(
    name="cross_entropy",
    doc=__doc__,
    dims=(Dim("rows", "rows of logits"), Dim("cols", "classes")),
    variants=("", "backward"),
    inputs=lambda v: (_rows(v), Array((v["rows"],), "int64", "zeros")),
    outputs=lambda v: (_rows(v),),
    # As softmax; the gradient is an exponential, a difference and a scaling per element.
    flops=lambda v: (3.0 if v.variant == "backward" else 5.0) * v["rows"] * v["cols"],
    run={"torch": _torch},
    by_row=True,
    launches=lambda v: 2,
    ranges={"rows": (1, 8192), "cols": (2, 65536)},
    # ImageNet, GPT-2, BERT and Llama 2 vocabularies.
    model_shapes=[
        {"rows": rows, "cols": cols} for cols in (10, 1000, 30522, 32000, 50257) for rows in (1, 32, 128, 512)
    ],
)
