"""Steps on a GPU that is played: what a loop counts, when the GPU's own time is known, what the file keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch_programs_gpu
from kernelcast.collectors.gpu.measure.torch_gpu import GraphLoop
from kernelcast.collectors.meters.protocol import NoMeter
from torch_programs_gpu import Batch, Measured, StepTimer, measure_all, read
from torch_programs_judge import energy_label_j


class Event:
    """It has come to pass once the host has asked `late` times."""

    late = 0

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.asked = 0

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        self.asked += 1
        return self.asked > self.late

    def elapsed_time(self, _: Event) -> float:
        return 2.0


class Api:
    """A `torch.cuda` of which a step takes 100 bytes."""

    def __init__(self, late: int) -> None:
        self.cycles: list[int] = []
        self.Event = type("Late", (Event,), {"late": late})

    def _sleep(self, cycles: int) -> None:
        self.cycles.append(cycles)

    def memory_allocated(self) -> int:
        return 7

    def max_memory_allocated(self) -> int:
        return 107

    def __getattr__(self, name: str) -> Any:
        return lambda: None


def test_a_loop_counts_batches_that_have_ended() -> None:
    steps: list[int] = []
    behind = GraphLoop(Api(late=1), Batch(lambda: steps.append(0), 3), 3)
    assert [behind.turn(), len(steps), behind.turn(), len(steps)] == [3, 9, 6, 12]
    idle = GraphLoop(Api(late=0), Batch(lambda: None, 3), 3)
    assert [idle.turn(), idle.turn()] == [9, 18]


def test_the_time_of_the_gpu_is_known_where_a_step_is_enqueued_ahead() -> None:
    assert StepTimer(Api(late=1)).device_s(lambda: None, 1e-4) == pytest.approx(2e-3)
    late = Api(late=0)
    assert StepTimer(late).device_s(lambda: None, 1e-4) is None
    assert late.cycles == [500_000 * 2**i for i in range(len(late.cycles))]


def test_programs_that_fail_or_come_too_late_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> Any:
        raise RuntimeError("no such kernel\nfar below")

    made = {"good": lambda: lambda: None, "bad": fail}
    monkeypatch.setattr(torch_programs_gpu, "programs", lambda *, large: made)
    monkeypatch.setattr(torch_programs_gpu, "LATENCY_S", 0.01)
    monkeypatch.setattr(torch_programs_gpu, "WARM_S", 0.01)
    out = tmp_path / "programs.parquet"
    measure_all(Api(late=1), "cpu", NoMeter(), out, {"device": "played"}, seconds=60)
    rows, facts = read(out)
    assert [row.message for row in rows] == ["", "RuntimeError: no such kernel"] * 2
    assert rows[0].memory_b == 100
    assert rows[0].energy_j is None
    assert facts == {"device": "played", "left_out": []}
    measure_all(Api(late=1), "cpu", NoMeter(), out, {}, seconds=-1)
    assert read(out)[1]["left_out"] == ["good (small)", "bad (small)", "good (large)", "bad (large)"]


def test_the_energy_of_a_step_has_no_waiting_for_the_sensor() -> None:
    row = Measured("a", "small", latency_s=1e-3, energy_j=0.3, energy_step_s=2e-3)
    assert energy_label_j(row, 120.0) == pytest.approx(0.18)
    assert energy_label_j(Measured("a", "small", latency_s=1e-3), 120.0) is None
