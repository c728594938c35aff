"""What a Triton function says as words: how often operations stand in it, and which follow each other."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from itertools import pairwise

from .triton_flow import Flow

COUNTED = (
    "tt.splat", "tt.broadcast", "tt.addptr", "tt.expand_dims", "tt.load", "tt.store", "tt.make_range", "tt.dot",
    "tt.reduce", "tt.trans",
    "tt.reshape", "tt.scan", "tt.gather", "tt.histogram", "tt.atomic_rmw", "tt.atomic_cas", "tt.extern_elementwise",
    "tt.get_program_id",
    "tt.make_tensor_descriptor", "tt.descriptor_load", "tt.descriptor_store", "tt.precise_divf", "tt.precise_sqrt",
    "tt.join", "tt.split",
    "tt.clampf", "tt.fp_to_fp", "tt.elementwise_inline_asm", "scf.for", "scf.while", "scf.if", "arith.constant",
    "arith.muli",
    "arith.addi", "arith.cmpi", "arith.addf", "arith.mulf", "arith.subf", "arith.divf", "arith.extsi", "arith.andi",
    "arith.divsi",
    "arith.remsi", "arith.truncf", "arith.extf", "arith.maxnumf", "arith.select", "arith.cmpf", "arith.sitofp",
    "arith.xori",
    "math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.erf", "math.sin", "math.cos",
    "math.absf",
    "math.fma", "math.floor",
)  # fmt: skip
"""Operations that are counted by name."""

PAIRS = 24
"""Pairs of neighbouring operations are counted in so many buckets."""


def counts_of(flow: Flow) -> list[float]:
    """How often each of `COUNTED` stands in a function, then each bucket of pairs of neighbours."""
    names = [op.name for op in flow.steps]
    known = dict.fromkeys(COUNTED, 0.0)
    pairs = [0.0] * PAIRS
    for name in names:
        if name in known:
            known[name] += 1.0
    kept = [name for name in names if name not in _PLAIN]
    for one, two in pairwise(kept):
        pairs[_bucket(one, two)] += 1.0
    return [*known.values(), *pairs]


_PLAIN = frozenset(("arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "scf.yield", "tt.return"))


@lru_cache(maxsize=8192)
def _bucket(one: str, two: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{one} {two}".encode(), digest_size=4).digest()) % PAIRS
