"""The comparison with public tables: what counts as the same, what a ratio may claim, and its page, on toy tables."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.features.batch.cases import Cases, Floats
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.training.labelled_cases import LabelledCases

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "public_h200.py"
DEVICE = "nvidia-h200-sxm-141gb"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("public_h200", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["public_h200"] = module
    spec.loader.exec_module(module)
    return module


def gemm(m: int, n: int, k: int, **words: Any) -> KernelSpec:
    return KernelSpec.of("gemm", words.pop("dtype", "bf16"), m=m, n=n, k=k, **words)


def attention(batch: int, heads: int, kv_heads: int, kv_len: int, **words: Any) -> KernelSpec:
    return KernelSpec.of("attention", "bf16", batch=batch, heads=heads, kv_heads=kv_heads, q_len=1, kv_len=kv_len,
                         head_dim=128, **words)  # fmt: skip


def labelled(specs: list[KernelSpec], latency_s: list[float]) -> LabelledCases:
    return LabelledCases(
        Cases.from_specs(specs, [DEVICE] * len(specs)), np.array(latency_s, dtype=float), np.full(len(specs), np.nan)
    )


def seconds(cases: Cases) -> Floats:
    """A toy law: what public libraries (`lib-…`) do takes twice as long as ours."""
    sizes = cases.sizes
    ours: Floats = 1e-6 + sizes["m"] * sizes["n"] * sizes["k"] / 5e14
    return np.where(np.char.startswith(cases.impl, "lib"), 2.0, 1.0) * ours


def knows_all(rows: LabelledCases) -> Callable[[Cases], Floats]:
    assert len(rows)
    return seconds


def test_regimes_are_those_of_the_paper_cost(script: ModuleType) -> None:
    shapes = [(64, 64, 64), (1, 4096, 4096), (1, 16384, 8192), (8192, 8192, 8192)]
    cases = labelled([gemm(*shape) for shape in shapes], [1.0] * 4).cases
    assert script.regimes(cases).tolist() == list(script.REGIMES)


def test_held_out_sizes_occur_in_no_row_trained_on_and_lie_inside(script: ModuleType) -> None:
    axis = [2**i for i in range(4, 14)]
    cases = labelled([gemm(m, n, 512) for m in axis for n in axis], [1.0] * 100).cases
    out = script.unseen_sizes(cases)
    assert 0.2 < out.mean() < 0.6
    for name in ("m", "n"):
        hidden = set(cases.sizes[name][out]) - set(cases.sizes[name][~out])
        assert hidden
        assert min(axis) not in hidden
        assert max(axis) not in hidden
    assert not script.unseen_sizes(labelled([gemm(m, 64, 64) for m in axis[:7]], [1.0] * 7).cases).any()


def test_equal_work_in_other_sizes_is_one_case(script: ModuleType) -> None:
    same = [attention(2, 8, 4, 1024), attention(4, 4, 2, 1024)]
    other = [attention(2, 8, 4, 1024, cache_state="cold"), attention(2, 8, 8, 1024)]
    rows = script.distinct(labelled([*same, *other], [1.0, 3.0, 5.0, 7.0]))
    assert rows.latency_s.tolist() == [2.0, 5.0, 7.0]
    assert [rows.cases.sizes[name][0] for name in ("batch", "heads", "kv_heads", "kv_len")] == [8, 2, 1, 1024]


def test_only_shapes_between_rows_are_asked(script: ModuleType) -> None:
    rows = labelled([gemm(64, 128, 1024), gemm(128, 128, 1024)], [1.0, 1.0]).cases
    query = labelled([gemm(90, 128, 1024), gemm(190, 128, 1024), gemm(64, 128, 4096)], [1.0] * 3).cases
    assert script.near(query, rows).tolist() == [True, False, False]
    assert not script.near(query, rows.take([])).any()


def test_a_difference_is_claimed_only_beyond_chance_and_error(script: ModuleType) -> None:
    ratios = np.linspace(1.10, 1.20, 40)
    spread = script.Spread.of(ratios, 0.03)
    assert (spread.n, round(spread.median, 3)) == (40, 1.15)
    assert (round(spread.q1, 3), round(spread.q3, 3)) == (1.125, 1.175)
    assert spread.differs
    assert str(spread) == "**1.15** (1.12–1.18; 40, ± 3%)"
    assert not replace(spread, error=0.2).differs
    assert not replace(spread, error=None).differs
    assert not script.Spread.of(1 / ratios, 0.14).differs
    # Five ratios have no confidence interval, four are not told.
    assert not script.Spread.of(ratios[:5], 0.0).differs
    assert script.Spread.of(ratios[:4], 0.0) is None


def test_ratios_of_a_library_twice_as_slow_are_two(script: ModuleType) -> None:
    axis = [128 * i for i in range(16, 28)]
    public = [gemm(m, n, 4096, impl="lib-1") for m in axis for n in axis]
    theirs = labelled(public, (seconds(labelled(public, [1.0] * 144).cases)).tolist())
    shapes = [(m + 7, n + 16, 4096) for m in axis for n in axis[:2]] + [(2048, 2048, 4096)]
    # Not comparable: an odd n, another dtype, another variant; far from every public row: a tiny k.
    mine = [gemm(*shape, impl="torch") for shape in [*shapes, (2055, 2049, 4096), (2055, 2064, 16)]]
    mine += [gemm(2055, 2064, 4096, impl="torch", dtype="fp32"), gemm(2055, 2064, 4096, impl="torch", variant="bias")]
    ours = labelled(mine, seconds(labelled(mine, [1.0] * len(mine)).cases).tolist())
    side = script.Side.of(ours, knows_all)
    pairing = script.PAIRINGS[0]
    result = list(script.compare(pairing, side, pairing.of_public(theirs), knows_all))
    assert [(line.what[3], line.what[4]) for line in result] == [
        ("torch bf16, hot", "all"),
        ("torch bf16, hot", "compute"),
    ]
    exact, at_ours, at_theirs = result[0].spreads[0], *result[1].spreads[1:]
    assert exact.n == 1
    assert at_ours.n == len(shapes)
    assert at_theirs.n > 20
    for spread in (exact, at_ours, at_theirs):
        assert spread.median == pytest.approx(2.0)
    assert at_ours.error == pytest.approx(0.0)
    assert at_ours.differs
    text = script.page(result, [], DEVICE)
    assert "| gemm | bf16 | lib-1 | torch bf16, hot | compute |  | **2.00** (2.00–2.00; 25) |" in text


def test_public_rows_of_other_caches_are_not_comparable(script: ModuleType) -> None:
    rows = labelled([attention(2, 8, 4, 1024, impl="lib-1"), attention(2, 8, 4, 1024, impl="lib-1", kv_dtype="fp8"),
                     attention(2, 8, 4, 1024, impl="lib-1", window=128)], [1.0, 2.0, 3.0])  # fmt: skip
    decode = next(pairing for pairing in script.PAIRINGS if pairing.title == "attention decode")
    assert decode.of_public(rows).latency_s.tolist() == [1.0]


def test_versions_of_a_library_are_compared_at_equal_shapes(script: ModuleType) -> None:
    shapes = [(8192, 8192, k) for k in range(1024, 1024 + 64 * 8, 64)]
    specs = [gemm(*shape, impl=impl) for impl in ("lib-1", "lib-2") for shape in shapes]
    specs += [gemm(8192, 8192, 8192, impl="lib-2")]
    rows = labelled(specs, [1e-3] * 8 + [0.9e-3] * 8 + [5.0])
    assert list(script.between_versions(script.PAIRINGS[0], rows)) == [
        ["gemm", "bf16", "lib-2 / lib-1", "compute", "**0.90** (0.90–0.90; 8)"]
    ]


def test_a_folder_is_read_and_what_is_no_form_is_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"family": "gemm", "device": DEVICE, "dtype": "bf16", "impl": "lib-1", "m": 64, "n": 64, "k": 64}
    pq.write_table(
        pa.table({name: [value] for name, value in (columns | {"latency_s": 1e-5}).items()}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"something": [1]}), tmp_path / "b.parquet")
    rows = script.public_rows(tmp_path, DEVICE)
    assert list(rows) == ["gemm"]
    assert rows["gemm"].latency_s.tolist() == [1e-5]
    assert "b.parquet" in capsys.readouterr().out
    with pytest.raises(SpecError, match="no row of nvidia-a100"):
        script.public_rows(tmp_path, "nvidia-a100-sxm-80gb")
