"""Challengers forget nothing unasked, and are what would serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import read_manifest
from kernelcast.models.family_model.artifact_files import ArtifactError, write_manifest
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly.gate.challengers import adapted, past, retrained

T4, P4, CPU = "nvidia-t4", "nvidia-p4", "amd-epyc-9005-vm-2c"


def answers(model: Path, given) -> np.ndarray:
    return load_predictor(model).predict_cases(given.cases).targets["latency_s"].value


def test_adapted_moves_towards_the_new_rows_and_leaves_the_rest(rows, champion: Path, tmp_path: Path) -> None:
    today, other = rows(60, seed=5), rows(40, family="softmax", seed=6)
    result = adapted(champion, [today], tmp_path / "new")
    fresh = rows(60, seed=7)
    before, after = (np.abs(np.log(answers(path, fresh) / fresh.latency_s)).mean() for path in (champion, result.path))
    assert after < before / 3
    assert (answers(champion, other) == answers(result.path, other)).all()
    assert (result.kind, result.families, result.rows, result.left) == (
        "adapted",
        ("gemm",),
        60,
        {"softmax": "no new rows"},
    )


def test_adapted_passes_over_what_the_champion_does_not_know(rows, champion: Path, tmp_path: Path) -> None:
    result = adapted(champion, [rows(40, seed=5), rows(30, family="softmax", device=CPU)], tmp_path / "new")
    assert result.left == {"softmax": "the champion knows it on no device of this kind"}
    with pytest.raises(SpecError, match="nothing to adapt it with"):
        adapted(champion, [rows(30, family="softmax", device=CPU)], tmp_path / "none")


def test_retrained_takes_over_what_the_rows_cannot_teach(rows, champion: Path, tmp_path: Path) -> None:
    few = rows(10, family="softmax", seed=5)
    result = retrained(champion, [rows(80, seed=5), few], tmp_path / "new", regressor="analytic")
    assert result.families == ("gemm",)
    assert result.left == {"softmax": "10 rows are too few"}
    assert (answers(champion, few) == answers(result.path, few)).all()
    assert list(read_manifest(result.path)["challenger"]["taken_over"]) == ["softmax"]
    assert result.facts()["families"] == ["gemm"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"fresh": {"softmax"}}, "no new rows"),
        ({"device": P4}, "it would forget nvidia-t4"),
    ],
)
def test_retrained_keeps_the_champion_s_family(rows, champion: Path, tmp_path: Path, given: dict, why: str) -> None:
    options = dict(given)
    gemm = rows(80, device=options.pop("device", T4), seed=5)
    with pytest.raises(SpecError, match=why):
        retrained(champion, [gemm], tmp_path / "new", regressor="analytic", **options)


def test_retrained_forgets_when_it_may(rows, champion: Path, tmp_path: Path) -> None:
    result = retrained(champion, [rows(80, device=P4)], tmp_path / "new", regressor="analytic", may_forget=True)
    assert read_manifest(result.path)["families"]["gemm"]["devices"] == [P4]


def test_retrained_without_a_champion_and_with_a_new_family(rows, champion: Path, tmp_path: Path) -> None:
    alone = retrained(None, [rows(80)], tmp_path / "alone", regressor="analytic")
    assert list(read_manifest(alone.path)["families"]) == ["gemm"]
    both = retrained(alone.path, [rows(80, family="softmax")], tmp_path / "both", regressor="analytic")
    assert list(read_manifest(both.path)["families"]) == ["gemm", "softmax"]
    assert both.left == {"gemm": "no rows"}


def test_a_past_model_that_no_longer_loads_is_told(rows, save, tmp_path: Path) -> None:
    old = save(tmp_path / "old", [rows(40)])
    assert past(old, "old").kind == "past"
    manifest = json.loads((old / "manifest.json").read_text())
    manifest["families"]["gemm"]["schema_hash"] = "another"
    write_manifest(old, manifest)
    with pytest.raises(ArtifactError, match="other features"):
        past(old, "old")
