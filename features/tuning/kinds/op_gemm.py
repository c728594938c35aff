"""Time of a dense matrix product as it stands: C[b,m,n] = A[b,m,k] · B[b,k,n]."""

from __future__ import annotations

from collections.abc import Mapping

from ..family_kinds import chosen, family_kind, product_features, work_features
from ..formula import Value, equal, less, where


def _features(v: Mapping[str, Value]) -> dict[str, Value]:
    batch, m, n, k = v["batch"], v["m"], v["n"], v["k"]
    bias_b = where(equal(v["variant"], 1.0), n * v["output_b"], 0.0)
    moved_b = batch * (m * k + k * n) * v["element_b"] + batch * m * n * v["output_b"] + bias_b
    work = work_features(v, 2.0 * batch * m * n * k, moved_b, moved_b)
    # Codes 4 and 5 have a transposed, 3 and 5 have b.
    contiguous = (where(less(v["variant"], 4.0), k, m), where(chosen(v["variant"], {3: 1.0, 5: 1.0}, 0.0), k, n))
    return {**work, **product_features(v, work, (batch, m, n, k), contiguous), "variant": v["variant"]}


KIND = family_kind("gemm", __doc__, _features)
