"""`kernelcast measure pairs`: what is refused, and a few real pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelcast.datasets.records.kernel_pairs import read_pairs

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
    ],
)
def test_what_cannot_be_measured_is_refused(run: Any, args: tuple[str, ...], words: str) -> None:
    done = run("measure", "pairs", *args)
    assert done.code == 2
    assert words in done.error


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
