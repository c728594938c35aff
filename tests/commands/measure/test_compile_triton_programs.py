import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.compiled import labels
from kernelcast.collectors.compiled.labels import LabelSummary
from kernelcast.datasets.records.compiled_code import append_modules
from kernelcast.process import ChildStartError


@pytest.fixture
def asked(monkeypatch):
    """What the command asks for; nothing is compiled, and the first three jobs get 40 registers."""
    calls = []

    def compile_texts(jobs, out, progress, budget_s):
        calls.append((len(jobs), budget_s))
        rows = [replace(job, block="b", status="ok", registers=40) for job in jobs[:3]]
        append_modules(out, rows, {"compilers": {}})
        return LabelSummary({"ok": len(rows)}, 0, len(jobs) - 3, interrupted=False)

    monkeypatch.setattr(labels, "compile_texts", compile_texts)
    return calls


def test_rows_are_stored_and_packed(run, tmp_path, asked):
    done = run(
        "compile-triton-programs",
        "--minutes",
        2,
        "--out",
        tmp_path / "rows",
        "--table",
        tmp_path / "all.parquet",
        "--json",
    )
    assert done.code == 0, done.err
    ((jobs, budget_s),) = asked
    assert jobs > 1400
    assert budget_s == 120
    assert json.loads(done.out) == {"stored": {"ok": 3}, "skipped": 0, "left": jobs - 3, "interrupted": False}
    assert "3 rows compiled (3 ok); 0 skipped as already stored" in done.err
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 3


def test_a_folder_that_is_a_file_is_told(run, tmp_path, asked):
    (tmp_path / "rows").write_text("")
    assert "is a file; give a folder" in run("compile-triton-programs", "--out", tmp_path / "rows").error
    assert (
        "is a folder; give a file"
        in run("compile-triton-programs", "--out", tmp_path / "new", "--table", tmp_path).error
    )
    assert asked == []


def test_packing_nothing_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "compile_texts", lambda *said: LabelSummary({}, 0, 9, interrupted=False))
    done = run(
        "compile-triton-programs", "--minutes", 0, "--out", tmp_path / "rows", "--table", tmp_path / "all.parquet"
    )
    assert "no compiled Triton programs under" in done.error


def test_a_missing_triton_is_told(run, tmp_path, monkeypatch):
    def missing(*said):
        raise ChildStartError("the compiling worker did not start: No module named 'triton'")

    monkeypatch.setattr(labels, "compile_texts", missing)
    assert "pip install 'kernelcast[gpu]'" in run("compile-triton-programs", "--out", tmp_path / "rows").error
