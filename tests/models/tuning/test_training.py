"""Rows become tasks, tasks are held out as shapes, and what is fitted ranks: rows, scores and training of tuning models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.kind import get_kind
from kernelcast.models.tuning.flat_model import decode, encode
from kernelcast.models.tuning.rows import TuningRows, read_tables, tuning_rows
from kernelcast.models.tuning.training import (
    LEAST_CONFIGS,
    Problem,
    TrainingConfig,
    dealt,
    over_tasks,
    regret_pct,
    task_score,
    task_scores,
    train,
    train_files,
    two_part,
    weights,
)

DEVICE = "amd-epyc-9005-vm-2c"
QUICK = TrainingConfig(folds=3, rounds=60, rate=0.2, depth=4)
TILES = [(m, n, k) for m in (1, 4, 8, 16) for n in (16, 32, 64) for k in (1, 4)]
SHAPES = [(64 * (1 + i % 4), 64 * (1 + i // 4), 64 + 32 * i) for i in range(12)]


def row(latency_s: float | None, *, status: str = "ok", noisy: bool = False, **spec: Any) -> Measurement:
    sizes = {"m": 64, "n": 64, "k": 64, "threads": 1, "impl": "iree"} | spec
    return Measurement(KernelSpec.of("gemm", "fp32", **sizes), DEVICE, status, "b", latency_s, noisy=noisy, n_samples=9,
                       message=None if status == "ok" else "did not compile")  # type: ignore[arg-type]  # fmt: skip


def stored(folder: Path, rows: list[Measurement]) -> Path:
    Store(folder).append(rows, Provenance("b", {"machine": "made up"}))
    return folder


def law(m: int, n: int, k: int, inner: tuple[int, int, int]) -> float:
    """Seconds of a made-up machine: a register tile is the better the nearer its sums are to 16 vectors."""
    sums = inner[0] * inner[1] / 16
    return 2.0 * m * n * k / 1e11 * (1 + abs(np.log2(sums / 16)) + 0.5 / inner[2])


def made_up_rows(shapes: list[tuple[int, int, int]] = SHAPES) -> list[Measurement]:
    return [
        row(law(*shape, tile), m=shape[0], n=shape[1], k=shape[2],
            config={"tile_m": 16 * tile[0], "tile_n": 64, "inner_m": tile[0], "inner_n": tile[1], "inner_k": tile[2]})
        for shape in shapes for tile in TILES
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("rows") / "store", made_up_rows())


@pytest.fixture(scope="module")
def rows(folder: Path) -> TuningRows:
    return products(folder)


def products(*folders: Path) -> TuningRows:
    return tuning_rows([get_kind("iree-contraction")], read_tables(list(folders)))["iree-contraction"]


def test_rows_of_one_task_and_configuration_are_one_row_and_failures_are_counted(tmp_path: Path) -> None:
    first = stored(
        tmp_path / "a", [row(1e-4), row(9e-4, config={"data_tiling": 1}, noisy=True), row(5e-5, impl="torch")]
    )
    second = stored(tmp_path / "b", [
        row(4e-4), row(None, status="unsupported", config={"data_tiling": 1}), row(2e-4, threads=2),
    ])  # fmt: skip
    result = products(first, second)
    assert [task.sizes["threads"] for task in result.tasks] == [1, 2]
    assert result.of_task.tolist() == [0, 0, 1]
    assert result.knobs["data_tiling"].tolist() == [0, 1, 0]
    assert result.latency_s.tolist() == pytest.approx([2e-4, 9e-4, 2e-4])
    assert result.noisy.tolist() == [False, True, False]
    assert result.n_failed == 1
    assert len(set(result.shapes().tolist())) == 1


def test_tables_named_after_families_are_read_like_a_store(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    Store(folder).compact(packed)
    assert products(packed).latency_s.tolist() == pytest.approx(sorted_like(products(packed), products(folder)))


def sorted_like(one: TuningRows, other: TuningRows) -> list[float]:
    key = lambda rows, i: (tuple(rows.tasks[rows.of_task[i]].sizes.items()),  # noqa: E731
                           tuple(int(column[i]) for column in rows.knobs.values()))  # fmt: skip
    seconds = {key(other, i): other.latency_s[i] for i in range(len(other))}
    return [seconds[key(one, i)] for i in range(len(one))]


def test_a_folder_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no measured rows"):
        read_tables([tmp_path])


def test_regret_is_what_the_models_first_ones_take_beyond_the_best() -> None:
    measured, predicted = np.array([3.0, 1.0, 2.0, 4.0]), np.array([1.0, 9.0, 2.0, 3.0])
    assert [regret_pct(measured, predicted, k) for k in (1, 2, 3, 4, 9)] == [200.0, 100.0, 100.0, 0.0, 0.0]
    # Equal predictions: the first of them, whatever was measured.
    assert regret_pct(measured, np.ones(4), 1) == 200.0


def test_the_score_of_a_task_and_of_several() -> None:
    good = task_score(np.array([1.0, 2.0, 4.0]), np.array([1.05, 2.0, 4.0]))
    assert good["kendall_tau"] == 1.0
    assert good["top_1_regret_pct"] == 0.0
    assert good["within_10_pct"] == pytest.approx(100.0)
    alone = task_score(np.array([2.0]), np.array([1.0]))
    assert alone["kendall_tau"] is None
    both = over_tasks([good, alone])
    assert both["n_tasks"] == 2
    assert both["n_configs"] == 4
    assert both["task_mean_kendall_tau"] == 1.0
    assert both["task_mean_mean_ape_pct"] == pytest.approx((50 + 5 / 3) / 2, abs=1e-3)
    nothing = over_tasks([])
    assert nothing["n_tasks"] == 0
    assert nothing["task_mean_top_1_regret_pct"] is None
    json.dumps(nothing, allow_nan=False)


def test_shapes_are_dealt_as_wholes(rows: TuningRows) -> None:
    folds, shapes = dealt(rows.shapes(), QUICK), rows.shapes()
    assert set(folds.tolist()) == {0, 1, 2}
    assert all(len(set(folds[shapes == shape].tolist())) == 1 for shape in np.unique(shapes))
    assert set(dealt(np.array([0, 0, 1]), QUICK).tolist()) == {0, 1}


def test_a_task_weighs_as_its_configurations_are_many_and_its_best_one_most(rows: TuningRows) -> None:
    few = (rows.of_task > 0) | (np.arange(len(rows)) < 3)
    columns = {name: column[few] for name, column in rows.knobs.items()}
    rows = TuningRows(rows.kind, rows.tasks, rows.of_task[few], columns, rows.latency_s[few], rows.noisy[few], 0)
    result = weights(rows, QUICK)
    totals = np.bincount(rows.of_task, weights=result)
    assert totals == pytest.approx(np.bincount(rows.of_task))
    assert totals[0] == pytest.approx(3.0)
    own = rows.of_task == 0
    assert result[own].argmax() == rows.latency_s[own].argmin()


def test_a_device_with_few_rows_weighs_as_much_as_one_with_many_but_for_tasks_that_rank_nothing(
    rows: TuningRows,
) -> None:
    last = len(rows.tasks) - 1
    tasks = (*rows.tasks[:last], replace(rows.tasks[last], device="amd-epyc-7003-vm-2c"))
    counts = np.bincount(rows.of_task)
    result = np.bincount(rows.of_task, weights=weights(replace(rows, tasks=tasks), QUICK))
    assert result[:last] == pytest.approx(counts[:last])
    raised = min(counts[:last].sum() / counts[last], QUICK.most_device_weight)
    assert raised > 1.5
    assert result[last] == pytest.approx(raised * counts[last])
    few = (rows.of_task != last) | (np.arange(len(rows)) >= len(rows) - LEAST_CONFIGS + 1)
    columns = {name: column[few] for name, column in rows.knobs.items()}
    cut = TuningRows(rows.kind, tasks, rows.of_task[few], columns, rows.latency_s[few], rows.noisy[few], 0)
    assert np.bincount(cut.of_task, weights=weights(cut, QUICK)) == pytest.approx(np.bincount(cut.of_task))


def test_the_objectives_derivative_is_that_of_its_sum() -> None:
    rng = np.random.default_rng(0)
    target, weight, tasks = rng.normal(size=9), rng.uniform(0.5, 2, 9), np.repeat([0, 1, 2], 3)
    predicted = rng.normal(size=9)

    def loss(at: np.ndarray) -> float:
        error = at - target
        level = (np.bincount(tasks, weight * error) / np.bincount(tasks, weight))[tasks]
        return float(np.sum(weight * (level**2 + 3.0 * (error - level) ** 2)) / 2)

    slope, curvature = two_part(target, weight, tasks, 3.0)(predicted, None)
    steps = 1e-6 * np.eye(9)
    numeric = [(loss(predicted + step) - loss(predicted - step)) / 2e-6 for step in steps]
    assert slope == pytest.approx(numeric, abs=1e-6)
    assert (curvature > 0).all()
    plain, _ = two_part(target, weight, tasks, 1.0)(predicted, None)
    assert plain == pytest.approx(weight * (predicted - target))


def test_a_model_ranks_shapes_it_did_not_see_and_its_file_says_how_well(rows: TuningRows) -> None:
    messages: list[tuple[int, int]] = []
    trained = train(rows, QUICK, progress=lambda done, of: messages.append((done, of)))
    assert messages == [(1, 4), (2, 4), (3, 4), (4, 4)]
    metadata = decode(encode(trained), "memory").metadata
    assert metadata["shapes"] == metadata["tasks"] == 12
    assert metadata["held_out"]["task_mean_kendall_tau"] > 0.9
    assert metadata["held_out"]["task_mean_top_1_regret_pct"] < 5
    assert metadata["devices_measured"] == [DEVICE]
    assert metadata["rows"] == len(rows) == 12 * len(TILES)


def test_the_file_predicts_what_was_fitted(rows: TuningRows) -> None:
    model = train(rows, QUICK)
    problem = Problem.of(rows, model.formula, catalogue(), QUICK)
    every = np.ones(len(rows), dtype=np.bool_)
    wanted = problem.bound_s * np.exp(problem.predict(problem.fit(every, QUICK), every))
    features = model.features(rows.input_columns(catalogue()))
    assert model.seconds(features, len(rows)) == pytest.approx(wanted, rel=1e-4)


def test_noisy_rows_are_learnt_from_but_not_scored(rows: TuningRows) -> None:
    perfect = task_scores(rows, rows.latency_s)
    assert len(perfect) == 12
    assert {score["n"] for score in perfect} == {len(TILES)}
    noisy = TuningRows(rows.kind, rows.tasks, rows.of_task, rows.knobs, rows.latency_s, rows.of_task == 0, 0)
    assert len(task_scores(noisy, rows.latency_s)) == 11
    mean = weights(noisy, QUICK)
    assert np.isfinite(mean).all()


def test_too_few_shapes_are_said_and_nothing_is_written(tmp_path: Path) -> None:
    few = stored(tmp_path / "few", made_up_rows(SHAPES[:4]))
    with pytest.raises(SpecError, match="iree-contraction: 4 measured shapes; a model takes 10"):
        train_files([few], tmp_path / "out")
    assert not (tmp_path / "out").exists()
