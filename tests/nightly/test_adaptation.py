"""An adaptation on recorded rows: calibrated by most of the shapes, judged by the others, promoted if it is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.collectors.kernel_campaign import SENTINEL_CASES
from kernelcast.commands.measure.adapt import answer, run_adaptation, tell
from kernelcast.datasets.rows.splits import held_out_shapes, shape_hashes
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.registry.registry import promote_directory
from kernelcast.models.training.labelled_cases import labelled_files
from kernelcast.models.training.training import train
from kernelcast.nightly.adaptation import (
    HOLD_OUT,
    adaptation_plan,
    adaptation_stages,
    calibrating,
    chance_of_gain,
    change_within,
    reserve_minutes,
    split_rows,
    with_second_test,
)
from kernelcast.nightly.gate.evidence import ShapeScore
from kernelcast.nightly.gate.judge import Verdict, judge
from kernelcast.nightly.measuring.protocol import CollectingEnd
from kernelcast.nightly.measuring.replay import ReplayMeasurer, recorded_rows
from kernelcast.nightly.open_night import NightSetup, open_night

DEVICE = "amd-epyc-9005-vm-2c"


class Counting(ReplayMeasurer):
    """Replays, counts what it was given, and is stopped in the middle where `stop` says so."""

    stop = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given: list[str] = []

    def collect(self, cases: Any, **options: Any) -> CollectingEnd:
        part = {name: specs[: len(specs) // 2 if self.stop else None] for name, specs in cases.items()}
        self.given += [spec.case_id for specs in part.values() for spec in specs]
        end = super().collect(part, **options)
        return CollectingEnd(True) if self.stop else end


@pytest.fixture
def setup(home, recorded: Path) -> Callable[..., NightSetup]:
    def setup(**changes: Any) -> NightSetup:
        plan = adaptation_plan(DEVICE, changes.pop("minutes", 1.0), "replay", rows=str(recorded), **changes)
        return NightSetup(plan, Counting(plan, recorded_rows(recorded, DEVICE), catalogue()), catalogue())

    return setup


def test_it_serves_a_better_model_and_says_by_how_much(home, setup, capsys) -> None:
    before = home.served["version"]
    record, model = run_adaptation(setup(), promote=True)
    done = answer(record)
    assert done["outcome"] == "promoted", record
    assert home.served["version"] == done["version"] != before
    total = done["errors"][-1]
    assert total["family"] == "all"
    assert total["after"]["n"] == done["test_rows"] > 15
    # The recorded rows take 1.5 times what the champion says.
    assert total["before"]["mean_ape_pct"] == pytest.approx(33, abs=3)
    assert total["after"]["mean_ape_pct"] < 4
    assert total["after"]["coverage_pct"] > total["before"]["coverage_pct"]
    assert done["noise"] == {"n": done["rows"]["ok"], "median_pct": 0.0, "mean_pct": 0.0, "bias_pct": 0.0}
    capsys.readouterr()
    tell(record, model, None, False)
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "softmax" in captured.out
    assert "`kernelcast serve models rollback`" in captured.err


def test_a_family_that_the_model_knows_of_gpus_alone_is_neither_measured_nor_judged(
    home, setup, champion_dir: Path, tmp_path: Path, write, rows
) -> None:
    table = labelled_files([write(rows(160), tmp_path / "rows.parquet")])[0]
    cases = replace(table.cases, device=np.full(160, "nvidia-t4"), threads=np.full(160, np.nan))
    of_gpus = train([replace(table, cases=cases)], regressor="analytic")
    save_artifact(of_gpus, tmp_path / "of-gpus")
    promote_directory(tmp_path / "of-gpus")
    record, _ = run_adaptation(setup(), promote=False)
    assert "calibrates nothing in the serving model" in record.stage("choose").summary
    assert not calibrating(load_predictor(tmp_path / "of-gpus"), [table])
    assert calibrating(load_predictor(champion_dir), [table])


def test_without_promotion_the_model_before_serves(home, setup) -> None:
    before = home.served["version"]
    record, model = run_adaptation(setup(), promote=False)
    assert record.outcome == "kept"
    home.still_serves(before)
    assert model is not None
    load_predictor(model).load_all()


def test_no_shape_that_judges_is_ever_learned_from(home, setup) -> None:
    run_adaptation(setup(families=("softmax",), minutes=1.0), promote=True)
    night = open_night(setup(), lambda *_: None, fresh=True)
    training, test = split_rows(night)
    assert not test, "every shape was measured by the adaptation before"
    assert training
    for rows in training:
        assert not held_out_shapes(rows.cases, HOLD_OUT, 0).any()


def test_a_stopped_adaptation_keeps_its_rows_and_resumes(home, setup) -> None:
    first = setup()
    first.measurer.stop = True
    with pytest.raises(KeyboardInterrupt):
        run_adaptation(first, promote=True)
    assert len(home.folders) == 1
    second = setup()
    record, _ = run_adaptation(second, promote=True)
    assert len(home.folders) == 1, "the stopped one was resumed"
    assert record.outcome == "promoted"
    rows = record.stage("collect").facts["rows"]["ok"]
    new = second.measurer.given[: len(second.measurer.given) - rows]
    assert first.measurer.given
    assert not set(first.measurer.given) & set(new), "a case was measured twice but for the repeats"


def test_where_another_model_serves_than_when_it_was_made_nothing_is_judged(home, setup, monkeypatch, capsys) -> None:
    before = home.served["version"]
    monkeypatch.setattr("kernelcast.nightly.stages.gate.serving_version", lambda: "another")
    record, model = run_adaptation(setup(), promote=True)
    assert record.stage("gate").status == "skipped"
    assert "another model serves" in record.stage("gate").summary
    assert record.outcome == "kept"
    assert model is None
    home.still_serves(before)
    tell(record, model, None, False)
    assert "another model serves" in capsys.readouterr().err


def test_what_the_second_test_promotes_is_looked_at_as_what_the_bets_promote(home, setup, monkeypatch) -> None:
    def not_better(*args: Any, **options: Any) -> Verdict:
        return replace(judge(*args, **options), better=False, summary="Not promoted.")

    monkeypatch.setattr("kernelcast.nightly.stages.gate.judge", not_better)
    record, _ = run_adaptation(setup(), promote=True)
    assert record.outcome == "promoted"
    facts = record.stage("gate").facts
    assert facts["chance"] <= 0.05
    assert facts["changes_elsewhere"]["cases"] > 0
    messages = [finding.message for finding in record.findings if finding.kind == "gate"]
    assert messages[0] == facts["verdicts"][0]["summary"]
    assert messages[0].startswith("Passed: better on ")
    assert "Not promoted." not in messages


def test_the_second_test_changes_no_refusal_and_no_verdict_that_keeps_families() -> None:
    no_winner = Verdict("adapted", True, False, 1.0, "Not promoted.")
    assert with_second_test(no_winner, chance=0.06, shapes=40) is no_winner
    passed = with_second_test(no_winner, chance=0.01, shapes=40)
    assert passed.better
    assert passed.summary.startswith("Passed: better on 40 shapes left out")
    for verdict in (replace(no_winner, passed=False), replace(no_winner, keep=("gemm",))):
        assert with_second_test(verdict, chance=0.01, shapes=40) is verdict


def test_too_few_rows_change_nothing(home, setup, recorded, monkeypatch) -> None:
    before = home.served["version"]
    tiny = setup()
    monkeypatch.setattr(tiny.measurer, "candidates", lambda *_: list(tiny.measurer._rows)[:1])
    record, model = run_adaptation(tiny, promote=True)
    assert record.outcome == "kept"
    assert "both are needed" in record.stage("train").summary
    assert model is None
    home.still_serves(before)


def test_shapes_are_left_out_by_their_hashes(home, setup) -> None:
    record, _ = run_adaptation(setup(), promote=False)
    night = open_night(setup(), lambda *_: None, resume=record.id)
    hashes = [np.concatenate([shape_hashes(rows.cases) for rows in tables]) for tables in split_rows(night)]
    assert not np.isin(*hashes).any()
    assert len(hashes[1]) / sum(map(len, hashes)) == pytest.approx(HOLD_OUT, abs=0.08)


def gains(before: float, after: float, n: int) -> list[ShapeScore]:
    noise = np.random.default_rng(0).normal(0.0, 20.0, n).tolist()
    return [ShapeScore("softmax", DEVICE, 1, before + each, after, 0.9, 0.9) for each in noise]


def test_one_look_tells_a_gain_from_chance() -> None:
    assert chance_of_gain(gains(50.0, 35.0, 60), 0) < 0.01
    assert chance_of_gain(gains(50.0, 50.0, 60), 0) > 0.1
    assert chance_of_gain(gains(35.0, 50.0, 60), 0) > 0.9
    # One error beyond all measure decides nothing.
    assert chance_of_gain([*gains(50.0, 50.0, 60), ShapeScore("softmax", DEVICE, 1, 1e6, 1.0, 0.9, 0.9)], 0) > 0.02


def times_scaled(measurer: Any, factor: float) -> None:
    """All recorded times of a measurer, times a factor: what a device of another clock would give."""
    names = ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s")
    measurer._rows = {
        spec: replace(row, **{name: factor * getattr(row, name) for name in names})
        for spec, row in measurer._rows.items()
    }


def told_of_measuring(setup: NightSetup) -> list[str]:
    """What an adaptation that only measures says of its device."""
    night = open_night(setup, lambda *_: None, fresh=True)
    reserve_minutes(night)
    stages = adaptation_stages(promote=False)
    stages["choose"](night)
    return [finding.message for finding in stages["collect"](night).findings]


def test_a_clock_that_drops_while_it_is_measured_is_told(home, setup) -> None:
    slowing = setup()
    collect = slowing.measurer.collect

    def slower_again(cases: Any, **options: Any) -> CollectingEnd:
        if options["note"].get("repeats"):
            times_scaled(slowing.measurer, 1.5)
        return collect(cases, **options)

    slowing.measurer.collect = slower_again
    (message,) = told_of_measuring(slowing)
    assert message.startswith(f"Cases measured again at the end took 50 % longer than before: the clock of {DEVICE}")


def test_a_clock_that_dropped_since_the_last_adaptation_is_told(home, setup) -> None:
    messages = []
    for i, factor in enumerate((1.0, 2.0)):
        later = setup()
        row = next(iter(later.measurer._rows.values()))
        # Other cases each time: those that are stored are not measured again.
        later.measurer._rows = dict(list(later.measurer._rows.items())[i::2]) | {
            spec: replace(row, spec=spec, latency_s=5e-3, latency_q1_s=5e-3, latency_q3_s=5e-3, latency_min_s=5e-3)
            for spec in SENTINEL_CASES
        }
        times_scaled(later.measurer, factor)
        messages.append(told_of_measuring(later))
    assert messages[0] == []
    assert "takes 2.00 times its median of earlier runs (runs: 1)" in messages[1][0]


@pytest.mark.parametrize(
    ("differences", "is_told"),
    [({"n": 0}, False), ({"n": 4, "bias_pct": 80.0}, False), ({"n": 40, "bias_pct": 10.0}, False),
     ({"n": 40, "bias_pct": -30.0}, True)],
)  # fmt: skip
def test_noise_without_a_sign_is_no_change(differences, is_told) -> None:
    assert bool(change_within(DEVICE, differences)) is is_told


def test_rows_faster_than_the_device_file_allows_are_told(home, setup, recorded) -> None:
    """A file that claims less than the machine can do: its rows are no times, and a finding names the file's fault."""
    slow = setup()
    slow.measurer._rows = {
        spec: replace(row, latency_s=1e-9, latency_q1_s=1e-9, latency_q3_s=1e-9, latency_min_s=1e-9)
        for spec, row in slow.measurer._rows.items()
    }
    before = home.served["version"]
    record, model = run_adaptation(slow, promote=True)
    assert model is None
    assert record.stage("collect").facts["rows"].keys() == {"failed"}
    assert any("Look at the device file" in finding.message for finding in record.findings)
    home.still_serves(before)
