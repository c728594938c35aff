"""`kernelcast llm plan-table`, from file to file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROW: dict[str, Any] = {
    "name": "night", "model": "meta-llama/Llama-3.1-8B", "devices": "h100-sxm", "gpus": 1, "input_tokens": 512,
    "output_tokens": 64, "engines": "vllm", "weights": "bf16", "requests": 1000,
}  # fmt: skip


def test_rows_come_back_with_their_plans(run: Any, tmp_path: Path) -> None:
    table, out, prices = tmp_path / "jobs.parquet", tmp_path / "planned.parquet", tmp_path / "prices.yaml"
    pq.write_table(pa.Table.from_pylist([ROW, ROW | {"model": "nobody/nothing"}]), table)
    prices.write_text("h100-sxm: 2.5\n", encoding="utf-8")
    done = run("llm", "plan-table", "--table", table, "--out", out, "--price", prices, "--grid", "400", "--pue", "1.5")
    assert done.code == 0
    before, after = pq.read_table(table), pq.read_table(out)
    assert after.select(before.column_names) == before
    job, other = after.to_pylist()
    assert job["plan_device"] == "nvidia-h100-sxm-80gb"
    assert job["plan_command"].startswith("vllm serve meta-llama/Llama-3.1-8B")
    assert job["pred_job_lo_s"] < job["pred_job_s"] < job["pred_job_hi_s"]
    # A million tokens at so many joules each, by the meter of the data centre.
    grams = [job[f"pred_carbon_per_million_tokens{end}_g"] for end in ("_lo", "", "_hi")]
    joules = [job[f"pred_energy_per_token{end}_j"] for end in ("_lo", "", "_hi")]
    assert grams == pytest.approx([1e6 * 1.5 * energy / 3.6e6 * 400 for energy in joules])
    assert "pred_electricity_cost_per_million_tokens" not in job
    assert other["pred_carbon_per_million_tokens_g"] is None
    assert job["refused"] is None
    assert other["plan_device"] is None
    assert "nobody/nothing" in other["refused"]


def test_columns_may_have_the_names_of_options(run: Any, tmp_path: Path) -> None:
    table, out = tmp_path / "jobs.parquet", tmp_path / "planned.parquet"
    row = {name: value for name, value in ROW.items() if name not in ("requests", "input_tokens")}
    row |= {"input": 512, "samples": 1}
    pq.write_table(
        pa.Table.from_pylist([row | {"tpot": 0.1}, row | {"tpot": 1e-5}, row | {"tpot": 0.1, "samples": 0}]), table
    )
    done = run("llm", "plan-table", "--table", table, "--out", out)
    assert done.code == 0
    assert "not read: name" in done.err.replace("\n", " ")
    after = pq.read_table(out)
    assert after.column_names[: len(row) + 1] == [*row, "tpot"]
    kept, missed, none = after.to_pylist()
    assert kept["pred_tpot_s"] <= 0.1
    assert "tpot" in missed["refused"]
    assert "samples" in none["refused"]
    pq.write_table(pa.Table.from_pylist([row | {"tpot": 1e-5, "tpot_s": 0.2}]), table)
    done = run("llm", "plan-table", "--table", table, "--out", out)
    assert "not read: name, tpot" in done.err.replace("\n", " ")
    assert pq.read_table(out)["pred_tpot_s"][0].as_py() <= 0.2


def test_a_table_without_a_column_is_refused(run: Any, tmp_path: Path) -> None:
    table = tmp_path / "jobs.parquet"
    pq.write_table(pa.Table.from_pylist([{"model": "meta-llama/Llama-3.1-8B"}]), table)
    done = run("llm", "plan-table", "--table", table, "--out", tmp_path / "out.parquet")
    assert done.code == 2
    assert "no column devices" in done.error.replace("\n", " ")
