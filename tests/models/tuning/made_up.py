"""A made-up kind of tuning problem with its law, and models of it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from kernelcast.features.tuning.formula import (
    ceil_div,
    divide,
    equal,
    exp,
    floor,
    less,
    log2,
    maximum,
    minimum,
    mod,
    sqrt,
    where,
)
from kernelcast.features.tuning.kind import Candidates, Task, TuningKind
from kernelcast.models.tuning.flat_model import FlatModel
from kernelcast.models.tuning.forest import Forest, ForestEvaluator

DEVICE = "amd-epyc-9005-vm-2c"
FACTS = {"flops": 1e11, "bandwidth": 5e10, "cache_b": 1e6}
TABLE = {
    (DEVICE, "fp32"): (1e11, 5e10, 1e6),
    (DEVICE, "bf16"): (2e11, 5e10, 1e6),
    ("nvidia-t4", "fp32"): (8e12, 3e11, 4e6),
}


def features(v: Mapping[str, Any]) -> dict[str, Any]:
    blocks = ceil_div(v["m"], v["tile_m"]) * ceil_div(v["n"], v["tile_n"])
    stored = 4.0 * (v["tile_m"] + v["tile_n"]) * v["k"]
    return {
        "work": log2(v["m"] * v["n"] * v["k"]),
        "bound_s": maximum(2.0 * v["m"] * v["n"] * v["k"] / v["flops"], 1e-7),
        "blocks": log2(blocks),
        "waste": divide(blocks * v["tile_m"] * v["tile_n"], v["m"] * v["n"]),
        "held": log2(stored),
        "fits": less(stored, v["cache_b"]),
        "rows": minimum(v["tile_m"], v["m"]),
        "columns": sqrt(v["tile_n"]),
        "rest": mod(v["k"], v["unroll"]),
        "default": equal(v["tile_m"] + v["tile_n"] + v["unroll"], 0.0),
        "decay": exp(-0.1 * v["unroll"]),
        "steps": where(v["unroll"], floor(v["k"] / maximum(v["unroll"], 1.0)), -1.0),
    }


def space(task: Task) -> Candidates:
    tiles, unrolls = (1, 4, 8, 16, 32, 64, 128), (1, 4, 8)
    return Candidates.of(
        task, [{}, *({"tile_m": a, "tile_n": b, "unroll": c} for a in tiles for b in tiles for c in unrolls)]
    )


KIND = TuningKind(
    name="made-up",
    compiler="any",
    sizes=("m", "n", "k"),
    knobs=("tile_m", "tile_n", "unroll"),
    facts=("flops", "bandwidth", "cache_b"),
    features=features,
    space=space,
    facts_of=lambda device, dtype: FACTS,
)


def task(m: int = 300, n: int = 200, k: int = 500, dtype: str = "fp32", device: str = DEVICE) -> Task:
    return Task("made-up", {"m": m, "n": n, "k": k}, dtype, device)


def law_s(candidates: Candidates) -> Any:
    """Seconds a made-up machine takes: bound, wasted work, overhead of blocks, a penalty for what does not fit."""
    knobs = {name: candidates.knobs[name].astype(float) for name in KIND.knobs}
    knobs = {name: np.where(column > 0, column, 16.0) for name, column in knobs.items()}
    sizes = candidates.task.sizes
    blocks = np.ceil(sizes["m"] / knobs["tile_m"]) * np.ceil(sizes["n"] / knobs["tile_n"])
    padded = blocks * knobs["tile_m"] * knobs["tile_n"] * sizes["k"]
    fits = (knobs["tile_m"] + knobs["tile_n"]) * sizes["k"] * 4 < 1e6
    return 2.0 * padded / 1e11 * np.where(fits, 1.0, 1.8) * (1.0 + 1.0 / knobs["unroll"]) + blocks * 2e-8 + 1e-6


def random_forest(depth: int = 5, trees: int = 40, seed: int = 0, bias: float = 0.5, scale: float = 0.1) -> Forest:
    """Thresholds lie among the values the features take, so that rows meet them exactly."""
    draw = np.random.default_rng(seed)
    formula = KIND.formula()
    columns = [
        formula.columns({**task(m, n).sizes, **space(task()).knobs, **FACTS}, len(space(task())))
        for m, n in ((300, 200), (64, 64), (1000, 3))
    ]
    values = np.concatenate(columns).astype(np.float32)
    pairs = [(i, cut) for i in range(values.shape[1]) for cut in np.unique(values[:, i])[::3]]
    return Forest(
        bias=bias,
        depth=depth,
        features=np.array([i for i, _ in pairs], dtype=np.uint32),
        thresholds=np.array([cut for _, cut in pairs], dtype=np.float32),
        splits=draw.integers(0, len(pairs), (2**depth - 1, trees)).astype(np.uint32),
        leaves=(draw.normal(size=(trees, 2**depth)) * scale).astype(np.float32),
    )


def model(energy: bool = False, latency: Forest | None = None, **changed: Any) -> FlatModel:
    formula = KIND.formula()
    raw = {
        "kind": KIND.name,
        "sizes": KIND.sizes,
        "knobs": KIND.knobs,
        "facts": KIND.facts,
        "table": TABLE,
        "formula": formula,
        "latency": latency or random_forest(),
        "energy": random_forest(depth=3, trees=7, seed=1, bias=4.0) if energy else None,
        "metadata": {"trained_rows": 12, "errors": {"median": 0.1}},
    }
    return FlatModel(**{**raw, **changed})


def walked(forest: Forest, rows: Any) -> Any:
    """Sums `(n,)` of features `(n, f)` by walking every tree from node to node."""
    sums = np.full(len(rows), forest.bias)
    for r, row in enumerate(np.asarray(rows, dtype=np.float64).astype(np.float32)):
        for t in range(forest.n_trees):
            node, size, leaf = 0, 2**forest.depth - 1, 0
            for _ in range(forest.depth):
                comparison = forest.splits[node, t]
                right = not row[forest.features[comparison]] < forest.thresholds[comparison]
                size //= 2
                node += 1 + right * size
                leaf = leaf * 2 + right
            sums[r] += forest.leaves[t, leaf]
    return sums


def judged(forest: Forest, rows: Any) -> Any:
    """The same by the product's own way, every feature a column."""
    return ForestEvaluator(forest).sums(list(np.ascontiguousarray(np.asarray(rows, dtype=np.float64).T)), len(rows))


def resealed(content: bytes) -> bytes:
    """A model file with the checksum of what it now holds."""
    checksum = zlib.crc32(content[28:], zlib.crc32(content[:24]))
    return content[:24] + struct.pack("<I", checksum) + content[28:]


def section(content: bytes, tag: str) -> tuple[int, int]:
    """Where a section of a model file begins, and its length."""
    for i in range(struct.unpack_from("<I", content, 12)[0]):
        name, _, offset, length = struct.unpack_from("<4sIQQ", content, 32 + 24 * i)
        if name.decode() == tag:
            return offset, length
    raise AssertionError(tag)


def patched(content: bytes, tag: str, at: int, form: str, *values: Any) -> bytes:
    """A model file with numbers of one section changed, resealed."""
    offset, length = section(content, tag)
    assert at + struct.calcsize(form) <= length
    changed = bytearray(content)
    struct.pack_into(form, changed, offset + at, *values)
    return resealed(bytes(changed))


def broken_files(content: bytes) -> dict[str, tuple[bytes, str]]:
    """Files that cannot be used, and a pattern of the sentence that says why; of a model with energy and measurements."""
    header = struct.unpack_from("<8sIIQII", content)
    tree, form, names = (section(content, tag)[0] for tag in ("TREE", "FORM", "KIND"))
    n_constants, n_steps, n_outputs = struct.unpack_from("<III", content, form)
    n_comparisons, n_trees, depth = struct.unpack_from("<III", content, tree + 8)
    assert names > 0
    first_step = 16 + 8 * n_constants
    splits_at = 24 + 8 * n_comparisons
    leaves_at = splits_at + 4 * n_trees * (2**depth - 1)

    def head(at: int, form: str, value: int) -> bytes:
        changed = bytearray(content)
        struct.pack_into(form, changed, at, value)
        return resealed(bytes(changed))

    def tagged(old: bytes, new: bytes) -> bytes:
        return resealed(content.replace(old, new, 1))

    huge, nan = 2**32 - 1, float("nan")
    return {
        "empty": (b"", "is not a kernelcast model file"),
        "text": (b"kind: made-up\n" * 40, "is not a kernelcast model file"),
        "line ends": (content.replace(b"\r\n", b"\n", 1), "is not a kernelcast model file"),
        "start only": (content[:20], "is cut short"),
        "cut in the middle": (content[: len(content) // 2], "is cut short"),
        "last byte lost": (content[:-1], "is cut short"),
        "bytes added": (content + b"xx", "checksum|cannot be"),
        "older": (head(8, "<I", 0), "format 0, older than format 1.*train it again"),
        "newer": (head(8, "<I", 7), "format 7, newer than format 1.*update kernelcast"),
        "one bit": (content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], "checksum does not match"),
        "length of all": (head(16, "<Q", 100), "damaged"),
        "sections": (head(12, "<I", huge), "damaged"),
        "section outside": (head(32 + 8, "<Q", 2**63), "lies outside"),
        "section too long": (head(32 + 16, "<Q", header[3]), "lies outside"),
        "section lost": (tagged(b"META", b"META"[::-1]), "lacks the section META"),
        "sizes": (patched(content, "KIND", 0, "<I", huge), "says 4294967295 sizes"),
        "more sizes than there are": (patched(content, "KIND", 0, "<I", 4000), "KIND it ends too early"),
        "one size less": (patched(content, "KIND", 0, "<I", 2), "KIND it has 4 bytes too many"),
        "name outside": (patched(content, "KIND", 12, "<I", 9999), "name 9999 does not exist"),
        "one name twice": (patched(content, "KIND", 16, "<II", 1, 1), "have one name"),
        "strings": (patched(content, "STRS", 0, "<I", 60000), "STRS it ends too early"),
        "names backwards": (patched(content, "STRS", 8, "<I", 4000), "is not of 1 to 200 bytes"),
        "facts": (patched(content, "FACT", 4, "<I", 2), "2 facts|another number of facts"),
        "rows of facts": (patched(content, "FACT", 0, "<I", 2**20), "FACT it ends too early"),
        "fact not finite": (patched(content, "FACT", 8 + 8 * len(TABLE), "<d", nan), "not finite"),
        "steps": (patched(content, "FORM", 4, "<I", 60000), "FORM it ends too early"),
        "operation": (patched(content, "FORM", first_step, "<I", 99), "operation 99, which does not exist"),
        "step that reads itself": (patched(content, "FORM", first_step + 4, "<I", 9 + n_constants), "comes after it"),
        "step that reads outside": (patched(content, "FORM", first_step + 4, "<I", huge), "comes after it"),
        "feature outside": (patched(content, "FORM", first_step + 16 * n_steps + 4 * n_outputs, "<I", 9999), "slot 9999"),
        "bound elsewhere": (patched(content, "FORM", 12, "<I", 0), "bound_s where it is said to be"),
        "bound outside": (patched(content, "FORM", 12, "<I", 4000), "bound_s where it is said to be"),
        "constant": (patched(content, "FORM", 16, "<d", float("inf")), "not finite"),
        "bias": (patched(content, "TREE", 0, "<d", nan), "not finite"),
        "comparisons": (patched(content, "TREE", 8, "<I", 2**23), "TREE it ends too early"),
        "trees": (patched(content, "TREE", 12, "<I", 2**20), "leaves|too early"),
        "depth": (patched(content, "TREE", 16, "<I", 40), "says 40 levels"),
        "deep trees": (patched(content, "TREE", 16, "<I", 12), "too early"),
        "feature of a comparison": (patched(content, "TREE", 24, "<I", 500), "feature 500 does not exist"),
        "comparisons mixed": (patched(content, "TREE", 24, "<I", 11), "not in order"),
        "threshold": (patched(content, "TREE", 24 + 4 * n_comparisons, "<f", nan), "not finite"),
        "split outside": (patched(content, "TREE", splits_at, "<I", n_comparisons), "comparison .* does not exist"),
        "leaf": (patched(content, "TREE", leaves_at, "<f", float("inf")), "not finite"),
        "power": (patched(content, "TRE2", 16, "<I", 2), "TRE2"),
        "measured time": (patched(content, "SEEN", 24, "<d", -1.0), "not greater than 0"),
        "measured rows": (patched(content, "SEEN", 0, "<I", 2**19), "SEEN it ends too early"),
        "measured size": (patched(content, "SEEN", 40, "<q", -5), "from 0 to"),
    }  # fmt: skip
