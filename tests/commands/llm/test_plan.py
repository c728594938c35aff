"""`kernelcast llm plan`: the screen, JSON, and what it says of bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kernelcast.cli import main

MODEL = "meta-llama/Llama-3.1-8B"
ASK = (
    "llm", "plan", MODEL, "--devices", "h100-sxm,l40s", "--gpus", "2", "--input", "512", "--output", "64", "--engines", "vllm",
)  # fmt: skip


def test_json_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100-sxm: 2.5\nl40s: 0.9\n")
    assert main([*ASK, "--tpot", "0.02", "--prices", str(prices), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cost_unit"] == "price"
    assert answer["plans"] > 200
    choice = answer["choices"][0]
    assert choice["command"].startswith(f"vllm serve {MODEL}")
    assert choice["service"]["tpot_s"]["p50"]["value"] <= 0.02
    assert 0.5 <= choice["probability"] <= 1
    assert choice["service"]["cost_per_million_tokens"]["lower"] > 0
    assert len(answer["front"]) >= 3


def test_the_screen_has_the_command_and_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--rate", "5"]) == 0
    shown = capsys.readouterr().out
    for word in ("least cost per token", "least energy per token", "fewest GPUs", "vllm serve", "with probability",
                 "least cost by number of GPUs", "no plan beats these"):  # fmt: skip
        assert word in shown


def test_a_model_over_two_kinds_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("llm", "plan", "meta-llama/Llama-3.1-70B", "--devices", "a100-80gb:1,l40s:2", "--input", "512", "--output", "64",
           "--weights", "bf16", "--engines", "vllm")  # fmt: skip
    assert main([*ask]) == 0
    shown = capsys.readouterr().out
    assert "over two kinds of GPUs, least cost: 1 × (tp 1, layers" in shown
    assert "VLLM_PP_LAYER_PARTITION=" in shown
    assert main([*ask, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["choices"] == []
    assert answer["pipeline"]["devices"] == {"nvidia-a100-sxm-80gb": 1, "nvidia-l40s": 2}
    assert main([word.replace(":1", "").replace(":2", "") for word in ask] + ["--gpus", "1"]) == 2
    assert "nvidia-a100-sxm-80gb:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--gpus", "0"), "gpus"), (("--devices", "no-such"), "no device"),
        (("--input", "nan"), "input_tokens"), (("--output", "-1"), "output_tokens"), (("--rate", "1e30"), "rate"),
        (("--concurrency", "4", "--rate", "1"), "not both"), (("--tpot", "1e-5"), "nearest"),
        (("--engines", "tgi"), "no engine"),
        (("--weights", "int3"), "weights"), (("--price", "none.yaml"), "cannot read"),
        (("--power-budget", "-5"), "power_budget_w"),
        (("--power-budget", "20"), "W, of 20"), (("--devices", "amd-epyc-9654"), "GPUs"), (("--cached", "1"), "cached"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(more: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *more]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "Traceback" not in said


def test_a_device_without_a_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100-sxm: 2.5\n")
    assert main([*ASK, "--price", str(prices)]) == 2
    assert "nvidia-l40s" in capsys.readouterr().err


def test_plans_under_a_limit_have_their_footprint(capsys: pytest.CaptureFixture[str]) -> None:
    ask = [*ASK[:4], "h100-sxm", *ASK[5:], "--weights", "bf16", "--power-limit-w", "300", "--grid", "fr"]
    assert main([*ask, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    for plan in (*answer["front"], *answer["by_gpus"]):
        assert plan["carbon_g_per_million_tokens"] == pytest.approx(1e6 * 44 * plan["energy_per_token_j"] / 3.6e6)
    for choice in answer["choices"]:
        service = choice["service"]
        assert service["power_w"]["upper"] <= 300
        per_million_g = service["footprint_per_million_tokens"]["carbon_g"]["value"]
        assert per_million_g == pytest.approx(1e6 * 44 * service["energy_per_token_j"]["value"] / 3.6e6)
        assert "set every GPU to 300 W before it starts, as by nvidia-smi" in choice["notes"]
    assert main([*ask]) == 0
    shown = capsys.readouterr().out
    assert "least cost per token, a million tokens: " in shown
    assert "France, 44 g CO2e per kWh" in shown
    assert re.search(r"J/token +cost +CO2e", shown)
    assert main([*ask, "--power-limit-w", "5000"]) == 2
    assert "above its own limit" in capsys.readouterr().err


def test_devices_are_named_at_once_or_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*devices: str) -> str:
        assert (
            main(["llm", "plan", MODEL, *devices, "--gpus", "1", "--input", "64", "--output", "8", "--engines", "vllm"])
            == 0
        )
        return capsys.readouterr().out

    assert shown("--device", "h100-sxm", "--device", "l40s") == shown("--devices", "h100-sxm,l40s")
    assert main(["llm", "plan", MODEL, "--device", "", "--gpus", "1", "--input", "64", "--output", "8"]) == 2
    assert "at least one" in capsys.readouterr().err
