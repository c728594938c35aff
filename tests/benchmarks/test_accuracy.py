"""The page of errors: its rows from results, the groups it keeps without the public tables, and slices of public tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import accuracy
import accuracy_public as public
import numpy as np
import pytest
from kernelcast.datasets.shipped import read_shipped
from kernelcast.models.evaluation.scoring import Scored
from kernelcast.models.metrics import POWER_BANDS, Metrics
from kernelcast.models.training.labelled_cases import labelled_tables
from pretrained import SOURCES

METRICS = Metrics(1234, 4.26, 2.71, 91.4, coverage_pct=89.6, width_pct=18.4)
PUBLIC = [
    public.PageRow(public.SHAPES.name, "gemm", METRICS, 75.96),
    public.PageRow(public.SHAPES.name, "moe", METRICS),
    public.PageRow(public.WHOLE_MODELS, "inference", METRICS, peer="9.3 (NeuSight)"),
]
OWN = [public.PageRow(name, "copy", METRICS) for name in accuracy.OWN_GROUPS.values()]


def table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def test_only_the_first_row_of_a_group_names_it() -> None:
    assert table(accuracy.page([*OWN, *PUBLIC], "")) == [
        "| other shapes | gemm | 1,234 | 76.0 |  | 4.3 | 2.7 | 91 | 90 | 18 |",
        "|  | moe | 1,234 |  |  | 4.3 | 2.7 | 91 | 90 | 18 |",
        "| whole models | inference | 1,234 |  | 9.3 (NeuSight) | 4.3 | 2.7 | 91 | 90 | 18 |",
        "| own rows, other shapes | copy | 1,234 |  |  | 4.3 | 2.7 | 91 | 90 | 18 |",
        "| own rows, largest shapes | copy | 1,234 |  |  | 4.3 | 2.7 | 91 | 90 | 18 |",
    ]


def test_own_rows_of_other_families_stay_where_some_are_judged_anew() -> None:
    before = accuracy.page([*PUBLIC, *OWN], "")
    new = [replace(row, what="softmax", metrics=replace(METRICS, mean_ape_pct=1.0)) for row in OWN]
    lines = table(accuracy.page(new, before, families=["softmax"]))
    assert [line.count("| copy |") for line in lines[3:]] == [1, 0, 1, 0]
    assert [line.count("| softmax |") for line in lines[3:]] == [0, 1, 0, 1]


def test_groups_without_new_rows_keep_theirs() -> None:
    before = accuracy.page([*PUBLIC, *OWN], "")
    assert accuracy.page([], before) == before
    better = [replace(row, metrics=replace(METRICS, mean_ape_pct=1.0)) for row in OWN]
    after = accuracy.page(better, before)
    assert table(after)[:3] == table(before)[:3]
    assert all("| 1.0 |" in line for line in table(after)[3:])
    assert accuracy.page(PUBLIC[:1], before).count("| moe |") == 0


def test_without_tables_the_program_says_which_rows_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text(accuracy.page([*PUBLIC, *OWN], ""), encoding="utf-8")
    before = page.read_text(encoding="utf-8")
    monkeypatch.setattr(accuracy, "PAGE", page)
    monkeypatch.setattr(accuracy, "own_rows", lambda tables: ([], OWN))
    monkeypatch.setattr(accuracy, "write_accuracy", lambda answer, model: None)
    accuracy.main([])
    assert page.read_text(encoding="utf-8") == before
    assert "other shapes; larger sizes" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        accuracy.main(["--only", "public"])


def test_the_committed_page_is_what_the_program_writes() -> None:
    text = accuracy.PAGE.read_text(encoding="utf-8")
    assert accuracy.page([], text) == text


def test_own_rows_are_judged_by_models_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (rows,) = labelled_tables({"copy": read_shipped("copy")})
    monkeypatch.setattr(accuracy, "SHIPS", "roofline")
    splits, judged = accuracy.own_rows([rows.take(np.arange(0, len(rows), 25))])
    assert [split.name for split in splits] == list(accuracy.HELD_OUT)
    assert [row.group for row in judged] == list(accuracy.OWN_GROUPS.values())
    for split, row in zip(splits, judged, strict=True):
        assert row.what == "copy"
        assert row.metrics.n == split.slices[0].n == sum(len(points.measured) for points in split.parity)
        assert row.metrics.mean_ape_pct == pytest.approx(100 * split.slices[0].mean)
        assert row.roofline_pct is not None


def test_every_source_trained_on_has_slices_of_different_names() -> None:
    assert len({(item.group.name, item.what) for item in public.SLICES}) == len(public.SLICES)
    assert set(SOURCES) <= {item.source for item in public.SLICES}


def test_a_slice_takes_devices_seen_or_not_and_kernels_by_duration() -> None:
    short, long = POWER_BANDS
    labels = {
        "device": np.array(["a", "a", "b (unseen)", "c (unseen)"]),
        "device seen in training": np.array(["yes", "yes", "no", "no"]),
        "kernel time": np.array([short, long, long, long]),
    }
    ones = np.ones(4)
    scored = Scored("blend", "gemm", "power_w", np.array([1.0, 2.0, 4.0, 5.0]), ones, ones, ones * 2, labels)
    power = public.Slice("power", "x", ("gemm",), public.POWER, "power_w", long)
    measured = public.slice_metrics(power, public.POWER, [scored])
    assert measured is not None
    assert (measured.n, measured.mean_ape_pct, measured.coverage_pct) == (1, 50.0, 100.0)
    device = public.Slice("b", "x", ("gemm",), public.DEVICES, "power_w", device="b")
    unseen = public.slice_metrics(device, public.DEVICES, [scored, scored])
    assert unseen is not None
    assert (unseen.n, unseen.mean_ape_pct) == (2, 75.0)
    assert public.slice_metrics(device, public.SHAPES, [scored]) is None
    assert public.slice_metrics(device, public.DEVICES, []) is None
