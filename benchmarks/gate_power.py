"""How often the gate refuses by chance, and how often it sees one slice that really became worse.

Made-up errors: ln(answer / measurement) of champion and challenger is normal with the same spread, correlated, two rows a
shape; mean errors are then like those of a served model on kernels it knows. Sixty slices are judged together as
`nightly.gate.judging` judges them. A worsening is a wider spread of one slice's errors.

    python -P benchmarks/gate_power.py
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from kernelcast.features.batch.cases import Floats
from kernelcast.nightly.gate.paired_bootstrap import difference

WHOLE, PARTS, ALPHA, TOLERANCE_PCT = 8, 52, 0.05, 0.5
SHAPES = (8, 15, 30, 60, 120)
CHANCE_TRIALS, POWER_TRIALS = 1500, 100
RESAMPLES = 4159
CORRELATIONS = (0.5, 0.9)


def spread_of(mean_ape_pct: float) -> float:
    """Spread of ln errors whose mean absolute percentage error is about this."""
    return mean_ape_pct / 100 / math.sqrt(2 / math.pi)


def gaps(rng: np.random.Generator, shapes: int, correlation: float, before_pct: float, after_pct: float) -> Floats:
    """Challenger's minus champion's absolute percentage errors on two rows a shape, shape `(2 * shapes,)`."""
    shared, local, other = (np.repeat(rng.standard_normal(shapes), 2) * 0.8 + rng.standard_normal(2 * shapes) * 0.6
                          for _ in range(3))  # fmt: skip
    mixed = [math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * part for part in (local, other)]
    old, new = (
        100 * np.abs(np.expm1(spread_of(pct) * part)) for pct, part in zip((before_pct, after_pct), mixed, strict=True)
    )
    return np.asarray(new - old)


def p_value(rng: np.random.Generator, shapes: int, correlation: float, before_pct: float, after_pct: float) -> float:
    """What the gate computes for one slice."""
    clusters = np.repeat(np.arange(shapes, dtype=np.uint64), 2)
    values = gaps(rng, shapes, correlation, before_pct, after_pct)
    return difference(
        values, clusters, tolerance=TOLERANCE_PCT, resamples=RESAMPLES, seed=int(rng.integers(2**31))
    ).p_above


def main() -> None:
    """Print both rates."""
    rng = np.random.default_rng(20261122)
    least = (ALPHA / 2 / WHOLE, ALPHA / 2 / PARTS)
    heads = ["shapes", "correlation", "nothing is worse, and it is refused", "10 % became 15 %, whole family", "part of one",
             "10 % became 20 %, whole family", "part of one"]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for shapes, correlation in itertools.product(SHAPES, CORRELATIONS):
        null = np.array([p_value(rng, shapes, correlation, 10, 10) for _ in range(CHANCE_TRIALS)])
        fine = [(1 - np.mean(null <= limit)) ** count for limit, count in zip(least, (WHOLE, PARTS), strict=True)]
        cells = [f"{100 * (1 - math.prod(fine)):.1f} %"]
        for after in (15, 20):
            values = np.array([p_value(rng, shapes, correlation, 10, after) for _ in range(POWER_TRIALS)])
            cells += [f"{100 * np.mean(values <= limit):.0f} %" for limit in least]
        print(f"| {shapes} | {correlation} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
