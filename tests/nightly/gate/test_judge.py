"""The gate lets through what is better and nothing that is worse somewhere."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelcast.models.family_model.artifact import Artifact, load_family, read_manifest, save_artifact
from kernelcast.models.family_model.intervals import Scores
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.nightly.gate import hard_limits as refusals
from kernelcast.nightly.gate import judge as judging
from kernelcast.nightly.gate.challengers import adapted, retrained
from kernelcast.nightly.gate.hold_out import HOLD_OUT, LAST_NIGHT, Evidence
from kernelcast.nightly.gate.judge import Rules, Verdict, chosen, judge

P4 = "nvidia-p4"


def evidence(*tables: LabelledCases) -> Sequence[Evidence]:
    return [Evidence(item, np.where(np.arange(len(item)) % 2, HOLD_OUT, LAST_NIGHT)) for item in tables]


def test_a_better_model_passes_and_says_by_how_much(rows, champion: Path, better: Path) -> None:
    result = judge(champion, better, evidence(rows(seed=9), rows(family="softmax", seed=9)), name="new")
    assert result.passed
    assert result.better
    assert result.gain_pct > 20
    assert result.summary.startswith("Passed: none of")
    whole = next(item for item in result.slices if item.slice == "gemm on nvidia-t4")
    assert (whole.n, whole.verdict, whole.rows) == (120, "better", "hold-out and last night")
    assert {item.slice.partition(", ")[2].split(" ")[0] for item in result.slices} == {"", "origin", "dtype", "size"}
    json.dumps(result.facts(), allow_nan=False)


def test_the_same_model_again_passes_and_is_not_promoted(rows, champion: Path) -> None:
    result = judge(champion, champion, evidence(rows(seed=9)), name="same")
    assert result.passed
    assert not result.better
    assert "not promoted since it is not better" in result.summary
    assert chosen([result]) is None


def test_one_slice_that_is_worse_refuses_all(rows, champion: Path, tmp_path: Path) -> None:
    # fp32 products become right, fp16 ones wrong by another factor of two.
    fp32, fp16 = rows(dtypes=("fp32",), seed=3), rows(dtypes=("fp16",), factor=8.0, seed=4)
    new = retrained(champion, [fp32, fp16], tmp_path / "new", regressor="xgboost").path
    result = judge(
        champion, new, evidence(rows(dtypes=("fp32",), n=300, seed=9), rows(dtypes=("fp16",), seed=9)), name="new"
    )
    assert not result.passed
    assert any("dtype fp16 is worse" in reason for reason in result.reasons)
    assert chosen([result]) is None


def test_slices_of_few_shapes_are_not_judged_alone(rows, champion: Path, better: Path) -> None:
    result = judge(champion, better, evidence(rows(6, seed=9)), name="new")
    assert {item.verdict for item in result.slices} == {"too few"}
    assert all(item.low_pct is None for item in result.slices)


def test_without_rows_nothing_passes(champion: Path, better: Path) -> None:
    result = judge(champion, better, [], name="new")
    assert result.reasons == ("no row judges it: measure cases whose shapes were not learned from",)


def test_what_was_known_and_is_lost_refuses_unless_it_may(rows, champion: Path, better: Path, tmp_path: Path) -> None:
    on_p4 = adapted(champion, [rows(40, device=P4)], tmp_path / "p4").path
    result = judge(on_p4, better, evidence(rows(seed=9)), name="new")
    assert result.reasons == ("it no longer knows gemm on nvidia-p4, which the champion was measured on",)
    assert judge(on_p4, better, evidence(rows(seed=9)), name="new", rules=Rules(may_forget=True)).passed


def test_a_family_the_champion_lacks_is_a_gain(rows, better: Path, tmp_path: Path) -> None:
    gemm = retrained(None, [rows(seed=2)], tmp_path / "gemm", regressor="analytic").path
    result = judge(gemm, better, evidence(rows(family="softmax", seed=9)), name="new")
    assert result.passed
    assert result.better
    assert {item.champion_mean_ape_pct for item in result.slices} == {None}


def test_collapsed_intervals_refuse(rows, champion: Path, better: Path, tmp_path: Path) -> None:
    def collapse(scores: Scores) -> Scores:
        data = scores.to_json()
        return Scores.from_json(json.loads(json.dumps(data), parse_float=lambda word: float(word) * 1e-9))

    result = judge(champion, rewritten(better, tmp_path / "sure", collapse), evidence(rows(seed=9)), name="sure")
    assert any("intervals of gemm have collapsed" in reason for reason in result.reasons)


def test_narrower_intervals_that_hold_less_refuse(rows, champion: Path, better: Path, tmp_path: Path) -> None:
    def narrow(scores: Scores) -> Scores:
        data = scores.to_json()
        return Scores.from_json(json.loads(json.dumps(data), parse_float=lambda word: float(word) * 0.2))

    result = judge(better, rewritten(better, tmp_path / "narrow", narrow), evidence(rows(seed=9)), name="narrow")
    assert any("intervals of gemm on nvidia-t4 hold" in reason for reason in result.reasons), result.summary


def rewritten(model: Path, out: Path, change) -> Path:
    manifest = read_manifest(model)
    families = {}
    for name in manifest["families"]:
        family = load_family(model, manifest, name)
        targets = {
            target: replace(item, scores={regime: change(scores) for regime, scores in item.scores.items()})
            for target, item in family.targets.items()
        }
        families[name] = replace(family, targets=targets)
    save_artifact(Artifact("analytic", families, {}), out)
    return out


def test_slow_and_large_models_refuse(rows, champion: Path, better: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "seconds_per_answer", lambda predictors, cases: [0.1, 0.3])
    monkeypatch.setattr(judging, "size_b", lambda path: 1e9 if path == better else 1e6)
    result = judge(champion, better, evidence(rows(seed=9)), name="new")
    assert "it is too large: 1000 MB, the champion has 1 MB" in result.reasons
    assert "it is too slow: 300 ms for the rows that judge, the champion takes 100 ms" in result.reasons


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda columns, i: np.where(i == 0, np.nan, columns), "1 of 120 answers of gemm are no latency"),
        (lambda columns, i: np.where(i < 3, 1e-12, columns), "3 of 120 answers of gemm"),
        (lambda columns, i: -columns, "120 of 120 answers of gemm are no latency"),
    ],
)
def test_answers_that_cannot_be_served_refuse(rows, champion: Path, change, said: str) -> None:
    from kernelcast.models.predict.predictor import load_predictor

    result = load_predictor(champion).predict_cases(rows(seed=9).cases)
    column = result.targets["latency_s"]
    value = change(column.value, np.arange(120))
    wide = replace(column, value=value, lower=np.minimum(column.lower, value), upper=np.maximum(column.upper, value))
    broken = replace(result, targets={**result.targets, "latency_s": wide})
    assert any(said in reason for reason in refusals.answers_refused("gemm", broken))
    assert not list(refusals.answers_refused("gemm", result))


def test_the_best_of_those_that_passed_is_chosen() -> None:
    def verdict(name: str, passed: bool, better: bool, gain: float) -> Verdict:
        return Verdict(name, passed, better, gain, "", (), ())

    result = chosen([verdict("a", True, True, 1.0), verdict("b", True, True, 2.0), verdict("c", False, True, 9.0),
                    verdict("d", True, False, 5.0)])  # fmt: skip
    assert result is not None
    assert result.name == "b"


def test_a_damaged_challenger_is_an_error_that_names_it(rows, champion: Path, better: Path, tmp_path: Path) -> None:
    import shutil

    from kernelcast.models.family_model.artifact_files import ArtifactError

    torn = Path(shutil.copytree(better, tmp_path / "torn"))
    graph = next(torn.glob("gemm.*.onnx.gz"))
    graph.write_bytes(gzip.compress(b"nothing"))
    with pytest.raises(ArtifactError, match="damaged"):
        judge(champion, torn, evidence(rows(seed=9)), name="torn")
