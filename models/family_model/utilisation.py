"""Power from how busy a device is, for families whose own power was never measured, and for short kernels in long loops.

The share of the power limit is a floor plus what arithmetic and memory traffic add, each with an exponent on the share of its
peak that a kernel reaches; kernels shorter than sensor and clocks can follow add less. It is a utilisation model (Hong and Kim,
"An integrated GPU power and performance model", ISCA 2010), its weights are fitted to kernels measured in loops of seconds, or
else to the families that have power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Catalogue, Device
from .artifact_files import finite
from .intervals import Scores

SURE_POWER_S = 333e-6
"""From this kernel time on, power read every 100 ms is trustworthy; of shorter kernels it does not reproduce between
frameworks (public H200 and B200 tables: 40–53 % apart below 30 µs)."""

LOG_POWER_ERROR = 0.45
"""Half-width of ln of power's interval of 90 % where it is answered so: a family's power by the others' errs by 0.3 to 0.6."""

POWERED_KIND = "gpu"
"""The kind of devices it holds for: no public table has the power of kernels on CPUs."""

_LEAST_SHARE = 0.02
_LEAST_UTILISATION = 1e-9
_LEAST_SURE = 0.1
"""Weight of the shortest kernels, whose power the sensor hardly catches."""

_ROWS_OF_GROUP = 2_000
"""Most rows of a family on a device; each of these groups counts alike however many rows it has."""

_LEAST_OWN, _OWN_WEIGHT = 20, 8
"""Rows from which on a family has a model of its own, and how many times the others' it weighs. Of sixths of 854 rows that were
left out it errs by 16.8 / 10.1 % (mean / median); without the others' rows by 17.2 / 10.1, linear attention by 54 in place of
12; one model of all families by 22.6 / 15.5."""

_START = (0.2, 0.6, 0.5, 0.7, 0.7, np.log(1e-4))
_LOWEST, _HIGHEST = (0.03, 0.0, 0.0, 0.2, 0.2, -14.0), (0.5, 3.0, 3.0, 1.5, 1.5, -4.0)
"""Start and range of the six weights, in the order of the attributes."""

_HUBER_WIDTH = 0.1
"""Errors above about 10 % count linearly."""


@dataclass(frozen=True, slots=True)
class PowerRows:
    """Kernels of one family on one device with measured power; every column has shape `(n,)`.

    Attributes:
        latency_s: Measured seconds.
        compute_s: Least seconds of their arithmetic.
        memory_s: Least seconds to move all their bytes through memory.
        share: Measured share of the power limit.
        is_steady: Whether power is that of loops of seconds, as this project's collectors measure it, which is right of short
            kernels too.
    """

    latency_s: Floats
    compute_s: Floats
    memory_s: Floats
    share: Floats
    is_steady: bool = False


@dataclass(frozen=True, slots=True)
class UtilisationModel:
    """Weights of the share of the power limit.

    Attributes:
        floor: Share of a board that only launches.
        compute: What arithmetic at its peak adds.
        memory: What memory traffic at its peak adds.
        compute_exponent: The power of the share of the compute peak.
        memory_exponent: The power of the share of the memory peak.
        log_ramp_s: ln of the kernel time in seconds that adds half.
    """

    floor: float
    compute: float
    memory: float
    compute_exponent: float
    memory_exponent: float
    log_ramp_s: float

    def log_share(self, latency_s: Any, compute_s: Any, memory_s: Any) -> Any:
        """Ln of the share of the power limit, shape `(n,)` like the seconds given."""
        return _log_share(astuple(self), latency_s, compute_s, memory_s)

    @classmethod
    def fit(cls, groups: Mapping[tuple[str, str], PowerRows], seed: int = 0) -> tuple[UtilisationModel, Scores] | None:
        """The model of rows by family and device, and scores of ln(measured / answered); None where one family cannot be
        judged by another.

        The scores are of every group by the fit to the groups of other families, on other devices where there are any. They
        are for measured seconds: with predicted ones the share errs more, by at most about the root of their ratio.
        """
        rng = np.random.default_rng(seed)
        drawn = {name: _drawn(rows, rng) for name, rows in groups.items()}
        errors = []
        for (family, device), rows in drawn.items():
            others = [other for (its_family, _), other in drawn.items() if its_family != family]
            elsewhere = [other for at, other in drawn.items() if at[0] != family and at[1] != device]
            if others:
                weights = _fit(elsewhere or others)
                errors.append(np.log(rows.share) - _log_share(weights, rows.latency_s, rows.compute_s, rows.memory_s))
        if not errors:
            return None
        return cls(*_fit(list(drawn.values())).tolist()), Scores.of(np.concatenate(errors), 0.0)

    @classmethod
    def of_family(cls, groups: Mapping[tuple[str, str], PowerRows], family: str) -> UtilisationModel | None:
        """The model of one family's rows, beside which those of all others weigh an eighth; None where it has too few."""
        mine, others = (
            _joined([rows for (name, _), rows in groups.items() if (name == family) is is_own])
            for is_own in (True, False)
        )
        if mine is None or len(mine.share) < _LEAST_OWN:
            return None
        return cls(*_fit([mine] * _OWN_WEIGHT + ([] if others is None else [others])).tolist())

    def to_json(self) -> dict[str, float]:
        """Plain data for the manifest."""
        return {name: round(weight, 5) for name, weight in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UtilisationModel:
        """The model `to_json` described."""
        names = [each.name for each in fields(cls)]
        return cls(*(finite(data[name], *ends) for name, *ends in zip(names, _LOWEST, _HIGHEST, strict=True)))


def _joined(groups: Sequence[PowerRows]) -> PowerRows | None:
    """All rows as one group; None where there is none."""
    if not groups:
        return None
    names = ("latency_s", "compute_s", "memory_s", "share")
    latency_s, compute_s, memory_s, share = (np.concatenate([getattr(rows, name) for rows in groups]) for name in names)
    return PowerRows(latency_s, compute_s, memory_s, share, all(rows.is_steady for rows in groups))


def _drawn(rows: PowerRows, rng: np.random.Generator) -> PowerRows:
    index = rng.permutation(len(rows.share))[:_ROWS_OF_GROUP]
    latency_s, compute_s, memory_s, share = (
        column[index] for column in (rows.latency_s, rows.compute_s, rows.memory_s, rows.share)
    )
    return PowerRows(latency_s, compute_s, memory_s, share, rows.is_steady)


def _log_share(weights: Any, latency_s: Any, compute_s: Any, memory_s: Any) -> Any:
    floor, compute, memory, compute_exponent, memory_exponent, log_ramp_s = weights

    def used(peak_s: Any, exponent: Any) -> Any:
        share = np.minimum(np.maximum(peak_s / latency_s, _LEAST_UTILISATION), 1.0)
        return np.exp(exponent * np.log(share))

    added = compute * used(compute_s, compute_exponent) + memory * used(memory_s, memory_exponent)
    share = floor + added * latency_s / (latency_s + np.exp(log_ramp_s))
    return np.log(np.minimum(np.maximum(share, _LEAST_SHARE), 1.0))


def _fit(groups: Sequence[PowerRows]) -> Floats:
    """The six weights that minimise a soft L1 loss of the groups' logarithms."""
    from scipy.optimize import least_squares

    least = [1.0 if rows.is_steady else _LEAST_SURE for rows in groups]
    sure = [
        np.sqrt(np.clip(rows.latency_s / SURE_POWER_S, low, 1.0) / len(rows.share))
        for rows, low in zip(groups, least, strict=True)
    ]
    scale = np.sqrt(sum(len(rows.share) for rows in groups) / len(groups))

    def residuals(weights: Floats) -> Floats:
        return np.concatenate([
            scale * weight * (_log_share(weights, rows.latency_s, rows.compute_s, rows.memory_s) - np.log(rows.share))
            for rows, weight in zip(groups, sure, strict=True)
        ])  # fmt: skip

    best: Floats = least_squares(residuals, _START, bounds=(_LOWEST, _HIGHEST), loss="soft_l1", f_scale=_HUBER_WIDTH).x
    return best


_IDLE_SHARE = 0.05
"""Least power as a share of the limit where a device's idle power is not known: idle data-centre GPUs draw 6–17 % of
their limit (H100 about 70 of 700 W, A100 about 50 of 400 W in public measurements), so this is below any of them."""


def power_limits_w(cases: Cases, devices: Catalogue) -> tuple[Floats, Floats]:
    """Power limit and least power in watts of each case's device, shape `(n,)`, NaN where no limit is public."""
    words = cases.coded("device")
    limit, idle = np.array([power_limits_of(devices.get(name)) for name in words.words]).reshape(-1, 2)[words.code].T
    return limit, idle


def power_limits_of(device: Device) -> tuple[float, float]:
    """Power limit and least power of a device in watts, NaN where no limit is public."""
    tdp = device.fact("tdp_w")
    return (math.nan, math.nan) if tdp is None else (tdp, device.fact("idle_power_w") or _IDLE_SHARE * tdp)
