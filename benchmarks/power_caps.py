"""The law of power limits: fitted to public training epochs under limits, judged with a device or a program left out.

.venv/bin/python benchmarks/power_caps.py power_caps.parquet

The rows are of Zeus (NSDI 2023, Apache-2.0): time, energy and mean power of training epochs by `power_limit_w` on A40, V100 and
Quadro RTX 6000. Of each program the law is given its mean power by default and nothing else.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.features.device import catalogue
from kernelcast.models.predict.power_law import LAW, Board, PowerLaw, log_error, program_response
from scipy.optimize import least_squares

DEVICES = {
    "nvidia-a40": "nvidia-a40", "nvidia-v100": "nvidia-v100-pcie-32gb", "nvidia-quadro-rtx-6000": "nvidia-quadro-rtx-6000",
}  # fmt: skip
FITTED = {
    "least_voltage": (0.4, 1.0),
    "voltage_slope": (0.3, 2.5),
    "busy_exponent": (0.05, 1.0),
    "on_clock": (0.3, 3.0),
}
"""Numbers of the law that are fitted, and their ranges; the others stay."""
TIGHT = 0.1
"""Errors in ln beyond it pull less than squared ones (`soft_l1`)."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Predict = Callable[["Group"], tuple[Floats, Floats]]
"""Time and energy over the default's, shape `(n,)` each."""


@dataclass(frozen=True)
class Group:
    """A program on a device: what it takes under limits, over the default's.

    Attributes:
        device: The device.
        program: What is trained.
        power_w: Mean power by default.
        limits: Limits in watts, shape `(n,)` like the rest.
        time: Time over that of the default.
        energy: Energy likewise.
    """

    device: str
    program: str
    power_w: float
    limits: Floats
    time: Floats
    energy: Floats


def read(path: Path) -> list[Group]:
    """The groups of a table that have a default."""
    by_group: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in pq.read_table(path).to_pylist():
        if row["time_s"] and row["energy_j"] and row["power_w"]:
            by_group[tuple(row[name] for name in ("source", "device", "workload", "workload_detail", "batch"))].append(
                row
            )
    groups = []
    for rows in by_group.values():
        usual, limited = [r for r in rows if r["is_default"]], [r for r in rows if not r["is_default"]]
        if usual and limited:
            columns = (
                [r["power_limit_w"] for r in limited],
                *([r[name] / usual[0][name] for r in limited] for name in ("time_s", "energy_j")),
            )
            first = usual[0]
            groups.append(Group(first["device"], first["workload"], first["power_w"], *map(np.array, columns)))
    return groups


def by_law(law: PowerLaw) -> Predict:
    """What a law says."""

    def predict(group: Group) -> tuple[Floats, Floats]:
        board = Board.of(catalogue().get(DEVICES[group.device]))
        answer = program_response(np.full(len(group.limits), group.power_w), board, group.limits, law=law)
        return answer.time, answer.time * answer.power_w / group.power_w

    return predict


def no_change(group: Group) -> tuple[Floats, Floats]:
    """As by default."""
    return np.ones(len(group.limits)), np.ones(len(group.limits))


def by_ratio(group: Group) -> tuple[Floats, Floats]:
    """As much longer as the limit is below the power: the same energy."""
    return np.maximum(group.power_w / group.limits, 1.0), np.ones(len(group.limits))


def fit(groups: Sequence[Group]) -> PowerLaw:
    """The law of groups, each device weighing the same."""
    count = {name: sum(len(g.limits) for g in groups if g.device == name) for name in DEVICES}

    def residuals(numbers: Floats) -> Floats:
        predict = by_law(replace(LAW, **dict(zip(FITTED, numbers.tolist(), strict=True))))
        parts = []
        for group in groups:
            weight = (len(count) * count[group.device]) ** -0.5
            pairs = zip(predict(group), (group.time, group.energy), strict=True)
            parts += [weight * np.log(ours / theirs) / TIGHT for ours, theirs in pairs]
        return np.concatenate(parts)

    scale = float(np.mean([(len(count) * n) ** -0.5 for n in count.values() if n]))
    start = [getattr(LAW, name) for name in FITTED]
    bounds = tuple(zip(*FITTED.values(), strict=True))
    best = least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=scale, diff_step=0.03, max_nfev=40)
    return replace(LAW, **dict(zip(FITTED, best.x.tolist(), strict=True)))


def scores(groups: Sequence[Group], predict: Predict) -> str:
    """Mean errors of time and energy, the share of both inside intervals of 90 %, and regrets of the setting chosen."""
    errors, inside, regrets, slower = [], [], [], []
    for group in groups:
        time, energy = predict(group)
        errors.append(np.abs([time / group.time - 1, energy / group.energy - 1]))
        half = 1.645 * log_error(time)
        inside.append(np.abs(np.log([time / group.time, energy / group.energy])) <= half)
        ours, theirs = (np.append(column, 1.0) for column in (energy, group.energy))
        regrets.append(theirs[ours.argmin()] / theirs.min() - 1)
        ours_s, theirs_s = (np.append(column, 1.0) for column in (time, group.time))
        chosen = np.where(ours_s <= 1.05, ours, np.inf).argmin()
        slower.append((max(theirs[chosen] / theirs[theirs_s <= 1.05].min() - 1, 0.0), theirs_s[chosen] > 1.08))
    (time_error, energy_error), covered = (
        np.concatenate(errors, axis=1).mean(axis=1),
        np.concatenate(inside, axis=1).mean(),
    )
    regret_5, broken = np.mean(slower, axis=0)
    return (
        f"time {time_error:6.1%}  energy {energy_error:6.1%}  inside {covered:4.0%}  regret {np.mean(regrets):5.1%}  "
        f"at most 5 % slower: regret {regret_5:5.1%}, over 8 % in {broken:4.0%}"
    )


def left_out(groups: Sequence[Group], field: str) -> Predict:
    """What laws say that were fitted without a group's device or program (`field`)."""
    names = sorted({getattr(group, field) for group in groups})
    laws = {name: fit([group for group in groups if getattr(group, field) != name]) for name in names}
    for name, law in laws.items():
        print(f"  without {name}: {', '.join(f'{name} {getattr(law, name):.2f}' for name in FITTED)}")
    return lambda group: by_law(laws[getattr(group, field)])(group)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    groups = read(parser.parse_args(argv).rows)
    print(f"{sum(len(group.limits) for group in groups)} rows of {len(groups)} programs on {len(DEVICES)} devices")
    for name, predict in (("no change", no_change), ("as the limit", by_ratio), ("shipped law", by_law(LAW))):
        print(f"{name:24}{scores(groups, predict)}")
    for field in ("device", "program"):
        print(f"{field + ' left out':24}{scores(groups, left_out(groups, field))}")
    for device in DEVICES:
        print(f"{device:24}{scores([group for group in groups if group.device == device], by_law(LAW))}")


if __name__ == "__main__":
    main()
