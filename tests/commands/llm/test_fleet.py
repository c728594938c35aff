"""`kernelcast llm fleet`: a mix of GPUs for a table of sizes, and what it says of bad tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast.cli import main

ASK = (
    "llm", "fleet", "meta-llama/Llama-3.1-8B", "--devices", "h100-sxm,l40s", "--gpus", "8", "--rate", "20", "--engines", "vllm",
    "--weights", "bf16", "--sizes",
)  # fmt: skip
SIZES = "input_tokens,output_tokens,weight\n128,64,8\n4096,256,2\n"


def test_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    sizes = tmp_path / "sizes.csv"
    sizes.write_text(SIZES)
    assert main([*ASK, str(sizes), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["gpus"] == sum(kind["gpus"] for kind in answer["kinds"]) <= 8
    assert [bucket["share"] for bucket in answer["buckets"]] == pytest.approx([0.8, 0.2])
    assert answer["cost_per_hour"] <= answer["one_kind_cost_per_hour"]
    assert main([*ASK, str(sizes)]) == 0
    shown = capsys.readouterr().out
    # A fleet of one kind is no mix.
    assert ("saved by mixing" in shown) == (len(answer["kinds"]) > 1)
    assert "80.0 %" in shown


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("input_tokens\n5\n", "no column output_tokens"), ("input_tokens,output_tokens\n0,1\n", "at least 1"),
        ("input_tokens,output_tokens\nmany,1\n", "must be a number"), ("", "empty"),
        ("input_tokens,output_tokens,weight\n1,1,-1\n", "weight"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_sentence(tmp_path: Path, text: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    sizes = tmp_path / "sizes.csv"
    sizes.write_text(text)
    assert main([*ASK, str(sizes)]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "Traceback" not in said
