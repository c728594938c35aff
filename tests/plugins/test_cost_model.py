"""The cost model that compilers ask: predicting, ranking, learning from measurements, saving and loading."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.tuning.formula import trace
from kernelcast.features.tuning.kind import Candidates, Task
from kernelcast.models.tuning.flat_model import read_model, write_model
from kernelcast.models.tuning.forest import Forest
from kernelcast.plugins import cost_model
from kernelcast.plugins.cost_model import CostModel, ModelFileError

from ..models.tuning.made_up import DEVICE, law_s, model, space, task

SPACE = space(task())


@pytest.fixture
def fresh() -> CostModel:
    return CostModel(model(energy=True), DEVICE)


def errors(found: Any, truth: Any) -> float:
    """Mean size of ln(found / truth)."""
    return float(np.abs(np.log(found / truth)).mean())


def test_a_file_is_loaded_and_predicts(tmp_path: Path) -> None:
    write_model(model(), tmp_path / "x.kcm")
    loaded = CostModel.load("made-up", DEVICE, tmp_path / "x.kcm")
    seconds = loaded.predict(SPACE)
    assert seconds.shape == (len(SPACE),)
    assert seconds.dtype == np.float64
    assert (seconds > 0).all()
    assert loaded.kind == "made-up"
    assert loaded.model.energy is None
    np.testing.assert_array_equal(seconds, CostModel.load("made-up", DEVICE, str(tmp_path / "x.kcm")).predict(SPACE))


def test_the_users_own_file_goes_before_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cost_model, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(ModelFileError, match="no model of kind 'made-up'; there are: none; train one with"):
        CostModel.load("made-up", DEVICE)
    write_model(model(metadata={"whose": "shipped"}), tmp_path / "shipped" / "made-up.kcm")
    assert CostModel.load("made-up", DEVICE).model.metadata["whose"] == "shipped"
    own = CostModel(model(metadata={"whose": "own"}), DEVICE)
    own.update(SPACE.take([0]), [0.25])
    own.save()
    found = CostModel.load("made-up", DEVICE)
    assert found.model.metadata["whose"] == "own"
    assert found.predict(SPACE.take([0])) == [0.25]
    with pytest.raises(ModelFileError, match="no model of kind 'iree'; there are: made-up;"):
        CostModel.load("iree", DEVICE)
    (tmp_path / "home" / "tuning" / "made-up.kcm").write_bytes(b"odd")
    with pytest.raises(ModelFileError, match="is not a kernelcast model file"):
        CostModel.load("made-up", DEVICE)


@pytest.mark.parametrize("kind", ["../../etc/passwd", "", "a/b", ".hidden", 7, None])
def test_names_that_are_no_kinds_touch_no_file(kind: Any) -> None:
    with pytest.raises(ModelFileError, match="is no name of a kind"):
        CostModel.load(kind, DEVICE)


def test_devices_go_by_alias_and_any_case() -> None:
    for name in ("nvidia-t4", "NVIDIA-T4", "t4"):
        assert CostModel(model(), name).device == "nvidia-t4"
    for name in ("nvidia-l4", "toaster", "", None):
        with pytest.raises(ModelFileError, match=f"does not know the device {name!r}; it knows: {DEVICE}, nvidia-t4"):
            CostModel(model(), name)  # type: ignore[arg-type]


def test_dtypes_go_by_alias_and_those_not_in_the_file_are_refused(fresh: CostModel) -> None:
    np.testing.assert_array_equal(fresh.predict(space(task(dtype="f32"))), fresh.predict(SPACE))
    assert not np.array_equal(fresh.predict(space(task(dtype="bf16"))), fresh.predict(SPACE))
    with pytest.raises(ModelFileError, match=f"does not know fp64 on {DEVICE}; it knows: bf16, fp32"):
        fresh.predict(space(task(dtype="fp64")))
    with pytest.raises(SpecError, match="no dtype 'nonsense'"):
        fresh.predict(space(task(dtype="nonsense")))


def test_tasks_it_cannot_answer_are_refused(fresh: CostModel) -> None:
    configs = [{"tile_m": 8}]
    for odd, says in (
        (replace(task(), kind="other"), "is of kind 'other', and the model of 'made-up'"),
        (task(device="nvidia-t4"), f"the task is for nvidia-t4; the model was loaded for {DEVICE}"),
        (task(device="toaster"), "does not know the device 'toaster'"),
        (replace(task(), sizes={"m": 1, "n": 2}), "made-up needs the size k; sizes: m, n, k"),
        (replace(task(), sizes={"m": 1, "n": 2, "k": 3, "z": 4}), "made-up has no size 'z'"),
        (replace(task(), sizes={"m": 1.5, "n": 2, "k": 3}), "m must be a whole number"),
    ):
        with pytest.raises(SpecError, match=re.escape(says)):
            fresh.predict(Candidates.of(odd, configs))
    with pytest.raises(SpecError, match="has no knob 'warps'; knobs: tile_m, tile_n, unroll"):
        fresh.predict(Candidates.of(task(), [{"warps": 4}]))


def test_a_knob_without_a_column_is_left_out(fresh: CostModel) -> None:
    raw = fresh.predict(Candidates.of(task(), [{"tile_m": 8, "tile_n": 0, "unroll": 0}, {}]))
    np.testing.assert_array_equal(raw, fresh.predict(Candidates.of(task(), [{"tile_m": 8}, {}])))


def test_no_configurations_give_no_answers(fresh: CostModel) -> None:
    none = Candidates.of(task(), [])
    assert fresh.predict(none).shape == (0,)
    assert fresh.rank(none, 3).shape == (0,)
    assert fresh.predict_energy(none).shape == (0,)
    fresh.update(none, [])
    fresh.update(SPACE.take([3]), [1e-3])
    assert fresh.predict(none).shape == (0,)


def test_a_batch_gives_what_each_gets_alone(fresh: CostModel) -> None:
    for _ in range(2):
        together = fresh.predict(SPACE)
        for i in range(0, len(SPACE), 13):
            np.testing.assert_allclose(fresh.predict(SPACE.take([i]))[0], together[i], rtol=1e-12)
        fresh.update(SPACE.take([1, 50]), [1e-3, 2e-3])


def test_extreme_but_legal_sizes_are_answered(fresh: CostModel) -> None:
    for m, n, k in itertools.product((1, 2**40), repeat=3):
        for knobs in ({}, {"tile_m": 1}, {"tile_m": 2**40, "tile_n": 2**40, "unroll": 2**40}):
            seconds = fresh.predict(Candidates.of(task(m, n, k), [knobs, {"tile_n": 3}]))
            assert np.isfinite(seconds).all()
            assert (seconds > 0).all()


def test_ranking_is_stable_and_best_first(fresh: CostModel) -> None:
    seconds = fresh.predict(SPACE)
    order = fresh.rank(SPACE, 10)
    assert order.tolist() == np.argsort(seconds, kind="stable")[:10].tolist()
    assert len(fresh.rank(SPACE, 10**6)) == len(SPACE)
    assert fresh.rank(SPACE, 0).tolist() == []
    same = Candidates.of(task(), [{"tile_m": 8}] * 4)
    assert fresh.rank(same, 3).tolist() == [0, 1, 2]
    with pytest.raises(SpecError, match="k must be 0 or more"):
        fresh.rank(SPACE, -1)


def test_energy_is_seconds_times_power(fresh: CostModel) -> None:
    power = fresh.predict_energy(SPACE) / fresh.predict(SPACE)
    assert (power > 1).all()
    fresh.update(SPACE.take([2]), [7.0])
    np.testing.assert_allclose(fresh.predict_energy(SPACE)[2], 7.0 * power[2], rtol=1e-12)
    with pytest.raises(SpecError, match="predicts no energy"):
        CostModel(model(), DEVICE).predict_energy(SPACE)


def test_what_was_measured_is_remembered_exactly(fresh: CostModel) -> None:
    fresh.update(SPACE.take([5, 6]), [0.5, 3e-9])
    assert fresh.predict(SPACE)[[5, 6]].tolist() == [0.5, 3e-9]
    fresh.update(SPACE.take([5]), [0.1])
    fresh.update(SPACE.take([5]), [0.2])
    assert fresh.predict(SPACE)[5] == 0.2
    fresh.update(SPACE.take([5, 5]), [0.4, 0.4])
    assert fresh.predict(SPACE)[5] == 0.4


@pytest.mark.parametrize("seed", range(4))
def test_errors_of_what_was_not_measured_fall(fresh: CostModel, seed: int) -> None:
    truth = law_s(SPACE)
    chosen = np.random.default_rng(seed).permutation(len(SPACE))
    before = fresh.predict(SPACE)
    seen = []
    for n in (6, 30):
        learner = CostModel(fresh.model, DEVICE)
        learner.update(SPACE.take(chosen[:n]), truth[chosen[:n]])
        rest = chosen[30:]
        seen.append(errors(learner.predict(SPACE)[rest], truth[rest]))
    start = errors(before[chosen[30:]], truth[chosen[30:]])
    assert seen[0] < 0.97 * start
    assert seen[1] < 0.7 * start
    assert seen[1] < seen[0]


def test_what_was_learnt_of_one_operation_helps_another_a_little(fresh: CostModel) -> None:
    near = space(task(310, 190, 480))
    truth = law_s(near)
    before = errors(fresh.predict(near), truth)
    for m in (280, 300, 320):
        item = space(task(m))
        chosen = np.arange(0, len(item), 5)
        fresh.update(item.take(chosen), law_s(item)[chosen])
    after = errors(fresh.predict(near), truth)
    assert 0.2 * before < after < before
    own = CostModel(fresh.model, DEVICE)
    own.update(near.take(chosen), truth[chosen])
    assert errors(own.predict(near), truth) < after


def test_another_device_or_dtype_learns_nothing(fresh: CostModel) -> None:
    other = space(task(dtype="bf16"))
    before = fresh.predict(other)
    fresh.update(SPACE, law_s(SPACE))
    np.testing.assert_array_equal(fresh.predict(other), before)


@pytest.mark.parametrize(
    "measured",
    [
        [1e-3, 10.0] * 20,
        [1e-3] * 20 + [1e9] * 20,
        [1e-12] * 40,
        [1e9] * 40,
        [1e-300, 1e300] * 20,
    ],
    ids=["contradictory", "huge after", "tiny", "huge", "absurd"],
)
@pytest.mark.parametrize("same", [True, False], ids=["one configuration", "many"])
def test_odd_measurements_never_make_answers_explode(fresh: CostModel, measured: list[float], same: bool) -> None:
    before = fresh.predict(SPACE)
    rows = [7] * 40 if same else list(range(40))
    for i, value in zip(rows, measured, strict=True):
        fresh.update(SPACE.take([i]), [value])
    after = fresh.predict(SPACE)
    rest = np.setdiff1d(np.arange(len(SPACE)), rows)
    assert np.isfinite(after).all()
    assert (np.abs(np.log(after[rest] / before[rest])) < np.log(33.0)).all()
    other = space(task(64, 64, 64))
    fresh_again = CostModel(fresh.model, DEVICE).predict(other)
    assert (np.abs(np.log(fresh.predict(other) / fresh_again)) < np.log(33.0)).all()


def test_one_odd_measurement_among_good_ones_does_little_harm(fresh: CostModel) -> None:
    truth = law_s(SPACE)
    chosen = np.arange(0, len(SPACE), 4)
    rest = np.setdiff1d(np.arange(len(SPACE)), chosen)
    good, bad = CostModel(fresh.model, DEVICE), CostModel(fresh.model, DEVICE)
    good.update(SPACE.take(chosen), truth[chosen])
    spoiled = truth[chosen].copy()
    spoiled[9] *= 1e6
    bad.update(SPACE.take(chosen), spoiled)
    remaining = errors(bad.predict(SPACE)[rest], truth[rest])
    assert remaining < 1.25 * errors(good.predict(SPACE)[rest], truth[rest])
    assert bad.predict(SPACE)[chosen[9]] == spoiled[9]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_are_none_are_refused_and_nothing_is_learnt(fresh: CostModel, wrong: float) -> None:
    before = fresh.predict(SPACE)
    with pytest.raises(SpecError, match="times must be finite and greater than 0, leave failed runs out"):
        fresh.update(SPACE.take([0, 1]), [1e-3, wrong])
    np.testing.assert_array_equal(fresh.predict(SPACE), before)


def test_measurements_of_another_number_or_sort_are_refused(fresh: CostModel) -> None:
    with pytest.raises(SpecError, match=r"2 configurations need 2 measured times, got shape \(1,\)"):
        fresh.update(SPACE.take([0, 1]), [1e-3])
    for odd in (["fast"], [None], [[1.0]], [object()]):
        with pytest.raises(SpecError, match="measured time"):
            fresh.update(SPACE.take([0]), odd)
    with pytest.raises(ModelFileError, match="does not know fp64"):
        fresh.update(space(task(dtype="fp64")).take([0]), [1e-3])


def test_saved_and_loaded_it_predicts_the_same_bits(fresh: CostModel, tmp_path: Path) -> None:
    truth = law_s(SPACE)
    for rows in ([3, 40, 3], [60, 7], [3, 100]):
        fresh.update(SPACE.take(rows), truth[rows])
        fresh.update(space(task(64, 64, 64)).take(rows), truth[rows] / 7)
    fresh.save(tmp_path / "learnt.kcm")
    loaded = CostModel.load("made-up", DEVICE, tmp_path / "learnt.kcm")
    for these in (SPACE, space(task(64, 64, 64)), space(task(90, 64, 64))):
        np.testing.assert_array_equal(loaded.predict(these), fresh.predict(these))
        np.testing.assert_array_equal(loaded.predict_energy(these), fresh.predict_energy(these))
    for each in (fresh, loaded):
        each.update(SPACE.take([11]), [4e-3])
    np.testing.assert_array_equal(loaded.predict(SPACE), fresh.predict(SPACE))
    loaded.save(tmp_path / "learnt.kcm")
    assert len(read_model(tmp_path / "learnt.kcm").measured or []) == 15
    with pytest.raises(ModelFileError, match="cannot write the model file"):
        fresh.save(tmp_path / "learnt.kcm" / "x")


def test_measurements_of_devices_the_file_does_not_know_are_kept_and_not_used(fresh: CostModel, tmp_path: Path) -> None:
    fresh.update(SPACE.take([1]), [1e-3])
    fresh.save(tmp_path / "learnt.kcm")
    found = read_model(tmp_path / "learnt.kcm")
    less = {key: facts for key, facts in found.table.items() if key[0] != DEVICE}
    other = CostModel(replace(found, table=less), "nvidia-t4")
    plain = CostModel(model(table=less), "nvidia-t4")
    these = space(task(device="nvidia-t4"))
    np.testing.assert_array_equal(other.predict(these), plain.predict(these))
    other.save(tmp_path / "other.kcm")
    assert len(read_model(tmp_path / "other.kcm").measured or []) == 1


def test_the_oldest_measurements_are_forgotten(fresh: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "MOST_MEASURED", 3)
    for i in range(5):
        fresh.update(SPACE.take([i]), [1.0 + i])
    seconds = fresh.predict(SPACE)
    assert seconds[2:5].tolist() == [3.0, 4.0, 5.0]
    assert (seconds[:2] < 0.1).all()


def test_threads_share_a_model(fresh: CostModel) -> None:
    wrong: list[BaseException] = []
    truth = law_s(SPACE)

    def ask(first: int) -> None:
        try:
            for i in range(first, first + 20):
                fresh.update(SPACE.take([i]), truth[[i]])
                assert fresh.predict(SPACE)[i] == truth[i]
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 30, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    done = [*range(20), *range(30, 50), *range(60, 80)]
    np.testing.assert_array_equal(fresh.predict(SPACE)[done], truth[done])


def test_a_kind_without_knobs_is_answered() -> None:
    def cost(v: Any) -> dict[str, Any]:
        return {"bound_s": v["m"] / v["rate"], "m": v["m"]}

    flat = model(
        sizes=("m",),
        knobs=(),
        facts=("rate",),
        table={(DEVICE, "fp32"): (1e9,)},
        formula=trace(("m", "rate"), cost),
        latency=Forest(
            0.1,
            0,
            np.zeros(0, np.uint32),
            np.zeros(0, np.float32),
            np.zeros((0, 1), np.uint32),
            np.zeros((1, 1), np.float32),
        ),
    )
    plain = CostModel(flat, DEVICE)
    item = Candidates.of(Task("made-up", {"m": 100}, "fp32", DEVICE), [{}])
    assert plain.predict(item).shape == (1,)
    plain.update(item, [5.0])
    assert plain.predict(item).tolist() == [5.0]


def test_loading_imports_nothing_heavy(tmp_path: Path) -> None:
    write_model(model(), tmp_path / "x.kcm")
    code = (
        "import sys; from kernelcast.plugins.cost_model import CostModel; "
        f"CostModel.load('made-up', {DEVICE!r}, {str(tmp_path / 'x.kcm')!r}); "
        "print([name for name in ('yaml', 'pandas', 'pyarrow', 'onnxruntime', 'scipy', 'xgboost', 'torch', 'tempfile') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
