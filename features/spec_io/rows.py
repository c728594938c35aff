"""The codec of a spec: a flat row of family, settings, sizes and knobs, as in tables and between processes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import SpecError
from ..kernel import KernelSpec, get_family


def spec_row(spec: KernelSpec) -> dict[str, Any]:
    """The spec as the flat mapping that `spec_from_row` reads."""
    return {
        "family": spec.family, "dtype": spec.dtype, "variant": spec.variant, "impl": spec.impl,
        "kv_dtype": spec.kv_dtype, "threads": spec.threads, "cache_state": spec.cache_state,
        **({"timing": spec.timing} if spec.timing else {}),
        **dict(spec.dims), **dict(spec.config),
    }  # fmt: skip


def spec_from_row(row: Mapping[str, Any]) -> KernelSpec:
    """The spec a row describes; missing optional columns take their defaults.

    Raises:
        SpecError: the row names something kernelcast does not know, or a size is out of range.
    """
    family = get_family(row.get("family", ""))
    if (dtype := row.get("dtype")) is None:
        raise SpecError("dtype is missing", field="dtype")
    sizes = {name: row[name] for name in family.dim_names if row.get(name) is not None}
    config = {name: row[name] for name in family.config if row.get(name) is not None}
    return KernelSpec.of(
        family.name, dtype, variant=row.get("variant") or "", impl=row.get("impl") or "",
        kv_dtype=row.get("kv_dtype"), config=config, threads=row.get("threads"),
        cache_state=row.get("cache_state") or "hot", timing=row.get("timing") or "", **sizes,
    )  # fmt: skip
