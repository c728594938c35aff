"""AMD SMI readings over a double of the amdsmi module; the real one needs ROCm's shared library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.meters.amdsmi import AmdMissingError, AmdReader, amd_reader
from kernelcast.collectors.meters.find import gpu_facts, gpu_state
from kernelcast.collectors.meters.protocol import GpuIdentity


class FakeError(Exception):
    pass


def refuse(*arguments: Any) -> Any:
    raise FakeError("Error code:\n\t2 | AMDSMI_STATUS_NOT_SUPPORTED")


def library(**changes: Any) -> Any:
    """A double of amdsmi for one MI300X; `changes` replace functions, None removes one."""
    functions: dict[str, Any] = {
        "AmdSmiException": FakeError,
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hotspot"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="current"),
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["gpu0"],
        "amdsmi_get_energy_count": lambda handle: {
            "energy_accumulator": 2_000_000, "counter_resolution": 15.259, "timestamp": 1,
        },
        "amdsmi_get_power_info": lambda handle: {"current_socket_power": 612, "average_socket_power": "N/A"},
        "amdsmi_get_gpu_metrics_info": lambda handle: {"ppt_residency_acc": 10, "socket_thm_residency_acc": 3},
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiMemoryType": SimpleNamespace(VRAM="vram"),
        "amdsmi_get_clock_info": lambda handle, kind: {"clk": {"gfx": 2100, "mem": 1300}[kind], "clk_deep_sleep": 0},
        "amdsmi_get_temp_metric": lambda handle, sensor, metric: 61 if (sensor, metric) == ("hotspot", "current") else 0,
        "amdsmi_get_power_cap_info": lambda handle: {"power_cap": 750_000_000, "max_power_cap": 750_000_000},
        "amdsmi_get_gpu_memory_total": lambda handle, kind: {"vram": 206_141_652_992}[kind],
        "amdsmi_get_gpu_asic_info": lambda handle: {
            "market_name": "AMD Instinct MI300X OAM", "asic_serial": "0x4A8C2C3D5E6F7081", "num_compute_units": 304,
            "target_graphics_version": "gfx942",
        },
        "amdsmi_get_gpu_driver_info": lambda handle: {"driver_name": "amdgpu", "driver_version": "6.14.14"},
        "amdsmi_get_gpu_enumeration_info": lambda handle: {"hip_id": 0, "hip_uuid": "GPU-4a8c2c3d5e6f7081"},
    }  # fmt: skip
    functions |= changes
    return SimpleNamespace(**{name: value for name, value in functions.items() if value is not None})


def reader(**changes: Any) -> AmdReader:
    return amd_reader(library=library(**changes), environment={})


def test_the_accumulator_counts_steps_of_its_resolution_in_microjoules() -> None:
    assert reader().energy_j() == pytest.approx(30.518)
    older = reader(amdsmi_get_energy_count=lambda handle: {"power": 1_000_000, "counter_resolution": 15.3})
    assert older.energy_j() == pytest.approx(15.3)


def test_power_is_the_sockets_now_or_its_average() -> None:
    assert reader().power_w() == 612.0
    averaged = {"current_socket_power": "N/A", "average_socket_power": 230}
    assert reader(amdsmi_get_power_info=lambda handle: averaged).power_w() == 230.0
    assert reader(amdsmi_get_power_info=lambda handle: dict.fromkeys(averaged, "N/A")).power_w() is None


def test_throttling_is_what_advanced_since_the_call_before() -> None:
    counters = {"ppt_residency_acc": 10, "socket_thm_residency_acc": 3, "hbm_thm_residency_acc": "N/A"}
    board = reader(amdsmi_get_gpu_metrics_info=lambda handle: counters)
    assert board.throttle() == ()
    counters["ppt_residency_acc"] = 11
    assert board.throttle() == ("power_cap",)
    counters["socket_thm_residency_acc"] = 4
    assert board.throttle() == ("thermal",)
    assert board.throttle() == ()


def test_what_is_not_supported_is_none_everywhere() -> None:
    names = [name for name in vars(library()) if name.startswith("amdsmi_get") and "handles" not in name]
    for missing in (refuse, None):
        board = reader(**dict.fromkeys(names, missing))
        assert board.energy_j() is None
        state = gpu_state(board)
        state.pop("utc")
        assert set(state.values()) | set(gpu_facts(board).values()) == {None}
        assert board.identity() == GpuIdentity(None)
    # Releases before an enumeration's member lack its name.
    assert reader(AmdSmiClkType=SimpleNamespace()).sm_clock_hz() is None


def test_missing_amd_smi_is_one_clear_sentence() -> None:
    with pytest.raises(
        AmdMissingError, match=r"AMD SMI does not start \(Error code: 2 \| AMDSMI_STATUS_NOT_SUPPORTED\)"
    ):
        reader(amdsmi_init=refuse)
    with pytest.raises(AmdMissingError, match="AMD SMI knows no GPU 3, there are 1"):
        amd_reader(3, library=library(), environment={})


def test_state_facts_and_identity_are_in_si_units_and_the_words_of_device_files() -> None:
    state = gpu_state(reader())
    assert state.pop("utc").startswith("20")
    assert state == {
        "sm_clock_hz": 2.1e9, "memory_clock_hz": 1.3e9, "temperature_c": 61.0, "power_w": 612.0, "power_limit_w": 750.0,
        "throttle": [],
    }  # fmt: skip
    assert gpu_facts(reader()) == {
        "name": "AMD Instinct MI300X OAM", "driver": "6.14.14", "cuda_driver": None, "memory_b": 206_141_652_992.0,
        "power_limit_w": 750.0, "power_source": "current_socket_power",
    }  # fmt: skip
    assert reader().identity() == GpuIdentity("AMD Instinct MI300X OAM", "gfx942", 304)
    assert reader().compute_capability() is None
    older = reader(amdsmi_get_clock_info=lambda handle, kind: {"cur_clk": 1700})
    assert older.sm_clock_hz() == 1.7e9


SERIALS = ("0x00000000000000AA", "0x00000000000000BB", "0x00000000000000CC")


def several(hip_ids: tuple[Any, ...]) -> Any:
    """Three boards, which the ROCm runtime counts in the order of `hip_ids`; the number of compute units tells them apart."""
    return library(
        amdsmi_get_processor_handles=lambda: [0, 1, 2],
        amdsmi_get_gpu_enumeration_info=lambda handle: {"hip_id": hip_ids[handle]},
        amdsmi_get_gpu_asic_info=lambda handle: {"asic_serial": SERIALS[handle], "num_compute_units": 100 + handle},
    )


@pytest.mark.parametrize(
    ("hip_ids", "index", "environment", "board"),
    [
        ((0, 1, 2), 1, {}, 1),
        ((2, 0, 1), 1, {}, 2),
        (("N/A",) * 3, 1, {}, 1),
        ((0, 1, 2), 0, {"HIP_VISIBLE_DEVICES": "2,1"}, 2),
        ((0, 1, 2), 1, {"CUDA_VISIBLE_DEVICES": "2,0"}, 0),
        ((0, 1, 2), 0, {"ROCR_VISIBLE_DEVICES": "1,2"}, 1),
        ((0, 1, 2), 0, {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, 2),
        ((0, 1, 2), 0, {"ROCR_VISIBLE_DEVICES": "GPU-00000000000000BB"}, 1),
    ],
)
def test_the_board_is_the_one_that_the_runtime_counts(
    hip_ids: tuple[Any, ...], index: int, environment: dict[str, str], board: int
) -> None:
    chosen = amd_reader(index, library=several(hip_ids), environment=environment)
    assert chosen.identity().compute_units == 100 + board
