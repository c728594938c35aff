"""The modules that are drawn: random graphs, each in a few sizes, as StableHLO and as linalg."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from kernelcast.datasets.records.mlir_modules import ModuleText

from .graphs import Graph
from .linalg import write_linalg
from .random_graphs import draw_graph
from .stablehlo import write_stablehlo

WORK = (2e3, 4e8)
"""Range of work per call, in operations, from which targets are drawn log-uniformly."""
_MOST_WORK, _MOST_BYTES = 1.5e9, 1.0e8
_CANDIDATES = 60
_PER_SEED = 1_000_000
_LEAST, _LARGEST = 4, 4000


def modules(seed: int) -> Iterator[list[ModuleText]]:
    """Per program the modules of its variants, up to a million programs; those of different seeds have none in common."""
    for number in range(seed * _PER_SEED, (seed + 1) * _PER_SEED):
        yield variants(number)


def variants(number: int) -> list[ModuleText]:
    """The variants of graph `number`, two to four; the dialects take turns, starting with either."""
    graph, rng = draw_graph(number), random.Random(f"variants/{number}")
    program = f"generated/{'integer' if graph.integer else 'fused'}-{number:06d}"
    first = rng.randrange(2)
    result: dict[str, ModuleText] = {}
    for variant in range(rng.choice((2, 2, 3, 3, 4))):
        sizes = draw_sizes(graph, rng)
        dtype = "i32" if graph.integer else rng.choices(("f32", "bf16", "f16", "f64"), (87, 5, 4, 4))[0]
        dialect = ("stablehlo", "linalg")[(first + variant) % 2]
        if dtype == "f64" and dialect == "linalg":
            # IREE, the only one that takes linalg, has no functions such as tanh in f64.
            dtype = "f32"
        text = (
            write_stablehlo(graph, sizes, dtype) if dialect == "stablehlo" else write_linalg(graph, sizes, dtype, rng)
        )
        module = ModuleText(text, program, "generated", dialect)
        result.setdefault(module.module_id, module)
    return list(result.values())


def draw_sizes(graph: Graph, rng: random.Random) -> dict[str, int]:
    """Sizes of the graph's symbols: of sixty drawn sets, the one whose work comes nearest to a log-uniform target."""
    target = math.exp(rng.uniform(math.log(WORK[0]), math.log(WORK[1])))
    best, nearest = dict.fromkeys(graph.symbols, _LEAST), math.inf
    for _ in range(_CANDIDATES):
        multiple = rng.choice((1, 1, 4, 8, 16, 32))
        top = rng.choice((32, 128, 600, _LARGEST))
        sizes = {}
        for name in graph.symbols:
            size = math.exp(rng.uniform(math.log(_LEAST), math.log(top)))
            sizes[name] = max(_LEAST, round(size / multiple) * multiple)
        work = graph.work(sizes)
        if work <= _MOST_WORK and graph.bytes(sizes) <= _MOST_BYTES and abs(math.log(work / target)) < nearest:
            best, nearest = sizes, abs(math.log(work / target))
    return best
