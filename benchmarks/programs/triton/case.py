"""One Triton program in one configuration, as plain data that a process without Triton can make and send."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

Scalar = int | float | bool | str | None

POINT = "POINT"
"""A constant of this name that is not None names a function of the case's own source."""

GENERATED = "generated"
"""The module, in names of kernels, that stands for the case's own source."""


@dataclass(frozen=True, slots=True)
class TritonCase:
    """A program, its configuration and its compile options.

    `program` names it, sizes, element types and options left out (`softmax/log`, `pointwise/flat-0b1c2d3e`). `kernel` is
    `module.function`, the module one of this package or `generated` for `source`, which is Python and empty where nothing is
    generated. `arguments` are `(parameter, Triton type)` of what is passed at launch, `constants` `(parameter, value)` of what
    is compiled in, None for an operand left out. `aligned` are parameters that 16 divides.
    """

    program: str
    kernel: str
    source: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Scalar], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def case_id(self) -> str:
        """16 hex digits that name it by content."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=8).hexdigest()


def case_of(said: Mapping[str, Any]) -> TritonCase:
    """The case that `dataclasses.asdict` and JSON made plain."""
    pairs = {name: tuple((key, value) for key, value in said[name]) for name in ("arguments", "constants")}
    return TritonCase(**{**said, **pairs, "aligned": tuple(said["aligned"])})


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
