"""How often the drift rule of devices is wrong on quiet years, and how soon it finds planted drifts.

Run `.venv/bin/python -P benchmarks/drift.py --years 20000 --page OUT.md`. Noise comes from the sentinel readings in the
provenance of the shipped tables: every night draws a block of readings of an AMD EPYC virtual machine or of an NVIDIA H200,
adds an offset that all cases share, drawn from the slow part of the same readings, and disturbs some nights and readings
heavily. The rule runs as it does at night, on many histories at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.features.batch.cases import Floats
from kernelcast.nightly.checks.device_drift import DriftRule, cusum

NIGHTS, CASES, CHUNK = 365, 14, 500
CORRELATIONS = (0.3, 0.5, 0.8)
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
    results = []
    for device, by_time in sorted(blocks.items()):
        logs = np.log(np.array([by_time[when] for when in sorted(by_time)]))
        logs -= np.median(logs, axis=0)
        padded = np.pad(logs, ((_SLOW_BLOCKS, _SLOW_BLOCKS), (0, 0)), mode="edge")
        smooth = np.array([np.median(padded[i : i + 2 * _SLOW_BLOCKS + 1], axis=0) for i in range(len(logs))])
        # Shared is what the quieter of the two sentinels does slowly: the other's slow part is its own scatter.
        quieter = int(np.argmin(np.abs(smooth).mean(axis=0)))
        results.append(Noise(device, logs, smooth[:, quieter]))
    return results


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
    result: Floats = logs
    return result


def parts(total: int) -> Iterator[int]:
    """`total` in chunks that fit into memory."""
    while total > 0:
        yield min(total, CHUNK)
        total -= CHUNK


def false_alarms(noise: Noise, years: int, rule: DriftRule, seed: int, together: float = 0.0) -> float:
    """Share of quiet years with at least one alarm."""
    rng, count = np.random.default_rng(seed), 0
    for some in parts(years):
        sums = cusum(quiet_years(noise, some, rng, together=together), rule)
        count += int((np.fmax(sums.slower, sums.faster) > rule.limit).any(axis=1).sum())
    return count / years


def delays(noise: Noise, years: int, rule: DriftRule, change: Floats, seed: int) -> tuple[float, float | None]:
    """Share of planted drifts found within the nights after, and the median nights until then.

    `change` of shape `(nights after,)` is what is added to ln latency of every case. The alarms of before do not count.
    """
    rng, waits = np.random.default_rng(seed), []
    for some in parts(years):
        logs = quiet_years(noise, some, rng, QUIET_BEFORE + len(change))
        logs[:, QUIET_BEFORE:] += change[:, None]
        beyond = cusum(logs, rule).slower[:, QUIET_BEFORE:] > rule.limit
        waits.append(np.where(beyond.any(axis=1), beyond.argmax(axis=1) + 1.0, np.inf))
    all_waits = np.concatenate(waits)
    middle = float(np.median(all_waits))
    return float(np.isfinite(all_waits).mean()), middle if np.isfinite(middle) else None


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
    began, rule, noises = time.perf_counter(), DriftRule(), shipped_noise()
    shapes = {f"step of {pct} %": np.full(180, np.log1p(pct / 100)) for pct in STEPS_PCT}
    shapes["creep of 0.1 % a night"] = np.log1p(0.001 * np.arange(1, 181))
    shapes["creep of 1 % a month"] = np.log1p(0.01 / 30 * np.arange(1, 181))
    some = max(args.years // 10, 100)
    late = {what: [nights_until(delays(noise, some, rule, change, args.seed + 1)) for noise in noises]
            for what, change in shapes.items()}  # fmt: skip
    names = [noise.name for noise in noises]
    text = "\n".join([
        table(["quiet years with a false alarm", *names],
              [["independent nights", *(f"{false_alarms(noise, args.years, rule, args.seed):.2%}" for noise in noises)]]
              + [[f"offsets of neighbours correlate by {r}",
                  *(f"{false_alarms(noise, some, rule, args.seed, r):.1%}" for noise in noises)]
                 for r in CORRELATIONS]),
        table(["median nights until found (share found in 180)", *names], [[what, *row] for what, row in late.items()]),
        f"{args.years} years a device, {time.perf_counter() - began:.0f} s\n",
    ])  # fmt: skip
    if args.page:
        args.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
