"""`kernelcast adapt` as a user types it; adaptations themselves are tested in tests/nightly/test_adaptation.py."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kernelcast.collectors import host
from kernelcast.collectors.meters import find, nvml
from kernelcast.commands.measure import adapt as command
from kernelcast.commands.measure import characterize
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import Catalogue, local_devices_dir
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.adaptation import adaptation_plan
from kernelcast.nightly.record.folders import PLAN_JSON, STATE, new_night, nights_dir
from kernelcast.nightly.record.record import NightRecord

DEVICE = "amd-epyc-9005-vm-2c"
FACTS = {"compute_units": 2, "boost_clock_hz": 3e9, "memory_bandwidth_b_per_s": 1e11, "l2_b": 1e6}


OTHER_CPU = {"cpu_model": "Another CPU"}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(index: int, *, uuid: str | None = None) -> None:
        raise nvml.NvmlMissingError("no driver here")

    monkeypatch.setattr(find, "nvml_reader", missing)


def unfinished(device: str, collector: str = "cpu") -> str:
    """An adaptation of `device` that was killed a moment ago; its id."""
    now = datetime.now(UTC)
    folder = new_night(nights_dir(), "adapt", now)
    plan = adaptation_plan(device, 10.0, collector)  # type: ignore[arg-type]
    (folder / PLAN_JSON).write_text(json.dumps({"plan": plan.to_json()}))
    NightRecord(folder.name, "adapt", device, "running", now.isoformat(), None, 600.0, "shipped", None).write(
        folder / STATE
    )
    return folder.name


@pytest.mark.slow  # measures nothing, but calibrates and judges the shipped model
def test_it_measures_calibrates_and_shows_the_error_before_and_after(run, workers, tmp_path):
    done = run("adapt", "--minutes", 1, "--families", "softmax", "--threads", 1, "--out", tmp_path / "model", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["device"] == DEVICE
    assert result["training_rows"] > result["test_rows"] > 0
    assert result["errors"][-1]["after"]["mean_ape_pct"] < result["errors"][-1]["before"]["mean_ape_pct"]
    assert (tmp_path / "model" / "manifest.json").is_file()
    assert {spec.cache_state for spec in workers.measured} == {"hot"}
    listed = json.loads(run("nights", "--json").out)
    assert [night["plan"] for night in listed] == ["adapt"]


def test_a_machine_that_is_not_the_one_of_the_unfinished_adaptation_is_refused(run, workers):
    name = unfinished("amd-epyc-9004-vm-2c")
    message = run("adapt").error
    assert f"adaptation {name} is unfinished and measured amd-epyc-9004-vm-2c; this machine has {DEVICE}" in message
    assert "--new" in message
    assert not workers.measured


def test_an_unfinished_adaptation_of_a_gpu_that_is_missing_now_is_refused(run, workers):
    name = unfinished("nvidia-h200-sxm-141gb", "gpu")
    message = run("adapt").error
    assert f"adaptation {name} is unfinished and measured nvidia-h200-sxm-141gb; this machine has {DEVICE}" in message
    assert "Resume it on that machine with --gpu, or begin one for this machine with --new" in message
    assert not workers.measured
    # Who says which kind of device is meant begins one of it.
    command._refuse_unfinished_elsewhere(Catalogue(), False, same_kind=True)


@pytest.mark.parametrize("blocks", [(OTHER_CPU,), (OTHER_CPU, {})])
def test_rows_of_another_machine_are_not_calibrated_by(run, workers, tmp_path, blocks):
    """The newest block may be this machine's: what is below it calibrates all the same."""
    store = Store(tmp_path / "rows")
    facts = host.machine_facts(DEVICE)
    for i, changes in enumerate(blocks):
        spec = KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=64 + i, cols=64)
        store.append([Measurement(spec, DEVICE, "unsupported", f"b{i}")], Provenance(f"b{i}", facts | changes))
    message = run("adapt", "--store", tmp_path / "rows", "--families", "softmax", "--threads", 1).error
    assert f"{DEVICE} is not the machine that was measured under this name (cpu_model Another CPU before" in message
    assert "rows of two machines must not mix" in message
    assert not workers.measured


@pytest.mark.parametrize(("option", "extra"), [("--gpu", "gpu,calibrate"), ("--cpu", "collect,calibrate")])
def test_a_missing_package_is_in_the_extra_of_the_device(run, machine, monkeypatch, option, extra):
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(command, "_refuse_unfinished_elsewhere", missing)
    assert f"needs torch; run: pip install 'kernelcast[{extra}]'" in run("adapt", option).error


def test_another_unknown_cpu_is_refused_before_it_is_characterised(run, workers, machine):
    unfinished(DEVICE)
    machine["model"] = "99"
    message = run("adapt").error
    assert "this machine has cpuid-authenticamd-26-99-2c" in message
    assert not local_devices_dir().exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", 0.5), "--minutes"),
        (("--families", "lunch"), "lunch"),
        (("--threads", 64), "thread counts on this machine: 1 to 2"),
        (("--device", "amd-epyc-9004-vm-2c"), f"--device is amd-epyc-9004-vm-2c, but this machine's CPU is {DEVICE}"),
        (("--gpu", "--threads", 1), "--threads is for a CPU"),
        (("--gpu",), "no driver here"),
        (("--out", "full"), "--out full is not empty"),
        (("--device-file", "hostile.yaml"), "peak_flops_per_s"),
        (("--device-file", "none.yaml"), "none.yaml"),
        (("--device-file", "contradictory.yaml"), "says that it is a gpu, and it names this machine's CPU"),
    ],
)
def test_bad_input_is_one_clear_sentence(run, workers, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/x").touch()
    facts = ", ".join(f"{name}: {{value: {value}, source: s}}" for name, value in FACTS.items())
    Path("hostile.yaml").write_text(
        f"name: x\ntitle: x\nvendor: x\nkind: cpu\nfacts: {{{facts}}}\n"
        "peak_flops_per_s: {vector: {fp32: {value: -1, source: s}}}\n"
    )
    Path("contradictory.yaml").write_text(
        f"name: {DEVICE}\ntitle: x\nvendor: x\nkind: gpu\naliases: [cpuid-authenticamd-26-2-2c]\nfacts: {{{facts}}}\n"
        "peak_flops_per_s: {matrix: {}, vector: {fp32: {value: 1.0e+12, source: s}}}\n"
    )
    assert message in run("adapt", *words).error
    assert not workers.measured


def test_a_gpu_that_no_device_file_is_of_gets_one(run, monkeypatch, tmp_path):
    entry = {
        "name": "nvidia-new-1", "title": "NVIDIA New 1", "aliases": ["NVIDIA New 1"], "vendor": "nvidia", "kind": "gpu",
        "facts": {name: {"value": value, "source": "measured"} for name, value in FACTS.items()},
        "peak_flops_per_s": {"matrix": {}, "vector": {"fp32": {"value": 1e12, "source": "measured"}}},
    }  # fmt: skip
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    monkeypatch.setattr(characterize, "_gpu", lambda *_, **__: (entry, {}))
    known = command.console.read_catalogue(None)
    path = characterize.new_gpu(known)
    assert path == local_devices_dir() / "nvidia-new-1.yaml"
    assert known.get("NVIDIA New 1").kind == "gpu"
