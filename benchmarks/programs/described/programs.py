"""The modules from public descriptions: operations alone, chains, and whole programs by the collection that describes them.

A program's name begins with its author (`kernelbench`, `jax-zoo`, `torch-mlir-zoo`, `drawn`, `operations`): programs are held
out by author, or by idea, which is the rest of the name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from kernelcast.datasets.records.mlir_modules import ModuleText

from .drawn import networks
from .networks import collections
from .operations import Sizes, chains, single, sorts
from .stablehlo_text import Writer

CHAINS = 700
"""Chains of operations."""

DRAWN = 800
"""Networks drawn from the steps of those described, with every seed whose sizes are drawn."""

_FIRST_DRAWN = 2
"""The first seed whose sizes are drawn too; those below have the sizes that were measured first."""


def modules(seed: int) -> Iterator[list[ModuleText]]:
    """Per program the modules of its sizes."""
    rng = random.Random(f"described/{seed}")
    size_lists = Sizes.drawn(random.Random(f"sizes/{seed}")) if seed >= _FIRST_DRAWN else Sizes()
    for collection, ideas in collections().items():
        for name, (steps, sizes) in ideas.items():
            texts = []
            for shape in sizes:
                w = Writer("f32" if rng.random() < 0.85 else "bf16")
                texts.append(w.text(steps(w, w.argument(*shape))))
            yield _variants(texts, f"{collection}/{name}", "stablehlo")
    for name, texts in networks(random.Random(f"drawn/{seed}"), DRAWN if seed >= _FIRST_DRAWN else 0):
        yield _variants(texts, f"drawn/{name}", "stablehlo")
    for dialect, name, texts in single(rng, size_lists):
        yield _variants(texts, f"operations/{name}", dialect)
    for dialect, name, texts in chains(rng, CHAINS, size_lists):
        yield _variants(texts, f"operations/chain-{name}", dialect)
    for name, texts in sorts(rng):
        yield _variants(texts, f"operations/{name}", "stablehlo")


def _variants(texts: list[str], program: str, dialect: str) -> list[ModuleText]:
    result = [ModuleText(text, program, "described", dialect) for text in texts]
    return list({module.module_id: module for module in result}.values())
