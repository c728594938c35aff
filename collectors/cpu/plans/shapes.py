"""Which cases a CPU campaign measures: space-filling shapes and shapes of real models, over dtypes, threads and caches.

Space-filling is the additive recurrence R_d (M. Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences",
2018) in the logarithm of every size, rounded to whole numbers, so odd sizes are as natural as powers of two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ....features.kernel import KernelFamily, KernelSpec, View, get_family
from ...collector import grouped

_Choice = TypeVar("_Choice")

MODEL_SHARE = 1 / 3
"""Share of shapes met in real models; the rest fills the space."""

_ROTATION = 6
"""Each other setting (cache state, thread count, both) falls to every sixth shape, so half the shapes have one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a case may cost on the machine. A case that two rough rates put under `tiny_s` takes about as long as
    dispatching it; such cases are needed, but half of a log-uniform sweep would be of that kind.

    Attributes:
        matrix_flops: Most flops of a case of a matrix family.
        operand_b: Most bytes of operands.
        tiny_s: Seconds below which a case is tiny.
        tiny_share: Share of the tiny cases that are measured.
        flops_per_s: Rough rate of arithmetic.
        b_per_s: Rough rate of memory.
    """

    matrix_flops: float = 2e9
    operand_b: float = 128e6
    tiny_s: float = 4e-6
    tiny_share: float = 0.35
    flops_per_s: float = 5e10
    b_per_s: float = 1.5e10

    def allow(self, family: KernelFamily, view: View) -> bool:
        """Whether the case is small enough to measure."""
        too_much_work = family.unit == "matrix" and float(family.flops(view)) > self.matrix_flops
        return not too_much_work and float(family.footprint_b(view)) <= self.operand_b

    def tiny(self, family: KernelFamily, view: View) -> bool:
        """Whether dispatch probably dominates."""
        compute_s = float(family.flops(view)) / self.flops_per_s
        return max(compute_s, float(family.footprint_b(view)) / self.b_per_s) < self.tiny_s


CPU_LIMITS = Limits()


def plan(
    families: Sequence[str],
    n_rows: int,
    seed: int,
    *,
    dtypes: Sequence[str] = ("fp32", "bf16"),
    threads: Sequence[int] = (1,),
    cache_states: Sequence[str] = ("hot", "cold"),
    impl: str = "torch",
    limits: Limits = CPU_LIMITS,
) -> list[KernelSpec]:
    """At least `n_rows` cases, shared equally among `families`, in random order; equal arguments give equal plans.

    Every shape is measured in every dtype (within `limits`) on the first thread count with the first cache state; half
    of the shapes also with another cache state, another thread count or both, so that effects of dtype, threads and
    cache are seen on equal shapes. Cases that share operands stand next to each other; no case appears twice.

    Raises:
        SpecError: unknown family or dtype.
        ValueError: a family has too few different cases within `limits`.
    """
    rng = np.random.default_rng(seed)
    specs: list[KernelSpec] = []
    for index, name in enumerate(families):
        wanted = n_rows * (index + 1) // len(families) - n_rows * index // len(families)
        specs += _of_family(get_family(name), wanted, rng, dtypes, threads, cache_states, impl, limits)
    groups = grouped(specs)
    return [spec for i in rng.permutation(len(groups)) for spec in groups[i]]


def _of_family(
    family: KernelFamily, wanted: int, rng: np.random.Generator, dtypes: Sequence[str], threads: Sequence[int],
    cache_states: Sequence[str], impl: str, limits: Limits,
) -> list[KernelSpec]:  # fmt: skip
    # A dictionary: first of its kind wins, since two draws may round to the same sizes.
    chosen: dict[KernelSpec, None] = {}
    variants = rng.permutation(np.array(family.variants)).tolist()
    shapes, turn = 0, int(rng.integers(_ROTATION))
    for sizes in itertools.islice(_shapes(family, rng), 200 * (wanted + 10)):
        if len(chosen) >= wanted:
            break
        suited = [word for word in variants if family.suits(word, sizes)]
        variant = suited[shapes % len(suited)]
        base = replace(
            KernelSpec.of(family.name, dtypes[0], variant=variant, **sizes),  # type: ignore[arg-type]
            impl=impl, threads=threads[0], cache_state=cache_states[0],
        )  # fmt: skip
        if limits.tiny(family, View.of(base)) and rng.random() >= limits.tiny_share:
            continue
        settings = _settings(base, turn + shapes, dtypes, threads, cache_states)
        if allowed := [spec for spec in settings if spec not in chosen and limits.allow(family, View.of(spec))]:
            chosen |= dict.fromkeys(allowed)
            shapes += 1
    if len(chosen) < wanted:
        raise ValueError(f"{family.name} has only {len(chosen)} different cases within {limits}, not {wanted}")
    return list(chosen)[:wanted]


def _settings(
    base: KernelSpec, turn: int, dtypes: Sequence[str], threads: Sequence[int], cache_states: Sequence[str]
) -> Iterator[KernelSpec]:
    """`base` in every dtype; every sixth time also with another cache state, thread count, or both, by turns."""
    others: list[Mapping[str, object]] = [{"cache_state": state} for state in cache_states[1:]]
    others += [{"threads": count} for count in threads[1:]]
    if len(cache_states) > 1 and len(threads) > 1:  # the corner, so that no model has to guess it
        others.append({"cache_state": cache_states[-1], "threads": threads[-1]})
    changes: list[Mapping[str, object]] = [{}]
    changes += [change for i, change in enumerate(others) if (turn + 2 * i) % _ROTATION == 0]
    for change, dtype in itertools.product(changes, dtypes):
        yield replace(base, dtype=dtype, **change)  # type: ignore[arg-type]


def _shapes(family: KernelFamily, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    """Sizes without end: model shapes and space-filling ones in the ratio `MODEL_SHARE`, the former until they run out.

    A model shape comes once per variant.
    """
    per_shape = 1 if family.variant_of else len(family.variants)
    models = [dict(sizes) for sizes in family.model_shapes for _ in range(per_shape)]
    rng.shuffle(models)
    filling = _space_filling(family, rng)
    while True:
        yield models.pop() if models and rng.random() < MODEL_SHARE else next(filling)


def _space_filling(family: KernelFamily, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    names = sorted(family.ranges)
    low = np.log([family.ranges[name][0] for name in names])
    high = np.log([family.ranges[name][1] for name in names])
    defaults = {dim.name: dim.default for dim in family.dims if dim.default is not None}
    for point in additive_recurrence(len(names), rng.random(len(names))):
        values = np.rint(np.exp(low + point * (high - low)))
        sizes = defaults | {name: int(value) for name, value in zip(names, values, strict=True)}
        # Half the points leave sizes that have a default at it (one product, not a batch of them): the common case.
        if rng.random() < 0.5:
            sizes |= defaults
        if not family.impossible(sizes := family.finish(sizes)):
            yield sizes


def additive_recurrence(dims: int, offset: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Iterator[
    np.ndarray[tuple[int, ...], np.dtype[np.float64]]
]:  # fmt: skip
    """Points in [0, 1)^dims, each of shape `(dims,)`: offset + i·alpha modulo 1, alpha_j = phi_d^-j (Roberts 2018).

    phi_d is the positive root of x^(d+1) = x + 1, reached here by iterating x = (1 + x)^(1/(d+1)).
    """
    phi = 2.0
    for _ in range(60):
        phi = (1.0 + phi) ** (1.0 / (dims + 1))
    alpha = phi ** -np.arange(1.0, dims + 1.0)
    for i in itertools.count(1):
        yield (offset + i * alpha) % 1.0


def aligned(size: int, to: int) -> int:
    """The multiple of `to` nearest to a size, at least one."""
    return to * max(1, round(size / to))


def between(u: float, low: int, high: int) -> int:
    """The whole number at quantile `u` of the log-uniform distribution from `low` to `high`."""
    return round(low * math.pow(high / low, u))


def drawn(weights: Mapping[_Choice, int], u: float) -> _Choice:
    """The choice at quantile `u`."""
    shares = np.cumsum(list(weights.values()))
    return list(weights)[int(np.searchsorted(shares, u * shares[-1], side="right"))]
