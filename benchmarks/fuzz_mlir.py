"""Breaks MLIR texts and reads what is left: nothing but `SpecError` may come of it, and nothing may hang.

`python -P benchmarks/fuzz_mlir.py --count 20000` reads the corpus of the tests, mutated, through the tolerant reader in this
process and through the native parsers in their child process.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.parse.parser_process import NativeReader
from kernelcast.features.mlir.understanding import no_native_parser, read

CORPUS = Path(__file__).parents[1] / "tests" / "features" / "mlir" / "corpus"
SLOWEST_S = 2.0

_NUMBERS = ("99999999999999999999", "-1", "0", "9223372036854775808", "1" * 200, "?", "4294967296", "1e999")
_NOISE = (
    "\0",
    "ü",
    "\U0001f600",
    "\u202e",
    "\\",
    '"',
    "//",
    "%",
    "^",
    "@",
    "!",
    "#",
    "->",
    "{-#",
    "#-}",
    "::",
    "\r",
    "\ufeff",
)
_PIECES = (
    "tensor<99999999999999999999xf32>", "tensor<4611686018427387904x4611686018427387904xf32>", "%0 = ", "^bb0(%x: f32):", "})",
    "({", "loc(", "dense<", "affine_map<(d0) -> (d0)>", "module {", "func.func @f(", "#map = #map", "!t = !t", "scf.for %i = ",
    "memref<?x?xf32, strided<[?, 1], offset: ?>>", "<{", "}>", '"a.b"(', "\n", "%a:999999 = x.y", "%0#99999999999999999999",
)  # fmt: skip


def mutated(text: str, other: str, rng: random.Random) -> str:
    """`text` after one to four random changes, some with pieces of `other`."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(_MUTATIONS)(text, other, rng)[: 1 << 20]
    return text


def _place(text: str, rng: random.Random) -> int:
    return rng.randrange(len(text) + 1)


def _flip(text: str, _: str, rng: random.Random) -> str:
    at = _place(text, rng)
    return text[:at] + chr(rng.choice((rng.randrange(1, 128), rng.randrange(128, 0xD800)))) + text[at + 1 :]


def _truncate(text: str, _: str, rng: random.Random) -> str:
    return text[: _place(text, rng)] if rng.random() < 0.7 else text[_place(text, rng) :]


def _swap(text: str, _: str, rng: random.Random) -> str:
    words = text.split(" ")
    a, b = rng.randrange(len(words)), rng.randrange(len(words))
    words[a], words[b] = words[b], words[a]
    return " ".join(words)


def _brackets(text: str, _: str, rng: random.Random) -> str:
    at, bracket = _place(text, rng), rng.choice("{}()[]<>")
    return text[:at] + bracket * rng.choice((1, 2, 50, 5000)) + text[at:]


def _nest(text: str, _: str, rng: random.Random) -> str:
    at, depth = _place(text, rng), rng.choice((10, 60, 1000))
    opening, closing = rng.choice(
        (("tensor<", ">"), ("(", ")"), ('"a.b"() ({\n', "\n}) : () -> ()"), ("[", "]"), ("tuple<", ">"))
    )
    return text[:at] + opening * depth + closing * rng.choice((depth, depth - 1, 0)) + text[at:]


def _number(text: str, _: str, rng: random.Random) -> str:
    digits = [i for i, char in enumerate(text) if char.isdigit()]
    if not digits:
        return text
    at = rng.choice(digits)
    return text[:at] + rng.choice(_NUMBERS) + text[at + 1 :]


def _insert(text: str, _: str, rng: random.Random) -> str:
    at = _place(text, rng)
    return text[:at] + rng.choice(_NOISE + _PIECES) * rng.choice((1, 1, 1, 3, 200)) + text[at:]


def _splice(text: str, other: str, rng: random.Random) -> str:
    start = _place(other, rng)
    at = _place(text, rng)
    return text[:at] + other[start : start + rng.randrange(400)] + text[at:]


def _lines(text: str, _: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    at = rng.randrange(len(lines))
    change = rng.randrange(3)
    lines[at : at + 1] = ([], [lines[at]] * 2, [lines[at], *rng.sample(lines, 1)])[change]
    return "".join(lines)


_MUTATIONS: Sequence[Callable[[str, str, random.Random], str]] = (
    _flip, _truncate, _swap, _brackets, _nest, _number, _insert, _splice, _lines,
)  # fmt: skip


def corpus() -> list[str]:
    """The texts that are broken."""
    return [path.read_text() for path in sorted(CORPUS.glob("*.mlir"))]


def fuzz(count: int, seed: int, native: NativeReader | None) -> dict[str, object]:
    """Read `count` broken texts; with `native` through its parsers too.

    Raises:
        AssertionError: a text took longer than `SLOWEST_S`; the message has it. Anything but `SpecError` passes through.
    """
    rng = random.Random(seed)
    texts = corpus()
    came_of: Counter[str] = Counter()
    slowest_s = 0.0
    for _ in range(count):
        text = mutated(rng.choice(texts), rng.choice(texts), rng)
        for how in ("tolerant",) if native is None else ("tolerant", "native"):
            # This process's own time, which other load does not stretch; the child's is watched by its deadline.
            start_s = time.process_time()
            try:
                module = read(text, native=no_native_parser if how == "tolerant" else native)
            except SpecError:
                came_of[f"{how}: refused"] += 1
            except Exception as error:
                raise AssertionError(f"{how} reader: {error!r} for {text!r}") from error
            else:
                came_of[f"{how}: {module.reader}"] += 1
                came_of.update(why for name, why in module.refusals if name == "native")
            took_s = time.process_time() - start_s
            if took_s > SLOWEST_S:
                raise AssertionError(f"{how} reader took {took_s:.1f} s for {text!r}")
            slowest_s = max(slowest_s, took_s)
    return {
        "texts": count, "seed": seed, "came_of": dict(sorted(came_of.items())), "slowest_s": round(slowest_s, 3),
        "child_restarts": 0 if native is None else max(native.child.starts - 1, 0),
    }  # fmt: skip


def main() -> None:
    """Print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerant-only", action="store_true")
    options = parser.parse_args()
    with NativeReader() as native:
        native.warm()
        print(json.dumps(fuzz(options.count, options.seed, None if options.tolerant_only else native), indent=2))


if __name__ == "__main__":
    main()
