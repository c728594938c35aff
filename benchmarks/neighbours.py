"""The laws of neighbours: fitted to measured pairs of kernels, judged on pairs and on kernels left out, beside other forms.

.venv/bin/python benchmarks/neighbours.py          the law of CPUs
.venv/bin/python benchmarks/neighbours.py --gpu    that of GPUs, on two streams

Rates and times are of the kernels alone, as measured. An error is that of the slowdown, of both kernels of a pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
from kernelcast.datasets.records.kernel_pairs import GPU_PAIRS, PAIRS_DIR, PairRow, read_pairs
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, get_family
from kernelcast.models.predict.neighbours import (
    StreamLaw,
    beside_each_other,
    filled_share,
    launches_of,
    law,
    memory_want,
    stream_law,
)
from scipy.optimize import least_squares

FOLDS = 10
TIGHT = {"cpu": 0.03, "gpu": 0.2}
"""Errors in ln beyond it pull less than squared ones (`soft_l1`)."""
FORM_ERROR = 0.06
"""What forms err by in ln beside the errors of measuring: how much more a precise row counts than others is limited by it."""
LARGE_B = 8e6
ALIKE = 4.0
"""Launches of two kernels are alike whose lengths differ by less than this factor."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Sides:
    """Kernels of pairs and their neighbours, every column of shape `(n,)`; each pair is two rows.

    Attributes:
        kind: That of the device.
        own: Footprint in bytes, bytes and FLOP per second of the kernel alone, its n, its seconds and launches, and the share
            of a GPU that it fills, shape `(7, n)`.
        other: The same of its neighbour.
        log: Ln of the slowdown.
        error: Its standard error.
        pair: Number of the pair.
        kernels: Numbers of the kernel and of its neighbour, shape `(2, n)`.
    """

    kind: str
    own: Floats
    other: Floats
    log: Floats
    error: Floats
    pair: Any
    kernels: Any

    def take(self, rows: Any) -> Sides:
        """Some of the rows."""
        return Sides(
            self.kind, self.own[:, rows], self.other[:, rows], self.log[rows], self.error[rows], self.pair[rows],
            self.kernels[:, rows],
        )  # fmt: skip

    @property
    def telling(self) -> Any:
        """Which rows tell forms apart: of a CPU two large kernels, of a GPU two with launches alike."""
        if self.kind == "cpu":
            return (self.own[0] > LARGE_B) & (self.other[0] > LARGE_B)
        return np.abs(np.log(_turn(self.own) / _turn(self.other))) < np.log(ALIKE)


def _turn(kernels: Floats) -> Floats:
    return kernels[4] / kernels[5]


Alone = tuple[float, float]
"""Seconds of a call alone, and its launches."""


def _optimizer_launches(spec: KernelSpec) -> int:
    """Lists of tensors go in groups, and in blocks of 65,536 elements (`multi_tensor_apply` of torch, MultiTensorApply.cuh)."""
    tensors = {"sgd": 64, "momentum": 48, "adam": 36}[spec.variant]
    blocks = spec["tensors"] * ceil(spec["elements"] / 65536)
    return max(ceil(spec["tensors"] / tensors), ceil(blocks / 320))


EAGER: dict[str, Callable[[KernelSpec], float]] = {
    "causal_conv1d": lambda spec: 6,
    "cross_entropy": lambda spec: 3 if spec.variant == "backward" else 2,
    # Many indices are sorted before their rows are added up.
    "embedding": lambda spec: 1 if spec.variant != "backward" else 2 if spec["tokens"] <= 3072 else 31,
    "latent_attention": lambda spec: 11 if spec.variant == "prefill" else 9.5,
    "linear_attention": lambda spec: 9 * spec["q_len"],
    "optimizer": _optimizer_launches,
    "quantize": lambda spec: 3 if spec.variant == "scale" else 2,
    "rope": lambda spec: 5,
}
"""Launches of families' own calls, which ran in the pairs: predicted are those of engines, which fuse more. They are as torch's
profiler counts them, in the median where they vary."""


def eager_launches(spec: KernelSpec) -> float:
    """Launches of a call of eager PyTorch."""
    return EAGER.get(spec.family, launches_of)(spec)


def alone_of(rows: Sequence[PairRow]) -> dict[KernelSpec, Alone]:
    """Seconds alone of the kernels of pairs, as the shipped model predicts them, and the launches that goes with."""
    specs = list(dict.fromkeys(spec for row in rows for spec in (row.a, row.b)))
    answers = kernelcast.load().predict(specs, [rows[0].device] * len(specs))
    return {spec: (answer.latency_s.value, launches_of(spec)) for spec, answer in zip(specs, answers, strict=True)}


def sides(rows: Sequence[PairRow], alone: Mapping[KernelSpec, Alone] | None = None) -> Sides:
    """The kernels of measured pairs; their rates by times alone as measured, or by others."""
    number: dict[KernelSpec, int] = {}
    table = []
    for index, row in enumerate(rows):
        measured = ((row.a, row.a_alone_s), (row.b, row.b_alone_s))
        a, b = (
            [*_cost(spec, *((seconds, eager_launches(spec)) if alone is None else alone[spec]), row.device)]
            for spec, seconds in measured
        )
        i, j = (number.setdefault(spec, len(number)) for spec in (row.a, row.b))
        table.append([*a, *b, np.log(row.a_slowdown), row.a_error, index, i, j])
        table.append([*b, *a, np.log(row.b_slowdown), row.b_error, index, j, i])
    columns = np.array(table, dtype=np.float64).T
    return Sides(
        catalogue().get(rows[0].device).kind, columns[:7], columns[7:14], columns[14], columns[15],
        columns[16].astype(int), columns[17:].astype(int),
    )  # fmt: skip


def _cost(spec: KernelSpec, seconds: float | None, launches: float, device: str) -> tuple[float, ...]:
    assert seconds is not None, "a row with status ok has times"
    paper = work(Cases.from_specs([spec], [device]), catalogue())
    footprint_b, rate = float(paper.footprint_b[0]), float(paper.bytes[0]) / seconds
    want = memory_want(footprint_b, rate, catalogue().get(device))
    share = filled_share(spec, catalogue().get(device)) if catalogue().get(device).kind == "gpu" else 1.0
    return footprint_b, rate, float(paper.flops[0]) / seconds, float(want), seconds, launches, share


Form = Callable[[Floats, Sides], Floats]
"""Ln of slowdowns from the numbers of a form."""


def _need(footprint_b: Floats, log_full_b: float) -> Floats:
    return np.minimum(footprint_b / np.exp(log_full_b), 1.0)


_RATE = 1e10
_NONE: dict[str, tuple[list[float], Form]] = {
    "no slowdown": ([], lambda p, s: np.zeros_like(s.log)),
    "the same for all": ([0.01], lambda p, s: np.full_like(s.log, p[0])),
}
CPU_FORMS = _NONE | {
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


def _in_turn(p: Floats, s: Sides) -> Floats:
    return np.log1p((_turn(s.other) / _turn(s.own)) ** p[0])


def _streams(p: Floats, s: Sides, *, of_call: bool = True, with_share: bool = True) -> Floats:
    numbers = StreamLaw((), "", 0, 0, 0, passed=np.exp(p[0]), idle_s=np.exp(p[1]) * 1e-6)
    if of_call:
        return numbers.log_slowdown(*s.own[4:6], *s.other[4 : 7 if with_share else 6])
    # Launches as long as those of the call, and one of them a call.
    return numbers.log_slowdown(_turn(s.own), 1, _turn(s.other), 1)


GPU_FORMS = _NONE | {
    "twice as long": ([], lambda p, s: np.full_like(s.log, np.log(2))),
    "1 + T / t": ([], lambda p, s: np.log1p(s.other[4] / s.own[4])),
    "1 + D / d": ([], lambda p, s: _in_turn(np.ones(1), s)),
    "1 + (D / d)^p": ([0.5], _in_turn),
    "p, no i": ([-2.0], lambda p, s: _streams(np.array([p[0], -9.0]), s)),
    "p, i, no K": ([-2.0, 1.0], lambda p, s: _streams(p, s, of_call=False)),
    "p, i, no f": ([-2.0, 1.0], lambda p, s: _streams(p, s, with_share=False)),
    "p, i": ([-2.0, 1.0], _streams),
}  # fmt: skip
"""t and d are seconds of a call and of a launch, f the share of the device that a neighbour fills, p and i (ln, µs) the numbers
of `StreamLaw`; capitals are the neighbour's."""
FORMS = {"cpu": CPU_FORMS, "gpu": GPU_FORMS}


def fitted(name: str, known: Sides) -> Callable[[Sides], Floats]:
    """A form with the numbers that rows say, as a function of others."""
    if name == "boosted trees":
        return _trees(known)
    form = FORMS[known.kind][name][1]
    numbers = fitted_numbers(name, known)
    return lambda other: form(numbers, other)


def fitted_numbers(name: str, known: Sides) -> Floats:
    """The numbers of a form that rows say, the best from several starts."""
    start, form = FORMS[known.kind][name]
    if not start:
        return np.array(start)
    weight = 1.0 / np.hypot(known.error, FORM_ERROR)
    weight /= weight.mean()
    fits = []
    for shift in (-1.5, 0.0, 1.0):
        first = np.array(start)
        first[1:2] += shift
        fits.append(
            least_squares(
                lambda p: weight * (form(p, known) - known.log), first, loss="soft_l1", f_scale=TIGHT[known.kind]
            )
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
    if known.kind == "cpu":
        return np.log(np.maximum(np.concatenate([known.own[:3], known.other[:3]]), 1.0)).T
    both = np.concatenate([known.own, known.other, [_turn(known.other) / _turn(known.own)]])
    return np.log(np.maximum(both, 1e-9)).T


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


TELLING = {"cpu": "two large", "gpu": "launches alike"}


def shipped_log(known: Sides) -> Floats:
    """Ln of slowdowns by the law as it ships."""
    if known.kind == "cpu":
        return np.asarray(law().log_slowdown(known.own[3], known.other[3]))
    return np.asarray(stream_law().log_slowdown(*known.own[4:6], *known.other[4:]))


def score(log: Floats, known: Sides) -> str:
    """Mean and median error, and the share within 10 %; of all, and of the rows that tell forms apart."""
    errors = np.abs(np.exp(log - known.log) - 1)
    parts = [
        f"{np.mean(some):7.2%} {np.median(some):6.2%} {np.mean(some < 0.1):4.0%}"
        for some in (errors, errors[known.telling])
    ]
    return f"all {parts[0]}   {TELLING[known.kind]} {parts[1]}   ln {np.mean(np.abs(log - known.log)):.3f}"


def inside_answers(rows: Sequence[PairRow]) -> Any:
    """Whether the slowdown of each kernel is inside the interval of what the service answers, shape `(n,)`."""
    predictor, inside = kernelcast.load(), []
    for row in rows:
        alone = predictor.predict([row.a, row.b], [row.device] * 2)
        kernels = beside_each_other([row.a, row.b], alone, catalogue().get(row.device)).kernels
        for item, slowdown in zip(kernels, (row.a_slowdown, row.b_slowdown), strict=True):
            assert item.slowdown is not None
            assert slowdown is not None
            inside.append(item.slowdown.lower <= slowdown <= item.slowdown.upper)
    return np.array(inside)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?")
    parser.add_argument("--gpu", action="store_true", help="judge the law of GPUs")
    args = parser.parse_args(argv)
    kind = "gpu" if args.gpu else "cpu"
    rows, _ = read_pairs(args.rows or (GPU_PAIRS if args.gpu else PAIRS_DIR / "pairs.parquet"))
    good = [row for row in rows if row.status == "ok" and catalogue().get(row.device).kind == kind]
    known = sides(good)
    print(f"{len(good)} pairs of {known.kernels.max() + 1} kernels, {known.telling.sum() // 2} of {TELLING[kind]}")
    print(f"standard error: median {np.median(known.error):.2%}, of these {np.median(known.error[known.telling]):.2%}")
    if args.gpu:
        shares = np.exp(-known.log).reshape(-1, 2).sum(axis=1)
        print(f"1/a + 1/b: {', '.join(f'{part:.2f}' for part in np.quantile(shares, (0, 0.1, 0.5, 0.9, 1)))}")
        print(f"beyond one run of both in turn: {np.mean(known.log > np.log1p(known.other[4] / known.own[4])):.0%}")
    for split in ("pair", "kernels"):
        for name in (*FORMS[kind], "boosted trees"):
            print(f"{split:8}{name:18}{score(out_of_sample(name, known, split), known)}")
    shipped = shipped_log(known)
    left_out = {"left out": out_of_sample("p, i", known, "kernels")} if args.gpu else {}
    for name, log in ({"shipped": shipped} | left_out).items():
        half = 1.645 * (stream_law() if args.gpu else law()).deviation(log)
        inside = np.abs(log - known.log) <= half
        print(f"{name:26}{score(log, known)}   inside 90 %: {inside.mean():.0%}, {inside[known.telling].mean():.0%}")
    predicted = sides(good, alone_of(good))
    print(f"times as predicted        {score(shipped_log(predicted), known)}")
    if args.gpu:
        eager = np.repeat([not any(get_family(spec.family).launches for spec in (row.a, row.b)) for row in good], 2)
        print(f"of nine families          {score(shipped_log(predicted.take(eager)), known.take(eager))}")
        inside = inside_answers(good)
        print(
            f"slowdowns inside intervals of answers: {inside.mean():.0%}, of these families {inside[eager].mean():.0%}"
        )
    for name in FORMS[kind]:
        print(f"{name}: {', '.join(f'{value:.4g}' for value in fitted_numbers(name, known))}")


if __name__ == "__main__":
    main()
