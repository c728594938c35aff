"""Which device this machine is, and whether it is the one that was measured under a name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kernelcast.collectors import host
from kernelcast.collectors.gpu.measure import torch_gpu
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.protocol import GpuIdentity, SensorMissingError
from kernelcast.commands.measure.this_machine import refuse_other_machine, this_gpu
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store, block_facts
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.process import ChildStartError

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


def plays(monkeypatch: pytest.MonkeyPatch, identity: GpuIdentity) -> None:
    """AMD SMI that says so of GPU 0."""
    reader = SimpleNamespace(identity=lambda: identity)
    monkeypatch.setattr(find, "torch_library", lambda: "hip")
    monkeypatch.setattr(find, "amd_reader", lambda index: reader)


@pytest.mark.parametrize(
    ("identity", "stated", "device"),
    [
        (GpuIdentity("AMD Instinct MI300X OAM", "gfx942", 304), None, "amd-mi300x"),
        (GpuIdentity("AMD Instinct MI300X OAM"), None, "amd-mi300x"),
        # One die of a board with two.
        (GpuIdentity("AMD Instinct MI250X", "gfx90a", 110), None, "amd-mi250x-gcd"),
        (GpuIdentity("AMD Instinct MI250X / MI250", "gfx90a", 104), "mi250-gcd", "amd-mi250-gcd"),
        # A market name that is no data sheet's.
        (GpuIdentity("MI300X-O", "gfx942", 304), "mi300x", "amd-mi300x"),
        (GpuIdentity("Radeon", "gfx1201", 64), None, "amd-rx-9070-xt"),
    ],
)
def test_an_amd_gpu_is_known_by_its_name_or_its_compute_units(monkeypatch, identity, stated, device):
    plays(monkeypatch, identity)
    assert this_gpu(stated, 0, catalogue())[0].name == device


@pytest.mark.parametrize(
    ("identity", "stated", "message"),
    [
        (
            GpuIdentity("MI300X-O", "gfx942", 304),
            None,
            "304 compute units; name it with --device: amd-mi300x, amd-mi325x",
        ),
        (
            GpuIdentity("MI300X-O", "gfx942", 304),
            "mi250x",
            "--device is amd-mi250x, but GPU 0 is amd-mi300x, amd-mi325x",
        ),
        (GpuIdentity("MI999", "gfx999", 1), None, "calls itself 'MI999', which is in no device file; give one with"),
        (GpuIdentity(None), None, "the driver does not say what GPU 0 is"),
    ],
)
def test_an_amd_gpu_that_may_be_another_is_never_guessed(monkeypatch, identity, stated, message):
    plays(monkeypatch, identity)
    with pytest.raises(SpecError, match=message):
        this_gpu(stated, 0, catalogue())


def test_an_intel_gpu_is_known_by_what_torch_calls_it(monkeypatch):
    monkeypatch.setattr(find, "torch_library", lambda: "xpu")
    monkeypatch.setattr(host, "torch_library", lambda: "xpu")
    b580 = GpuIdentity("Intel(R) Arc(TM) B580 Graphics", None, 20)
    monkeypatch.setattr(torch_gpu, "identity_by_torch", lambda index: b580)
    gpu, reader = this_gpu(None, 0, catalogue())
    assert (gpu.name, reader) == ("intel-arc-b580", None)
    monkeypatch.setattr(torch_gpu, "identity_by_torch", lambda index: GpuIdentity("Intel(R) Iris", None, 12))
    with pytest.raises(SpecError, match="in no device file"):
        this_gpu(None, 0, catalogue())


def test_without_amd_smi_torch_says_what_the_gpu_is_or_that_there_is_none(monkeypatch):
    def missing(index: int) -> None:
        raise SensorMissingError("amdsmi cannot be imported")

    monkeypatch.setattr(find, "torch_library", lambda: "hip")
    monkeypatch.setattr(host, "torch_library", lambda: "hip")
    monkeypatch.setattr(find, "amd_reader", missing)
    monkeypatch.setattr(torch_gpu, "identity_by_torch", lambda index: GpuIdentity("AMD Instinct MI210", "gfx90a", 104))
    assert this_gpu(None, 0, catalogue())[0].name == "amd-mi210"

    def no_gpu(index: int) -> None:
        raise ChildStartError("torch sees no GPU")

    monkeypatch.setattr(torch_gpu, "identity_by_torch", no_gpu)
    with pytest.raises(SpecError, match="torch sees no GPU; or name the GPU with --device"):
        this_gpu(None, 0, catalogue())
    assert this_gpu("mi300x", 0, catalogue())[0].name == "amd-mi300x"


def test_torch_is_asked_in_a_process_of_its_own_what_a_gpu_is() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ChildStartError, match="sees no GPU; install the build for its maker"):
        torch_gpu.identity_by_torch(0)
