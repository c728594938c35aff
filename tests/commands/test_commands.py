"""The other commands: what they list, and what they say when something is wrong."""

from __future__ import annotations

import json
import math
import os
import re

import jsonschema
import numpy as np
import pytest
from kernelcast.commands import console as units
from kernelcast.commands.measure import characterize, this_machine
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue, load_device_file
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, families
from kernelcast.features.spec_io.json_schema import family_example
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.family_model.artifact_files import write_manifest

CPU = "amd-epyc-9005-vm-2c"


def test_devices(run):
    assert "nvidia-h100-sxm-80gb" in run("devices").out
    listed = json.loads(run("devices", "--json").out)
    assert [item["name"] for item in listed] == catalogue().names()
    measured = {item["name"]: {record["family"]: record for record in item["measured"]} for item in listed}
    assert {"bf16", "fp8"} <= set(measured["nvidia-h100-sxm-80gb"]["gemm"]["dtypes"])
    assert measured["nvidia-p40"] == {}
    item = run("devices", "h100-sxm").out
    assert "3.35 TB/s" in item
    assert "datasheet" in item
    assert json.loads(run("devices", "h100-sxm", "--json").out)["name"] == "nvidia-h100-sxm-80gb"
    assert "no device 'h900'" in run("devices", "h900").error


def test_kernels(run):
    assert re.search(r"gemm +batch m n k +bf16 fp16", run("kernels").out)
    assert re.search(r"torch +bf16 fp32 +amd-epyc-7003-vm-2c", run("devices", "kernels", "optimizer").out)
    assert re.search(r"triton +bf16 fp16 .*nvidia-h200-sxm-141gb", run("devices", "kernels", "matmul").out)
    assert "variants" in run("kernels", "attention").out
    assert "C[b,m,n] = A[b,m,k]" in run("kernels", "gemm").out
    schemas = json.loads(run("kernels", "--json").out)
    assert list(schemas) == list(families())
    jsonschema.Draft202012Validator(json.loads(run("kernels", "gemm", "--json").out)).validate(
        family_example(families()["gemm"])
    )
    assert "no kernel family" in run("kernels", "gem").error


@pytest.mark.parametrize(
    ("command", "said"), [("serve", "(default: 8000)"), ("serve", "(default: 1)"), ("collect", "(default: 2000)")]
)
def test_help_shows_what_an_option_is_unless_given(run, command, said):
    # Words in square brackets would be taken for markup, and left out.
    plain = re.sub(r"[\s│]+", " ", run(command, "--help").out)
    assert said in plain


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("train", "--data", "none.parquet", "--out", "m"), "cannot read none.parquet"),
        (("train", "--out", "m"), "--data"),
        (("train", "--data", "none.parquet"), "--out"),
        (("evaluate", "--data", "x.csv", "--compare", "hash", "--model", "m"), "leave --model out"),
        (("import", "none.csv", "--source", "me"), "cannot read none.csv"),
        (("import", "none.csv"), "--source"),
        (("collect", "--rows", "5", "--minutes", "1"), "not both"),
        (("collect", "--families", "gem", "--device", CPU), "no kernel family 'gem'"),
        (("collect", "--device", "h900"), "no device 'h900'"),
        (("collect", "--device", "nvidia-t4"), "nvidia-t4 is a gpu"),
        (("collect", "--threads", "0", "--device", CPU), "--threads is '0'"),
        (("collect", "--threads", "x", "--device", CPU), "--threads is 'x'"),
        (("collect", "--dtypes", "bf17", "--device", CPU), "no dtype 'bf17'"),
        (("collect", "--tiled", "--families", "softmax"), "not softmax"),
        (("characterize", "--out", "/no/where.yaml"), "does not exist"),
        (("characterize", "--out", "x.yaml", "--device", "nvidia-t4"), "nvidia-t4 is a gpu"),
        (("trace-launches", "--out", "no/where"), "the folder of --out no/where does not exist"),
        (("trace-launches", "--out", "file"), "--out file is a file; give a folder"),
        (("trace-launches", "--out", "locked"), "cannot write to --out locked"),
        (("trace-launches", "--out", "locked/new"), "cannot write to the folder of --out locked/new"),
        (("count-traffic", "--out", "no/where.parquet"), "the folder of --out no/where.parquet does not exist"),
        (("count-traffic", "--out", "locked/t.parquet"), "cannot write to the folder of --out locked/t.parquet"),
        (("count-traffic", "--out", "locked"), "--out locked is a folder; give a file"),
        (("models", "promote", "/nowhere"), "is no model"),
        (("serve", "--port", "70000"), "65535"),
        (("serve", "--host", "203.0.113.7", "--port", "0"), "others can reach 203.0.113.7"),
        (("serve", "--host", "203.0.113.7", "--port", "0", "--allow-open"), "cannot listen on 203.0.113.7"),
        (("serve", "--device-file", "/nowhere.yaml"), "cannot read the device file"),
    ],
)
def test_what_a_user_got_wrong_is_one_sentence(run, args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    # Its permissions would not keep root from writing.
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: (str(path), mode & os.W_OK) != ("locked", os.W_OK) and access(path, mode)
    )
    assert said in run(*args).error


def test_a_setting_of_the_environment_that_is_wrong(run, monkeypatch):
    monkeypatch.setenv("KERNELCAST_PORT", "many")
    assert "KERNELCAST_PORT is 'many'" in run("serve").error


def test_importing_stores_rows_and_listing_counts_them(run, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text(
        "family,device,dtype,m,n,k,latency_s\n" + "".join(f"gemm,nvidia-t4,fp32,{m},64,64,1e-3\n" for m in (8, 16))
    )
    done = run("import", table, "--source", "me", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)[str(table)]["kept"] == 2
    result = json.loads(run("data", "list", "--json").out)
    assert result == [{"family": "gemm", "device": "nvidia-t4", "status": "ok", "rows": 2}]
    assert "nvidia-t4" in run("data", "list").out
    packed = run("data", "compact", "--out", tmp_path / "packed", "--json")
    assert json.loads(packed.out) == [str(tmp_path / "packed" / "gemm.parquet")]
    assert "no rows" in run("data", "list", "--store", tmp_path / "none").err


def test_promoting_moves_the_champion_pointer_to_a_copy(run, monkeypatch, tmp_path):
    from kernelcast.models.registry import registry

    class WholeModelPrediction:
        def load_all(self) -> None: ...

    monkeypatch.setattr(registry, "load_predictor", lambda path, devices=None: WholeModelPrediction())
    (tmp_path / "m").mkdir()
    write_manifest(
        tmp_path / "m", {"format_version": 2, "regressor": "x", "created": "now", "families": {}, "files": {}}
    )
    manifest = (tmp_path / "m" / "manifest.json").read_text()
    promoted = run("models", "promote", tmp_path / "m", "--json")
    assert promoted.code == 0, promoted.err
    champion = default_model_dir()
    assert json.loads(promoted.out)["champion"] == str(champion)
    assert champion.is_relative_to(tmp_path / "home" / "models")
    # What happens to the directory afterwards does not reach what serves.
    (tmp_path / "m" / "manifest.json").write_text("{")
    assert (champion / "manifest.json").read_text() == manifest
    (listed,) = json.loads(run("models", "list", "--json").out)
    assert listed["serves"] is True
    assert "yes" in run("models", "list").out


def test_ctrl_c_is_130_with_a_word(run, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelcast.commands.console.read_catalogue", interrupted)
    done = run("devices")
    assert (done.code, done.out, done.err) == (130, "", "error: stopped\n")


MEASURED = {
    "launch_torch_s": {"value": 1e-6, "source": "measured"},
    "latency_l3_s": {"value": None, "source": "not measured: no clean sample"},
    **{f"matrix_{dtype}_flops_per_s": {"value": 1e11, "source": "measured"} for dtype in ("fp32", "bf16")},
    "bandwidth_dram_b_per_s": {"value": 1e10, "source": "measured"},
    "bandwidth_l2_b_per_s_1t": {"value": 5e10, "source": "measured"},
}


@pytest.mark.parametrize("device", ["amd-epyc-9005-vm-2c", None])
def test_characterising_writes_a_device_file_that_loads(run, tmp_path, monkeypatch, device):
    from kernelcast.collectors.cpu import characterize as measuring

    monkeypatch.setattr(measuring, "characterize", lambda name: MEASURED)
    monkeypatch.setattr(characterize, "known_machine", lambda known: None)
    path = tmp_path / "my.yaml"
    done = run("characterize", "--out", path, *(("--device", device) if device else ()))
    assert done.code == 0, done.err
    assert "latency_l3_s: not measured" in done.err
    result = load_device_file(path)
    assert result.name == (device or this_machine.machine_id())
    assert result.measured["launch_torch_s"].value == 1e-6
    assert "latency_l3_s" not in result.measured
    if device:
        assert result.facts == catalogue().get(device).facts


def test_characterising_without_the_library_is_one_sentence(run, tmp_path, monkeypatch):
    from kernelcast.collectors.cpu import characterize as measuring
    from kernelcast.process import ChildStartError

    def no_torch(name: str) -> None:
        raise ChildStartError("the torch worker did not start: No module named 'torch'")

    monkeypatch.setattr(measuring, "characterize", no_torch)
    assert (
        "No module named 'torch'; `kernelcast measure machine` needs"
        in run("characterize", "--out", tmp_path / "m").error
    )


def test_days_that_differ_are_in_the_file_of_a_characterised_cpu(run, tmp_path, monkeypatch):
    from kernelcast.collectors.cpu import characterize as measuring

    monkeypatch.setattr(
        measuring, "characterize", lambda name: {"launch_torch_s": {"value": 4e-6, "source": "measured"}}
    )
    store = Store(tmp_path / "rows", lower_bounds=lambda specs, devices: np.zeros(len(specs)))
    spec = KernelSpec.of("softmax", "fp32", impl="torch", rows=64, cols=64, threads=1)
    for day, product_s in ((25, 2e-3), (27, 1e-3)):
        row = Measurement(spec, CPU, "ok", f"b{day}", latency_s=1.0, measured_at=f"2026-11-{day}T10:00:00+00:00")
        facts = {"sentinel_before_s": {"gemm[m=384]:fp32": product_s, "copy[rows=2048]:fp32": 1e-3}}
        store.append([row], Provenance(f"b{day}", facts))
    file = tmp_path / "m.yaml"
    run("measure", "machine", "--cpu", "--device", CPU, "--store", store.root, "--out", file)
    fact = load_device_file(file).measured["state_deviation"]
    assert fact.value == pytest.approx(math.log(2) / math.sqrt(2))
    assert fact.source == "sentinels of 2 days in the store"
    run("measure", "machine", "--cpu", "--device", CPU, "--store", tmp_path / "none", "--out", file)
    assert "state_deviation" not in load_device_file(file).measured


def test_a_machine_without_a_device_file_is_told_how_to_make_one(monkeypatch):
    monkeypatch.setattr(this_machine, "known_machine", lambda known: None)
    with pytest.raises(SpecError, match="kernelcast measure machine --out"):
        this_machine.this_device(None, catalogue())


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.seconds, 1.234e-5, "12.3 µs"),
        (units.seconds, 9.9999e-4, "1.00 ms"),
        (units.seconds, 0.0, "0 ns"),
        (units.seconds, 3e-12, "0.00300 ns"),
        (units.seconds, 100.0, "100 s"),
        (units.joules, 0.0123, "12.3 mJ"),
        (units.watts, 700.0, "700 W"),
        (units.flops_per_s, 9.894e14, "989 TFLOP/s"),
        (units.bytes_per_s, 3.35e12, "3.35 TB/s"),
        (units.num_bytes, 8e10, "80.0 GB"),
    ],
)
def test_units(show, value, text):
    assert show(value) == text
