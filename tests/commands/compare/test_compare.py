"""`kernelcast compare` and `compare roofline`: one kernel on several devices, with a predictor of which all is known."""

from __future__ import annotations

import json

import pytest
from kernelcast.features.device import catalogue

GEMM = ("gemm", "4096x4096x4096", "bf16")
DEVICES = ("--device", "l40s", "--device", "h100-sxm", "--device", "h200-sxm")


def test_the_fastest_is_first(run, fake):
    done = run("compare", *GEMM, *DEVICES)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines() if line.startswith(("●", "○"))]
    assert [line[1] for line in lines] == ["nvidia-h100-sxm-80gb", "nvidia-h200-sxm-141gb", "nvidia-l40s"]
    assert lines[0][-1] == "1.00×"
    assert "read as: gemm m=4096 n=4096 k=4096 dtype=bf16" in done.err
    assert "137 GFLOP" in done.out


def test_json_is_the_comparison_of_the_service(run, fake):
    answer = json.loads(run("compare", *GEMM, *DEVICES, "--price", "l40s=3.6", "--json").out)
    assert [item["device"] for item in answer["answers"]][-1] == "nvidia-l40s"
    last = answer["answers"][-1]
    assert last["cost_per_million_calls"]["value"] == pytest.approx(1e3 * last["prediction"]["latency_s"]["value"])
    assert answer["answers"][0]["cost_per_million_calls"] is None


def test_without_devices_all_are_compared_and_some_listed(run, fake):
    done = run("compare", *GEMM, "--top", "5")
    assert sum(line.startswith(("●", "○")) for line in done.out.splitlines()) == 5
    assert f"--top {len(catalogue().names())} lists all" in done.err


def test_a_device_that_cannot_run_it_is_told(run, fake):
    done = run("compare", "gemm", "64x64x64", "nvfp4", "--device", "p4", "--device", "b200")
    assert "nvidia-b200-sxm-180gb" in done.out
    assert "nvidia-p4" not in done.out
    assert "nvidia-p4: not answered: nvidia-p4 has no peak for nvfp4" in done.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_device_that_can_run_it_is_an_error_with_the_reasons(run, fake, options):
    done = run("compare", "gemm", "64x64x64", "nvfp4", "--device", "p4", "--device", "v100", *options)
    assert (done.code, done.out) == (2, "")
    assert "error: no device can run it: nvidia-p4 has no peak for nvfp4; it has:" in done.err
    assert "nvidia-v100-sxm-32gb has no peak" in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("compare", *GEMM, "--price", "h100-sxm=2.5", *DEVICES),
        ("compare", "roofline", *GEMM, "--device", "rtx-pro-6000", "--device", "intel-xeon-emerald-rapids-vm-2c"),
        ("compare", "sweep", "gemm", "m=1..8k", "n=8", "k=8", "bf16", *DEVICES),
        ("compare", "rank", "gemm", "4kx4kx4k", "fp16", "--device", "h200-sxm"),
        ("devices",),
        ("devices", "kernels"),
        ("devices", "kernels", "gemm"),
    ],
)
def test_tables_fit_80_columns(run, fake, command, monkeypatch):
    monkeypatch.setattr("kernelcast.commands.console.screen.PIPE_WIDTH", 80)
    done = run(*command)
    assert done.code == 0, done.err
    # A heading names a kernel, and is one line whatever its length.
    assert max(map(len, done.out.splitlines()[1:])) <= 80


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("gemm", "4096x4096x4096", "--device", "h100-sxm"), "dtype is missing"),
        ((*GEMM, "--device", "h900"), "no device 'h900'; did you mean"),
        (("gem",), "no kernel family 'gem'; did you mean gemm? `kernelcast devices kernels` lists all"),
        ((*GEMM, "--device", "l40s", "--price", "h200=1"), "not among the devices"),
        ((*GEMM, *DEVICES, "--price", "l40s=1", "--price", "nvidia-l40s=2"), "names nvidia-l40s twice, at 1 and 2"),
        (("rankk", *GEMM[1:]), "did you mean `kernelcast compare rank`?"),
        (("conv2d", "1x3x8x8x8x3", "bf16", "--device", "l40s"), "conv2d"),
    ],
)
def test_what_is_wrong_is_one_sentence(run, fake, args, said):
    assert said in run("compare", *args).error


def test_roofline(run, fake):
    done = run("compare", "roofline", *GEMM, "--device", "h100", "--device", "l40s")
    assert done.code == 0, done.err
    assert "50 %" in done.out
    assert "1,365 FLOP/B" in done.out
    assert "h100 is read as nvidia-h100-sxm-80gb; it may also be" in done.err
    answer = json.loads(run("compare", "roofline", *GEMM, "--device", "h100-sxm", "--json").out)
    assert answer["answers"][0]["of_limit"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (GEMM, "name a device with --device"),
        ((*GEMM, *(word for name in catalogue().names()[:9] for word in ("--device", name))), "at most 8 devices"),
        (("gemm", "8x8x8", "nvfp4", "--device", "p4"), "has no peak for nvfp4"),
    ],
)
def test_rooflines_have_few_devices_that_can_run_it(run, fake, args, said):
    assert said in run("compare", "roofline", *args).error
