"""One real trace read by our meter and by zeus.

`energy_trace.json` is what NVML said of an H200 over 6.6 s of GELU on 1024 x 4096 fp16 values, as `record_trace` took it; the
board comes from lighter work. Of eight kernels recorded this one draws its power most evenly (0.03 % over windows of a
second), so what meters differ by on it is their own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.gpu.campaign import SETTLE_S, WINDOW_S
from kernelcast.collectors.meters.board import BoardMeter, EnergyRule, sensor_period_s
from kernelcast.collectors.meters.find import find_gpu_meter
from kernelcast.collectors.meters.protocol import EnergyRefusedError
from kernelcast.collectors.meters.trace import (
    Sample,
    TraceEndedError,
    TracePlayer,
    read_trace,
    record_trace,
    write_trace,
)
from kernelcast.collectors.meters.zeus import ZeusMissingError, zeus_meter

TRACE = Path(__file__).with_name("energy_trace.json")


@pytest.fixture
def zeus_plays(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes zeus read a trace: its own monitor and window code, with the player in place of the board and the clock."""
    pytest.importorskip("zeus", reason="zeus is not installed")
    import zeus.device.gpu
    import zeus.monitor.energy

    def play(player: TracePlayer) -> None:
        class Gpus:
            def __len__(self) -> int:
                return 1

            def supports_get_total_energy_consumption(self, index: int) -> bool:
                return True

            def get_total_energy_consumption(self, index: int) -> int:
                return player.sample.counter_mj

        monkeypatch.setattr(zeus.device.gpu, "_gpus", Gpus())
        monkeypatch.setattr(zeus.monitor.energy, "time", player.now_s)

    return play


def ours(samples: list[Sample], rule: EnergyRule | None = None, period_s: float | None = None) -> Any:
    player = TracePlayer(samples)
    return BoardMeter("trace", player, rule or EnergyRule(), player, period_s=period_s).measure(player)


def steps_s(samples: list[Sample]) -> float:
    player = TracePlayer(samples)
    period_s = sensor_period_s(player, player, loop=player)
    assert period_s is not None
    return period_s


def test_what_the_board_drew_is_what_the_trace_says() -> None:
    samples = read_trace(TRACE)
    last = samples[-1]
    settled = next(sample for sample in samples if sample.time_s > 1.0)
    drawn_j = (last.counter_mj - settled.counter_mj) * 1e-3
    measured = ours(samples)
    # Both ends of the plain difference may miss a step of 0.1 s, of 5.6 s.
    assert measured.power_w == pytest.approx(drawn_j / (last.time_s - settled.time_s), rel=0.02)
    assert measured.energy_j == pytest.approx(drawn_j / (last.calls - settled.calls), rel=0.02)
    assert measured.power_w == pytest.approx(measured.power_integrated_w, rel=0.005)
    assert measured.window_s / measured.calls == pytest.approx(5.61e-6, rel=0.005)


def test_the_counter_of_an_h200_steps_every_tenth_of_a_second() -> None:
    assert steps_s(read_trace(TRACE)) == pytest.approx(0.1, abs=0.006)


def test_the_shorter_windows_of_a_campaign_read_the_same_wherever_they_lie() -> None:
    samples = read_trace(TRACE)
    rule = EnergyRule(SETTLE_S, WINDOW_S)
    long = ours(samples, period_s=0.1)
    for skipped in range(0, 400, 40):
        short = ours(samples[skipped:], rule, period_s=0.1)
        assert short.energy_j == pytest.approx(long.energy_j, rel=2e-3)
        assert short.power_w == pytest.approx(long.power_w, rel=3e-3)
        assert 0.9 < short.window_s < 1.7 < long.window_s


def test_the_first_power_readings_of_a_loop_are_those_of_what_ran_before() -> None:
    samples = read_trace(TRACE)
    settled_w = ours(samples).power_w
    for sample in samples[:5]:
        assert sample.power_instant_w is not None
        assert sample.power_instant_w < 0.75 * settled_w
    half_a_second_on = next(sample for sample in samples if sample.time_s > SETTLE_S)
    assert half_a_second_on.power_instant_w == pytest.approx(settled_w, rel=0.02)


def test_zeus_and_we_read_the_same_energy_to_a_step_of_the_counter(zeus_plays: Any) -> None:
    samples = read_trace(TRACE)
    player = TracePlayer(samples)
    zeus_plays(player)
    by_zeus = zeus_meter(0, EnergyRule(), player).measure(player)
    by_us = ours(samples)
    assert by_zeus.window_s == pytest.approx(by_us.window_s, rel=0.05)
    off = by_zeus.energy_j / by_us.energy_j - 1
    assert abs(off) <= 1.1 * steps_s(samples) / by_zeus.window_s
    assert by_us.power_integrated_w == pytest.approx(by_us.power_w, rel=0.05)


def test_zeus_depends_on_where_its_window_falls_between_steps_and_we_do_not(zeus_plays: Any) -> None:
    samples = read_trace(TRACE)
    rule = EnergyRule(settle_s=1.5, window_s=0.5)
    by_zeus, by_us = [], []
    for skipped in range(0, 20, 2):
        player = TracePlayer(samples[skipped:])
        zeus_plays(player)
        by_zeus.append(zeus_meter(0, rule, player).measure(player).energy_j)
        by_us.append(ours(samples[skipped:], rule).energy_j)
    spreads = [max(each) / min(each) - 1 for each in (by_us, by_zeus)]
    assert spreads[0] < 0.03
    assert spreads[1] > 0.5 * steps_s(samples) / rule.window_s


def test_zeus_seeing_nothing_is_refused(zeus_plays: Any) -> None:
    still = [replace(sample, counter_mj=7) for sample in read_trace(TRACE)]
    player = TracePlayer(still)
    zeus_plays(player)
    with (
        pytest.warns(UserWarning, match="measured as zero"),
        pytest.raises(EnergyRefusedError, match="zeus saw no energy"),
    ):
        zeus_meter(0, EnergyRule(), player).measure(player)


def test_zeus_unable_to_read_is_refused(zeus_plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import zeus.device.gpu

    player = TracePlayer(read_trace(TRACE))
    zeus_plays(player)

    def lost(self: Any, index: int) -> int:
        raise zeus.device.gpu.ZeusGPULostError("GPU is lost")

    monkeypatch.setattr(type(zeus.device.gpu._gpus), "get_total_energy_consumption", lost)
    with pytest.raises(EnergyRefusedError, match="zeus cannot read the board: GPU is lost"):
        zeus_meter(0, EnergyRule(), player).measure(player)


def test_zeus_gives_a_spread_over_windows_and_can_be_found(zeus_plays: Any) -> None:
    player = TracePlayer(read_trace(TRACE))
    zeus_plays(player)
    meter, why = find_gpu_meter(rule=EnergyRule(window_s=1.0), clock=player, sensors={"zeus": zeus_meter})
    assert why == "energy of GPU 0 is read by zeus: it has an energy counter"
    measured = meter.measure(player, windows=3)
    assert measured is not None
    assert measured.windows == 3
    assert measured.spread is not None
    with pytest.raises(ZeusMissingError, match="zeus knows no GPU 4, there are 1"):
        zeus_meter(4)


def test_without_zeus_there_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device", None)
    with pytest.raises(ZeusMissingError, match=r"zeus is not installed .*; install it with pip install zeus"):
        zeus_meter()


def test_a_trace_recorded_written_and_read_is_the_same(tmp_path: Path) -> None:
    samples = read_trace(TRACE)[:50]
    player = TracePlayer(samples)
    recorded = record_trace(player, player, 0.3, player)
    assert recorded
    began_s = samples[0].time_s
    assert recorded[0] == replace(samples[1], time_s=pytest.approx(samples[1].time_s - began_s))
    write_trace(tmp_path / "trace.json", recorded, {"device": "nvidia-h200"})
    assert read_trace(tmp_path / "trace.json") == recorded


def test_a_trace_that_ends_too_soon_says_so() -> None:
    with pytest.raises(TraceEndedError, match="record a longer one"):
        ours(read_trace(TRACE)[:100])


def test_a_board_without_a_counter_gives_no_trace() -> None:
    class NoCounter(TracePlayer):
        def energy_j(self) -> float | None:
            return None

    player = NoCounter(read_trace(TRACE))
    with pytest.raises(ValueError, match="needs an energy counter"):
        record_trace(player, player, 1.0, player)
