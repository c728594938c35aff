"""What regimes are for: a model taught two truths is worse than one taught rows brought to today's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernelcast.datasets.schema import Measurement, to_table
from kernelcast.features.cases import Cases
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.work import work
from kernelcast.models import training
from kernelcast.models.artifact import save_artifact
from kernelcast.models.labelled import Labelled
from kernelcast.models.predictor import load_predictor
from kernelcast.models.regressors.analytic import Analytic
from kernelcast.nightly.drift.bridge import judge_bridge
from kernelcast.nightly.drift.ledger import Ledger
from kernelcast.nightly.drift.regimes import founded, settle
from kernelcast.nightly.drift.training_rows import labelled_for_training, rows_for_training

DEVICE = "nvidia-a100-sxm-80gb"
OLD, NEW = "driver=550.1", "driver=560.2"
BEFORE, LATER = "2026-10-01T00:00:00+00:00", "2026-11-01T00:00:00+00:00"
MOVED = np.log(1.08)


def _specs(n: int, seed: int) -> list[KernelSpec]:
    rng = np.random.default_rng(seed)
    return [
        KernelSpec.of("gemm", "fp16", impl="torch", **{dim: int(2 ** rng.uniform(7, 13)) for dim in "mnk"})
        for _ in range(n)
    ]


def _measured(specs: list[KernelSpec], moved: float, seed: int) -> Labelled:
    cases = Cases.of(specs, [DEVICE] * len(specs))
    paper = work(cases, catalogue())
    noise = 0.01 * np.random.default_rng(seed).standard_normal(len(specs))
    latency = (5e-6 + 1.6 * paper.lower_bound_s) * np.exp(moved + noise)
    return Labelled(cases, latency, np.full(len(specs), np.nan))


def _table(specs: list[KernelSpec], rows: Labelled, when: str) -> object:
    return to_table([Measurement(spec=spec, device=DEVICE, status="ok", block="b", latency_s=float(latency), measured_at=when)
                     for spec, latency in zip(specs, rows.latency_s, strict=True)], "gemm")  # fmt: skip


def _error(rows: Labelled, test: Labelled, place: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Median error in percent of a small model trained on `rows`."""
    monkeypatch.setattr(training, "get_regressor", lambda name: Analytic())
    save_artifact(training.train([rows], regressor="analytic"), place)
    value = load_predictor(place).predict_cases(test.cases).targets["latency_s"].value
    return float(100 * np.median(np.abs(value / test.latency_s - 1)))


def test_rows_for_training_beat_rows_of_both_regimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_specs, new_specs = _specs(300, 0), _specs(300, 0)[:40] + _specs(20, 1)
    old, new, test = _measured(old_specs, 0.0, 2), _measured(new_specs, MOVED, 3), _measured(_specs(200, 4), MOVED, 5)
    bridge = judge_bridge(
        {"gemm": _table(old_specs, old, BEFORE)}, {"gemm": _table(new_specs, new, LATER)}, noise=0.004
    )
    done = settle(founded(Ledger(DEVICE), OLD), NEW, LATER, {"r1": bridge})
    assert done.state == "opened"
    both = Labelled(Cases.of(old_specs + new_specs, [DEVICE] * 360), np.concatenate([old.latency_s, new.latency_s]),
                    np.full(360, np.nan))  # fmt: skip
    software = np.array([OLD] * 300 + [NEW] * 60)
    times = np.array([BEFORE] * 300 + [LATER] * 60)
    clean, counts = labelled_for_training(both, software, times, done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved, len(clean)) == (60, 300, 360)
    naive = _error(both, test, tmp_path / "naive", monkeypatch)
    better = _error(clean, test, tmp_path / "clean", monkeypatch)
    # 8 % of move, of which the naive model learns a sixth.
    assert naive > 4.0
    assert better < 2.0
    # The stored table, taken the same way, gives the same times.
    table = _table(old_specs, old, BEFORE)
    table = table.drop_columns([name for name in ("software",) if name in table.column_names])  # type: ignore[attr-defined]
    moved, _ = rows_for_training(table.append_column("software", [[OLD] * 300]), "gemm", done.ledger, DEVICE)
    np.testing.assert_allclose(moved["latency_s"].to_numpy(), clean.latency_s[:300])
