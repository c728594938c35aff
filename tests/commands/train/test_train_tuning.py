"""`kernelcast train tuning` makes models that rank from measured rows, and refuses what holds none."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.shipped import read_shipped
from kernelcast.features.tuning.kind import Candidates, Task
from kernelcast.models.tuning import training
from kernelcast.plugins.cost_model import CostModel

DEVICE = "amd-epyc-9005-vm-2c"
Run = Callable[..., Any]


def products(folder: Path, shapes: int) -> Path:
    """A folder of tables with the shipped tiled products of some shapes."""
    table = read_shipped("gemm")
    table = table.filter(pc.equal(table["impl"], "iree"))
    # Sizes of products name them well enough here.
    keys = pc.add(pc.multiply(table["m"], 10**7), pc.add(pc.multiply(table["n"], 10**3), table["k"]))
    chosen = keys.unique()[:shapes]
    folder.mkdir()
    pq.write_table(table.filter(pc.is_in(keys, chosen)), folder / "gemm.parquet")
    return folder


def test_a_model_is_written_that_ranks_and_says_how_well(run: Run, tmp_path: Path) -> None:
    data, out = products(tmp_path / "rows", 12), tmp_path / "models"
    done = run("train-tuning", "--kind", "iree-contraction", "--data", str(data), "--out", str(out), "--json")
    assert done.code == 0, done
    report = json.loads(done.out)
    assert report["n_shapes"] == {"iree-contraction": 12}
    scores = report["scores"]["iree-contraction"]
    assert scores["n_tasks"] == 12
    assert -1 <= scores["task_mean_kendall_tau"] <= 1
    assert 0 <= scores["task_mean_top_5_regret_pct"] <= scores["task_mean_top_1_regret_pct"]
    assert f"the models are in {out}" in done.err
    model = CostModel.load("iree-contraction", DEVICE, out / "iree-contraction.kcm")
    assert model.model.metadata["held_out_rows"]["fp32"]["n"] == report["n_rows"]["iree-contraction"]
    sizes = {"batch": 1, "m": 128, "n": 256, "k": 192, "a_transposed": 0, "b_transposed": 0, "threads": 1}
    good = {"tile_m": 64, "tile_n": 64, "inner_m": 8, "inner_n": 32, "inner_k": 4}
    tried = Candidates.of(Task("iree-contraction", sizes, "fp32", DEVICE), [good, good | {"inner_m": 1, "inner_n": 8}])
    assert model.rank(tried, 1).tolist() == [0]


def test_the_table_says_the_same_in_words(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "TrainingConfig", partial(training.TrainingConfig, folds=2, rounds=20))
    data = products(tmp_path / "rows", 10)
    done = run("train-tuning", "--kind", "iree-contraction", "--data", str(data), "--out", str(tmp_path / "out"))
    assert done.code == 0, done
    assert "iree-contraction" in done.out
    assert "top-1 regret" in done.out


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: products(folder, 4), "4 measured shapes"),
        (lambda folder: folder.mkdir() or folder, "holds no measured rows"),
        (lambda folder: folder, "holds no measured rows"),
    ],
    ids=["too few", "empty", "missing"],
)
def test_what_holds_too_little_is_refused(run: Run, tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    data = make(tmp_path / "rows")
    done = run("train-tuning", "--kind", "iree-contraction", "--data", str(data), "--out", str(tmp_path / "out"))
    assert words in done.error
    assert not list((tmp_path / "out").glob("*.kcm"))


def test_an_unknown_kind_names_those_there_are(run: Run, tmp_path: Path) -> None:
    assert "iree-contraction" in run("train-tuning", "--kind", "cobol", "--out", str(tmp_path / "out")).error


def test_a_damaged_table_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "gemm.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert "gemm.parquet" in run("train-tuning", "--data", str(tmp_path / "rows"), "--out", str(tmp_path / "out")).error
