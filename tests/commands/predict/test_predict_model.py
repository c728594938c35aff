"""`kernelcast predict model` and `kernelcast.predict_model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernelcast
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.python import workloads
from kernelcast.workloads.whole_model import Kernel

PROJECTION: dict[str, Any] = {
    "family": "gemm", "dtype": "bf16", "sizes": {"m": 512, "n": 4096, "k": 4096}, "count": 32, "name": "projection",
}  # fmt: skip
SCORES: dict[str, Any] = {"family": "softmax", "dtype": "bf16", "sizes": {"rows": 16384, "cols": 512}, "count": 32}
CSV = (
    "name,family,dtype,m,n,k,rows,cols,count,tile_m\n"
    "projection,gemm,bf16,512,4096,4096,,,32,\n"
    ",softmax,bf16,,,,16384,512,32,\n"
)
YAML = (
    "kernels:\n"
    "  - {name: projection, family: gemm, dtype: bf16, m: 512, n: 4096, k: 4096, count: 32}\n"
    "  - {family: softmax, dtype: bf16, sizes: {rows: 16384, cols: 512}, count: 32}\n"
)


@pytest.fixture
def written(tmp_path):
    def write(text: str | list[Any], name: str = "model.json") -> Path:
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def test_a_person_reads_totals_shares_and_bars(run, fake, written):
    done = run("predict-model", written([PROJECTION, SCORES]), "--device", "h100-sxm")
    assert done.code == 0
    assert done.err == ""
    for word in (
        "NVIDIA H100 SXM5 80 GB",
        "2 kernels, 64 runs",
        "projection",
        "90 % of cases",
        "100 W",
        "█",
        "softmax",
    ):
        assert word in done.out


def test_the_same_model_in_every_format(run, fake, written):
    files = [
        written([PROJECTION, SCORES]),
        written({"kernels": [PROJECTION, SCORES]}, "a.json"),
        written(YAML, "m.yaml"),
        written(CSV, "m.csv"),
    ]
    answers = [json.loads(run("predict-model", path, "--device", "h100", "--json").out) for path in files]
    assert all(answer == answers[0] for answer in answers)
    (result,) = answers[0]["answers"]
    assert result["launches"] == 64
    assert result["latency_s"]["lower"] < result["latency_s"]["value"] < result["latency_s"]["upper"]


def test_several_devices_and_options(run, fake, written):
    path = written([PROJECTION])
    options = ("--coverage", "0.8", "--launch-s", "1e-5", "--json")
    answers = json.loads(run("predict-model", path, "--device", "h100", "--device", "l40s", *options).out)["answers"]
    assert [item["device"] for item in answers] == ["nvidia-h100-sxm-80gb", "nvidia-l40s"]
    assert answers[0]["coverage"] == 0.8
    assert answers[0]["launch_s"] == pytest.approx(32e-5)


def test_queued_kernels_take_no_longer(run, fake, written):
    path = written([PROJECTION])
    alone, queued = (json.loads(run("predict-model", path, "--device", "h100", "--json", *more).out)["answers"][0]
                     for more in ((), ("--queued",)))  # fmt: skip
    assert queued["latency_s"]["value"] <= alone["latency_s"]["value"]


def test_unknown_power_and_what_is_left_out_of_the_table_are_said(run, fake, written):
    many = [PROJECTION | {"name": "", "sizes": {"m": m, "n": 64, "k": 64}, "dtype": "fp64"} for m in range(1, 21)]
    done = run("predict-model", written(many), "--device", "h100")
    assert "8 others" in done.out
    assert "no power is known of gemm[batch=1,m=1,n=64,k=64]:fp64 and 19 others" in done.out


def test_gaps_and_notes_are_shown(run, fake, written):
    assert (
        "between kernels" in run("predict-model", written([PROJECTION]), "--device", "h100", "--launch-s", "1e-5").out
    )


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (
            [PROJECTION, PROJECTION | {"sizes": {"m": 0, "n": 1, "k": 1}}],
            "m.json",
            "kernels[1].sizes.m: m must be between",
        ),
        (CSV.replace("512,4096,4096", "0,4096,4096"), "m.csv", "kernels[0].m: m must be between 1"),
        (CSV.replace("512,4096,4096", "x,4096,4096"), "m.csv", "kernels[0].m: m must be a whole number"),
        (CSV.replace(",32,\n,", ",none,\n,"), "m.csv", "kernels[0].count"),
        (CSV + "a,b,c,1,2,3,4,5,6,7,8\n", "m.csv", "more fields than the header"),
        ([PROJECTION | {"device": "h100"}], "m.json", "devices are named once"),
        ([PROJECTION | {"family": "conv"}], "m.json", "kernels[0].family: no kernel family 'conv'"),
        ([{"dtype": "bf16"}], "m.json", "kernels[0].family: family is missing"),
        (["gemm"], "m.json", "kernels[0]: a kernel is a JSON object"),
        ([], "m.json", "at least one kernel"),
        ("{", "m.json", "cannot be read as json"),
        ("[1", "m.yaml", "cannot be read as yaml"),
        ("a: 1", "m.yaml", "has 'a', which is no list of kernels; give `kernels` alone"),
        ('{"model_type": "llama"}', "m.json", "a model's config.json goes to `kernelcast estimate`"),
        ("3", "m.json", "must hold a list of kernels"),
        ("", "m.txt", "must end in .json, .yaml, .yml, .csv"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(run, fake, written, content, name, said):
    assert said in run("predict-model", written(content, name), "--device", "h100").error


def test_a_file_that_is_not_there_and_no_device(run, fake, written):
    assert "cannot read /nowhere.json" in run("predict-model", "/nowhere.json", "--device", "h100").error
    assert "name a device" in run("predict-model", written([PROJECTION])).error
    assert "no device 'h900'" in run("predict-model", written([PROJECTION]), "--device", "h900").error
    conv = {"family": "conv2d", "dtype": "fp32",
            "sizes": {"batch": 1, "in_channels": 3, "out_channels": 8, "height": 8, "width": 8, "kernel": 3}}  # fmt: skip
    assert "not trained on conv2d" in run("predict-model", written([conv]), "--device", "h100").error


class Fake:
    """What `kernelcast.load` gives in these tests."""

    def __init__(self, predictor: Any) -> None:
        self.devices = catalogue()
        self.predict = predictor.predict

    def in_long_loops(self) -> Fake:
        return self


def test_the_python_door_takes_mappings_flat_or_nested_and_kernels(monkeypatch, fake):
    from kernelcast.models.predict import predictor

    monkeypatch.setattr(workloads, "load", lambda model=None: Fake(predictor.load_predictor(None, catalogue())))
    flat = {name: value for name, value in PROJECTION.items() if name != "sizes"} | PROJECTION["sizes"]
    spec = kernelcast.KernelSpec.of("gemm", "bf16", m=512, n=4096, k=4096)
    answers = [kernelcast.predict_model([item], "h100") for item in (flat, PROJECTION, Kernel(spec, 32, "projection"))]
    assert answers[0] == answers[1] == answers[2]
    with pytest.raises(SpecError, match=r"kernels\[1\].k: gemm needs k") as caught:
        kernelcast.predict_model([flat, {name: value for name, value in flat.items() if name != "k"}], "h100")
    assert caught.value.field == "kernels[1].k"


def test_boards_may_be_set_to_a_limit(run, tmp_path):
    path = tmp_path / "layer.yaml"
    path.write_text("- {family: gemm, dtype: bf16, m: 4096, n: 4096, k: 4096, count: 4}\n")
    usual, same, limited = (
        json.loads(run("predict", "model", path, "--device", "h200", *options, "--json").out)["answers"][0]
        for options in ((), ("--power-limit-w", "700"), ("--power-limit-w", "400"))
    )
    assert same == usual
    assert limited["latency_s"]["value"] > 1.1 * usual["latency_s"]["value"]
    assert limited["power_w"]["value"] == pytest.approx(400, rel=1e-3)


def test_the_footprint_of_a_model(run, fake, written):
    ask = ("predict-model", written([PROJECTION, SCORES]), "--device", "h100-sxm", "--grid", "us", "--pue", "1.2")
    assert "one run: " in run(*ask).out
    (answer,) = json.loads(run(*ask, "--json").out)["answers"]
    assert answer["footprint"]["carbon_g"]["value"] == pytest.approx(1.2 * 384 * answer["energy_j"]["value"] / 3.6e6)
