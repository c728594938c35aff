"""The modules that JAX writes: structures of its families, each in two or three sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kernelcast.datasets.records.mlir_modules import ModuleText

from ..families import Family, Structure, all_structures, draw_sizes

_RARE_DTYPES = 0.13
"""Share of variants in another type than the family's first, where it has one."""


def modules(seed: int) -> Iterator[list[ModuleText]]:
    """Per program the modules of its variants, until every structure was used."""
    from .lowering import FAMILIES

    for structure in all_structures(FAMILIES, seed):
        yield variants(structure, seed)


def variants(structure: Structure, seed: int) -> list[ModuleText]:
    """The variants of one structure; they depend on it and the seed, not on what is drawn before it."""
    from .lowering import FACTORS, lower

    program = f"jax/{structure.name}"
    rng = random.Random(f"{seed}/{program}")
    result: dict[str, ModuleText] = {}
    for _ in range(rng.choice((2, 2, 3, 3, 4))):
        dtype = _dtype(structure.family, rng)
        # Half precision is emulated on many processors: give it less to do.
        factor = FACTORS[structure.mode] * (8.0 if dtype in ("bf16", "f16") else 1.0)
        module = ModuleText(lower(structure, draw_sizes(structure, rng, factor), dtype), program, "jax", "stablehlo")
        result.setdefault(module.module_id, module)
    return list(result.values())


def _dtype(family: Family, rng: random.Random) -> str:
    rare = [dtype for dtype in family.dtypes[1:] for _ in range(1 if dtype == "f64" else 2)]
    return rng.choice(rare) if rare and rng.random() < _RARE_DTYPES else family.dtypes[0]
