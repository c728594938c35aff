"""What a ranking of Triton's configurations costs: ties, the order that other shapes suggest, Triton's old model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.tuning.kind import Task
from triton_judge import DRAWN, MODEL, ORDER, Judged, expected_regret_pct, order_of_others, scores_of, table
from triton_rivals import triton_perf_model

MEASURED = np.array([4.0, 1.0, 2.0, 8.0])
H200 = "nvidia-h200-sxm-141gb"


def judged(m: int, *seconds: float, dtype: str = "bf16") -> Judged:
    knobs = {"tile_m": np.array([16, 32, 64, 128]), "warps": np.array([4, 4, 8, 8])}
    task = Task("triton-gemm", {"batch": 1, "m": m, "n": 64, "k": 64}, dtype, H200)
    return Judged(task, np.array(seconds), knobs, {MODEL: np.array(seconds), DRAWN: np.zeros(4)})


@pytest.mark.parametrize(
    ("score", "k", "regret"),
    [
        ([1, 2, 3, 4], 1, 300.0),
        ([1, 2, 3, 4], 2, 0.0),
        ([4, 3, 1, 2], 2, 100.0),
        # The second place is drawn of two: the best of 4 and 1, or of 4 and 2.
        ([1, 2, 2, 9], 2, 50.0),
        ([0, 0, 0, 0], 1, 275.0),
        ([0, 0, 0, 0], 9, 0.0),
        ([np.inf, 5, np.inf, 7], 1, 0.0),
    ],
)
def test_equal_scores_are_in_no_order(score: list[float], k: int, regret: float) -> None:
    assert expected_regret_pct(MEASURED, np.array(score), k) == pytest.approx(regret)


def test_work_is_told_apart() -> None:
    parts = [judged(m, 1, 2, 3, 4).part for m in (64, 65)]
    assert parts == ["products, decode", "products, prefill"]
    assert judged(64, 1, 2, 3, 4, dtype="fp8").part == "products, fp8"


def test_an_order_comes_from_other_shapes_of_the_part_alone() -> None:
    one, two, three = judged(1, 1, 2, 4, 8), judged(2, 2, 1, 4, 8), judged(4, 9, 1, 9, 9)
    prompt = judged(512, 1, 1, 1, 1)
    order = order_of_others(one, [one, two, three, prompt])
    expected = [np.log([2.0, 9.0]).mean(), 0.0, np.log([4.0, 9.0]).mean(), np.log([8.0, 9.0]).mean()]
    assert order == pytest.approx(expected)
    assert np.isinf(order_of_others(prompt, [one, two, prompt])).all()


def test_the_table_has_every_part_and_ranking() -> None:
    tasks = [judged(1, 1, 2, 4, 8), judged(512, 4, 2, 1, 8)]
    for each in tasks:
        each.scores[ORDER] = order_of_others(each, tasks)
    scores = scores_of(tasks)
    assert list(scores) == ["all", "products", "products, decode", "products, prefill"]
    assert scores["all"][MODEL]["top_1_mean_pct"] == 0.0
    assert scores["products, decode"][DRAWN]["top_1_worst_pct"] == pytest.approx(275.0)
    lines = table(scores).splitlines()
    assert len(lines) == 2 + 4 * 3
    assert "| all | 2 | the model | 1.00 | 0.0 / 0.0 / 0.0 | 0.0 / 0.0 / 0.0 |" in lines


def test_tritons_old_model_gets_the_datasheets_figures(tmp_path: Path) -> None:
    file = tmp_path / "matmul_perf_model.py"
    file.write_text(
        "import torch\n"
        "from .. import cdiv\n"
        "from ..runtime import driver\n"
        "from ..testing import get_dram_gbps, get_max_simd_tflops, get_max_tensorcore_tflops, nvsmi\n"
        "def estimate_matmul_time(num_warps, num_stages, A, B, C, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K):\n"
        "    units = driver.active.utils.get_device_properties(0)['multiprocessor_count']\n"
        "    assert A.element_size() == 2 and 4000 < get_dram_gbps(0) < 5000 and nvsmi(['clocks.max.sm'])[0] > 1000\n"
        "    return cdiv(M, BLOCK_M) * SPLIT_K * units + num_stages / num_warps\n"
    )
    task = Task("triton-gemm", {"batch": 1, "m": 64, "n": 64, "k": 64}, "bf16", H200)
    columns = {
        "tile_m": [16, 64],
        "tile_n": [32, 32],
        "tile_k": [32, 32],
        "warps": [4, 8],
        "stages": [2, 4],
        "split_k": [1, 4],
    }
    answer = triton_perf_model(file)(task, {name: np.array(column) for name, column in columns.items()})
    assert answer == pytest.approx([(4 * 132 + 0.5) / 1e3, (4 * 132 + 0.5) / 1e3])
