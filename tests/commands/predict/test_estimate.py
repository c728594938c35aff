"""`kernelcast estimate`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
PREFILL = ("--prefill", "128", "--device", "h100-sxm")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_devices_side_by_side(run, fake):
    done = run("estimate", "meta-llama/Llama-3.1-8B", "--prefill", "2048", "--batch", "8", "--device", "h100-sxm", "--device",
               "rtx-4090", "--device", "h100-sxm")  # fmt: skip
    assert done.code == 0
    for word in (
        "8.03 billion parameters", "8 × 2048 new tokens", "NVIDIA H100 SXM5 80 GB", "NVIDIA GeForce RTX 4090", "100 W",
        "layers.mlp.gate_up", "compute", "4 others", "yes, up to", "rotary positions", "host",
    ):  # fmt: skip
        assert word in done.out
    totals = done.out[: done.out.index("layers.mlp.gate_up")]
    assert totals.count("[") == 2, "a device that is named twice is shown once"


def test_numbers_are_read_as_people_write_them(run, fake, config):
    done = run("estimate", config, "--prefill", "2k", "--batch", "1_0", "--device", "h100-sxm")
    assert "10 × 2048 new tokens" in done.out
    done = run("estimate", config, "--prefill", "2.5", "--device", "h100-sxm")
    assert "Invalid value for '--prefill': give a whole number, such as 4096 or 4k, not '2.5'" in done.error


def test_a_configuration_of_ones_own(run, fake, config):
    for arguments, name in (
        (("--config", config), config.parent.name),
        ((config,), config.parent.name),
        (("my/Model", "--config", config), "my/Model"),
    ):
        done = run(
            "estimate", *arguments, "--decode", "--context", "100", "--batch", "4", "--device", "h100-sxm", "--json"
        )
        answer = json.loads(done.out)["estimates"][0]
        assert answer["model"] == name
        assert answer["step"] == [{"count": 4, "new_tokens": 1, "context": 100, "scored": 1}]
        assert answer["tokens_per_s"]["value"] == pytest.approx(4 / answer["latency_s"]["value"])
        assert answer["memory"]["fits"] is True
        assert answer["memory"]["cache_per_token_b"] == 4 * 2 * 2 * 32 * 2
        assert answer["latency_s"] == answer["kernels"]["latency_s"]
        assert {"layers.attention.qkv", "logits"} <= {kernel["name"] for kernel in answer["kernels"]["kernels"]}


def test_plans_and_formats(run, fake):
    done = run("estimate", "qwen3-30b-a3b", "--decode", "--context", "1000", "--batch", "32", "--tp", "2", "--dp", "2",
               "--ep", "4", "--weights", "fp8", "--kv-dtype", "fp8", "--device", "h200", "--json")  # fmt: skip
    answer = json.loads(done.out)["estimates"][0]
    assert answer["plan"] == {"tp": 2, "pp": 1, "ep": 4, "dp": 2}
    assert answer["formats"] == {"dtype": "bf16", "weights": "fp8", "experts": "fp8", "kv": "fp8"}
    assert {item["kind"] for item in answer["collectives"]} == {"all_reduce", "all_to_all", "all_gather"}
    assert any("collectives are not included" in note for note in answer["notes"])
    assert "plan" in run("estimate", "qwen3-30b-a3b", "--tp", "2", *PREFILL).out


def test_an_image_needs_no_length(run, fake):
    done = run("estimate", "vit-base", "--batch", "32", "--device", "h100-sxm")
    assert "32 × 197 new tokens" in done.out


def test_a_model_that_does_not_fit_says_so(run, fake):
    shown = run("estimate", "llama-3.1-70b", *PREFILL).out
    assert "GB of 72.0 GB" in shown
    assert "it does not fit into nvidia-h100-sxm-80gb; it would with tp 2 or weights int4" in shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("llama-3.1-8b", "--prefill", "3"), "name a device with --device"),
        (PREFILL, "name a model"),
        (("llama-3.1-8b", "--config", "x.json", *PREFILL), "cannot read x.json"),
        (("a.json", "--config", "b.json", *PREFILL), "two configurations"),
        (("llama-9b", *PREFILL), "nearest: huggyllama/llama-7b"),
        (("--config", "missing.json", *PREFILL), "cannot read missing.json"),
        (("llama-3.1-8b", "--device", "h100-sxm"), "say what runs"),
        (("llama-3.1-8b", "--decode", "--device", "h100-sxm"), "decoding needs the positions"),
        (("llama-3.1-8b", "--decode", *PREFILL), "either prefills or decodes"),
        (("llama-3.1-8b", "--tp", "3", *PREFILL), "tp 3 does not divide the model's 32 attention heads"),
        (("llama-3.1-8b", "--weights", "fp7", *PREFILL), "weights is 'fp7'; it is one of"),
        (("llama-3.1-8b", "--batch", "0", *PREFILL), "--batch must be"),
        (("llama-3.1-8b", "--threads", "2", *PREFILL), "is a GPU"),
        (("llama-3.1-8b", "--prefill", "10", "--device", "h900"), "h900"),
        (("mlp.mlir", "--device", "h100-sxm"), "is MLIR; what it costs says: kernelcast predict mlp.mlir --device NAME"),
        (("k.ttir", *PREFILL), "kernelcast predict code k.ttir --device NAME"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(run, fake, arguments, error):
    assert error in run("estimate", *arguments).error


def test_parts_that_one_device_alone_has_are_shown(run):
    for devices in (("h100-sxm", "a100"), ("a100", "h100-sxm")):
        done = run("estimate", "gpt2", "--prefill", "64", "--weights", "fp8", *(f"--device={name}" for name in devices))
        assert done.code == 0, done.error
        assert "quantise" in done.out or "others" in done.out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--prefill", "64", "--batch", "0"], "--batch must be between 1 and 10,000,000, got 0"),
        (["--prefill", "0"], "--prefill must be between 1 and 10,000,000, got 0"),
        (["--prefill", "64", "--weights", "fp3"], "mxfp4"),
    ],
)
def test_an_option_that_cannot_be_is_named(run, options, error):
    done = run("estimate", "gpt2", "--device", "h100-sxm", *options)
    assert done.code == 2
    assert error in done.error


def test_an_implementation_never_measured_says_what_it_is_read_as(run):
    done = run("estimate", "gpt2", "--device", "h100-sxm", "--prefill", "64", "--impl", "vllm-9")
    assert done.code == 0
    assert "vllm-9: read as vllm-" in done.out


def test_a_training_step_with_prices_and_what_could_be_won(run, config):
    done = run("estimate", "openai-community/gpt2", "--train", "512", "--batch", "2", "--device", "h200", "--price", "h200=3.6",
               "--dtype", "bf16")  # fmt: skip
    assert done.code == 0
    for words in ("backward.layers", "AdamW", "cost/M tokens"):
        assert words in done.out
    item = json.loads(run("estimate", config, "--decode", "--context", "512", "--device", "h200", "--json").out)[
        "estimates"
    ][0]
    assert {saving["kind"] for saving in item["savings"]} >= {"batch", "launches"}
    assert item["savings"][0]["saved_s"]["lower"] <= item["savings"][0]["saved_s"]["value"]
    assert "could be won on" in run("estimate", config, "--decode", "--context", "512", "--device", "h200").out


def test_the_memory_of_a_step_has_parts(run, fake, config):
    step = ("estimate", config, "--train", "128", "--batch", "2", "--device", "h100-sxm")
    done = run(*step)
    for words in ("memory    ", ": weights ", ", gradients ", ", optimiser state ", ", activations "):
        assert words in done.out
    memory = json.loads(run(*step, "--json").out)["estimates"][0]["memory"]
    assert memory["gradients_b"] == memory["weights_b"] > 0
    assert memory["optimizer_state_b"] == 6 * memory["weights_b"]
    assert memory["total_b"] == sum(
        memory[f"{part}_b"] for part in ("weights", "gradients", "optimizer_state", "activations")
    )
    assert "gradients" not in run("estimate", config, *PREFILL).out


def test_the_cost_is_in_the_json(run, fake, config):
    options = ("--decode", "--context", "64", "--batch", "2", "--tp", "2", "--device", "h100-sxm", "--device", "h200")
    priced, other = json.loads(run("estimate", config, *options, "--price", "h100-sxm=3.6", "--json").out)["estimates"]
    assert priced["price_per_hour"] == 3.6
    # Two devices, two tokens a step, 3600 seconds an hour.
    for end, time_s in priced["latency_s"].items():
        assert priced["cost_per_million_tokens"][end] == pytest.approx(1e6 * 2 * 3.6 / 3600 / 2 * time_s)
    assert other["price_per_hour"] is other["cost_per_million_tokens"] is None


def test_a_context_beyond_the_model_s_is_noted(run, fake, config):
    for words in (("--decode", "--context", "2048"), ("--prefill", "2049"), ("--train", "4096")):
        done = run("estimate", config, *words, "--device", "h100-sxm")
        assert "longer than the 2048 the model is made for (max_position_embeddings)" in done.out
    assert "longer than" not in run("estimate", config, "--decode", "--context", "2047", "--device", "h100-sxm").out


def test_notes_of_every_device_are_shown(run):
    done = run("estimate", "llama-3.1-8b", "--decode", "--batch", "1", "--context", "1024", "--weights", "fp8", "--device",
               "h200", "--device", "b200")  # fmt: skip
    assert done.out.count("taken as unpacked") == 1


def test_an_encoder_alone(run, fake):
    done = run("estimate", "openai/whisper-large-v3", "--encode", "--batch", "2", "--device", "h200")
    assert done.code == 0
    assert "2 × 1500 new tokens" in done.out
    assert "no encoder" in run("estimate", "llama-3.1-8b", "--encode", *PREFILL).err


def test_what_an_encoder_of_text_reads(run, fake, tmp_path):
    t5 = tmp_path / "config.json"
    t5.write_text(
        '{"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 99}'
    )
    done = run("estimate", t5, "--prefill", "1", "--source", "300", "--device", "h200")
    assert done.code == 0
    assert "the encoder reads 300 tokens" in done.out
    assert (
        "2 × 300 new tokens"
        in run("estimate", t5, "--encode", "--source", "300", "--batch", "2", "--device", "h200").out
    )
    assert "such as source 512" in run("estimate", t5, "--prefill", "1", "--device", "h200").err
    assert "no encoder of text" in run("estimate", "llama-3.1-8b", "--source", "3", *PREFILL).err
    assert (
        "--source must be between 1" in run("estimate", t5, "--source", "0", "--prefill", "1", "--device", "h200").err
    )


def test_the_time_is_drawn(run, config, tmp_path):
    page, bare = tmp_path / "time.html", tmp_path / "time.svg"
    assert run("estimate", config, *PREFILL, "--device", "h200", "--flame", page).code == 0
    assert page.read_text().count("<svg") == 2
    assert run("estimate", config, *PREFILL, "--flame", bare).code == 0
    words = [element.text for element in ET.fromstring(bare.read_text()).iter() if element.tag.endswith("title")]
    assert any("› layers › mlp › gate_up" in text for text in words)


@pytest.mark.parametrize(("options", "error"), [
    (("--price", "h100-sxm"), "--price takes DEVICE=PRICE"),
    (("--price", "h100-sxm=x"), "--price takes DEVICE=PRICE"),
    (("--price", "h100-sxm=-1"), "--price takes DEVICE=PRICE"),
    (("--price", "h200=2"), "not among the devices"),
    (("--train", "64"), "either trains, prefills or decodes"),
    (("--bind", "n=1"), "--bind goes with a program"),
    (("--capture", "x.json"), "--capture goes with a program"),
    (("--flame", "x.png"), "--flame writes .html, .svg"),
])  # fmt: skip
def test_options_of_pictures_prices_and_programs(run, fake, config, options, error):
    done = run("estimate", config, *PREFILL, *options)
    assert done.code == 2
    assert error in done.err


def test_a_step_under_a_limit_and_its_footprint(run, config):
    ask = ("estimate", config, "--train", "1024", "--batch", "8", "--device", "h100-sxm")
    usual, limited = (
        json.loads(run(*ask, *options, "--json").out)["estimates"][0]
        for options in ((), ("--power-limit-w", "200", "--grid", "de", "--pue", "1.5", "--tp", "1"))
    )
    assert limited["latency_s"]["value"] > usual["latency_s"]["value"]
    assert "run" not in usual
    assert limited["energy_j"]["value"] < usual["energy_j"]["value"]
    carbon_g = limited["footprint"]["carbon_g"]["value"]
    assert carbon_g == pytest.approx(1.5 * 344 * limited["energy_j"]["value"] / 3.6e6)
    done = run(*ask, "--grid", "de", "--electricity-price", "0.3")
    for words in (
        "a step: ",
        "a million tokens: ",
        "CO2e",
        "for electricity",
        "Germany, 344 g CO2e per kWh (Ember",
        "PUE 1",
    ):
        assert words in done.out


def test_a_training_run_is_its_steps(run, config):
    ask = ("estimate", config, "--train", "1024", "--device", "h100-sxm", "--tp", "2", "--steps", "72000")
    options = ("--price", "2", "--grid", "100", "--electricity-price", "0.5")
    item = json.loads(run(*ask, *options, "--json").out)["estimates"][0]
    # Both devices of the plan draw the energy of one.
    step_s, step_j = item["latency_s"]["upper"], 2 * item["energy_j"]["upper"]
    whole = item["run"]
    assert whole["steps"] == 72000
    assert whole["latency_s"]["upper"] == pytest.approx(72000 * step_s)
    assert whole["energy_j"]["upper"] == pytest.approx(72000 * step_j)
    assert whole["cost"]["upper"] == pytest.approx(72000 * step_s / 3600 * 2 * 2)
    assert whole["footprint"]["carbon_g"]["upper"] == pytest.approx(72000 * step_j / 3.6e6 * 100)
    done = run(*ask, *options)
    for words in ("72,000 steps on NVIDIA H100", " h [", " kWh [", "to rent", "CO2e", "for electricity"):
        assert words in done.out
    assert "--steps" in run(*ask[:-1], "0").err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--power-limit-w", "5"), "below what it draws"),
        (("--clock-hz", "1e10"), "above its boost clock"),
        (("--power-limit-w", "300", "--device", "amd-epyc-9654"), "is a CPU"),
        (("--grid", "germny"), "nearest are de (Germany)"),
        (("--electricity-price", "-1"), "electricity_price must be"),
    ],
)
def test_settings_and_grids_that_cannot_be_are_refused(run, fake, config, options, words):
    assert words in run("estimate", config, *PREFILL, *options).error


def test_what_ranks_send_each_other_takes_time_besides(run, fake):
    asked = ("estimate", "llama-3.1-8b", *PREFILL, "--tp", "4")
    assert "collectives alone take" in run(*asked).out
    (item,) = json.loads(run(*asked, "--json").out)["estimates"]
    times_s = item["collectives_s"]
    assert 0 < times_s["lower"] < times_s["value"] < times_s["upper"] < 1
    (alone,) = json.loads(run("estimate", "llama-3.1-8b", *PREFILL, "--json").out)["estimates"]
    assert alone["collectives_s"] is None
