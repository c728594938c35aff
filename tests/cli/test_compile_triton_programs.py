import json

import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.mlir import triton_labels
from kernelcast.collectors.mlir.triton_labels import TritonSummary
from kernelcast.collectors.pipe import WorkerStartError
from kernelcast.datasets.triton_modules import TritonModule, append_modules


@pytest.fixture
def asked(monkeypatch):
    """What the command asks for; nothing is compiled, and the first three jobs get 40 registers."""
    calls = []

    def label_programs(jobs, out, progress, budget_s):
        calls.append((len(jobs), budget_s))
        rows = [TritonModule(case.program, case.case_id, target, case.num_warps, case.num_stages, "ok", "b", "module {}", 40)
                for case, target in jobs[:3]]  # fmt: skip
        append_modules(out, rows, {"compilers": {}})
        return TritonSummary({"ok": len(rows)}, 0, len(jobs) - 3, interrupted=False)

    monkeypatch.setattr(triton_labels, "label_programs", label_programs)
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
    assert jobs > 2000
    assert budget_s == 120
    assert json.loads(done.out) == {"stored": {"ok": 3}, "skipped": 0, "left": jobs - 3, "interrupted": False}
    assert "3 ok; 0 were there already" in done.err
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
    monkeypatch.setattr(triton_labels, "label_programs", lambda *said: TritonSummary({}, 0, 9, interrupted=False))
    done = run(
        "compile-triton-programs", "--minutes", 0, "--out", tmp_path / "rows", "--table", tmp_path / "all.parquet"
    )
    assert "no compiled Triton programs under" in done.error


def test_a_missing_triton_is_told(run, tmp_path, monkeypatch):
    def missing(*said):
        raise WorkerStartError("the compiling worker did not start: No module named 'triton'")

    monkeypatch.setattr(triton_labels, "label_programs", missing)
    assert "pip install 'kernelcast[gpu]'" in run("compile-triton-programs", "--out", tmp_path / "rows").error
