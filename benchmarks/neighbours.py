"""The law of neighbours: fitted to measured pairs of kernels, judged on pairs and on kernels left out, beside other forms.

.venv/bin/python benchmarks/neighbours.py

Rates are of the kernels alone, as measured. An error is that of the slowdown, of both kernels of a pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
from kernelcast.datasets.records.kernel_pairs import PAIRS_DIR, PairRow, read_pairs
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.neighbours import law, memory_want
from scipy.optimize import least_squares

FOLDS = 10
TIGHT = 0.03
"""Errors in ln beyond it pull less than squared ones (`soft_l1`)."""
FORM_ERROR = 0.06
"""What forms err by in ln beside the errors of measuring: how much more a precise row counts than others is limited by it."""
LARGE_B = 8e6

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Sides:
    """Kernels of pairs and their neighbours, every column of shape `(n,)`; each pair is two rows.

    Attributes:
        own: Footprint in bytes, bytes and FLOP per second of the kernel alone, and its n, shape `(4, n)`.
        other: The same of its neighbour.
        log: Ln of the slowdown.
        error: Its standard error.
        pair: Number of the pair.
        kernels: Numbers of the kernel and of its neighbour, shape `(2, n)`.
    """

    own: Floats
    other: Floats
    log: Floats
    error: Floats
    pair: Any
    kernels: Any

    def take(self, rows: Any) -> Sides:
        """Some of the rows."""
        return Sides(
            self.own[:, rows], self.other[:, rows], self.log[rows], self.error[rows], self.pair[rows],
            self.kernels[:, rows],
        )  # fmt: skip


def alone_s(rows: Sequence[PairRow]) -> dict[KernelSpec, float]:
    """Seconds alone of the kernels of pairs, as the shipped model predicts them."""
    specs = list(dict.fromkeys(spec for row in rows for spec in (row.a, row.b)))
    answers = kernelcast.load().predict(specs, [rows[0].device] * len(specs))
    return {spec: answer.latency_s.value for spec, answer in zip(specs, answers, strict=True)}


def sides(rows: Sequence[PairRow], alone: Mapping[KernelSpec, float] | None = None) -> Sides:
    """The kernels of measured pairs; their rates by times alone as measured, or by others."""
    number: dict[KernelSpec, int] = {}
    table = []
    for index, row in enumerate(rows):
        measured = ((row.a, row.a_alone_s), (row.b, row.b_alone_s))
        a, b = ([*_cost(spec, seconds if alone is None else alone[spec], row.device)] for spec, seconds in measured)
        i, j = (number.setdefault(spec, len(number)) for spec in (row.a, row.b))
        table.append([*a, *b, np.log(row.a_slowdown), row.a_error, index, i, j])
        table.append([*b, *a, np.log(row.b_slowdown), row.b_error, index, j, i])
    columns = np.array(table, dtype=np.float64).T
    return Sides(columns[:4], columns[4:8], columns[8], columns[9], columns[10].astype(int), columns[11:].astype(int))


def _cost(spec: KernelSpec, seconds: float | None, device: str) -> tuple[float, ...]:
    assert seconds is not None, "a row with status ok has times"
    paper = work(Cases.from_specs([spec], [device]), catalogue())
    footprint_b, rate = float(paper.footprint_b[0]), float(paper.bytes[0]) / seconds
    want = memory_want(footprint_b, rate, catalogue().get(device))
    return footprint_b, rate, float(paper.flops[0]) / seconds, float(want)


Form = Callable[[Floats, Sides], Floats]
"""Ln of slowdowns from the numbers of a form."""


def _need(footprint_b: Floats, log_full_b: float) -> Floats:
    return np.minimum(footprint_b / np.exp(log_full_b), 1.0)


_RATE = 1e10
FORMS: dict[str, tuple[list[float], Form]] = {
    "no slowdown": ([], lambda p, s: np.zeros_like(s.log)),
    "the same for all": ([0.01], lambda p, s: np.full_like(s.log, p[0])),
    "a n N": ([2.0], lambda p, s: p[0] * s.own[3] * s.other[3]),
    "a sqrt(n N)": ([0.3], lambda p, s: p[0] * np.sqrt(s.own[3] * s.other[3])),
    "a g G": ([0.05, 16.0], lambda p, s: p[0] * _need(s.own[0], p[1]) * _need(s.other[0], p[1])),
    "a R g G": ([0.05, 16.0], lambda p, s: p[0] * s.other[1] / _RATE * _need(s.own[0], p[1]) * _need(s.other[0], p[1])),
    "a r^p R^q g G": (
        [0.05, 16.0, 0.3, 0.3],
        lambda p, s: p[0] * (s.own[1] / _RATE) ** p[3] * (s.other[1] / _RATE) ** p[2] * _need(s.own[0], p[1])
        * _need(s.other[0], p[1]),
    ),
}  # fmt: skip
"""n is what the law takes, g and r are the footprint over F (at most 1) and the bytes per second of the kernel; capitals are
those of its neighbour."""


def fitted(name: str, known: Sides) -> Callable[[Sides], Floats]:
    """A form with the numbers that rows say, as a function of others."""
    if name == "boosted trees":
        return _trees(known)
    form = FORMS[name][1]
    numbers = fitted_numbers(name, known)
    return lambda other: form(numbers, other)


def fitted_numbers(name: str, known: Sides) -> Floats:
    """The numbers of a form that rows say, the best from several starts."""
    start, form = FORMS[name]
    if not start:
        return np.array(start)
    weight = 1.0 / np.hypot(known.error, FORM_ERROR)
    weight /= weight.mean()
    fits = []
    for shift in (-1.5, 0.0, 1.0):
        first = np.array(start)
        first[1:2] += shift
        fits.append(
            least_squares(lambda p: weight * (form(p, known) - known.log), first, loss="soft_l1", f_scale=TIGHT)
        )
    best: Floats = min(fits, key=lambda fit: fit.cost).x
    return best


def _trees(known: Sides) -> Callable[[Sides], Floats]:
    import xgboost

    model = xgboost.XGBRegressor(
        n_estimators=120, max_depth=3, learning_rate=0.06, subsample=0.7, colsample_bytree=0.7, min_child_weight=4, n_jobs=1,
        random_state=0,
    )  # fmt: skip
    model.fit(_features(known), known.log, sample_weight=1.0 / (known.error**2 + FORM_ERROR**2))
    return lambda other: np.asarray(model.predict(_features(other)), dtype=np.float64)


def _features(known: Sides) -> Floats:
    return np.log(np.maximum(np.concatenate([known.own[:3], known.other[:3]]), 1.0)).T


def out_of_sample(name: str, known: Sides, split: str, seed: int = 0) -> Floats:
    """Ln of slowdowns by forms that were fitted without the pair, or without either of its kernels, shape `(n,)`."""
    rng = np.random.default_rng(seed)
    answer = np.empty_like(known.log)
    if split == "pair":
        fold = rng.integers(FOLDS, size=known.pair.max() + 1)[known.pair]
        for part in range(FOLDS):
            answer[fold == part] = fitted(name, known.take(fold != part))(known.take(fold == part))
        return answer
    group = rng.integers(5, size=known.kernels.max() + 1)[known.kernels]
    for i in range(5):
        for j in range(i, 5):
            wanted = (np.sort(group, axis=0) == [[i], [j]]).all(axis=0)
            others = ~np.isin(group, (i, j)).any(axis=0)
            if wanted.any():
                answer[wanted] = fitted(name, known.take(others))(known.take(wanted))
    return answer


def score(log: Floats, known: Sides) -> str:
    """Mean and median error, and the share within 10 %; of all, and of pairs of two large kernels."""
    errors = np.abs(np.exp(log - known.log) - 1)
    large = (known.own[0] > LARGE_B) & (known.other[0] > LARGE_B)
    parts = [
        f"{np.mean(some):6.2%} {np.median(some):6.2%} {np.mean(some < 0.1):4.0%}" for some in (errors, errors[large])
    ]
    return f"all {parts[0]}   two large {parts[1]}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?", default=PAIRS_DIR / "pairs.parquet")
    rows, _ = read_pairs(parser.parse_args(argv).rows)
    # The law is one of CPUs; a file may hold pairs of a GPU too.
    good = [row for row in rows if row.status == "ok" and catalogue().get(row.device).kind == "cpu"]
    known = sides(good)
    large = (known.own[0] > LARGE_B) & (known.other[0] > LARGE_B)
    print(f"{len(good)} pairs of {known.kernels.max() + 1} kernels, {large.sum() // 2} of two large ones")
    print(f"standard error: median {np.median(known.error):.2%}, of two large {np.median(known.error[large]):.2%}")
    for split in ("pair", "kernels"):
        for name in (*FORMS, "boosted trees"):
            print(f"{split:8}{name:18}{score(out_of_sample(name, known, split), known)}")
    wants = known.own[3], known.other[3]
    shipped, half = law().log_slowdown(*wants), 1.645 * law().deviation(*wants)
    inside = np.abs(shipped - known.log) <= half
    print(
        f"shipped                   {score(shipped, known)}   inside 90 %: {inside.mean():.0%}, {inside[large].mean():.0%}"
    )
    predicted = sides(good, alone_s(good))
    print(f"rates as predicted        {score(law().log_slowdown(predicted.own[3], predicted.other[3]), known)}")
    for name in FORMS:
        print(f"{name}: {', '.join(f'{value:.4g}' for value in fitted_numbers(name, known))}")


if __name__ == "__main__":
    main()
