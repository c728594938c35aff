"""Times of collectives: the law's limits, devices never measured, where an engine's own all-reduce ends."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.plan import Collective
from kernelcast.workloads.serving.engine.collectives import KINDS, collectives_seconds, shipped_laws

SIZES_B = np.array([256.0, 2.0**16, 2.0**20, 2.0**24, 2.0**28])


def seconds(device: str, kind: str, ranks: int, size_b: float = 2.0**24, engine: str = "vllm") -> float:
    return float(shipped_laws().seconds(catalogue().get(device), engine, kind, ranks, np.array([size_b]))[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_times_grow_with_bytes_to_the_bandwidth_of_the_links(kind: str) -> None:
    device = catalogue().get("h200")
    value, spread = shipped_laws().seconds(device, "vllm", kind, 4, SIZES_B)
    assert (np.diff(value) > 0).all()
    assert (spread > 0).all()
    assert 1e-6 < value[0] < 50e-6
    # A large operation moves data at a third to all of what the links carry.
    moved_b = {"all_reduce": 1.5, "all_gather": 3.0, "send": 1.0}.get(kind, 0.75) * SIZES_B[-1]
    assert 1 / 3 < moved_b / value[-1] / device.required("fabric_bandwidth_b_per_s") <= 1.0


def test_an_all_reduce_of_h100_is_near_what_was_measured() -> None:
    # vLLM in CUDA graphs on eight H100: 4.7 µs of 2 KB, 4.01 ms of 1 GiB (aiconfigurator, Apache-2.0).
    assert seconds("h100-sxm", "all_reduce", 8, 2048) == pytest.approx(4.7e-6, rel=0.2)
    assert seconds("h100-sxm", "all_reduce", 8, 2.0**30) == pytest.approx(4.01e-3, rel=0.2)


def test_an_engines_own_all_reduce_ends_where_nccl_begins() -> None:
    # Eight B200 or B300 with vLLM: 9.4 µs of 128 KiB, 26 µs of 256 KiB.
    assert seconds("b300", "all_reduce", 8, 2**17) < 0.5 * seconds("b300", "all_reduce", 8, 2**18)
    assert seconds("b300", "all_reduce", 8, 2**18) == seconds("b300", "all_reduce", 8, 2**18, "other")


def test_a_device_never_measured_has_a_wider_interval_and_its_own_bandwidth() -> None:
    laws, size_b = shipped_laws(), np.array([2.0**28])
    known, narrow = laws.seconds(catalogue().get("a100-sxm"), "vllm", "all_reduce", 8, size_b)
    other, wide = laws.seconds(catalogue().get("mi300x"), "vllm", "all_reduce", 8, size_b)
    assert wide[0] > narrow[0]
    assert other[0] < known[0]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(SpecError, match="fabric_bandwidth_b_per_s or pcie_bandwidth_b_per_s") as refused:
        seconds("rtx-2080", "all_reduce", 2)
    assert refused.value.field == "device"
    with pytest.raises(SpecError, match="up to 8"):
        seconds("h100-sxm", "all_to_all", 16)
    assert seconds("gb200", "all_to_all", 16) > 0


def test_repetitions_count() -> None:
    device = catalogue().get("h100-sxm")
    items = [Collective("a", "all_reduce", 4, 1e6, 64), Collective("b", "send", 2, 1e6, 1)]
    value, spread = collectives_seconds(device, "vllm", items)
    assert value == pytest.approx([64 * seconds("h100-sxm", "all_reduce", 4, 1e6), seconds("h100-sxm", "send", 2, 1e6)])
    assert spread.shape == (2,)
    assert collectives_seconds(device, "vllm", [])[0].shape == (0,)
