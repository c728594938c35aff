"""What a hand-written kernel's result is compared with: torch's product in higher precision, torch's attention."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from ...features.kernel import KernelSpec, get_family
from .strata import masked

TOLERANCE = MappingProxyType({"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1e-2, "fp8": 5e-2, "int8": 1e-5})
"""Largest relative error in the Frobenius norm by dtype of the operands.

Some times what rounding the result gives (bf16 keeps 8 bits), cutting operands to tf32's 10 bits, or summing 16384
products in fp32. Hopper's tensor cores add fp8 products with some 14 bits, up to 2 % off at k = 4096 ("DeepSeek-V3", arXiv
2412.19437, 3.3.2).
"""


MAX_CHECKED_SCORES = 2**26
"""With a mask torch's own attention may write all scores to memory, 4 bytes each: only this many are compared."""


def expected_product(spec: KernelSpec, a: Any, b: Any) -> Callable[[], Any]:
    """a·b of one product, operands (1, m, k) and (1, k, n), as (m, n) in fp64 for 4-byte operands and fp32 for shorter.

    Shorter formats fit tf32's mantissa, so fp32 is exact in its operands even where tf32 is allowed.
    """
    import torch

    wide = torch.float64 if spec.dtype in ("fp32", "tf32") else torch.float32
    return lambda: torch.mm(a[0].to(wide), b[0].to(wide))


def expected_attention(spec: KernelSpec, q: Any, k: Any, v: Any) -> Callable[[], Any] | None:
    """The family's own call of torch's attention, in the operands' dtype; None where that would need too much memory."""
    import torch

    scores = float(spec["batch"] * spec["heads"]) * spec["q_len"] * spec["kv_len"]
    if masked(spec) and scores > MAX_CHECKED_SCORES:
        return None
    # Prepared only when called: a mask may be as large as all scores.
    return lambda: get_family("attention").run["torch"](torch, spec, q, k, v)()
