"""Fitting profiles: numbers are recovered, outliers do not matter, groups are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.engine.profile import EngineProfile, StepColumns, shipped_profile
from kernelcast.workloads.serving.engine.profile_fit import fit_profile, half_width, left_out_errors

N = 40


def steps() -> StepColumns:
    rng = np.random.default_rng(3)
    prompt = np.arange(N) % 2 == 1
    tokens = np.where(prompt, 2000.0, 8.0)
    one = np.ones(N)
    main_s = rng.uniform(4e-3, 80e-3, N)
    return StepColumns(main_s, 1e-3 * one, 1e-3 * one, tokens, 8 * one, prompt, experts_s=rng.uniform(0, 0.5, N) * main_s,
                       dense=0 * one, moe=40 * one, linear=0 * one)  # fmt: skip


def engine() -> tuple[EngineProfile, EngineProfile]:
    start = shipped_profile("vllm")
    return start, replace(start, decode_s=2e-3, prompt_s=1e-3, moe_layer_host_s=1.5e-3)


def test_some_steps_recover_an_engine_in_spite_of_impossible_ones() -> None:
    start, true = engine()
    seconds = true.seconds(steps())
    seconds[[5, 7, 12]] = 1e-3
    fitted = fit_profile(start, steps(), seconds)
    assert fitted.decode_s == pytest.approx(2e-3, rel=0.2)
    assert fitted.moe_layer_host_s == pytest.approx(1.5e-3, rel=0.05)
    assert fitted.linear_layer_host_s == pytest.approx(start.linear_layer_host_s, rel=1e-3)
    errors = np.delete(np.log(fitted.seconds(steps()) / seconds), [5, 7, 12])
    assert np.abs(errors).max() < 0.05


def test_experts_of_many_tokens_have_a_factor_of_their_own() -> None:
    start, _ = engine()
    true = replace(start, expert_factor=1.6, moe_layer_host_s=1e-5)
    fitted = fit_profile(start, steps(), true.seconds(steps()))
    assert fitted.expert_factor == pytest.approx(1.6, rel=0.03)
    assert fitted.prompt_factor == pytest.approx(start.prompt_factor, rel=0.01)


def test_a_group_left_out_is_answered_by_the_others() -> None:
    start, true = engine()
    seconds = true.seconds(steps())
    groups = ["a" if row < N // 2 else "b" for row in range(N)]
    errors = left_out_errors(start, steps(), seconds, groups)
    seconds[: N // 2] *= 2
    assert left_out_errors(start, steps(), seconds, groups)[0] == pytest.approx(errors[0] - np.log(2))
    assert np.abs(errors).max() < 0.1


def test_too_few_steps_or_no_times_are_refused() -> None:
    start, true = engine()
    with pytest.raises(SpecError, match="at least 5"):
        fit_profile(start, steps().take(np.arange(4)), true.seconds(steps())[:4])
    with pytest.raises(SpecError, match="positive"):
        fit_profile(start, steps(), np.zeros(N))


def test_a_half_width_needs_enough_errors() -> None:
    assert half_width(np.arange(8.0)) is None
    assert half_width(-np.arange(19.0)) == 17.0
