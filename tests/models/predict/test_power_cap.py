"""Power limits and locked clocks: the law beside public rows, what it does to predictions, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kernelcast.features.device import catalogue, parse_device
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.predict.power_cap import in_steady_state, prediction_under
from kernelcast.models.predict.power_law import (
    Board,
    PowerSetting,
    kernel_response,
    program_response,
    read_setting,
    responses_together,
)
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor

H200, EPYC = "nvidia-h200-sxm-141gb", "amd-epyc-9654"
ROWS = Path(__file__).parents[4] / "shared" / "benchmarks" / "serving" / "power_caps.parquet"
BOARDS = {
    "nvidia-a40": "nvidia-a40", "nvidia-v100": "nvidia-v100-pcie-32gb", "nvidia-quadro-rtx-6000": "nvidia-quadro-rtx-6000",
}  # fmt: skip
GEMM = KernelSpec.of("gemm", "bf16", m=4096, n=4096, k=4096)
DECODE = KernelSpec.of("gemm", "bf16", m=8, n=8192, k=28672)


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return load_predictor(shipped_model_dir())


def board(name: str) -> Board:
    return Board.of(catalogue().get(name))


def test_a_limit_that_does_not_bind_changes_no_bit(predictor):
    specs = [GEMM, DECODE]
    usual = predictor.predict(specs, [H200] * 2)
    assert predictor.under(PowerSetting(power_limit_w=700.0)).predict(specs, [H200] * 2) == usual
    assert predictor.under(PowerSetting(clock_hz=1.98e9)).predict(specs, [H200] * 2) == usual
    assert predictor.under(None).predict(specs, [H200] * 2) == usual
    above_w = min(usual[0].power_w.upper + 1, 700.0)
    assert prediction_under(usual[0], predictor.devices.get(H200), PowerSetting(above_w)) == usual[0]


@pytest.mark.parametrize("spec", [GEMM, DECODE], ids=["compute", "memory"])
def test_a_lower_limit_takes_longer_and_draws_less(predictor, spec):
    limits = [700.0, 600.0, 500.0, 400.0, 300.0, 200.0]
    answers = [predictor.under(PowerSetting(limit)).predict([spec], [H200])[0] for limit in limits]
    seconds = [answer.latency_s.value for answer in answers]
    watts = [answer.power_w.value for answer in answers]
    assert seconds == sorted(seconds)
    assert watts == sorted(watts, reverse=True)
    for limit, answer in zip(limits, answers, strict=True):
        assert answer.power_w.upper <= limit + 1e-6
        assert answer.energy_j.value == pytest.approx(answer.latency_s.value * answer.power_w.value)
        for interval in (answer.latency_s, answer.power_w, answer.energy_j):
            assert interval.lower <= interval.value <= interval.upper
        assert answer.latency_s.lower >= answers[0].latency_s.lower
    wide, usual = answers[-1].latency_s, answers[0].latency_s
    assert wide.upper / wide.lower > usual.upper / usual.lower
    assert answers[-1].method.endswith("under 200 W")


def test_arithmetic_follows_the_clock_and_memory_hardly(predictor):
    half = PowerSetting(clock_hz=0.99e9)
    (usual, slow), (usual_memory, slow_memory) = (
        [maker.predict([spec], [H200])[0].latency_s.value for maker in (predictor, predictor.under(half))]
        for spec in (GEMM, DECODE)
    )
    assert 1.9 < slow / usual <= 2.0
    assert 1.2 < slow_memory / usual_memory < 1.6


def test_one_by_one_is_as_together(predictor):
    setting = PowerSetting(350.0, 1.5e9)
    together = predictor.under(setting).predict([GEMM, DECODE], [H200] * 2)
    device = predictor.devices.get(H200)
    assert together == [
        prediction_under(item, device, setting) for item in predictor.predict([GEMM, DECODE], [H200] * 2)
    ]


# Single-stream decoding, published: limit in W, J per token and time over those of the default limit.
DECODES = {
    "nvidia-rtx-pro-6000-blackwell-server": (600.0, 230.0, 0.72, 1.26), "rtx-5000-ada": (250.0, 140.0, 0.65, 1.07),
    "rtx-4000-ada": (130.0, 90.0, 0.77, 1.05),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODES)
def test_published_decode_steps_under_limits_are_met(name):
    own_w, limit_w, energy, time = DECODES[name]
    usual_w = limit_w * time / energy
    answer = kernel_response(usual_w, 0.7, 0.25 * own_w, limit_w, 1.0)
    assert answer.power_w == pytest.approx(limit_w, rel=1e-3)
    assert answer.time == pytest.approx(time, rel=0.1)
    assert answer.time * answer.power_w / usual_w == pytest.approx(energy, rel=0.1)


def test_decoding_on_an_h200_is_reached_by_no_limit_but_saves_at_a_lower_clock():
    static_w, usual_w, clocks = board(H200).static_w, np.full(50, 300.0), np.linspace(0.3, 1.0, 50)
    assert kernel_response(300.0, 0.7, static_w, 350.0, 1.0).time == 1.0
    answer = kernel_response(usual_w, 0.7, static_w, 700.0, clocks)
    # Published: up to 32 % (arXiv 2605.11999).
    assert (answer.time * answer.power_w / usual_w).min() == pytest.approx(0.68, rel=0.1)


@pytest.mark.skipif(not ROWS.exists(), reason=f"no public rows at {ROWS}")
def test_training_epochs_under_limits_are_met():
    rows = [row for row in pq.read_table(ROWS).to_pylist() if row["energy_j"] and row["time_s"]]

    def key(row):
        return row["source"], row["device"], row["workload"], row["workload_detail"], row["batch"]

    usual = {key(row): row for row in rows if row["is_default"]}
    errors, regrets = [], []
    for group, default in usual.items():
        limited = [row for row in rows if key(row) == group and not row["is_default"]]
        if not limited or not default["power_w"]:
            continue
        limits = np.array([row["power_limit_w"] for row in limited])
        answer = program_response(np.full(len(limits), default["power_w"]), board(BOARDS[group[1]]), limits)
        energy = answer.time * answer.power_w / default["power_w"]
        times, energies = (np.array([row[name] / default[name] for row in limited]) for name in ("time_s", "energy_j"))
        errors += zip(abs(answer.time / times - 1), abs(energy / energies - 1), strict=True)
        with_default = np.append(energies, 1.0)
        regrets.append(with_default[np.append(energy, 1.0).argmin()] / with_default.min() - 1)
    assert len(errors) > 700
    time_error, energy_error = np.mean(errors, axis=0)
    # No change at all is off by 13 and 18 %, and its regret is 29 %.
    assert time_error < 0.062
    assert energy_error < 0.068
    assert np.mean(regrets) < 0.045


@pytest.mark.parametrize(
    ("setting", "device", "field", "words"),
    [
        (PowerSetting(60.0), H200, "power_limit_w", "below what it draws with nothing to compute; give 123 to 700 W"),
        (PowerSetting(800.0), H200, "power_limit_w", "above its own limit; give 123 to 700 W"),
        (PowerSetting(clock_hz=2.5e9), H200, "clock_hz", "above its boost clock; give 3.96e+08 to 1.98e+09 Hz"),
        (PowerSetting(clock_hz=1200), H200, "clock_hz", "clock_hz is in hertz: 1200 MHz are 1.2e9"),
        (PowerSetting(100.0), EPYC, "power_limit_w", "is a CPU, whose power is not measured"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_with_what_is_possible(predictor, setting, device, field, words):
    with pytest.raises(SpecError) as raised:
        predictor.under(setting).predict([KernelSpec.of("gemm", "fp32", m=64, n=64, k=64)], [device])
    assert words in str(raised.value)
    assert raised.value.field == field


def test_a_gpu_without_a_public_limit_is_refused():
    text = """
name: lab-gpu
kind: gpu
facts:
  compute_units: {value: 10, source: lab}
  boost_clock_hz: {value: 1.0e+9, source: lab}
  memory_bandwidth_b_per_s: {value: 1.0e+11, source: lab}
  l2_b: {value: 1000000, source: lab}
peak_flops_per_s:
  vector: {fp32: {value: 1.0e+12, source: lab}}
"""
    with pytest.raises(SpecError, match=r"lab-gpu is not public.*device file with tdp_w"):
        Board.of(parse_device(text, origin="lab"))


@pytest.mark.parametrize("value", [0, -3.0, "much", True, float("nan")])
def test_a_setting_is_a_positive_number(value):
    with pytest.raises(SpecError, match="power_limit_w must be a positive number"):
        read_setting(value, None)
    with pytest.raises(SpecError, match="clock_hz must be a positive number"):
        read_setting(None, value)


def test_no_setting_is_none():
    assert read_setting(None, None) is None
    assert read_setting(300, None) == PowerSetting(300)


def test_where_power_is_unknown_a_limit_is_refused_and_a_clock_changes_time(predictor):
    usual = predictor.predict([GEMM], [H200])[0]
    blind = type(usual)(
        usual.latency_s, None, None, usual.coverage, usual.method, usual.in_domain, usual.notes, usual.bound,
        usual.breakdown, usual.regime,
    )  # fmt: skip
    device = predictor.devices.get(H200)
    with pytest.raises(SpecError, match="lock the clock with clock_hz"):
        prediction_under(blind, device, PowerSetting(400.0))
    slow = prediction_under(blind, device, PowerSetting(clock_hz=1e9))
    assert slow.power_w is slow.energy_j is None
    assert slow.latency_s.value > 1.9 * usual.latency_s.value


def test_stacked_memory_is_told_by_bandwidth_or_double_precision():
    shares = {
        name: board(name).static_w / board(name).limit_w for name in ("a40", "v100-pcie", "h20", "k80", "h100-sxm")
    }
    assert shares == pytest.approx({"a40": 0.25, "v100-pcie": 0.15, "h20": 0.15, "k80": 0.25, "h100-sxm": 0.15})


def test_kernels_of_a_program_share_one_clock_that_keeps_their_mean_power_at_the_limit():
    power_w, seconds = np.array([1300.0, 400.0]), np.array([0.9, 0.1])
    compute_bound, memory_bound = 10.0, 0.1
    response = responses_together(power_w, np.array([compute_bound, memory_bound]), seconds, 110.0, 700.0)
    assert len(set(response.clock.tolist())) == 1
    assert 0.7 < response.clock[0] < 0.95
    assert response.time[0] == pytest.approx(1 / response.clock[0], rel=0.01)
    assert response.time[1] < 1.01
    taken_s = seconds * response.time
    assert (response.power_w * taken_s).sum() / taken_s.sum() == pytest.approx(700.0, rel=0.02)
    # Light work beside it leaves the board below its limit: nothing slows down.
    light = responses_together(power_w, np.array([compute_bound, memory_bound]), np.array([0.1, 0.9]), 110.0, 700.0)
    assert light.clock.tolist() == [1.0, 1.0]


def test_a_board_that_runs_large_products_all_the_time_is_at_its_limit(predictor):
    large, usual = predictor.predict([GEMM, DECODE], [H200] * 2)
    device = catalogue().get(H200)
    slower, other = in_steady_state([GEMM, DECODE], [large, usual], [100, 1], device)
    assert 1.08 < slower.latency_s.value / large.latency_s.value < 1.3
    assert slower.latency_s.upper / slower.latency_s.value > large.latency_s.upper / large.latency_s.value
    assert slower.energy_j.value == pytest.approx(slower.latency_s.value * slower.power_w.value, rel=0.05)
    assert other.latency_s.value < 1.1 * usual.latency_s.value
    assert slower.power_w.value == pytest.approx(700.0, rel=0.05)
    # Decoding is far from the limit, and so are products in fp32 on vector units.
    assert in_steady_state([GEMM, DECODE], [large, usual], [1, 100], device)[1] == usual
    (alone,) = predictor.predict([KernelSpec.of("gemm", "fp32", m=4096, n=4096, k=4096)], [H200])
    assert in_steady_state([KernelSpec.of("gemm", "fp32", m=4096, n=4096, k=4096)], [alone], [1], device) == [alone]
    cpu = catalogue().get("amd-epyc-9654")
    assert in_steady_state([GEMM], [large], [1], cpu) == [large]


def test_short_products_that_run_for_seconds_draw_what_the_board_does(predictor):
    # Layers of Llama 3.1 8B at 64 sequences draw 560 W on an H200 (`datasets/data/programs/steps.parquet`).
    short = KernelSpec.of("gemm", "bf16", impl="vllm-0.22.0", m=64, n=28672, k=4096)
    (alone,), (among,) = (each.predict([short], [H200]) for each in (predictor, predictor.in_long_loops()))
    assert among.latency_s == alone.latency_s
    assert 1.1 < among.power_w.value / alone.power_w.value < 1.6
    assert among.power_w.upper / among.power_w.value > 1.05
    assert among.power_w.upper <= 700.0
    assert among.energy_j.value == pytest.approx(among.latency_s.value * among.power_w.value, rel=0.1)
    # A limit acts on what the board draws then.
    (limited,) = predictor.in_long_loops().under(PowerSetting(power_limit_w=400.0)).predict([short], [H200])
    assert limited.power_w.value <= 400.0
    assert limited.latency_s.value > among.latency_s.value


def test_products_without_an_engine_draw_what_a_board_does_in_loops(predictor):
    # Engines' benchmarks of 17, 32, 64, 128 and 512 rows were read in shorter windows than those of 33 and 65.
    rows = (31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513)
    for impl in ("", "torch"):
        specs = [KernelSpec.of("gemm", "bf16", impl=impl, m=m, n=4096, k=4096) for m in rows]
        watts = [each.power_w.value for each in predictor.predict(specs, [H200] * len(specs))]
        assert all(0.9 < after / before < 1.15 for before, after in pairwise(watts)), watts
        assert min(watts) > 450.0
    named = KernelSpec.of("gemm", "bf16", impl="vllm-0.22.0", m=64, n=4096, k=4096)
    free = KernelSpec.of("gemm", "bf16", m=64, n=4096, k=4096)
    measured, (loop,) = predictor.predict([named], [H200])[0], predictor.predict([free], [H200])
    assert measured.power_w.value < 0.5 * loop.power_w.value
    assert loop.power_w.lower < 0.75 * loop.power_w.value
    assert loop.energy_j.value == pytest.approx(loop.power_w.value * loop.latency_s.value, rel=0.1)
    assert predictor.in_long_loops().predict([free], [H200]) == [loop]


def test_what_was_measured_in_long_loops_and_what_has_no_power_stay(predictor):
    long, other = (
        KernelSpec.of("gemm", "bf16", m=8192, n=8192, k=8192),
        KernelSpec.of("softmax", "bf16", rows=64, cols=64),
    )
    loops = predictor.in_long_loops()
    assert loops.predict([long, other], [H200] * 2) == predictor.predict([long, other], [H200] * 2)
    small = KernelSpec.of("gemm", "fp32", m=64, n=64, k=64)
    assert loops.predict([small], [EPYC]) == predictor.predict([small], [EPYC])
    assert loops.in_long_loops() is loops
