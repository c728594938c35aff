"""Captured programs: equal calls once, written and read without loss, priced as what was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.torch_program.answers import answer
from kernelcast.workloads.torch_program.captured import as_data, read_program
from kernelcast.workloads.torch_program.run import Run
from torch import nn

DEVICES = ("h100-sxm", "rtx-4090", "intel-xeon-emerald-rapids-vm-2c")


@pytest.fixture
def run(recorded: Callable[..., Run]) -> Run:
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 100, (8, 32))

    def step() -> None:
        scores = model(tokens).masked_fill(torch.ones(64, dtype=torch.bool), float("-inf"))
        scores.square().mean().backward()
        optimizer.step()

    return recorded(step, *DEVICES, threads=1, batch=8)


def test_equal_calls_are_kept_once_with_their_counts(run: Run) -> None:
    calls = run.program.calls
    assert sum(call.count for call in calls) < len(run.recording.operations)  # without what makes the optimiser's state
    assert len(calls) < sum(call.count for call in calls) / 2
    layers = [call for call in calls if call.operation.module.endswith("layers.*.linear1") and call.count == 3]
    assert layers
    for name, answered in run.totals.items():
        assert sum(share.calls for share in answered.by_operator) <= sum(call.count for call in calls), name


def test_a_file_of_json_is_priced_as_the_program(run: Run, predictor: ArtifactPredictor, tmp_path: Path) -> None:
    path = run.save_program(tmp_path / "program.json")
    text = path.read_text(encoding="utf-8")
    program = read_program(json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")))
    assert program == run.program
    assert as_data(program) == json.loads(text)
    again = answer(predictor, program, [predictor.devices.get(name) for name in DEVICES], threads=1)
    assert again == run.answers


def test_words_of_arguments_and_what_was_touched_long_before_are_kept(recorded: Callable[..., Run]) -> None:
    layers, x = [torch.randn(1024, 1024) for _ in range(16)], torch.randn(1, 1024)

    def step() -> None:
        y = x
        for layer in layers:
            y = torch.nn.functional.gelu(y @ layer, approximate="tanh")

    program = recorded(step).program
    product, gelu = (call for call in program.calls if call.operation.name in ("aten.mm", "aten.gelu"))
    assert gelu.operation.arguments["approximate"] == "tanh"
    assert dict(product.reuse)[2.0**27] == pytest.approx(2.0**22, rel=0.01), (
        "64 MB of the other layers lie between two runs"
    )
    assert all(size_b <= 4096 for _, size_b in gelu.reuse)
    assert read_program(as_data(program)) == program
    data = as_data(program)
    data["calls"][0]["arguments"]["approximate"] = "tanh" * 100
    with pytest.raises(SpecError, match="short words"):
        read_program(data)


def test_what_could_be_won_is_said_for_each_device(run: Run) -> None:
    kinds = {name: {saving.kind for saving in savings} for name, savings in run.answers.savings.items()}
    assert "launches" in kinds["nvidia-h100-sxm-80gb"]
    assert "launches" not in kinds["intel-xeon-emerald-rapids-vm-2c"]
    for name, savings in run.answers.savings.items():
        latency = run.totals[name].latency_s
        assert latency is not None
        for saving in savings:
            assert saving.saved_s.lower <= saving.saved_s.value <= saving.saved_s.upper
            assert saving.share == pytest.approx(saving.saved_s.value / latency.value)


def test_products_of_fp32_win_by_bf16_and_those_of_bf16_by_fp8(recorded: Callable[..., Run]) -> None:
    for dtype, words in ((torch.float32, "bf16 in place of fp32"), (torch.bfloat16, "fp8 in place of bf16")):
        a = torch.randn(4096, 4096, dtype=dtype)

        def step(a: torch.Tensor = a) -> None:
            a @ a

        (saving,) = recorded(step, "h100-sxm").answers.savings["nvidia-h100-sxm-80gb"]
        assert words in saving.change
        assert 0.05 < saving.share < 0.95
    a100 = recorded(step, "a100-sxm-80gb").answers.savings["nvidia-a100-sxm-80gb"]
    assert not a100, "an A100 has no fp8"


def test_chains_win_by_compiling(recorded: Callable[..., Run]) -> None:
    x = torch.randn(8192, 8192)

    def step() -> None:
        ((x * 2 + 1).sigmoid() * x).relu()

    (saving,) = recorded(step, "h100-sxm").answers.savings["nvidia-h100-sxm-80gb"]
    assert saving.kind == "compiled"
    assert saving.saved_s.lower > 0


def test_a_place_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot write"):
        run.save_program(tmp_path / "none" / "program.json")
