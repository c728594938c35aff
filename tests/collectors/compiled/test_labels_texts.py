import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.collectors.compiled import labels, worker
from kernelcast.collectors.compiled.labels import TEXT_COLUMNS, compile_texts, compiling_child, read_text_jobs
from kernelcast.datasets.records.compiled_code import (
    TritonModule,
    modules_of,
    pack_modules,
    read_modules,
    read_shipped_modules,
)
from kernelcast.datasets.store.errors import StoreError
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.features.errors import SpecError
from kernelcast.process import ChildStartError

JOB = TritonModule("softmax/plain", "0123456789abcdef", 2, 1, "module {}", target="sm_90", status="failed", block="")


def quiet(what, done, total):
    pass


def played(tmp_path, body):
    """A labeller whose child is a script that answers by `body`, given `request` and `send`."""
    script = tmp_path / "child.py"
    script.write_text(
        "import json, sys, os, time\n"
        "send = lambda said: print(json.dumps(said), flush=True)\n"
        "send({'ready': {'compilers': {'triton': 'triton 0'}}})\n"
        f"for line in sys.stdin:\n    request = json.loads(line)\n    {body}\n"
    )
    return lambda: compiling_child("texts", [sys.executable, "-P", str(script)])


OK = "send({'label': {'status': 'ok', 'registers': 8, 'spill_b': 0, 'instructions': 3}})"


def cases(count):
    return [replace(JOB, case_id=f"case {number}", num_stages=1 + number) for number in range(count)]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A shipped text and a broken one, compiled for real."""
    pytest.importorskip("triton", reason="needs triton to compile")
    out = tmp_path_factory.mktemp("triton")
    softmax = next(job for job in read_text_jobs() if job.program == "softmax_tiled/no_log")
    broken = replace(softmax, case_id="broken", text=softmax.text.replace("tt.get_program_id", "tt.no_such_thing"))
    done = compile_texts([softmax, broken], out, quiet)
    return done, {row.case_id: row for row in modules_of(read_modules(out))}, softmax, out


def test_a_text_becomes_a_row_with_labels(real):
    done, rows, softmax, out = real
    row = rows[softmax.case_id]
    assert done.stored == {"ok": 1, "failed": 1}
    assert (row.status, row.text, row.target) == ("ok", softmax.text, softmax.target)
    assert (row.num_warps, row.threads_per_block, row.spill_b) == (softmax.num_warps, 32 * softmax.num_warps, 0)
    assert 8 <= row.registers < 100
    assert row.mufu_ops > 0
    assert row.tensor_ops == 0
    assert 0 < row.occupancy <= 1
    assert row.module_id != row.case_id
    (facts,) = provenance_of(read_modules(out)).values()
    assert facts["compilers"]["triton"] == row.compiler


def test_a_text_that_triton_refuses_is_a_row_that_says_why(real):
    _, rows, _, _ = real
    row = rows["broken"]
    assert (row.status, row.registers) == ("failed", None)
    assert row.message


def test_goes_on_where_it_stopped(tmp_path):
    labeller = played(tmp_path, OK)
    first = compile_texts(cases(2), tmp_path / "out", quiet, child=labeller)
    assert (first.stored, first.skipped, first.left) == ({"ok": 2}, 0, 0)
    again = compile_texts(cases(3), tmp_path / "out", quiet, child=labeller)
    assert (again.stored, again.skipped) == ({"ok": 1}, 2)
    assert str(again) == "1 row compiled (1 ok); 2 skipped as already stored"
    assert read_modules(tmp_path / "out").num_rows == 3


def test_ends_when_the_budget_is_over(tmp_path):
    done = compile_texts(cases(3), tmp_path / "out", quiet, 0.0, child=played(tmp_path, OK))
    assert (done.stored, done.left, str(done)) == (
        {},
        3,
        "0 rows compiled; 0 skipped as already stored; 3 left",
    )


def test_a_compiler_that_hangs_or_crashes_costs_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "DEADLINE_S", 5.0)
    fate = "request['num_stages']"
    body = f"time.sleep(600) if {fate} == 1 else os._exit(3) if {fate} == 2 else {OK}"
    done = compile_texts(cases(3), tmp_path / "out", quiet, child=played(tmp_path, body))
    assert done.stored == {"timeout": 1, "crashed": 1, "ok": 1}
    rows = {row.status: row for row in modules_of(read_modules(tmp_path / "out"))}
    assert "5 s" in rows["timeout"].message
    assert "status 3" in rows["crashed"].message
    again = compile_texts(cases(3), tmp_path / "out", quiet, child=played(tmp_path, OK))
    assert (again.stored, again.skipped) == ({"ok": 1}, 2)


def test_ctrl_c_keeps_what_is_done(tmp_path):
    def interrupt(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    done = compile_texts(cases(4), tmp_path / "out", interrupt, child=played(tmp_path, OK))
    assert (done.stored, done.left, done.interrupted) == ({"ok": 2}, 2, True)
    assert read_modules(tmp_path / "out").num_rows == 2


def test_a_child_that_cannot_start_is_said_so(tmp_path):
    def missing():
        return compiling_child(command=[sys.executable, "-c", "raise ImportError('no triton here')"])

    with pytest.raises(ChildStartError, match="no triton here"):
        compile_texts(cases(1), tmp_path, quiet, child=missing)


def test_the_packed_table_is_the_same_whatever_the_order(tmp_path):
    labeller = played(tmp_path, OK)
    compile_texts(cases(3), tmp_path / "a", quiet, child=labeller)
    table = pack_modules(tmp_path / "a", tmp_path / "packed.parquet")
    read = read_shipped_modules(tmp_path / "packed.parquet")
    assert list(modules_of(read)) == list(modules_of(table))
    assert read["case_id"].to_pylist() == sorted(read["case_id"].to_pylist())
    with pytest.raises(StoreError, match="no compiled Triton programs"):
        pack_modules(tmp_path / "empty", tmp_path / "none.parquet")


def test_a_target_without_known_limits_is_unsupported(tmp_path):
    for target in ("sm_20", "gfx90a"):
        label = worker.label_text("", target, num_warps=1, num_stages=1, folder=tmp_path)
        assert label["status"] == "unsupported"
        assert target in label["message"]


def test_the_texts_to_compile_are_a_table(tmp_path):
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.Table.from_pylist([{name: getattr(JOB, name) for name in TEXT_COLUMNS}]), path)
    assert read_text_jobs(path) == [JOB]
    pq.write_table(pa.table({"text": ["module {}"]}), path)
    with pytest.raises(SpecError, match="has no column 'case_id'; it needs: program, case_id"):
        read_text_jobs(path)
    with pytest.raises(SpecError, match="cannot read"):
        read_text_jobs(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "PTXAS error: Internal\n`ptxas` stderr:\nptxas fatal   : (C7602) Insufficient registers\nRepro: ptxas",
            "(C7602)",
        ),
        ("at 3:1:\n  lhs = tl.load(a)\n        ^\ncannot cast", "RuntimeError: cannot cast"),
        ("", "RuntimeError: "),
    ],
)
def test_a_message_is_the_line_that_tells(text, said, monkeypatch, tmp_path):
    def fail(*args, **options):
        raise RuntimeError(text)

    monkeypatch.setattr(worker, "build_text", fail)
    answer = worker.label_text(text, "sm_90", num_warps=1, num_stages=1, folder=tmp_path)
    assert answer["status"] == "failed"
    assert said in answer["message"]
    assert "\n" not in answer["message"]
