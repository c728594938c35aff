"""Models of programs trained on a made-up law: what they learn, hold out, store and answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.vectors.program_vector import extract
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.family_model.artifact_files import ArtifactError, write_manifest
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.interval_calibration import folds_of
from kernelcast.models.training.stacking import blend_weights
from kernelcast.workloads.mlir.learned.analytic_base import AnalyticBase
from kernelcast.workloads.mlir.learned.boosted_trees import GroupRows, fit_group_trees, mean_of
from kernelcast.workloads.mlir.learned.group_network import network_graph
from kernelcast.workloads.mlir.learned.measured_programs import MeasuredPrograms
from kernelcast.workloads.mlir.learned.network_training import Schedule, answers, train_network
from kernelcast.workloads.mlir.learned.program_model import (
    ProgramEngine,
    ProgramModel,
    at_mean_speed,
    blended,
    feed,
    load_models,
    save_models,
)
from kernelcast.workloads.mlir.predictor import load_module_predictor

CPU = "amd-epyc-9005-vm-2c"


def mean_error(log_answer: Any, log_measured: Any) -> float:
    errors = np.abs(np.expm1(log_answer - log_measured))
    return float(np.nanmean(errors))


def test_the_analytic_composition_learns_a_sum_of_costs(measured: MeasuredPrograms) -> None:
    seen, unseen = measured.take(np.arange(120)), measured.take(np.arange(120, 160))
    base = AnalyticBase.fit(seen.programs, seen.log_latency, seen.weight)
    assert mean_error(base.log_latency(unseen.programs), unseen.log_latency) < 0.25
    again = AnalyticBase.from_json(json.loads(json.dumps(base.to_json())))
    assert again.log_latency(unseen.programs) == pytest.approx(base.log_latency(unseen.programs), abs=1e-3)


def test_a_base_fitted_on_other_terms_is_refused(measured: MeasuredPrograms) -> None:
    data = AnalyticBase.fit(measured.programs, measured.log_latency, measured.weight).to_json()
    with pytest.raises(ValueError, match="terms"):
        AnalyticBase.from_json({**data, "terms": ["launch"]})


def test_a_graph_answers_what_the_trained_network_does(measured: MeasuredPrograms) -> None:
    import onnxruntime

    some = measured.take(np.arange(24))
    base = AnalyticBase.fit(some.programs, some.log_latency, some.weight)
    fits = [
        train_network(some.programs, base, some.log_latency, some.weight, Schedule(epochs=2, batch=8), seed)
        for seed in (0, 1)
    ]
    wanted = np.mean([answers(fit, some.programs) for fit in fits], axis=0)
    session = onnxruntime.InferenceSession(network_graph(fits), providers=["CPUExecutionProvider"])
    result, seconds = session.run(None, feed(some.programs))
    # Weights are stored in half precision.
    assert result == pytest.approx(wanted, abs=0.01)
    assert (seconds > 0).all()


def test_a_network_learns_what_the_composition_misses(measured: MeasuredPrograms) -> None:
    seen, unseen = measured.take(np.arange(120)), measured.take(np.arange(120, 160))
    base = AnalyticBase.fit(seen.programs, seen.log_latency, seen.weight)
    fit = train_network(seen.programs, base, seen.log_latency, seen.weight, Schedule(epochs=12, batch=16), 0)
    assert mean_error(answers(fit, unseen.programs), unseen.log_latency) < mean_error(
        base.log_latency(unseen.programs), unseen.log_latency
    )


def test_trees_of_groups_learn_what_the_composition_misses(measured: MeasuredPrograms) -> None:
    # Programs of many groups take twice as long, which no weight of a group says.
    many = measured.programs.totals[:, 0] > np.median(measured.programs.totals[:, 0])
    measured = replace(measured, log_latency=measured.log_latency + np.log(2.0) * many[:, None])
    seen, unseen = measured.take(np.arange(120)), measured.take(np.arange(120, 160))
    base = AnalyticBase.fit(seen.programs, seen.log_latency, seen.weight)
    columns = [i for i, (compiler, _) in enumerate(measured.settings) if compiler == "iree"]
    boosters = fit_group_trees(seen.programs, base, seen.log_latency, seen.weight, columns, [0], 100)
    rows = GroupRows.of(unseen.programs, base, columns)
    factors = mean_of(boosters, rows.x)
    answer = rows.log_latency(lambda x: mean_of(boosters, x), len(columns))
    assert mean_error(answer, unseen.log_latency[:, columns]) < 0.5 * mean_error(
        base.log_latency(unseen.programs)[:, columns], unseen.log_latency[:, columns]
    )
    # Equal rows, of layers that repeat, are looked at once; parts add up to the whole.
    group_s, total_s = rows.seconds(factors)
    assert pytest.approx(answer) == np.log(total_s).reshape(len(columns), -1).T
    assert np.bincount(rows.call, group_s) + rows.call_s == pytest.approx(total_s)


def test_what_was_not_measured_teaches_trees_nothing(measured: MeasuredPrograms) -> None:
    some = measured.take(np.arange(30))
    base = AnalyticBase.fit(some.programs, some.log_latency, some.weight)
    nothing = np.full_like(some.log_latency, np.nan)
    assert fit_group_trees(some.programs, base, nothing, some.weight, [0, 1], [0], 10) == []
    rows = GroupRows.of(some.programs, base, [0, 1])
    assert rows.log_latency(lambda x: mean_of([], x), 2) == pytest.approx(base.log_latency(some.programs)[:, :2])


def test_the_order_of_programs_changes_nothing(measured: MeasuredPrograms) -> None:
    rows = np.array([5, 3, 140, 3])
    taken = measured.programs.take(rows)
    for i, row in enumerate(rows):
        alone = measured.programs.take([row])
        own = taken.group_program == i
        assert taken.groups[own] == pytest.approx(alone.groups)
        assert taken.ops[taken.op_row[own[taken.op_group]]] == pytest.approx(alone.ops[alone.op_row])


def test_sizes_of_one_program_are_never_on_two_sides() -> None:
    names = [f"jax/net-{i}#{size}" for i in range(200) for size in range(3)]
    fold = folds_of(names, 5)
    assert (fold.reshape(200, 3) == fold.reshape(200, 3)[:, :1]).all()
    assert np.bincount(fold, minlength=5).min() > 60
    assert (folds_of(names, 5) == fold).all()
    assert (folds_of(names, 5, seed=1) != fold).any()


def test_weights_prefer_the_better_member_and_add_up() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=(400, 2))
    members = {"good": y + rng.normal(0, 0.05, y.shape), "bad": y + rng.normal(0, 0.8, y.shape)}
    weights = blend_weights(members, y, np.ones_like(y))
    assert sum(weights.values()) == pytest.approx([1.0, 1.0])
    assert (weights["good"] > 0.8).all()
    is_empty = np.arange(len(y)) == 0
    answer = blended(members | {"analytic": np.full_like(y, 7.0)}, weights, is_empty)
    assert np.abs(answer - y)[1:].mean() < 0.06
    assert (answer[0] == 7.0).all()


def test_answers_are_at_the_mean_speed_and_at_most_halved() -> None:
    for deviation in (0.1, 0.3, 0.5):
        log_latency = np.random.default_rng(1).normal(-7.0, deviation, 200_000)
        size = np.exp(np.log(np.abs(log_latency + 7.0)).mean())
        answer = at_mean_speed(np.full((2, 1), -7.0), np.full((2, 1), size), np.array([False, True]))
        assert np.exp(answer[0, 0]) == pytest.approx(1 / np.exp(-log_latency).mean(), rel=0.01)
        assert answer[1, 0] == -7.0
    halved = at_mean_speed(np.full((1, 1), -7.0), np.full((1, 1), 3.0), np.array([False]))
    assert halved[0, 0] == pytest.approx(-7.0 - np.log(2.0))


def test_held_out_errors_are_small_and_told_by_slice(trained: ProgramModel) -> None:
    blend = trained.metrics["blend"]
    assert blend["all"]["median_ape_pct"] < 15
    assert blend["all"]["kendall_tau"] > 0.9
    assert {"iree, 1 threads", "xla, 2 threads", "source generated", "dialect linalg"} <= set(blend)
    assert blend["all"]["mean_ape_pct"] <= 1.2 * min(own["all"]["mean_ape_pct"] for own in trained.metrics.values())


def test_dialects_know_their_usual_compiler(trained: ProgramModel) -> None:
    assert trained.usual == {"linalg": "iree", "stablehlo": "xla"}


def test_an_artifact_answers_as_before_it_was_stored(
    trained: ProgramModel, model_path: Path, random_programs: Any
) -> None:
    program = extract(random_programs(np.random.default_rng(7), 6), catalogue().get(CPU))
    before, after = (
        ProgramEngine(model).answer(program, ("xla", 2), 0.9) for model in (trained, load_models(model_path)[CPU])
    )
    assert after.latency_s.value == pytest.approx(before.latency_s.value, rel=1e-2)
    assert after.latency_s.upper == pytest.approx(before.latency_s.upper, rel=2e-2)


def test_new_programs_are_predicted_as_the_law_says(model_path: Path, random_programs: Any, law: Any) -> None:
    predictor = load_module_predictor(load_predictor(default_model_dir()), model_path)
    rng = np.random.default_rng(99)
    programs = [random_programs(rng, int(rng.integers(1, 9))) for _ in range(30)]
    result = [predictor.predict(program, CPU, compiler="iree", threads=1) for program in programs]
    wanted = [law(program, "iree", 1) for program in programs]
    errors = [abs(item.latency_s.value / true - 1) for item, true in zip(result, wanted, strict=True)]
    assert float(np.median(errors)) < 0.2
    inside = [item.latency_s.lower <= true <= item.latency_s.upper for item, true in zip(result, wanted, strict=True)]
    assert np.mean(inside) > 0.6
    for item in result:
        assert item.method.startswith("learned on whole programs")
        assert sum(part.latency_s for part in item.groups) <= item.latency_s.value * (1 + 1e-6)
        assert item.bound_s <= item.latency_s.lower * (1 + 1e-9)
        assert item.characteristics["code_instructions"].value > 0


def test_the_setting_is_chosen_and_told(model_path: Path, random_programs: Any) -> None:
    predictor = load_module_predictor(load_predictor(default_model_dir()), model_path)
    program = random_programs(np.random.default_rng(1), 3)
    chosen = predictor.predict(program, CPU)
    assert (chosen.compiler, chosen.threads) == ("xla", 2)
    assert any("no compiler given: xla" in note for note in chosen.notes)
    query = predictor.predict(program, CPU, compiler="iree", threads=1)
    assert (query.compiler, query.threads) == ("iree", 1)
    elsewhere = predictor.predict(program, "nvidia-t4", compiler="iree")
    assert elsewhere.method == "composition"
    assert any("no model of whole programs on nvidia-t4" in note for note in elsewhere.notes)


def test_a_program_unlike_all_measured_is_told_and_wider(model_path: Path, maker: Any) -> None:
    predictor = load_module_predictor(load_predictor(default_model_dir()), model_path)

    def answer(side: int, *, strange: bool = False) -> Any:
        make = maker()
        x = make.product(make.argument(side, side), side, side, side)
        return predictor.predict(make.program(make.unknown(x, side, side) if strange else x), CPU, compiler="xla")

    inside, huge, unknown = answer(128), answer(2**14), answer(128, strange=True)
    assert inside.in_domain
    for outside in (huge, unknown):
        assert not outside.in_domain
        assert outside.notes
        assert outside.latency_s.upper / outside.latency_s.lower > inside.latency_s.upper / inside.latency_s.lower


def test_an_empty_program_is_answered(model_path: Path, maker: Any) -> None:
    predictor = load_module_predictor(load_predictor(default_model_dir()), model_path)
    make = maker()
    x = make.argument(4, 4)
    assert predictor.predict(make.program(x), CPU, compiler="xla").latency_s.value > 0


def test_a_damaged_artifact_is_refused(trained: ProgramModel, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_models({CPU: trained}, {}, path)
    graph = next(path.glob("*.onnx.gz"))
    remaining = graph.read_bytes()
    graph.write_bytes(remaining[:-1])
    with pytest.raises(ArtifactError, match="checksum"):
        load_models(path)
    graph.unlink()
    with pytest.raises(ArtifactError, match="incomplete"):
        load_models(path)
    graph.write_bytes(remaining)
    manifest = json.loads((path / "manifest.json").read_text())
    write_manifest(path, {**manifest, "schema_hash": "0" * 16})
    with pytest.raises(ArtifactError, match="train mlir"):
        load_models(path)
    (path / "manifest.json").write_text("[]")
    with pytest.raises(ArtifactError, match="no model of programs"):
        load_models(path)


def test_a_kernel_model_is_no_model_of_programs() -> None:
    with pytest.raises(ArtifactError, match="no model of programs"):
        load_models(default_model_dir())


def test_a_store_that_is_none_says_what_to_do(tmp_path: Path) -> None:
    from kernelcast.workloads.mlir.learned.training import train_modules

    with pytest.raises(SpecError, match="kernelcast measure mlir"):
        train_modules([tmp_path], tmp_path / "out")
