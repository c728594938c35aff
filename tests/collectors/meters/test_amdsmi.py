"""AMD SMI readings over a double of the amdsmi module; the real one needs ROCm's shared library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.collectors.meters.amdsmi import AmdMissingError, AmdReader, amd_reader


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
    }  # fmt: skip
    functions |= changes
    return SimpleNamespace(**{name: value for name, value in functions.items() if value is not None})


def reader(**changes: Any) -> AmdReader:
    return amd_reader(library=library(**changes))


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
        assert {board.energy_j(), board.power_w(), board.throttle()} == {None}


def test_missing_amd_smi_is_one_clear_sentence() -> None:
    with pytest.raises(
        AmdMissingError, match=r"AMD SMI does not start \(Error code: 2 \| AMDSMI_STATUS_NOT_SUPPORTED\)"
    ):
        reader(amdsmi_init=refuse)
    with pytest.raises(AmdMissingError, match="AMD SMI knows no GPU 3, there are 1"):
        amd_reader(3, library=library())
