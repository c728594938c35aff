"""Chunks measured in this process with a fake library."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from kernelcast.collectors.cpu import bench as interleave
from kernelcast.collectors.cpu.bench import Bench, measure_chunk
from kernelcast.collectors.cpu.timing import StoppingRule
from kernelcast.collectors.meters.protocol import Energy, EnergyRefusedError
from kernelcast.collectors.runner import Prepared, Runner, UnsupportedCaseError
from kernelcast.features.kernel import KernelSpec

QUICK = StoppingRule(samples_per_block=2, fewest_per_block=1, warm_up_s=0.0, rewarm_s=0.0, sample_s=0.0, extra_blocks=0)


def case(rows: int, cache_state: str = "hot") -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="fake", threads=1, rows=rows, cols=1, cache_state=cache_state)


class Played:
    """A meter that gives one measurement, or refuses."""

    name = "rapl"

    def __init__(self, reading: Energy | EnergyRefusedError) -> None:
        self.reading = reading

    def measure(self, loop: Any, *, windows: int = 1) -> Energy:
        loop.turn()
        if isinstance(self.reading, EnergyRefusedError):
            raise self.reading
        return self.reading


class Log:
    """Records what a chunk does, in order."""

    def __init__(self, prepare_error: Callable[[KernelSpec], Exception | None] = lambda spec: None) -> None:
        self.events: list[str] = []
        self.error = prepare_error

    def prepare(self, spec: KernelSpec) -> Prepared:
        if (error := self.error(spec)) is not None:
            raise error
        self.events.append(f"prepare {spec['rows']}")
        return Prepared(lambda: self._call(spec["rows"]), 0.5)

    def _call(self, rows: int) -> None:
        if self.events[-1] != f"run {rows}":
            self.events.append(f"run {rows}")

    def bench(self, **changes: Any) -> Bench:
        runner = Runner("fake", self.prepare, lambda threads: None, dict)
        flush = lambda: self.events.append("flush")  # noqa: E731
        return Bench(runner, "test", flush, hot=QUICK, cold=QUICK, **changes)


def test_blocks_are_interleaved_on_fresh_operands() -> None:
    log = Log()
    rows = measure_chunk([case(1), case(2)], log.bench())
    assert [row.status for row in rows] == ["ok", "ok"]
    assert [event for event in log.events if event.startswith("run")] == ["run 1", "run 2"] * 3
    assert sum(event.startswith("prepare") for event in log.events) == 6
    assert rows[0].first_call_s is not None
    assert rows[0].first_call_s >= 0.5  # setting up is part of the first call


def test_slow_preparation_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "KEEP_OVER_S", -1.0)
    log = Log()
    measure_chunk([case(1), case(2)], log.bench())
    assert sum(event.startswith("prepare") for event in log.events) == 2


def test_a_hot_and_a_cold_case_share_operands_and_only_the_cold_one_flushes() -> None:
    log = Log()
    rows = measure_chunk([case(1, "cold"), case(1)], log.bench())
    assert [row.spec.cache_state for row in rows] == ["cold", "hot"]
    assert sum(event.startswith("prepare") for event in log.events) == 3
    assert log.events.count("flush") >= 6
    assert log.events.index("flush") > log.events.index("run 1")


def test_errors_become_rows_of_every_case_they_concern() -> None:
    log = Log(lambda spec: UnsupportedCaseError("no") if spec["rows"] == 2 else None)
    rows = measure_chunk([case(1), case(2), case(2, "cold"), case(3)], log.bench())
    assert [row.status for row in rows] == ["ok", "unsupported", "unsupported", "ok"]
    assert rows[2].spec == case(2, "cold")


def test_the_supervisor_hears_of_every_step() -> None:
    heard: list[KernelSpec] = []
    measure_chunk([case(1), case(2)], Log().bench(), heard.append)
    assert heard[0] in (case(1), case(2))
    assert set(heard) == {case(1), case(2)}
    assert len(heard) >= 12


def test_energy_is_the_meters_and_none_without_a_sensor() -> None:
    measured = Energy(energy_j=6.0, power_w=30.0, window_s=0.3, calls=2)
    with_sensor = measure_chunk([case(1)], Log().bench(meter=Played(measured)))[0]
    assert (with_sensor.energy_j, with_sensor.power_w, with_sensor.energy_source) == (6.0, 30.0, "rapl")
    without = measure_chunk([case(1)], Log().bench())[0]
    assert (without.energy_j, without.power_w, without.energy_source) == (None, None, None)


def test_a_refused_reading_costs_the_energy_and_never_the_latency() -> None:
    log = Log()
    row = measure_chunk([case(1)], log.bench(meter=Played(EnergyRefusedError("it stood still"))))[0]
    assert (row.status, row.energy_j, row.power_w, row.energy_source) == ("ok", None, None, None)
    assert row.latency_s is not None
    assert row.message == "no energy: it stood still"


def test_a_cold_case_has_no_energy() -> None:
    measured = Energy(energy_j=6.0, power_w=30.0, window_s=0.3, calls=2)
    row = measure_chunk([case(1, "cold")], Log().bench(meter=Played(measured)))[0]
    assert row.energy_j is None


def test_operands_are_let_go_after_the_chunk() -> None:
    class Operand:
        pass

    alive: weakref.WeakSet[Operand] = weakref.WeakSet()
    made = 0

    def prepare(spec: KernelSpec) -> Prepared:
        nonlocal made
        operand = Operand()
        alive.add(operand)
        made += 1
        return Prepared(lambda: repr(operand), 0.0)

    bench = Bench(Runner("fake", prepare, lambda threads: None, dict), "test", lambda: None, hot=QUICK, cold=QUICK)
    measure_chunk([case(1), case(2)], bench)
    gc.collect()
    assert made == 6
    assert not alive
