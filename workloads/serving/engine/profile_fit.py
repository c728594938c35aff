"""Fitting an engine profile to measured steps: robust least squares of ln errors, drawn towards the profile it starts from.

A handful of numbers is fitted, each with a prior: the start's value, and how far from it an engine may be. Some 20 steps move
them as far as they agree; one number that no step tells of stays. Steps that no formula meets (another step's label, a pause)
pull with the logarithm of their distance only (Cauchy's loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from ....features.batch.cases import Floats
from ....features.errors import SpecError
from .profile import EngineProfile, StepColumns

ERROR = 0.05
"""ln error of a usual step: beyond it a step pulls less."""
_TIMES_S = {"decode_s": 0.5e-3, "prompt_s": 0.5e-3}
"""Times added to every step, and the standard deviation of their priors: half a millisecond is the order of a host's step."""
_LOGS = {
    "decode_factor": 0.02, "prompt_factor": 0.02, "expert_factor": 0.2, "layer_host_s": 0.5, "moe_layer_host_s": 0.5,
    "linear_layer_host_s": 0.5,
}  # fmt: skip
"""Positive numbers, and the standard deviation of the prior of their logarithm: kernels together are known within some 2 %,
experts of many tokens within 20 %, hosts within a factor of 1.6. Judgements."""
MIN_STEPS = 5
"""Fewest steps a profile is fitted to."""
_COVERED = 0.9


def fit_profile(start: EngineProfile, steps: StepColumns, seconds: Floats) -> EngineProfile:
    """The profile that meets measured steps best, near `start`; spreads and source are those of `start`.

    Args:
        start: where the numbers come from, as far as the steps do not tell.
        steps: the steps.
        seconds: measured times, shape `(n,)`.

    Raises:
        SpecError: there are fewer than `MIN_STEPS` steps, or a time is not positive.
    """
    if len(seconds) < MIN_STEPS:
        raise SpecError(f"{len(seconds)} steps are given; at least {MIN_STEPS} are needed", field="steps")
    if not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise SpecError("a step's time must be a positive number of seconds", field="steps")
    scales = np.array([*_TIMES_S.values(), *_LOGS.values()])
    origin = np.array([getattr(start, name) for name in _TIMES_S] + [np.log(getattr(start, name)) for name in _LOGS])

    def residuals(moves: Floats) -> Floats:
        z = np.log(_moved(start, origin + moves * scales).seconds(steps) / seconds) / ERROR
        return np.concatenate([np.sign(z) * np.sqrt(np.log1p(z * z)), moves])

    # Times are not negative.
    lower = np.concatenate([-origin[: len(_TIMES_S)] / scales[: len(_TIMES_S)] - 1e-9, np.full(len(_LOGS), -10.0)])
    moves = least_squares(residuals, np.zeros(len(origin)), bounds=(lower, 20.0), diff_step=1e-3).x
    return _moved(start, origin + moves * scales)


def _moved(start: EngineProfile, values: Floats) -> EngineProfile:
    count = len(_TIMES_S)
    numbers: dict[str, Any] = dict(zip(_TIMES_S, np.maximum(values[:count], 0.0).tolist(), strict=True))
    return replace(start, **numbers, **dict(zip(_LOGS, np.exp(values[count:]).tolist(), strict=True)))


def left_out_errors(start: EngineProfile, steps: StepColumns, seconds: Floats, groups: Sequence[object]) -> Floats:
    """Errors in ln of each step, predicted by a profile fitted without its group, shape `(n,)`.

    Args:
        start: where every fit starts from.
        steps: the steps.
        seconds: measured times, shape `(n,)`.
        groups: the group of each, such as its model and plan.
    """
    numbers: dict[object, int] = {}
    which = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    errors = np.full(len(seconds), np.nan)
    for number in range(len(numbers)):
        out = which == number
        profile = fit_profile(start, steps.take(~out), seconds[~out]) if (~out).sum() >= MIN_STEPS else start
        errors[out] = np.log(profile.seconds(steps.take(out)) / seconds[out])
    return errors


def half_width(errors: Floats) -> float | None:
    """The log half-width that holds 90 % of further errors (conformal: the rank of n + 1), None where too few tell."""
    rank = int(np.ceil(_COVERED * (len(errors) + 1)))
    return None if rank > len(errors) else float(np.sort(np.abs(errors))[rank - 1])
