"""How often the gate promotes a challenger that is no better, and after how many nights one that is better.

Made-up errors: ln(answer / measurement) of champion and challengers has Student's t distribution with four degrees of
freedom, scaled to a mean error, correlated between models; 30 new shapes a night, three challengers, 30 nights with a champion.

    python -P benchmarks/gate_power.py
"""

from __future__ import annotations

import numpy as np
from kernelcast.features.batch.cases import Floats
from kernelcast.nightly.gate.evidence import Wealth

NIGHTS, SHAPES, CHALLENGERS, ALPHA = 30, 30, 3, 0.05
TRIALS = 400
PAIRS = ((30, 30), (30, 29), (30, 27), (30, 25), (30, 20), (60, 40))


def errors(
    rng: np.random.Generator, champion_pct: float, challenger_pct: float, correlation: float
) -> tuple[Floats, Floats]:
    """Absolute percentage errors of both on the shapes of all nights, shape `(NIGHTS * SHAPES,)`."""
    shared, old, new = (rng.standard_t(4, NIGHTS * SHAPES) for _ in range(3))
    pair = []
    for part, pct in ((old, champion_pct), (new, challenger_pct)):
        mixed = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * part
        pair.append(100 * np.abs(np.expm1(np.clip(pct / 100 * mixed, -3, 1))))
    return pair[0], pair[1]


def nights_until(rng: np.random.Generator, champion_pct: float, challenger_pct: float, correlation: float) -> int:
    """The night in which a challenger is promoted, of three alike; beyond the last where none is."""
    first = NIGHTS + 1
    for _ in range(CHALLENGERS):
        old, new = errors(rng, champion_pct, challenger_pct, correlation)
        wealth = Wealth()
        for night in range(NIGHTS):
            part = slice(night * SHAPES, (night + 1) * SHAPES)
            wealth = wealth.after(old[part] - new[part])
            if wealth.p_value <= ALPHA / CHALLENGERS and wealth.gain_pct > 0:
                first = min(first, night + 1)
                break
    return first


def main() -> None:
    """Print the table."""
    print("| mean errors, % | correlation | promoted within 1 night, % | 3 | 10 | 30 |\n|---|---|---|---|---|---|")
    for champion, challenger in PAIRS:
        for correlation in (0.5, 0.9):
            rng = np.random.default_rng(20261122)
            until = np.array([nights_until(rng, champion, challenger, correlation) for _ in range(TRIALS)])
            shares = " | ".join(f"{100 * np.mean(until <= night):.1f}" for night in (1, 3, 10, 30))
            print(f"| {champion} → {challenger} | {correlation} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
