"""`kernelcast llm steps` and `kernelcast llm calibrate`, from files to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROW: dict[str, Any] = {
    "row_id": "a", "model": "Qwen/Qwen3-8B", "device": "h100-sxm", "engine": "vllm", "prefill_tokens": 0, "prefill_requests": 0,
    "prefill_kv_tokens": 0, "decode_requests": 8, "decode_kv_tokens": 8000, "step_p50_s": 0.008,
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "steps.parquet"
    rows = [ROW | {"decode_requests": 4 * count, "decode_kv_tokens": 4000 * count} for count in range(1, 9)]
    pq.write_table(pa.Table.from_pylist([*rows, ROW | {"row_id": "b", "model": "nobody/none"}]), path)
    return path


def test_a_table_comes_back_with_its_rows_and_times(run: Any, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    done = run("llm", "steps", "--table", table, "--out", out)
    assert done.code == 0
    before, after = pq.read_table(table), pq.read_table(out)
    assert after.select(before.column_names) == before
    rows = after.to_pylist()
    assert all(row["pred_step_lo_s"] < row["pred_step_s"] < row["pred_step_hi_s"] for row in rows[:-1])
    assert [row["refused"] for row in rows[:-1]] == [None] * 8
    assert rows[-1]["pred_step_s"] is None
    assert "nobody/none" in rows[-1]["refused"]


def test_labels_are_not_read(run: Any, table: Path, tmp_path: Path) -> None:
    blind = tmp_path / "blind.parquet"
    pq.write_table(pq.read_table(table).drop_columns(["step_p50_s"]), blind)
    for name in (table, blind):
        assert run("llm", "steps", "--table", name, "--out", tmp_path / f"{name.stem}.csv").code == 0
    texts = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in ("steps", "blind")]
    assert [line.split(",")[10:] for line in texts[0]] == [line.split(",")[9:] for line in texts[1]]


def test_own_steps_make_a_profile_that_steps_use(run: Any, table: Path, tmp_path: Path) -> None:
    profile, out, plain = tmp_path / "mine.yaml", tmp_path / "mine.parquet", tmp_path / "plain.parquet"
    assert run("llm", "calibrate", "--steps", table, "--out", profile).code == 0
    assert run("llm", "steps", "--table", table, "--out", out, "--profile", profile).code == 0
    assert run("llm", "steps", "--table", table, "--out", plain).code == 0
    errors = [
        sum(abs(row["pred_step_s"] / row["step_p50_s"] - 1) for row in pq.read_table(path).to_pylist()[:-1])
        for path in (out, plain)
    ]
    assert errors[0] < errors[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("steps", "--table", "TABLE", "--out", "out.txt"), ".csv or .parquet"),
        (("steps", "--table", "TABLE", "--out", "TABLE"), "the table that is read"),
        (("steps", "--table", "none.parquet", "--out", "out.csv"), "cannot read"),
        (("steps", "--table", "TABLE", "--out", "out.csv", "--profile", "none.yaml"), "cannot read the profile"),
        (("calibrate", "--steps", "BLIND", "--out", "mine.yaml"), "step_s or step_p50_s"),
        (("calibrate", "--steps", "FEW", "--out", "mine.yaml"), "at least 5"),
        (("calibrate", "--steps", "MIXED", "--out", "mine.yaml"), "of one engine"),
        (("calibrate", "--steps", "EMPTY", "--out", "mine.yaml"), "positive number"),
    ],
)
def test_what_cannot_be_done_is_said(run: Any, table: Path, tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    given = pq.read_table(table)
    variants = {
        "TABLE": given, "BLIND": given.drop_columns(["step_p50_s"]), "FEW": given.slice(0, 3),
        "MIXED": pa.concat_tables([given, pa.Table.from_pylist([ROW | {"engine": "sglang"}]).cast(given.schema)]),
        "EMPTY": given.set_column(9, "step_p50_s", pa.array([0.0] * given.num_rows)),
    }  # fmt: skip
    for name, variant in variants.items():
        pq.write_table(variant, tmp_path / f"{name}.parquet")
    done = run("llm", *(tmp_path / f"{arg}.parquet" if arg in variants else arg for arg in args))
    assert done.code == 2
    assert words in done.error.replace("\n", " ")
