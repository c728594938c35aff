"""Predictions for boards under a power limit or a locked clock, by the law of `power_law.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.cost.bounds import Work, work
from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, get_family
from ..family_model.artifact import FamilyModel
from ..family_model.intervals import TargetColumns
from ..family_model.utilisation import LOG_POWER_ERROR, POWERED_KIND, SURE_POWER_S, UtilisationModel, power_limits_of
from .power_law import Board, PowerSetting, kernel_response, log_error, on_clock, responses_together
from .prediction import TARGETS, Interval, Prediction, Predictions


@dataclass(frozen=True, slots=True)
class SettingColumns:
    """Settings of cases on their boards, every column of shape `(n,)`.

    Attributes:
        static_w: S of the board.
        own_w: Its own power limit.
        limit_w: Power limit in force.
        clock: Clock allowed over the boost clock, at most 1.
        is_limited: Whether the limit is below the board's own.
        titles: The settings in words.
    """

    static_w: Floats
    own_w: Floats
    limit_w: Floats
    clock: Floats
    is_limited: Any
    titles: Sequence[str]

    @classmethod
    def of(cls, devices: Sequence[Device], settings: Sequence[PowerSetting]) -> SettingColumns:
        """The columns of settings on devices, one each.

        Raises:
            SpecError: a device cannot be set so, see `Board`.
        """
        known: dict[tuple[str, PowerSetting], tuple[float, ...]] = {}
        for device, setting in zip(devices, settings, strict=True):
            if (device.name, setting) not in known:
                board = Board.of(device)
                board.check(setting, device.name)
                in_force_w = setting.power_limit_w or board.limit_w
                share = (setting.clock_hz or board.boost_hz) / board.boost_hz
                is_lower = in_force_w < board.limit_w
                known[device.name, setting] = board.static_w, board.limit_w, in_force_w, share, is_lower
        rows = [known[device.name, setting] for device, setting in zip(devices, settings, strict=True)]
        static_w, own_w, limit_w, clock, is_limited = np.array(rows).reshape(-1, 5).T
        return cls(static_w, own_w, limit_w, clock, is_limited > 0, [setting.title for setting in settings])


def predictions_under(predictions: Predictions, columns: SettingColumns, sustained: float = 1.0) -> Predictions:
    """Predictions under settings. One that no limit or clock reaches within its interval stays as it is, to the last bit.

    Bounds and breakdown stay those of the boost clock.

    Args:
        predictions: those of boards as they come.
        columns: how each board is set.
        sustained: power that the boards draw where these kernels run, over that predicted; the answer is over it too.

    Raises:
        SpecError: a limit below the board's own for a case whose power is unknown.
    """
    latency, power, energy = (predictions.targets[name] for name in TARGETS)
    unknown = np.isnan(power.value)
    if (unknown & columns.is_limited).any():
        raise SpecError(
            "the power of this kernel on this device is unknown, so what power_limit_w does is unknown; leave it out, or "
            "lock the clock with clock_hz",
            field="power_limit_w",
        )
    c = on_clock(predictions.breakdown)
    with np.errstate(invalid="ignore"):
        low, value, high = (
            kernel_response(
                np.where(unknown, columns.static_w, watts), c, columns.static_w, columns.limit_w, columns.clock
            )
            for watts in (power.lower, power.value, power.upper)
        )
        is_changed = (high.clock < 1.0) & (columns.is_limited | (columns.clock < 1.0))
        spread = NormalDist().inv_cdf((1 + predictions.coverage) / 2) * log_error(high.time)
        seconds = latency.value * value.time
        down = np.hypot(np.hypot(np.log(latency.value / latency.lower), np.log(value.time / low.time)), spread)
        up = np.hypot(np.hypot(np.log(latency.upper / latency.value), np.log(high.time / value.time)), spread)
        new_latency = TargetColumns(
            seconds, np.minimum(np.maximum(seconds * np.exp(-down), latency.lower), seconds), seconds * np.exp(up)
        )
        most_w = np.maximum(np.minimum(columns.limit_w / sustained, power.upper), high.power_w)
        new_power = TargetColumns(
            value.power_w,
            np.minimum(
                np.maximum(low.power_w * np.exp(-spread), np.minimum(columns.static_w, low.power_w)), value.power_w
            ),
            np.maximum(np.minimum(high.power_w * np.exp(spread), most_w), value.power_w),
        )
        joules = seconds * value.power_w
        down = np.hypot(np.log(energy.value / energy.lower), spread)
        up = np.hypot(np.hypot(np.log(energy.upper / energy.value), np.log(high.time / value.time)), spread)
        new_energy = TargetColumns(joules, joules * np.exp(-down), joules * np.exp(up))
    pairs = zip(TARGETS, (latency, power, energy), (new_latency, new_power, new_energy), strict=True)
    targets = {
        name: TargetColumns(*(
            np.where(is_changed & ~(unknown & (name != "latency_s")), getattr(new, end), getattr(old, end))
            for end in ("value", "lower", "upper")
        ))
        for name, old, new in pairs
    }  # fmt: skip
    method = [
        f"{text} under {title}" if changed else text
        for text, title, changed in zip(predictions.method, columns.titles, is_changed.tolist(), strict=True)
    ]
    return replace(predictions, targets=targets, method=method)


def under_settings(
    cases: Cases, predictions: Predictions, devices: Catalogue, settings: Sequence[PowerSetting | None],
    sustained: float = 1.0,
) -> Predictions:  # fmt: skip
    """Predictions of cases, each under its setting; None is the board as it comes. `sustained` as of `predictions_under`.

    Raises:
        SpecError: a device cannot be set so, or a case's power is unknown.
    """
    rows = np.flatnonzero([setting is not None for setting in settings])
    if not len(rows):
        return predictions
    words, code = (labels := cases.categories.labels(lambda category: category.device)).words, labels.code
    of_word = [devices.get(name) for name in words]
    chosen = [settings[i] or PowerSetting() for i in rows.tolist()]
    part = predictions_under(
        predictions.take(rows), SettingColumns.of([of_word[code[i]] for i in rows.tolist()], chosen), sustained
    )
    if len(rows) == len(cases):
        return part
    rest = np.setdiff1d(np.arange(len(cases)), rows)
    order = np.argsort(np.concatenate([rows, rest]))
    return Predictions.joined([part, predictions.take(rest)]).take(order)


def rows_under(
    predictions: Sequence[Prediction], devices: Sequence[Device], settings: Sequence[PowerSetting | None]
) -> list[Prediction]:
    """Predictions of one coverage, each on its device under its setting as `predictions_under`; None is the board as it comes.

    Raises:
        SpecError: likewise.
    """
    chosen = [(i, setting) for i, setting in enumerate(settings) if setting is not None]
    answers = list(predictions)
    if chosen:
        columns = SettingColumns.of([devices[i] for i, _ in chosen], [setting for _, setting in chosen])
        part = predictions_under(Predictions.from_rows([predictions[i] for i, _ in chosen]), columns)
        for (i, _), row in zip(chosen, part.rows(), strict=True):
            answers[i] = row
    return answers


_IN_WINDOWS: Mapping[str, float] = {"gemm": 1.0, "attention": 0.0, "moe": 1.0}
"""Families of which nearly all measured power is that of engines' benchmarks, read in windows too short for short kernels: at
the same traffic an H200 is said to draw 163 W in products of 10 us and 618 W in those of 210, and windows of 17, 32, 64, 128,
256 and 512 rows were shorter than those of 33 and 65. With each the weight of ln of power by how busy a board is in the answer
of the shortest kernels that no engine runs. Of sixths of an H200's and an H100's 212 products that were left out it errs by
17.2 / 12.4 %, what is learned from them and the windows by 20.5 / 16.2."""

_SHARE_OF_BUSY = 0.5
"""The same weight of kernels among others that engines run, and of attention: either of the two errs by 0.24 (root mean square)
of 48 kernels measured in long loops, their mean by 0.17."""


def alone_in_loops(
    cases: Cases, predictions: Predictions, devices: Catalogue, model: FamilyModel, paper: Work
) -> Predictions:
    """Predictions of cases of one family whose power is that of loops of seconds, where no engine runs them.

    Power of kernels of `SURE_POWER_S` and longer stays that of their family's rows, as do families that are not of
    `_IN_WINDOWS` and devices whose own rows say their power; of shorter ones it is what says how busy a board is.
    """
    weight = _IN_WINDOWS.get(cases.family.name, 0.0)
    if model.steady is None or not weight:
        return predictions
    most = weight * _is_alone(cases, model)
    return _towards(cases, predictions, devices, model.steady, paper, most) if most.any() else predictions


def among_others(
    cases: Cases,
    predictions: Predictions,
    devices: Catalogue,
    model: FamilyModel | None,
    shared: UtilisationModel | None,
) -> Predictions:
    """Predictions of cases of one family that run among others for seconds, on boards as they come.

    Power of those that engines run, and of attention, is between that of the family's rows and what says how busy a board is,
    by its rows or `shared` by all; else as in `alone_in_loops`.
    """
    steady = None if model is None else model.steady
    weight, busy = _IN_WINDOWS.get(cases.family.name), steady or shared
    if weight is None or busy is None:
        return predictions
    is_done = _is_alone(cases, model) if model is not None and steady is not None and weight else False
    return _towards(cases, predictions, devices, busy, work(cases, devices), np.where(is_done, 0.0, _SHARE_OF_BUSY))


def _is_alone(cases: Cases, model: FamilyModel) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Cases that no engine runs, on devices whose own rows do not say their power, shape `(n,)`."""
    labels = cases.categories.labels(
        lambda category: "" if category.impl.split("-")[0] not in _BURSTS
        or "power" in model.adaptations.get(category.device, {}) else "alone"
    )  # fmt: skip
    return np.array([word == "alone" for word in labels.words])[labels.code]


def _towards(
    cases: Cases, predictions: Predictions, devices: Catalogue, busy: UtilisationModel, paper: Work, most: Any
) -> Predictions:
    """Predictions with power towards what says how busy a board is, that of the shortest kernels by a share of `most`."""
    labels = cases.categories.labels(lambda category: category.device)
    on = [devices.get(name) for name in labels.words]
    limits = [power_limits_of(device) if device.kind == POWERED_KIND else (np.nan, np.nan) for device in on]
    limit_w, idle_w = np.array(limits, dtype=np.float64).reshape(-1, 2)[labels.code].T
    latency, power, energy = (predictions.targets[name] for name in TARGETS)
    weight = most * (1 - np.minimum(latency.value / SURE_POWER_S, 1.0))
    is_changed = (weight > 0) & ~np.isnan(limit_w) & ~np.isnan(power.value)
    if not is_changed.any():
        return predictions
    share = np.exp(busy.log_share(latency.value, paper.bounds_s["compute"], paper.dram_all_s))
    factor = (limit_w * share / power.value) ** weight
    spread = (
        weight * LOG_POWER_ERROR * NormalDist().inv_cdf((1 + predictions.coverage) / 2) / NormalDist().inv_cdf(0.95)
    )
    drawn_w = TargetColumns(*(np.clip(end, idle_w, limit_w) for end in _scaled_ends(power, factor, spread)))
    value_j, low_j, high_j = _scaled_ends(energy, factor, spread)
    # Energy has no ends that power and time have not.
    low_j = np.minimum(np.maximum(low_j, latency.lower * drawn_w.lower), value_j)
    high_j = np.maximum(np.minimum(high_j, latency.upper * drawn_w.upper), value_j)
    changes = ((power, drawn_w), (energy, TargetColumns(value_j, low_j, high_j)))
    power, energy = (
        TargetColumns(
            *(np.where(is_changed, getattr(new, end), getattr(old, end)) for end in ("value", "lower", "upper"))
        )
        for old, new in changes
    )
    return replace(predictions, targets=dict(zip(TARGETS, (latency, power, energy), strict=True)))


def _scaled_ends(interval: TargetColumns | Interval, factor: Any, spread: Any) -> tuple[Any, Any, Any]:
    """Value, lower and upper end of `interval` times `factor`; `spread` is the half-width of the factor's interval in ln."""
    down = np.hypot(np.log(interval.value / interval.lower), spread)
    up = np.hypot(np.log(interval.upper / interval.value), spread)
    value = interval.value * factor
    return value, value * np.exp(-down), value * np.exp(up)


_BURSTS = ("", "torch", "triton", "cutlass", "cupy")
"""Libraries, or beginnings of their names, whose kernels are timed for milliseconds; an empty name is PyTorch's. Those of
engines are timed in long loops, at the limit where that binds, however short the windows in which their power is read."""

_SHORT_FORMATS = frozenset({"bf16", "fp16", "tf32", "fp8", "int8", "mxfp4", "nvfp4", "int4"})
_DEMAND_OF_PEAK = 2.5
"""Power that follows the clock of a board whose matrix units run at their peak, over what its limit leaves for it. Kernels are
timed in milliseconds, before a board lowers its clock: docs/decisions/017-power-caps.md."""


def in_steady_state(
    specs: Sequence[KernelSpec], predictions: Sequence[Prediction], calls: Sequence[float], device: Device
) -> list[Prediction]:
    """Predictions of kernels that run over and over as parts of one program, `calls` times each a run.

    A board that would draw more than its limit over the whole program lowers its clock, for all kernels alike. Kernels stay
    as they are where it would not, and those whose power or bounds are unknown.
    """
    limit_w = device.fact("tdp_w")
    busy = [
        (i, each, each.power_w) for i, each in enumerate(predictions)
        if each.power_w is not None and "compute" in each.breakdown
    ]  # fmt: skip
    if device.kind != POWERED_KIND or limit_w is None or not busy:
        return list(predictions)
    static_w = Board.of(device).static_w
    seconds = np.array([calls[i] * each.latency_s.value for i, each, _ in busy])
    of_peak = np.array([_share_of_matrix_peak(specs[i], each) for i, each, _ in busy])
    power_w = np.array([power.value for _, _, power in busy])
    demand_w = np.maximum(power_w, static_w + _DEMAND_OF_PEAK * of_peak * (limit_w - static_w))
    c = np.array([on_clock(each.breakdown) for _, each, _ in busy])
    response = responses_together(demand_w, c, seconds, static_w, limit_w)
    answers = list(predictions)
    if response.clock.min() < 1.0:
        for (i, each, power), time, watts in zip(busy, response.time.tolist(), response.power_w.tolist(), strict=True):
            spread = NormalDist().inv_cdf((1 + each.coverage) / 2) * float(log_error(time))
            more = watts / power.value
            answers[i] = replace(
                each, latency_s=_scaled(each.latency_s, time, spread), power_w=_scaled(power, more, 0.0),
                energy_j=None if each.energy_j is None else _scaled(each.energy_j, time * more, spread),
            )  # fmt: skip
    return answers


def _share_of_matrix_peak(spec: KernelSpec, prediction: Prediction) -> float:
    """Arithmetic of matrix units in short formats over their peak; 0 of what other units compute and engines run."""
    is_burst = spec.impl.split("-")[0] in _BURSTS
    if not is_burst or get_family(spec.family).unit != "matrix" or spec.dtype not in _SHORT_FORMATS:
        return 0.0
    return prediction.breakdown["compute"] / prediction.latency_s.value


def _scaled(interval: Interval, factor: float, spread: float) -> Interval:
    """`interval` times `factor`, see `_scaled_ends`."""
    return Interval(*(float(end) for end in _scaled_ends(interval, factor, spread)))


def prediction_under(prediction: Prediction, device: Device, setting: PowerSetting | None) -> Prediction:
    """One prediction under a setting, see `rows_under`."""
    return rows_under([prediction], [device], [setting])[0]
