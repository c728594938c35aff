"""The MLIR modules that are measured, each in a few sizes: of JAX, of torch-mlir, drawn, and of public descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kernelcast.features.errors import SpecError

from .described import programs as described_programs
from .generated import programs as generated_programs
from .jax import programs as jax_programs
from .torch import programs as torch_programs

if TYPE_CHECKING:
    from kernelcast.datasets.records.mlir_modules import ModuleText


SHARES: Mapping[str, float] = {"jax": 0.45, "torch": 0.15, "generated": 0.40, "described": 1.0}
"""Share of modules from each source, of the whole and of every beginning of it; those described come alone."""

_SOURCES: Mapping[str, Callable[[int], Iterator[list[ModuleText]]]] = {
    "jax": jax_programs.modules,
    "torch": torch_programs.modules,
    "generated": generated_programs.modules,
    "described": described_programs.modules,
}


def module_texts(
    count: int, *, seed: int = 0, sources: Sequence[str] = ("jax", "torch", "generated")
) -> Iterator[ModuleText]:
    """`count` different modules, always the same ones for a seed.

    Every program comes in two to four variants, one after the other. The next program is of the source that is furthest behind
    its share, so every beginning is balanced. A source whose structures are used up leaves its share to the others. Arguments
    of type i32 are filled with values in [0, 8): every table they index, and every axis they name a class of, is that long.

    Raises:
        SpecError: a source does not exist, `count` is negative, or the sources have fewer modules than that.
        ImportError: JAX or torch-mlir is asked for and not installed.
    """
    for source in sources:
        if source not in _SOURCES:
            raise SpecError(f"There are no modules of source {source!r}; sources are {', '.join(_SOURCES)}.")
    if count < 0:
        raise SpecError(f"The number of modules must not be negative, and is {count}.")
    return _interleaved(count, seed, sources)


def _interleaved(count: int, seed: int, sources: Sequence[str]) -> Iterator[ModuleText]:
    waiting = {source: _SOURCES[source](seed) for source in sources}
    fromkeys = dict.fromkeys(waiting, 0)
    seen: set[str] = set()
    while len(seen) < count and waiting:
        source = min(waiting, key=lambda name: fromkeys[name] / SHARES[name])
        program = next(waiting[source], None)
        if program is None:
            del waiting[source]
            continue
        for module in program:
            if module.module_id not in seen and len(seen) < count:
                seen.add(module.module_id)
                fromkeys[source] += 1
                yield module
    if len(seen) < count:
        raise SpecError(f"There are only {len(seen)} modules of {', '.join(sources)}; ask for no more than that.")


def model_texts() -> Iterator[ModuleText]:
    """Ten whole models (transformers, residual networks, a U-Net, training steps), of about 80 to 6,000 operations.

    Raises:
        ImportError: JAX is not installed.
    """
    from .jax.whole_models import models

    return models()
