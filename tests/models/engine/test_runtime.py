"""The compiled engine answers what onnxruntime answers, one row or many, and stays away from what it does not know."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.engine import runtime as native_engine
from kernelcast.models.engine.onnx_arrays import ForestArrays, NetworkArrays, arrays_of
from kernelcast.models.engine.runtime import ENGINE_ENV, GraphError, Runtime, chosen_engine

MODELS = Path(kernelcast.__file__).parent / "models"
SHIPPED = sorted(path.name for path in (MODELS / "pretrained" / "kernels").glob("*.onnx.gz"))
NETWORK, FOREST, SMALL_FOREST = "copy.1.onnx.gz", "softmax.0.onnx.gz", "copy.3.onnx.gz"

needs_library = pytest.mark.skipif(
    native_engine.library() is None,
    reason="the package was installed without a C++ compiler: there is no compiled engine",
)
LEVELS = list(native_engine.levels())


@cache
def graph(name: str) -> bytes:
    return gzip.decompress((MODELS / "pretrained" / "kernels" / name).read_bytes())


@cache
def onnx_session(name: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph(name), options, providers=["CPUExecutionProvider"])


def rows_for(arrays: ForestArrays | NetworkArrays, n: int, seed: int = 0) -> Any:
    """Rows near what the graph tells apart: thresholds themselves and their neighbours, missing, infinite and huge values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, arrays.width)).astype(np.float32)
    if isinstance(arrays, ForestArrays):
        order = np.argsort(arrays.feature, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(arrays.feature[order])) + 1):
            values = rng.choice(arrays.threshold[some], n)
            aside = np.nextafter(values, np.float32(rng.choice([-np.inf, np.inf])))
            x[:, arrays.feature[some[0]]] = np.where(rng.random(n) < 0.5, values, aside)
    else:
        x[:, arrays.columns] = arrays.mean + x[:, arrays.columns] * arrays.scale
    for value in (np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, 1e-42):
        x[rng.random(x.shape) < 0.02] = value
    x[0] = np.nan
    return x


@needs_library
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_graph_is_known_and_answered_as_by_onnxruntime(name: str) -> None:
    arrays = arrays_of(graph(name))
    assert arrays is not None
    x = rows_for(arrays, 150)
    expected = onnx_session(name).run(None, {"x": x})[0]
    (result,) = native_engine.GraphBatch([native_engine.load_native(graph(name))]).run(x)
    # Trees end in the same leaves, which are added in the same order.
    limit = 2e-6 if isinstance(arrays, ForestArrays) else 1e-5
    assert np.abs(result - expected).max() <= limit


@needs_library
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [NETWORK, FOREST, SMALL_FOREST])
def test_a_row_is_answered_alike_alone_and_among_others_by_every_kind_of_instructions(name: str, level: int) -> None:
    loaded = native_engine.load_native(graph(name), level)
    assert loaded is not None
    x = rows_for(arrays_of(graph(name)), 300, seed=1)
    # Half the columns say the same in all rows: such are counted once for a batch.
    x[:, ::2] = x[5, ::2]
    (whole,) = native_engine.GraphBatch([loaded]).run(x)
    assert np.abs(whole - onnx_session(name).run(None, {"x": x})[0]).max() <= 1e-5
    for n in (1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 79, 80, 81, 129):
        for start in (0, 131):
            (some,) = native_engine.GraphBatch([loaded]).run(x[start : start + n])
            assert np.array_equal(some, whole[start : start + n]), (n, start)


@needs_library
def test_columns_the_same_in_a_batch_change_no_leaf() -> None:
    arrays = arrays_of(graph(FOREST))
    assert isinstance(arrays, ForestArrays)
    rng = np.random.default_rng(2)
    for seed in range(8):
        x = rows_for(arrays, 200, seed)
        fixed = rng.random(arrays.width) < rng.random()
        x[:, fixed] = x[int(rng.integers(200)), fixed]
        (result,) = native_engine.GraphBatch([native_engine.load_native(graph(FOREST))]).run(x)
        assert np.abs(result - onnx_session(FOREST).run(None, {"x": x})[0]).max() <= 2e-6


@needs_library
def test_trees_with_more_leaves_than_words_hold_two_targets() -> None:
    import onnxruntime
    from kernelcast.models.engine.onnx_writer import Tree, tree_ensemble
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 4)).astype(np.float32)
    y = np.stack([np.sin(3 * x[:, 0]) + x[:, 1], x[:, 2] ** 2], axis=1)
    fitted = RandomForestRegressor(n_estimators=5, random_state=0).fit(x, y).estimators_
    trees = [
        Tree(
            left=tree.children_left, right=tree.children_right, feature=np.maximum(tree.feature, 0),
            value=tree.threshold.astype(np.float32), missing_left=np.arange(tree.node_count) % 2 == 0,
            leaf=(tree.value[:, :, 0] / 5).astype(np.float32),
        )
        for tree in (estimator.tree_ for estimator in fitted)
    ]  # fmt: skip
    forest = tree_ensemble(trees, base=[0.0, 0.0], n_features=4)
    x[3:40, 1] = np.nan
    arrays = arrays_of(forest)
    assert isinstance(arrays, ForestArrays)
    assert arrays.targets == 2
    expected = onnxruntime.InferenceSession(forest, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    (result,) = native_engine.GraphBatch([native_engine.load_native(forest)]).run(x)
    assert np.abs(result - expected).max() <= 2e-6


@needs_library
def test_eight_threads_at_once() -> None:
    runtime = Runtime([graph(NETWORK), graph(SMALL_FOREST)])
    widest = max(arrays_of(graph(name)).width for name in (NETWORK, SMALL_FOREST))  # type: ignore[union-attr]
    batches = [np.random.default_rng(i).normal(size=(20 + 70 * i, widest)).astype(np.float32) for i in range(8)]
    alone = [runtime.run(x) for x in batches]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for expected, result in zip(alone, pool.map(runtime.run, batches), strict=True):
                assert all(np.array_equal(expected[i], result[i]) for i in (0, 1))


@needs_library
def test_no_row_gives_no_answer_and_another_width_or_type_is_refused() -> None:
    runtime, width = Runtime([graph(SMALL_FOREST)]), arrays_of(graph(SMALL_FOREST)).width  # type: ignore[union-attr]
    assert runtime.run(np.zeros((0, width), np.float32))[0].shape == (0, 1)
    assert runtime.run(np.zeros((3, width), np.float32), only=[]) == {}
    for wrong in (np.zeros((3, width - 1), np.float32), np.zeros((3, width)), np.zeros(width, np.float32)):
        with pytest.raises(ValueError, match=f"{width} columns"):
            runtime.run(wrong)
    across = np.asfortranarray(np.random.default_rng(0).normal(size=(40, width)).astype(np.float32))
    assert np.array_equal(runtime.run(across)[0], runtime.run(np.ascontiguousarray(across))[0])


@pytest.mark.parametrize("name", [NETWORK, SMALL_FOREST])
def test_damaged_graphs_are_left_to_onnxruntime_or_answered_and_never_crash(name: str) -> None:
    whole, rng = graph(name), np.random.default_rng(3)
    width = arrays_of(whole).width  # type: ignore[union-attr]
    x = np.random.default_rng(0).normal(size=(20, width)).astype(np.float32)
    for attempt in range(400):
        damaged = bytearray(whole)
        # Most of a graph is numbers; its structure stands in the first and the last bytes.
        span = len(damaged) if attempt % 2 else 900
        for place in rng.integers(0, span, size=1 + attempt % 3):
            damaged[place if attempt % 4 else -1 - place] = rng.integers(256)
        if attempt % 10 == 0:
            del damaged[int(rng.integers(len(damaged))) :]
        loaded = native_engine.load_native(bytes(damaged))
        if loaded is not None and loaded.width == width:
            assert np.isfinite(native_engine.GraphBatch([loaded]).run(x)[0]).all()


@pytest.mark.parametrize(
    "bad", [b"", b"\x00", b"\x3a\xff\xff\xff\xff\x0f", b"\xff" * 40, b"PK\x03\x04", b"\x3a\x00" * 9]
)
def test_what_is_no_graph_is_not_known_and_refused_in_words(bad: bytes) -> None:
    assert arrays_of(bad) is None
    with pytest.raises(GraphError, match="cannot run a graph"):
        Runtime([bad])


def loop(bytes_of: Any) -> bytes:
    """A forest whose left children all are the first split: no tree."""
    import onnx

    model = onnx.load_from_string(bytes_of)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "nodes_truenodeids":
            attribute.ints[:] = [0] * len(attribute.ints)
        if attribute.name == "nodes_trueleafs":
            attribute.ints[:] = [0] * len(attribute.ints)
    changed: bytes = model.SerializeToString()
    return changed


@needs_library
def test_nodes_in_a_circle_are_not_followed() -> None:
    circle = loop(graph(SMALL_FOREST))
    assert arrays_of(circle) is not None
    assert native_engine.load_native(circle) is None


def test_other_graphs_are_onnxruntime_s() -> None:
    from kernelcast.models.engine.onnx_writer import constant

    same = constant([1.5, -2.0], n_features=3)
    assert arrays_of(same) is None
    mixed = Runtime([same, graph(SMALL_FOREST)])
    assert mixed.run(np.zeros((4, 3), np.float32), only=[0])[0].tolist() == [[1.5, -2.0]] * 4
    width = arrays_of(graph(SMALL_FOREST)).width  # type: ignore[union-attr]
    assert mixed.run(np.zeros((4, width), np.float32), only=[1])[1].shape == (4, 1)


@pytest.mark.parametrize("name", [NETWORK, FOREST])
def test_without_the_library_onnxruntime_answers_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows_for(arrays_of(graph(name)), 60)
    here = Runtime([graph(name)]).run(x)[0]
    monkeypatch.setattr(native_engine, "library", lambda: None)
    assert chosen_engine() == "onnxruntime"
    assert native_engine.load_native(graph(name)) is None
    assert np.abs(Runtime([graph(name)]).run(x)[0] - here).max() <= 1e-5


def test_the_engine_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE_ENV, "onnxruntime")
    assert chosen_engine() == "onnxruntime"
    monkeypatch.setenv(ENGINE_ENV, "fast")
    with pytest.raises(SpecError, match="'fast'; it can be auto, native, onnxruntime"):
        Runtime([])
    monkeypatch.setenv(ENGINE_ENV, "")
    assert chosen_engine() == ("onnxruntime" if native_engine.library() is None else "native")
    monkeypatch.setattr(native_engine, "library", lambda: None)
    monkeypatch.setenv(ENGINE_ENV, "native")
    with pytest.raises(SpecError, match=r"no compiled engine.*C\+\+ compiler"):
        Runtime([])
