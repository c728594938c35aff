"""`kernelcast compare best-cap`: the chosen setting and the curves, for kernels, files, services and measured programs."""

from __future__ import annotations

import json

import pytest

LLAMA = "meta-llama/Llama-3.1-8B"
SERVICE = (LLAMA, "input=64", "output=4", "concurrency=1")


def test_a_kernel_is_drawn_with_its_best_setting(run):
    done = run("compare", "best-cap", "gemm", "4096x4096x4096", "bf16", "--device", "h100-sxm", "--slowdown", "5%")
    assert done.code == 0, done.err
    assert "of those at most 5 % slower" in done.out
    assert "energy over the default's, by power limit in W" in done.out
    assert "by clock in MHz" in done.out
    assert "1980 MHz" in done.out


def test_a_program_reads_json(run):
    done = run(
        "compare", "best-cap", "--time-s", 312, "--power-w", 241, "--device", "a40", "--slowdown", "0.1", "--json"
    )
    result = json.loads(done.out)
    assert result["device"] == "nvidia-a40"
    assert result["best"]["time"] <= 1.1
    assert result["best"]["energy"] < 0.85
    assert [point["power_limit_w"] for point in result["limits"]][-1] == 300
    assert result["usual"]["energy_j"]["value"] == pytest.approx(312 * 241)


def test_a_list_of_kernels_under_a_budget(run, tmp_path):
    path = tmp_path / "layer.yaml"
    path.write_text("- {family: gemm, dtype: bf16, m: 4096, n: 4096, k: 4096, count: 4}\n")
    done = run(
        "compare", "best-cap", path, "--device", "a100-sxm-80gb", "--budget-w", 40_000, "--host-w", 1500, "--json"
    )
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["best"]["throughput"] > 1
    assert result["limits"][-1]["servers"] == 40_000 // (8 * 400 + 1500)
    assert result["clocks"] == []


def test_a_service_of_a_language_model(run):
    words = ("input=256", "output=16", "concurrency=4")
    done = run(
        "compare", "best-cap", "meta-llama/Llama-3.1-8B", *words, "--device", "h100-sxm", "--slowdown", "20%", "--json"
    )
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["best"]["energy"] < 0.9
    assert result["best"]["time"] <= 1.2


def test_a_service_of_a_configuration_and_one_that_guesses(run, tmp_path):
    path = tmp_path / "config.json"
    config = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
              "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
    path.write_text(json.dumps(config))
    guesses = ("speculate=2", "acceptance=0.7", f"draft={path}")
    for words in ((path, *SERVICE[1:]), (*SERVICE, *guesses)):
        done = run("compare", "best-cap", *words, "requests=2", "--device", "h100-sxm", "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["best"]["energy"] < 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("gemm", "64x64x64", "bf16"), "name a device"),
        (("--device", "a40"), "name a kernel"),
        (("--device", "a40", "--time-s", "3"), "both --time-s and --power-w"),
        (("gemm", "64x64x64", "bf16", "--device", "a40", "--slowdown", "much"), "a share such as 5% or 0.05"),
        (("gemm", "64x64x64", "fp32", "--device", "amd-epyc-9654"), "is a CPU, whose power is not measured"),
        (("meta-llama/Llama-3.1-8B", "--device", "a40"), "input_tokens, output_tokens missing"),
        (("meta-llama/Llama-3.1-8B", "input=1", "output=2", "speed=9", "--device", "a40"), "no argument 'speed'"),
        (("meta-llama/Llama-3.1-8B", "input=many", "output=2", "--device", "a40"), "input must be a number"),
        ((*SERVICE, "seed=-1", "--device", "a40"), "seed must be a whole number of at least 0, got -1"),
        ((*SERVICE, "requests=2.5", "--device", "a40"), "requests must be a whole number, got 2.5"),
        ((*SERVICE, "device=3", "--device", "a40"), "no argument 'device'"),
        ((*SERVICE, "power-limit-w=200", "--device", "a40"), "power_limit_w is what is chosen here"),
        ((*SERVICE, "clock_hz=1e9", "--device", "a40"), "clock_hz is what is chosen here"),
        ((*SERVICE, "concurrency=9", "--device", "a40"), "'concurrency=9' says concurrency a second time"),
        ((*SERVICE, "input_tokens=9", "--device", "a40"), "'input_tokens=9' says input_tokens a second time"),
        (("kernels.json", "count=2", "--device", "a40"), "a file has all of its kernels"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_said(run, args, words):
    done = run("compare", "best-cap", *args)
    assert done.code == 2
    assert words in done.err


def test_the_curves_are_drawn_to_a_file(run, tmp_path):
    ask = ("compare", "best-cap", "--time-s", 312, "--power-w", 241, "--device", "a40", "--out")
    assert run(*ask, tmp_path / "curve.svg").code == 0
    assert (tmp_path / "curve.svg").read_text().startswith("<svg xmlns")
    assert "written as an .svg, got curve.pdf" in run(*ask, tmp_path / "curve.pdf").err
