"""RAPL over a made-up powercap tree, the null meter, the replay, and which meter is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.board import BoardMeter
from kernelcast.collectors.meters.find import find_gpu_meter, find_meter, gpu_reader, open_gpu_reader
from kernelcast.collectors.meters.protocol import (
    EnergyRefusedError,
    NoMeter,
    SensorMissingError,
)
from kernelcast.collectors.meters.rapl import RaplMeter

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


class Work:
    """A loop and its clock: a turn is 10 calls in 0.1 s, then `after` of its number is called."""

    def __init__(self, after: Callable[[int], object] = lambda turn: None) -> None:
        self.turns, self.after = 0, after

    def turn(self) -> int:
        self.turns += 1
        self.after(self.turns)
        return 10 * self.turns

    def now_s(self) -> float:
        return 0.1 * self.turns

    def sleep(self, seconds: float) -> None:
        raise AssertionError("RAPL has nothing to wait for")


def add(path: Path, joules: float) -> None:
    counter = path / "energy_uj"
    counter.write_text(f"{(int(counter.read_text()) + round(joules * 1e6)) % (RANGE_UJ + 1)}\n")


def test_packages_are_summed_and_their_parts_left_out(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 0)
    zone(tmp_path, "intel-rapl:2", "psys", 0)
    result = find_meter(tmp_path)
    assert result.name == "rapl"
    work = Work(lambda turn: (add(first, 2.0), add(second, 1.0)))
    measured = RaplMeter([first, second], window_s=0.25, clock=work).measure(work)
    assert measured is not None
    assert measured.energy_j == pytest.approx(0.3)  # 3 J a turn of 10 calls
    assert measured.power_w == pytest.approx(30.0)
    assert (measured.calls, measured.window_s, measured.windows) == (30, pytest.approx(0.3), 1)
    assert (measured.spread, measured.net_energy_j, measured.power_integrated_w) == (None, None, None)


def test_a_counter_that_wraps_still_counts_up(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    work = Work(lambda turn: add(path, 2.0))
    measured = RaplMeter([path], window_s=0.1, clock=work).measure(work)
    assert measured is not None
    assert measured.energy_j == pytest.approx(0.2)


def test_windows_in_a_row_give_a_spread(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    work = Work(lambda turn: add(path, [1.0, 1.1, 0.9][turn - 1]))
    measured = RaplMeter([path], window_s=0.1, clock=work).measure(work, windows=3)
    assert measured is not None
    assert measured.spread == pytest.approx(0.2)
    assert measured.energy_j == pytest.approx(0.1)
    assert (measured.windows, measured.calls) == (3, 30)


def test_a_call_longer_than_the_window_runs_once(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    work = Work(lambda turn: add(path, 1.0))
    RaplMeter([path], window_s=0.05, clock=work).measure(work)
    assert work.turns == 1


def test_a_counter_that_vanishes_gives_none(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    work = Work(lambda turn: (path / "energy_uj").unlink(missing_ok=True))
    meter = RaplMeter([path], window_s=0.1, clock=work)
    assert meter.measure(work) is None
    assert meter.measure(work) is None


def test_a_counter_that_stands_still_is_refused_never_zero(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 7)
    work = Work()
    with pytest.raises(EnergyRefusedError, match="stood still"):
        RaplMeter([path], clock=work).measure(work)


def test_without_a_readable_sensor_energy_is_none_never_a_guess(tmp_path: Path) -> None:
    assert isinstance(find_meter(tmp_path / "absent"), NoMeter)
    unreadable = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    (unreadable / "energy_uj").write_text("")
    meter = find_meter(tmp_path)
    assert meter.name == "none"
    work = Work()
    assert meter.measure(work) is None
    assert work.turns == 0


class Sensors:
    """A board at rest and its clock: 50 W, a counter that steps every 0.1 s unless it has none."""

    def __init__(self, counts: bool = True) -> None:
        self.counts, self.time_s = counts, 0.0

    def energy_j(self) -> float | None:
        return int(self.time_s * 10) * 5.0 if self.counts else None

    def power_w(self) -> float | None:
        return 50.0

    def throttle(self) -> tuple[str, ...] | None:
        return ()

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


def opens(name: str, sensors: Sensors | None) -> Callable[[int], Sensors]:
    def open_reader(index: int) -> Sensors:
        if sensors is None:
            raise SensorMissingError(f"{name} is not here")
        return sensors

    return open_reader


def test_the_first_gpu_sensor_that_is_there_is_taken_and_calibrated() -> None:
    board = Sensors()
    meter, why = find_gpu_meter(clock=board, sensors={"a": opens("a", None), "b": opens("b", board)})
    assert isinstance(meter, BoardMeter)
    assert (meter.name, meter.idle_power_w) == ("b", pytest.approx(50.0))
    assert meter.period_s == pytest.approx(0.1, abs=0.005)
    assert why == "energy of GPU 0 is read by b: it has an energy counter (a is not here)"
    rough, _ = find_gpu_meter(clock=board, sensors={"b": opens("b", board)}, calibrate=False)
    assert isinstance(rough, BoardMeter)
    assert (rough.idle_power_w, rough.period_s) == (None, None)


def test_a_board_without_a_counter_has_no_meter_and_the_sentence_says_so() -> None:
    sensors = {"a": opens("a", Sensors(counts=False)), "b": opens("b", None)}
    meter, why = find_gpu_meter(2, clock=Sensors(), sensors=sensors)
    assert meter.name == "none"
    assert why == "energy of GPU 2 is not read: a is there, but GPU 2 has no energy counter; b is not here"


def test_real_sensors_are_looked_for_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    meter, why = find_gpu_meter(1000)
    assert meter.name == "none"
    assert why.startswith("energy of GPU 1000 is not read: ")
    assert "\n" not in why
    assert capsys.readouterr().out == ""


def test_amd_smi_reads_beside_a_torch_for_rocm_and_nvml_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "amd_reader", lambda index: f"amd {index}")
    monkeypatch.setattr(find, "nvml_reader", lambda index, uuid: f"nvml {index} {uuid}")
    for library, reader in (("hip", "amd 1"), ("cuda", "nvml 1 GPU-7"), (None, "nvml 1 GPU-7")):
        monkeypatch.setattr(find, "torch_library", lambda library=library: library)
        assert gpu_reader(1, uuid="GPU-7") == reader


def test_the_energy_of_an_amd_gpu_is_read_by_amd_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "torch_library", lambda: "hip")
    monkeypatch.setattr(find, "amd_reader", lambda index: Sensors())
    meter, why = find_gpu_meter(calibrate=False)
    assert meter.name == "amdsmi"
    assert why == "energy of GPU 0 is read by amdsmi: it has an energy counter"


def test_an_intel_gpu_has_no_sensor_and_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "torch_library", lambda: "xpu")
    meter, why = find_gpu_meter()
    assert meter.name == "none"
    assert why == ("energy of GPU 0 is not read: no library reads power, clocks or temperature of an Intel GPU here")
    assert open_gpu_reader() is None
