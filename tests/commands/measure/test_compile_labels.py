import json

import pytest
from kernelcast.collectors.compiled import labels
from kernelcast.collectors.compiled import labels as label_plan
from kernelcast.collectors.compiled.labels import LabelSummary
from kernelcast.datasets.records.compiled_code import CompiledKernel, append_compiled


@pytest.fixture
def asked(monkeypatch):
    """What the command asks for; nothing is compiled, and every case gets 40 registers."""
    calls = []

    def compile_labels(specs, targets, out, progress, processes):
        calls.append((len(specs), targets, processes))
        rows = [
            CompiledKernel(spec, target=target, status="ok", block="b", registers=40)
            for spec in specs
            for target in targets
        ]
        append_compiled(out, rows, {"compilers": {}})
        return LabelSummary({"ok": len(rows)}, 0, 0, interrupted=False)

    monkeypatch.setattr(labels, "compile_labels", compile_labels)
    return calls


def test_rows_are_spread_over_the_targets_and_compacted(run, tmp_path, asked):
    done = run("compile-labels", "--rows", 100, "--targets", "sm_80, sm_90", "--processes", 2, "--out", tmp_path / "rows",
               "--tables", tmp_path / "tables", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert asked == [(50, ["sm_80", "sm_90"], 2)]
    assert json.loads(done.out) == {"stored": {"ok": 100}, "skipped": 0, "left": 0, "interrupted": False}
    assert "100 rows compiled (100 ok); 0 skipped as already stored" in done.err
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["attention.parquet", "gemm.parquet"]


@pytest.mark.parametrize("targets", ["sm_35", "", "sm_90,hopper"])
def test_lists_the_targets_it_knows(run, tmp_path, asked, targets):
    done = run("compile-labels", "--targets", targets, "--out", tmp_path)
    assert "known targets: sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in done.error
    assert asked == []


def test_more_rows_than_there_are_kernels_is_told(run, tmp_path, asked, monkeypatch):
    monkeypatch.setattr(label_plan, "_DRAWS_PER_CASE", 1)
    assert (
        "different binaries of attention were found, not"
        in run("compile-labels", "--rows", 2000, "--out", tmp_path).error
    )
