"""NVML readings over a double of the pynvml module."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.find import find_gpu_meter, gpu_facts, gpu_state
from kernelcast.collectors.meters.nvml import (
    NvmlMissingError,
    NvmlReader,
    nvml_reader,
    throttle_words,
)
from kernelcast.collectors.meters.protocol import SensorMissingError


class FakeError(Exception):
    pass


def field(value_mw: int, status: int = 0) -> list[Any]:
    return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=value_mw))]


def library(**changes: Callable[..., Any]) -> Any:
    """A double of pynvml for one H200; `changes` replace functions, None removes one."""
    functions: dict[str, Any] = {
        "NVMLError": FakeError,
        "NVML_FI_DEV_POWER_INSTANT": 186,
        "NVML_FI_DEV_POWER_AVERAGE": 185,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: ("index", index),
        "nvmlDeviceGetHandleByUUID": lambda uuid: ("uuid", uuid),
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 123_456,
        "nvmlDeviceGetFieldValues": lambda handle, fields: field({186: 512_300, 185: 490_000}[fields[0][0]]),
        "nvmlDeviceGetPowerUsage": lambda handle: 488_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61 - sensor,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150_754_820_096),
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13_000,
    }
    functions |= changes
    return SimpleNamespace(**{name: value for name, value in functions.items() if value is not None})


def refuse(*arguments: Any) -> Any:
    raise FakeError("Not Supported")


def reader(**changes: Any) -> NvmlReader:
    return nvml_reader(library=library(**changes), environment={})


def test_readings_are_in_si_units() -> None:
    board = reader()
    assert board.energy_j() == pytest.approx(123.456)
    assert board.power_w() == pytest.approx(512.3)
    assert board.power_source == "instant"
    assert board.temperature_c() == 61.0
    assert board.throttle() == ("power_cap",)


def test_state_and_facts_are_plain_json_and_name_no_single_board() -> None:
    state, facts = gpu_state(reader()), gpu_facts(reader())
    assert json.loads(json.dumps(state)) == state
    assert state.pop("utc").startswith("20")
    assert state == {
        "sm_clock_hz": 1.98e9, "memory_clock_hz": 3.201e9, "temperature_c": 61.0, "power_w": pytest.approx(512.3),
        "power_limit_w": 700.0, "throttle": ["power_cap"],
    }  # fmt: skip
    assert facts == {
        "name": "NVIDIA H200", "driver": "580.95.05", "cuda_driver": "13.0", "memory_b": 150_754_820_096.0,
        "power_limit_w": 700.0, "power_source": "instant",
    }  # fmt: skip


def test_what_is_not_supported_is_none_everywhere() -> None:
    names = [
        name for name in vars(library()) if name.startswith(("nvmlDeviceGet", "nvmlSystem")) and "Handle" not in name
    ]
    for missing in (refuse, None):
        board = reader(**dict.fromkeys(names, missing))
        assert board.power_source is None
        state = gpu_state(board)
        state.pop("utc")
        assert set(state.values()) | set(gpu_facts(board).values()) == {None}
        assert board.energy_j() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"nvmlDeviceGetFieldValues": lambda handle, fields: field(0, status=3)},
        {"nvmlDeviceGetFieldValues": refuse},
        {"NVML_FI_DEV_POWER_INSTANT": None},
    ],
)
def test_without_an_instantaneous_reading_the_older_one_is_used_and_named(changes: dict[str, Any]) -> None:
    board = reader(**changes)
    assert board.power_w() == pytest.approx(488.0)
    assert board.power_source == "power_usage"


def test_permission_lost_later_is_none_not_an_exception() -> None:
    lost = library()
    board = nvml_reader(library=lost, environment={})
    lost.nvmlDeviceGetTotalEnergyConsumption = refuse
    lost.nvmlDeviceGetFieldValues = refuse
    assert board.energy_j() is None
    assert board.power_w() is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, ()),
        (0x1, ("idle",)),
        (0x4, ("power_cap",)),
        (0x20 | 0x40, ("thermal",)),
        (0x8 | 0x80, ("hardware_slowdown", "brake")),
        (0x2 | 0x10 | 0x100, ("clock_setting", "sync_boost", "display_clock")),
    ],
)
def test_clock_limits_become_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_words(bits) == words


def test_the_masks_are_those_of_the_library() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert throttle_words(pynvml.nvmlClocksEventReasonSwPowerCap) == ("power_cap",)
    assert throttle_words(pynvml.nvmlClocksEventReasonSwThermalSlowdown) == ("thermal",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == ("thermal",)
    assert throttle_words(pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown) == ("brake",)
    assert throttle_words(pynvml.nvmlClocksEventReasonGpuIdle) == ("idle",)
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == 186
    used = [name for name in vars(library()) if name.startswith("nvml")]
    assert [name for name in used if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU) == (1, 2, 0)
    assert pynvml.NVML_POWER_SCOPE_GPU == 0


def test_older_drivers_tell_throttling_by_another_name() -> None:
    board = reader(
        nvmlDeviceGetCurrentClocksEventReasons=refuse, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40
    )
    assert board.throttle() == ("thermal",)


@pytest.mark.parametrize(
    ("visible", "index", "handle"),
    [
        (None, 1, ("index", 1)),
        ("", 0, ("index", 0)),
        ("3", 0, ("index", 3)),
        ("4, 2", 1, ("index", 2)),
        ("GPU-12ab", 0, ("uuid", "GPU-12ab")),
    ],
)
def test_cuda_visible_devices_says_which_board(visible: str | None, index: int, handle: object) -> None:
    query: list[object] = []
    fake = library(nvmlDeviceGetTotalEnergyConsumption=lambda given: query.append(given) or 1)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    nvml_reader(index, library=fake, environment=environment).energy_j()
    assert query == [handle]


def test_a_uuid_says_it_beyond_doubt() -> None:
    query: list[object] = []
    fake = library(nvmlDeviceGetTotalEnergyConsumption=lambda given: query.append(given) or 1)
    nvml_reader(0, library=fake, environment={"CUDA_VISIBLE_DEVICES": "1"}, uuid="GPU-77").energy_j()
    assert query == [("uuid", "GPU-77")]


def test_missing_nvml_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlMissingError, match=r"NVML does not start \(Not Supported\); install nvidia-ml-py"):
        reader(nvmlInit=refuse)
    with pytest.raises(NvmlMissingError, match="NVML knows no GPU for CUDA device 7"):
        nvml_reader(7, library=library(nvmlDeviceGetHandleByIndex=refuse), environment={})
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlMissingError, match="the package nvidia-ml-py is not installed"):
        nvml_reader()


def test_the_board_that_cuda_names_is_the_one_whose_energy_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = {None: 1.0, "GPU-77": 2.0}
    monkeypatch.setattr(find, "nvml_reader", lambda index, uuid: SimpleNamespace(energy_j=lambda: boards[uuid]))
    for uuid, energy_j in boards.items():
        meter, _ = find_gpu_meter(0, uuid=uuid, calibrate=False)
        assert meter.reader.energy_j() == energy_j  # type: ignore[attr-defined]


def test_a_board_that_nvml_does_not_know_by_its_name_is_not_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(index: int, uuid: str | None) -> Any:
        raise SensorMissingError(f"NVML knows no GPU {uuid}")

    monkeypatch.setattr(find, "nvml_reader", lost)
    meter, why = find_gpu_meter(0, uuid="GPU-77", calibrate=False)
    assert meter.name == "none"
    assert "NVML knows no GPU GPU-77" in why
