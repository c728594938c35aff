"""`kernelcast measure pairs`: what is refused, a few real pairs, and some on a GPU that is played."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.gpu.measure import pairs as gpu_pairs
from kernelcast.collectors.gpu.measure.worker import GpuWorkerOptions
from kernelcast.datasets.records.kernel_pairs import read_pairs
from kernelcast.features.device import catalogue

ZEN3 = "amd-epyc-7003-vm-2c"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--device", ZEN3, "--out", "pairs.csv"), "rows go to a .parquet file"),
        (
            ("--device", ZEN3, "--out", "pairs.parquet", "--families", "gemm,brew"),
            "--families has 'brew'; pairs are of attention",
        ),
        (("--out", "pairs.parquet", "--device", "h100-sxm"), "a CPU is what is measured"),
        (("--gpu", "--out", "pairs.parquet", "--device", ZEN3), "a GPU is what is measured"),
        (
            ("--gpu", "--device", "h200", "--out", "pairs.parquet", "--families", "rope_brew"),
            "--families has 'rope_brew'; pairs are of gemm",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(run: Any, args: tuple[str, ...], words: str) -> None:
    done = run("measure", "pairs", *args)
    assert done.code == 2
    assert words in done.error


def test_pairs_on_a_gpu_are_added_to_a_file(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Path(__file__).parents[2] / "collectors" / "gpu" / "played_pair_worker.py"

    def command(options: GpuWorkerOptions) -> list[str]:
        return [sys.executable, "-P", str(played), options.to_json()]

    monkeypatch.setattr(gpu_pairs, "GpuPairBench", partial(gpu_pairs.GpuPairBench, command=command))
    out = tmp_path / "pairs.parquet"
    question = ("measure", "pairs", "--gpu", "--device", "h200", "--out", out, "--minutes", 0.05,
                "--families", "copy,gemm")  # fmt: skip
    first, second = (json.loads(run(*question, "--json").out) for _ in range(2))
    assert second["pairs"] == first["pairs"] + second["new"] > first["pairs"] > 0
    rows, facts = read_pairs(out)
    assert {row.device for row in rows} == {catalogue().get("h200").name}
    slowdowns = [row.a_slowdown for row in rows if row.status == "ok"]
    assert slowdowns == pytest.approx([1.5] * len(slowdowns))
    assert slowdowns
    assert [facts[block]["worker"] for block in facts] == [{"gpu": "played"}] * 2


@pytest.mark.slow
def test_pairs_are_measured_and_added_to_a_file(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    question = (
        "measure",
        "pairs",
        "--out",
        out,
        "--device",
        "amd-epyc-7003-vm-2c",
        "--minutes",
        0.1,
        "--families",
        "copy,softmax",
    )
    first = json.loads(run(*question, "--json").out)
    assert first["new"] == first["pairs"] > 0
    second = json.loads(run(*question, "--json").out)
    assert second["pairs"] == first["pairs"] + second["new"]
    rows, facts = read_pairs(out)
    # On a busy machine a pair may have no clean time; it then says why.
    assert all(row.message for row in rows if row.status != "ok")
    assert len(facts) == 2
