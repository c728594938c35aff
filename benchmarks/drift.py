"""How often the drift detectors are wrong on quiet years, and how soon they find planted drifts.

Run `.venv/bin/python -P benchmarks/drift.py --years 20000 --page OUT.md`. Noise comes from the sentinel readings in the
provenance of the shipped tables: every night draws a block of readings of an AMD EPYC virtual machine or of an NVIDIA H200,
adds an offset that all cases share, drawn from the slow part of the same readings, and disturbs some nights and readings
heavily. Detectors run as they do at night, on many histories at once.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernelcast.datasets.files import provenance_of
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.features.cases import Floats
from kernelcast.nightly.drift.bridge import BridgeRule, judged
from kernelcast.nightly.drift.evidence import CoverageWatch, coverage_evidence
from kernelcast.nightly.drift.nights import Watch, sums_over_nights
from kernelcast.nightly.drift.sensors import SensorWatch, false_alarms_per_regime, unlike_all_before

NIGHTS, CASES, CHUNK = 365, 14, 500
GROUPS = 10
CORRELATIONS = (0.3, 0.5, 0.8)
MOVES_PCT = (0, 2, 5, 8, 20)
SCATTERS = ((0.01, 0.003), (0.03, 0.01), (0.08, 0.02))
QUIET_BEFORE = 60
"""Nights before a planted drift begins."""
STEPS_PCT = (1, 2, 5, 10)
_SLOW_BLOCKS = 20
_HEAVY_NIGHTS, _HEAVY_READINGS, _HEAVY = 0.02, 0.02, 0.05


@dataclass(frozen=True, slots=True)
class Noise:
    """Readings of one device, in ln: `fast` of shape `(blocks, 2)` by sentinel, `slow` what both share, `(blocks,)`."""

    name: str
    fast: Floats
    slow: Floats


def shipped_noise() -> list[Noise]:
    """What the sentinels of the shipped campaigns scattered by, each device's blocks in order of time."""
    blocks: dict[str, dict[str, list[float]]] = {}
    for family in shipped_families():
        for facts in provenance_of(read_shipped(family, columns=["block"])).values():
            readings = [value for _, value in sorted((facts.get("sentinel_after_s") or {}).items())]
            if len(readings) == 2 and all(readings):
                blocks.setdefault(facts["device"], {})[facts["after"]["utc"]] = readings
    found = []
    for device, by_time in sorted(blocks.items()):
        logs = np.log(np.array([by_time[when] for when in sorted(by_time)]))
        logs -= np.median(logs, axis=0)
        padded = np.pad(logs, ((_SLOW_BLOCKS, _SLOW_BLOCKS), (0, 0)), mode="edge")
        smooth = np.array([np.median(padded[i : i + 2 * _SLOW_BLOCKS + 1], axis=0) for i in range(len(logs))])
        # Shared is what the quieter of the two sentinels does slowly: the other's slow part is its own scatter.
        quieter = int(np.argmin(np.abs(smooth).mean(axis=0)))
        found.append(Noise(device, logs, smooth[:, quieter]))
    return found


def quiet_years(
    noise: Noise, years: int, rng: np.random.Generator, nights: int = NIGHTS, together: float = 0.0
) -> Floats:
    """Natural logarithm of latency on quiet nights, shape `(years, nights, CASES)`: seven cases like either sentinel.

    Offsets of neighbouring nights correlate by `together`. A night is one reading a case, as noisy as a single block's: a
    night that reads its anchors several times scatters less.
    """
    kind = np.arange(CASES) % 2
    block = rng.integers(0, len(noise.fast), (years, nights, CASES))
    logs = noise.fast[block, kind]
    offset = noise.slow[rng.integers(0, len(noise.slow), (years, nights))]
    for night in range(1, nights if together else 0):
        offset[:, night] = together * offset[:, night - 1] + np.sqrt(1.0 - together**2) * offset[:, night]
    logs = logs + offset[..., None]
    logs += (
        (rng.random((years, nights)) < _HEAVY_NIGHTS)[..., None]
        * _HEAVY
        * rng.standard_t(3, (years, nights))[..., None]
    )
    logs += (rng.random(logs.shape) < _HEAVY_READINGS) * _HEAVY * rng.standard_t(2, logs.shape)
    found: Floats = logs
    return found


def parts(total: int) -> Iterator[int]:
    """`total` in chunks that fit into memory."""
    while total > 0:
        yield min(total, CHUNK)
        total -= CHUNK


def false_alarms(noise: Noise, years: int, watch: Watch, seed: int, together: float = 0.0) -> dict[str, float]:
    """Share of quiet years with at least one alarm, by what alarmed."""
    rng, count = np.random.default_rng(seed), {"all cases": 0, "one case": 0}
    for some in parts(years):
        sums = sums_over_nights(quiet_years(noise, some, rng, together=together), watch)
        count["all cases"] += int((np.fmax(sums.slower, sums.faster) > watch.limit).any(axis=1).sum())
        own = np.fmax(sums.case_slower, sums.case_faster) > watch.case_limit
        count["one case"] += int(own.any(axis=(1, 2)).sum())
    return {name: n / years for name, n in count.items()}


def delays(noise: Noise, years: int, watch: Watch, change: Floats, seed: int) -> tuple[float, float | None]:
    """Share of planted drifts found within the nights after, and the median nights until then.

    `change` of shape `(nights after,)` is what is added to ln latency of every case. The alarms of before do not count.
    """
    rng, waits = np.random.default_rng(seed), []
    for some in parts(years):
        logs = quiet_years(noise, some, rng, QUIET_BEFORE + len(change))
        logs[:, QUIET_BEFORE:] += change[:, None]
        beyond = sums_over_nights(logs, watch).slower[:, QUIET_BEFORE:] > watch.limit
        waits.append(np.where(beyond.any(axis=1), beyond.argmax(axis=1) + 1.0, np.inf))
    all_waits = np.concatenate(waits)
    middle = float(np.median(all_waits))
    return float(np.isfinite(all_waits).mean()), middle if np.isfinite(middle) else None


def sensor_alarms(years: int, seed: int) -> float:
    """Share of quiet years in which a sensor that scatters with heavy tails is told to have drifted."""
    rule, rng = SensorWatch(), np.random.default_rng(seed)
    readings = rng.standard_t(3, (years, NIGHTS))
    alarmed = 0
    for year in readings:
        highest, lowest = np.maximum.accumulate(year), np.minimum.accumulate(year)
        ends = np.arange(rule.least_nights + rule.run, NIGHTS + 1)
        windows = np.lib.stride_tricks.sliding_window_view(year, rule.run)[ends - rule.run]
        before = ends - rule.run - 1
        above, below = windows.min(axis=1) > highest[before], windows.max(axis=1) < lowest[before]
        told = np.flatnonzero(above | below)
        alarmed += len(told) > 0 and unlike_all_before(year[: ends[told[0]]].tolist(), rule) != 0
    return alarmed / years


def missed_shares(rng: np.random.Generator, shape: tuple[int, int], missed: float, rows: int) -> Floats:
    """Shares of a night's rows outside their interval; a night's own offset makes them hang together (beta-binomial)."""
    together = 3.0
    share = rng.beta(missed * together, (1.0 - missed) * together, shape)
    found: Floats = rng.binomial(rows, share) / rows
    return found


def coverage_alarms(years: int, rows: int, seed: int) -> dict[str, float]:
    """Share of quiet years with an alarm on all rows, and the median nights until intervals that miss more are found."""
    watch, rng = CoverageWatch(), np.random.default_rng(seed)
    limit = watch.limit(9, overall=True)
    quiet = coverage_evidence(missed_shares(rng, (years, NIGHTS), 0.1, rows), 0.9, watch)
    found = {"quiet years with an alarm": float((quiet >= limit).any(axis=1).mean())}
    for missed in (0.2, 0.3, 0.5, 0.8):
        shares = [missed_shares(rng, (1000, QUIET_BEFORE), 0.1, rows), missed_shares(rng, (1000, 180), missed, rows)]
        late = coverage_evidence(np.concatenate(shares, axis=1), 0.9, watch)[:, QUIET_BEFORE:] >= limit
        found[f"{missed:.0%} missed"] = float(np.median(np.where(late.any(axis=1), late.argmax(axis=1) + 1.0, np.inf)))
    return found


def bridge_verdicts(
    scatter: float, offset: float, cases: int, moved: float, bridges: int, seed: int
) -> dict[str, float]:
    """What bridges of `GROUPS` families and impls with `cases` each say when all moved by `moved` (ln): shares of bridges.

    A case repeats within `scatter`, with heavy tails, and all cases of a night within `offset`, standard deviations of ln.
    """
    rng, rule = np.random.default_rng(seed), BridgeRule()
    count = {"opened": 0, "joined": 0, "undecided": 0}
    for _ in range(bridges):
        shared = moved + offset * float(rng.standard_normal(2) @ np.array([1.0, -1.0]))
        # A t law of 4 degrees of freedom has a standard deviation of the square root of 2.
        read = shared + scatter / np.sqrt(2.0) * (
            rng.standard_t(4, (GROUPS, cases)) - rng.standard_t(4, (GROUPS, cases))
        )
        verdict = judged({f"family/{i}": steps for i, steps in enumerate(read)}, offset, rule).verdict
        count[{"shifted": "opened", "same": "joined"}.get(verdict, "undecided")] += 1
    return {name: n / bridges for name, n in count.items()}


def bridge_row(scatter: float, offset: float, cases: int, bridges: int, seed: int) -> list[str]:
    """A row of the table of bridges: opened / joined / undecided in percent for every move."""
    found = [bridge_verdicts(scatter, offset, cases, float(np.log1p(pct / 100)), bridges, seed) for pct in MOVES_PCT]
    cells = [" / ".join(f"{100 * share:.0f}" for share in one.values()) for one in found]
    return [f"{scatter:.0%}, {offset:.1%}", str(cases), *cells]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def nights_until(found: tuple[float, float | None]) -> str:
    """A cell: the median delay and the share found."""
    share, wait = found
    return f"{wait:.0f} ({share:.0%})" if wait is not None else f"not in the median ({share:.0%})"


def main() -> None:
    """Simulates, and writes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--years", type=int, default=20000, help="quiet years of every device")
    parser.add_argument("--page", type=Path, help="Markdown file for the tables; else they are printed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, watch, noises = time.perf_counter(), Watch(), shipped_noise()
    quiet = {noise.name: false_alarms(noise, args.years, watch, args.seed) for noise in noises}
    shapes = {f"step of {pct} %": np.full(180, np.log1p(pct / 100)) for pct in STEPS_PCT}
    shapes["creep of 0.1 % a night"] = np.log1p(0.001 * np.arange(1, 181))
    shapes["creep of 1 % a month"] = np.log1p(0.01 / 30 * np.arange(1, 181))
    some = max(args.years // 10, 100)
    late = {what: [nights_until(delays(noise, some, watch, change, args.seed + 1)) for noise in noises]
            for what, change in shapes.items()}  # fmt: skip
    names = [noise.name for noise in noises]
    text = "\n".join([
        table(["quiet years with a false alarm", *names],
              [[what, *(f"{quiet[name][what]:.2%}" for name in names)] for what in ("all cases", "one case")]
              + [[f"all cases, offsets of neighbours correlate by {r}",
                  *(f"{false_alarms(noise, some, watch, args.seed, r)['all cases']:.1%}" for noise in noises)]
                 for r in CORRELATIONS]),
        table(["median nights until found (share found in 180)", *names], [[what, *row] for what, row in late.items()]),
        f"sensors: {sensor_alarms(args.years, args.seed):.3%} of quiet years "
        f"(bound {false_alarms_per_regime(SensorWatch()):.3%})\n",
        "coverage, 20 judged rows a night: " + json.dumps(coverage_alarms(args.years, 20, args.seed)) + "\n",
        table(["bridge: scatter of a case, of a night", "cases a group", *(f"moved by {pct} %" for pct in MOVES_PCT)],
              [bridge_row(scatter, offset, cases, some, args.seed) for scatter, offset in SCATTERS for cases in (12, 24)]),
        f"{args.years} years a device, {time.perf_counter() - began:.0f} s\n",
    ])  # fmt: skip
    if args.page:
        args.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
