"""A whole night on replayed rows, from the plan to the model that serves."""

from __future__ import annotations

from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.nightly.record.record import STAGES


def test_a_night_measures_trains_judges_promotes_and_reports(home, in_a_process) -> None:
    before = home.served["version"]
    assert home.run() == 0, home.err
    record = home.record()
    assert record.outcome == "promoted"
    assert [stage.name for stage in record.stages] == list(STAGES)
    assert record.champion_before == before
    assert record.champion_after == home.served["version"] != before
    collected = record.stage("collect").facts
    assert collected["rows"]["ok"] == record.stage("choose").facts["cases"] > 100
    gate = record.stage("gate").facts
    assert gate["winner"] in ("adapted", "adapted-median", "adapted-nearby")
    assert gate["judged"]["shapes"] > 0
    assert gate["changes"]["median_pct"] > 30, "what changed is told of the device the night is about"
    assert gate["changes_elsewhere"]["cases"] > 0
    assert record.stage("promote").facts["previous"] == before
    load_predictor(default_model_dir()).load_all()
    page = (home.folders[-1] / "report.html").read_text()
    assert "promoted" in page
    assert "adapted" in page


def test_evidence_outlasts_nights_that_do_not_make_a_challenger(home, rows, write, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kernelcast.nightly.stages.gate.chosen", lambda verdicts: None)
    assert home.run() == 0, home.err
    before = home.record().stage("gate").facts["evidence"]["adapted"]
    more = {"rows": str(write(rows(80, seed=2), tmp_path / "more" / "softmax.parquet"))}
    train = {"regressors": ["analytic"], "with_shipped": False, "challengers": ["retrained"], "retrain_rows": 1}
    assert home.run(replay=more, train=train) == 0, home.err
    after = home.record().stage("gate").facts["evidence"]
    assert after["adapted"] == before
    assert after["retrained"]["better"]["softmax"]["shapes"] > 0


def test_challengers_of_another_champion_are_not_judged(home, champion_dir, monkeypatch) -> None:
    judged = "kernelcast.nightly.stages.gate.serving_version"
    monkeypatch.setattr(judged, lambda: "another")
    assert home.run() == 0, home.err
    assert "another model serves than when the challengers were made" in home.record().stage("gate").summary
