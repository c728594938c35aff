"""Families of programs: which structures there are, which sizes they come in, and how both are drawn."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

WORK = (1e4, 1.2e9)
"""Range of work per call, in operations, from which targets are drawn log-uniformly: about 5 µs to 60 ms on one core."""
MOST_WORK = 2.5e9
_CANDIDATES = 40
_MOST_STRUCTURES = 20_000
_ROUNDINGS = (1, 1, 1, 8, 8, 16, 32, 0)
"""How a set of sizes is rounded: to multiples of this, 0 to powers of two. Real sizes are mostly even, but not all."""

Choices = Any
"""A structure's choices, read as attributes."""
Sizes = Any
"""A variant's sizes, read as attributes."""


@dataclass(frozen=True, slots=True)
class Family:
    """Programs that differ by choices from a table.

    `forward(p, c, s, *inputs)` is the program: `p(name, *shape)` gives a weight, `c` the choices, `s` the sizes, inputs are
    arrays. `inputs(c, s)` lists the inputs' shapes; a shape that starts with `"ids"` is of i32 in [0, 8). `dims` gives the
    smallest and largest of each size. `work(c, s)` estimates the operations of one call. `modes` are what is made of the
    program: the forward pass itself, its gradient, a training step. `dtypes` are the element types it makes sense in. A value
    that stands twice in a table is drawn twice as early.
    """

    name: str
    forward: Callable[..., Any]
    inputs: Callable[[Choices, Sizes], list[tuple[Any, ...]]]
    choices: Mapping[str, tuple[Any, ...]]
    dims: Mapping[str, tuple[int, int]]
    work: Callable[[Choices, Sizes], float]
    modes: tuple[str, ...] = ("forward",)
    dtypes: tuple[str, ...] = ("f32", "bf16", "f16", "f64")
    share: int = 1
    valid: Callable[[Choices], bool] = field(default=lambda _: True)

    @property
    def structures(self) -> int:
        """How many combinations of choices and modes there are, including ones that `valid` leaves out."""
        return math.prod(len(values) for values in self.choices.values()) * len(self.modes)

    def structure(self, number: int) -> Structure:
        """Structure `number` of `structures`: its digits in the mixed base of the table are the choices."""
        number, mode = divmod(number, len(self.modes))
        chosen = {}
        for name, values in self.choices.items():
            number, digit = divmod(number, len(values))
            chosen[name] = values[digit]
        return Structure(self, SimpleNamespace(**chosen), self.modes[mode])


@dataclass(frozen=True, slots=True)
class Structure:
    """One program of a family: its choices, and what is made of it."""

    family: Family
    choices: Choices
    mode: str

    @property
    def name(self) -> str:
        """Family, choices and mode in words, sizes left out: `mlp-depth3-gelu-bias/grad`."""
        words = [self.family.name]
        for name, value in vars(self.choices).items():
            if value != "":
                words.append(str(value) if isinstance(value, str) else f"{name}{value}")
        return "-".join(words) + (f"/{self.mode}" if len(self.family.modes) > 1 else "")


def structures(family: Family, seed: int) -> Iterator[Structure]:
    """Valid structures of a family, each once, in an order drawn from the seed: all, or as many as anyone will measure."""
    rng = random.Random(f"{seed}/{family.name}")
    order = rng.sample(range(family.structures), min(family.structures, _MOST_STRUCTURES))
    seen = set()
    for number in order:
        structure = family.structure(number)
        if structure.name not in seen and family.valid(structure.choices):
            seen.add(structure.name)
            yield structure


def all_structures(families: tuple[Family, ...], seed: int) -> Iterator[Structure]:
    """Structures of all families, each once: families in turns, `share` of each per turn, until all are used up.

    Of every turn one more is laid by for the end. That order is the one programs were first measured in; changing it would
    make other programs the first thousand.
    """
    waiting = [(family.share, structures(family, seed)) for family in families]
    laid_by: list[Structure] = []
    while waiting:
        still = []
        for share, source in waiting:
            taken = list(itertools.islice(source, share + 1))
            yield from taken[:share]
            laid_by += taken[share:]
            if len(taken) > share:
                still.append((share, source))
        waiting = still
    yield from laid_by


def pick(table: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    """The function of that name. A table of lambdas has no type of its own; here it gets one."""
    return table[name]


def draw_sizes(structure: Structure, rng: random.Random, factor: float = 1.0) -> Sizes:
    """Sizes for a structure: of forty drawn sets, the one whose work comes nearest to a log-uniform target.

    `factor` is how many times the forward pass the program costs.
    """
    family = structure.family
    target = math.exp(rng.uniform(math.log(WORK[0]), math.log(WORK[1])))
    best, nearest = None, math.inf
    for _ in range(_CANDIDATES):
        rounding = rng.choice(_ROUNDINGS)
        sizes = SimpleNamespace(**{name: _size(low, high, rounding, rng) for name, (low, high) in family.dims.items()})
        work = max(1.0, family.work(structure.choices, sizes) * factor)
        distance = abs(math.log(work / target)) + (100.0 if work > MOST_WORK else 0.0)
        if distance < nearest:
            best, nearest = sizes, distance
    return best


def _size(low: int, high: int, rounding: int, rng: random.Random) -> int:
    """A size between two, log-uniform, rounded; where the rounding would leave the range, it is left unrounded."""
    size = math.exp(rng.uniform(math.log(low), math.log(high + 0.999)))
    rounded = 2 ** round(math.log2(size)) if rounding == 0 else round(size / rounding) * rounding
    return rounded if low <= rounded <= high else max(low, min(high, int(size)))
