"""How a family of Triton programs is written down: its kernel, variants, tiles and element types."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .case import Scalar

Tiles = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Structure:
    """A kernel with its variants.

    `arguments` are its parameters of launch: `x*` a pointer to the program's element type, `x*fp32` to that type, `n` a 32-bit
    number, `eps:fp32` a scalar of that type. `variants` are, by name, constants other than tiles; None leaves an operand out.
    `tiles` are powers of two to choose from, `held` the tiles whose product is what a block of threads holds at once. `points`
    is how many random functions are put in for POINT beside None, `configs` how many configurations are drawn of each program.
    """

    name: str
    kernel: str
    arguments: str
    tiles: Tiles
    held: tuple[str, ...]
    variants: Mapping[str, Mapping[str, Scalar]] = field(default_factory=lambda: MappingProxyType({"": {}}))
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    stages: tuple[int, ...] = (1, 2, 3)
    points: int = 0
    configs: int = 4


def flags(**choices: tuple[Scalar, ...]) -> Mapping[str, Mapping[str, Scalar]]:
    """All combinations of constants, named by their values."""
    combined = (dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))
    return {"-".join(_word(name, value) for name, value in chosen.items()): chosen for chosen in combined}


def _word(name: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return name.lower() if value else f"no_{name.lower()}"
    if value is None:
        return f"no_{name.lower()}"
    return f"{name.lower()}{value}" if isinstance(value, int) else str(value)


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from `low` to `high`, both powers of two."""
    return tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))
