"""Which Triton programs are compiled, in which configurations: every structure and random elementwise programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from .case import GENERATED, POINT, Scalar, Structure, TritonCase
from .elementwise import point_source, pointwise_source, short_hash
from .tables import STRUCTURES

POINTWISE = 150
"""Random elementwise programs."""

_POINTWISE_CONFIGS = 5
_KINDS = ("flat", "looped", "plane")
_WARPS = (1, 2, 4, 8, 16)
_WARP_SHARES = (0.15, 0.2, 0.35, 0.2, 0.1)
_TRIES = 400
# Chance that a draw is kept, by values a thread holds of the largest tile: beyond 512 nothing fits into registers, and from
# 256 on most of it spills.
_KEPT = ((4, 0.3), (64, 1.0), (256, 0.8), (512, 0.25))
_LONGEST_POINTWISE = 3000
"""Operations of an unrolled elementwise program per thread, above which the assembler takes minutes."""


def triton_plan(seed: int) -> list[TritonCase]:
    """All cases in random order; equal seeds give equal plans."""
    rng = np.random.default_rng(seed)
    cases = [case for structure in STRUCTURES for case in _cases(rng, structure)]
    cases += [case for number in range(POINTWISE) for case in _pointwise(rng, number)]
    different = list({case.case_id: case for case in cases}.values())
    return [different[i] for i in rng.permutation(len(different))]


def targets_of(case: TritonCase, position: int) -> tuple[str, ...]:
    """The architectures a case is compiled for: Hopper always, Ampere for one in three of what it can run."""
    needs_hopper = any("fp8e4nv" in kind for _, kind in case.arguments) or case.kernel.endswith("descriptors")
    return ("sm_90",) if needs_hopper or position % 3 else ("sm_90", "sm_80")


def _cases(rng: np.random.Generator, structure: Structure) -> Iterator[TritonCase]:
    has_point = structure.points > 0 or structure.kernel.split(".")[1] in _TAKING_POINT
    for name, flags in structure.variants.items():
        sources = ["", *(point_source(rng, _steps(rng, 12)) for _ in range(structure.points))]
        for source in sources:
            point = {POINT: "point" if source else None} if has_point else {}
            words = [structure.name, "-".join(filter(None, (name, short_hash(source) if source else "")))]
            for _ in range(structure.configs):
                if (drawn := _draw(rng, structure)) is not None:
                    tiles, warps = drawn
                    yield _case(
                        rng, structure, "/".join(filter(None, words)), source, {**flags, **point, **tiles}, warps
                    )


_TAKING_POINT = frozenset({"matmul", "softmax", "norm", "row_quantise", "reduce_all", "reduce_rows", "dequantise"})
"""Kernels with a parameter POINT, whether or not a structure puts one in."""


def _draw(rng: np.random.Generator, structure: Structure) -> tuple[dict[str, int], int] | None:
    """Tiles and warps, drawn until what a thread holds is plausible."""
    for _ in range(_TRIES):
        tiles = {name: int(rng.choice(sizes)) for name, sizes in structure.tiles.items()}
        warps = int(rng.choice(_WARPS, p=_WARP_SHARES))
        held_out = math.prod(tiles[name] for name in structure.held) / (32 * warps)
        chance = next((chance for most, chance in _KEPT if held_out <= most), 0.0)
        if rng.random() < chance:
            return tiles, warps
    return None


def _case(
    rng: np.random.Generator,
    structure: Structure,
    program: str,
    source: str,
    constants: Mapping[str, Scalar],
    warps: int,
) -> TritonCase:
    dtype = str(rng.choice(structure.dtypes))
    typed = [_typed(word, dtype) for word in structure.arguments.split()]
    arguments = [(name, kind) for name, kind in typed if name not in constants]
    return TritonCase(
        program, structure.kernel, source, tuple(arguments), tuple(sorted(constants.items(), key=lambda pair: pair[0])),
        _aligned(rng, arguments), warps, int(rng.choice(structure.stages)),
    )  # fmt: skip


def _typed(word: str, dtype: str) -> tuple[str, str]:
    """A parameter and its Triton type, from `x*`, `x*fp32`, `eps:fp32` or `n`."""
    for sign, before in (("*", "*"), (":", "")):
        if sign in word:
            name, _, kind = word.partition(sign)
            return name, before + (kind or dtype)
    return word, "i32"


def _aligned(rng: np.random.Generator, arguments: list[tuple[str, str]]) -> tuple[str, ...]:
    """Pointers always, as allocators give them; sizes mostly, all or none."""
    sizes = rng.random() < 0.8
    return tuple(
        name for name, kind in arguments if kind.startswith("*") or (sizes and kind == "i32" and name != "seed")
    )


def _pointwise(rng: np.random.Generator, number: int) -> Iterator[TritonCase]:
    kind, whole = _KINDS[number % len(_KINDS)], rng.random() < 0.15
    source, pointers = pointwise_source(rng, kind, whole)
    sizes = {"ROWS": (1, 2, 4, 8, 16, 32), "BLOCK": (32, 64, 128, 256, 512, 1024)} if kind == "plane" else {
        "BLOCK": (64, 128, 256, 512, 1024, 2048, 4096, 8192)}  # fmt: skip
    arguments = " ".join([*pointers, *(["m"] if kind == "plane" else []), "n"])
    structure = Structure("pointwise", f"{GENERATED}.pointwise", arguments, sizes, tuple(sizes),
                          dtypes=("i32",) if whole else ("fp16", "bf16", "fp32"))  # fmt: skip
    length = source.count("\n")
    for _ in range(_POINTWISE_CONFIGS):
        drawn = _draw(rng, structure)
        if drawn is None or math.prod(drawn[0].values()) / (32 * drawn[1]) * length > _LONGEST_POINTWISE:
            continue
        yield _case(rng, structure, f"pointwise/{kind}-{short_hash(source)}", source, drawn[0], drawn[1])


def _steps(rng: np.random.Generator, most: int) -> int:
    return round(float(np.exp(rng.uniform(0.0, np.log(most)))))
