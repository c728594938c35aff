"""Which device this machine is, and whether it is the one that was measured under a name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernelcast.collectors import host
from kernelcast.collectors.meters import find
from kernelcast.commands.measure.this_machine import refuse_other_machine
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store, block_facts
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec

CPU = {"cpu_model": "A", "cpu_family": "6", "cpu_model_number": "207", "cores": 2}
GPU = {"name": "NVIDIA L4", "memory_b": 24e9}


def stored(folder: Path, device: str, *facts: dict[str, object]) -> Store:
    """A store with a block of `device` for each of the facts."""
    store = Store(folder, lower_bounds=lambda specs, devices: np.zeros(len(specs)))
    for i, each in enumerate(facts):
        spec = KernelSpec.of("softmax", "fp32", impl="torch", rows=64 + i, cols=64)
        store.append([Measurement(spec, device, "unsupported", f"b{i}")], Provenance(f"b{i}", {"note": 1, **each}))
    return store


def test_every_block_says_what_was_measured(tmp_path):
    store = stored(tmp_path, "nvidia-l4", {"gpu": {"name": "old"}}, {"gpu": GPU})
    assert [facts["gpu"] for facts in block_facts(store, "nvidia-l4")] == [GPU, {"name": "old"}]
    assert block_facts(store, "nvidia-h200-sxm-141gb") == []
    newest = max(store.files(), key=lambda path: path.name)
    newest.write_bytes(b"damaged")
    assert [facts["gpu"] for facts in block_facts(store, "nvidia-l4")] == [{"name": "old"}]


def test_rows_of_another_machine_below_newer_ones_are_refused_too(tmp_path, monkeypatch):
    device = catalogue().get("intel-xeon-emerald-rapids-vm-2c")
    store = stored(tmp_path, device.name, CPU | {"cpu_model": "B"}, CPU)
    monkeypatch.setattr(host, "machine_facts", lambda device: CPU)
    with pytest.raises(SpecError, match="cpu_model B before, A now"):
        refuse_other_machine(store, device)


@pytest.mark.parametrize(
    ("now", "change"),
    [
        ({}, None),
        ({"cpu_model": None}, None),
        ({"microcode": "new"}, None),
        ({"cpu_model": "B"}, "cpu_model A before, B now"),
        ({"cores": 64}, "cores 2 before, 64 now"),
    ],
)
def test_another_cpu_is_refused(tmp_path, monkeypatch, now, change):
    device = catalogue().get("intel-xeon-emerald-rapids-vm-2c")
    store = stored(tmp_path, device.name, CPU)
    monkeypatch.setattr(host, "machine_facts", lambda device: CPU | now)
    if change is None:
        refuse_other_machine(store, device)
    else:
        with pytest.raises(SpecError, match=change):
            refuse_other_machine(store, device)


def test_another_gpu_is_refused(tmp_path, monkeypatch):
    device = catalogue().get("nvidia-l4")
    store = stored(tmp_path, device.name, {**CPU, "gpu": GPU})
    monkeypatch.setattr(host, "machine_facts", lambda device: CPU | {"cores": 64})
    monkeypatch.setattr(find, "gpu_facts", lambda reader: reader)
    refuse_other_machine(store, device, GPU)  # type: ignore[arg-type]
    refuse_other_machine(store, device)
    with pytest.raises(SpecError, match="name NVIDIA L4 before, NVIDIA L40S now"):
        refuse_other_machine(store, device, GPU | {"name": "NVIDIA L40S"})  # type: ignore[arg-type]
