"""Embedding: a row of a table for each token; `backward` adds the gradients of the tokens into a table of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernel import Array, Dim, KernelFamily, KernelSpec, Size, View


def _index(v: View) -> Array:
    return Array((v["tokens"], 1), "int64", "zeros")


def _table(v: View) -> Array:
    return Array((v["vocabulary"], v["cols"]), v.dtype)


def _rows(v: View) -> Array:
    return Array((v["tokens"], v["cols"]), v.dtype)


def _traffic_b(v: View) -> Size:
    """A gather reads no row twice, and none that no token has: tokens chosen evenly reach so many rows on average."""
    if v.variant == "backward":
        return _index(v).nbytes + _rows(v).nbytes + _table(v).nbytes
    touched = v["vocabulary"] * (1.0 - np.exp(-1.0 * v["tokens"] / v["vocabulary"]))
    read = Array((np.maximum(np.minimum(touched, v["tokens"]), 1.0), v["cols"]), v.dtype)
    return _index(v).nbytes + read.nbytes + _rows(v).nbytes


def _torch(torch: Any, spec: KernelSpec, index: Any, operand: Any) -> Callable[[], Any]:
    drawn = torch.randint(spec["vocabulary"], (spec["tokens"],), generator=torch.Generator().manual_seed(0)).to(
        index.device
    )
    if spec.variant == "backward":
        return lambda: torch.ops.aten.embedding_dense_backward(operand, drawn, spec["vocabulary"], -1, False)
    return lambda: torch.nn.functional.embedding(drawn, operand)


FAMILY = KernelFamily(
    name="embedding",
    doc=__doc__,
    dims=(Dim("tokens", "rows gathered"), Dim("vocabulary", "rows of the table"), Dim("cols", "width of a row")),
    variants=("", "backward"),
    inputs=lambda v: (_index(v), _rows(v) if v.variant == "backward" else _table(v)),
    outputs=lambda v: (_table(v) if v.variant == "backward" else _rows(v),),
    flops=lambda v: (1.0 if v.variant == "backward" else 0.0) * v["tokens"] * v["cols"],
    traffic_b=_traffic_b,
    run={"torch": _torch},
    launches=lambda v: 1,
    ranges={"tokens": (1, 8192), "vocabulary": (128, 65536), "cols": (8, 4096)},
    # BERT, GPT-2 and Qwen 2.5 0.5B (narrowed where the table would not fit), and tables of recommenders.
    model_shapes=[
        {"tokens": tokens, "vocabulary": vocabulary, "cols": cols}
        for vocabulary, cols in ((30522, 768), (50257, 768), (32000, 512), (100000, 64))
        for tokens in (1, 128, 1024, 4096)
    ],
)
