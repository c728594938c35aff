"""The comparison of learners, on made-up tables: every learner answers, and what is known to be better comes out better."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "learners.py"
LEARNERS = (
    "roofline: the lower bound",
    "interpolation on the grid",
    "random forest on raw sizes",
    "boosted trees on the bound",
    "analytic model alone",
    "plain network on the analytic model",
    "mean of network and boosted trees",
    "… boosted trees on the analytic model",
    "… periodic network on the analytic model",
    "blend as trained",
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learners", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["learners"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Softmax rows that take 5 µs and the time of their bytes at 1 TB/s."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    rows, cols = (2 ** rng.uniform(6, 13, (2, 240))).astype(np.int64)
    table = pa.table({
        "family": ["softmax"] * 240, "device": ["nvidia-a100-pcie-40gb"] * 240, "dtype": ["fp32"] * 240, "rows": rows,
        "cols": cols, "latency_s": 5e-6 + rows * cols * 8 / 1e12, "split": ["train"] * 200 + ["val_shapes"] * 40,
    })  # fmt: skip
    for source in ("aiconfigurator", "neusight"):
        (folder / source).mkdir()
        pq.write_table(table, folder / source / "softmax.parquet")
    return folder


def test_sides_share_no_shape_and_one_schema(script: ModuleType, tables: Path) -> None:
    for source, split in (("aiconfigurator", "val_shapes"), ("neusight", None)):
        stored = script.Held.of(tables / source / "softmax.parquet", split, rows=150)
        assert len(stored.train) == 150
        shapes = [set(zip(*side.rows.cases.sizes.values(), strict=True)) for side in (stored.train, stored.test)]
        assert not shapes[0] & shapes[1]
        assert stored.train.features.schema == stored.test.features.schema


def test_a_plane_is_interpolated_exactly_but_for_the_shrinkage(script: ModuleType, tables: Path) -> None:
    stored = script.Held.of(tables / "aiconfigurator" / "softmax.parquet", "val_shapes", rows=200)
    for side in (stored.train, stored.test):
        sizes = side.rows.cases.sizes
        side.log_labels["latency"][:] = 0.1 * np.log2(sizes["rows"]) - 0.2 * np.log2(sizes["cols"])
    error = script.interpolated(stored) - stored.test.log_labels["latency"]
    assert np.abs(error).mean() < 0.02


@pytest.mark.slow
def test_every_learner_is_judged_kept_and_told(
    script: ModuleType,
    tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page, work = tmp_path / "page.md", tmp_path / "work"
    page.write_text("before\n<!-- learners -->\nold\n<!-- /learners -->\nafter\n")
    arguments = [str(tables), "--rows", "200", "--only", "neusight/softmax", "--work", str(work), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", ["learners.py", *arguments])
    script.main()
    result = json.loads(next(work.iterdir()).read_text())
    assert tuple(result) == LEARNERS
    assert result["blend as trained"]["mean_ape_pct"] < result["random forest on raw sizes"]["mean_ape_pct"]
    assert result["analytic model alone"]["mean_ape_pct"] < result["roofline: the lower bound"]["mean_ape_pct"]
    text = page.read_text()
    assert text.startswith("before\n<!-- learners -->\n| learner | neusight | all tables | CPU s |")
    assert text.endswith("<!-- /learners -->\nafter\n")
    assert "old" not in text
    # A second run reads what was kept.
    remaining = result | {"analytic model alone": result["analytic model alone"] | {"mean_ape_pct": 77.7}}
    next(work.iterdir()).write_text(json.dumps(remaining))
    capsys.readouterr()
    script.main()
    assert "| analytic model alone | 77.7 |" in capsys.readouterr().out


def test_a_page_without_a_place_is_refused(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(SystemExit, match="learners"):
        script.put(page, "learners", "| a |")
    assert page.read_text() == "nothing\n"
