import sys
from collections import defaultdict
from dataclasses import replace

import pytest
from kernelcast.collectors.mlir import triton_labeller
from kernelcast.collectors.mlir.opcode_book import OpcodeBook, operations
from kernelcast.collectors.mlir.triton_labels import TritonLabeller, label_programs
from kernelcast.collectors.mlir.triton_programs.case import TritonCase
from kernelcast.collectors.pipe import WorkerStartError
from kernelcast.datasets.files import StoreError, provenance_of
from kernelcast.datasets.triton_modules import modules_of, pack_modules, read_modules, read_shipped_modules

SOURCE = """import triton
import triton.language as tl


@triton.jit
def point(x, y, z):
    return tl.maximum(x, 0.0) * 2.0
"""
CASE = TritonCase(
    "softmax/plain-point", "rows.softmax", SOURCE,
    (("x", "*fp16"), ("out", "*fp32"), ("n", "i32"), ("stride", "i32"), ("scale", "fp32")),
    (("BLOCK", 256), ("CAUSAL", False), ("LOG", False), ("POINT", "point"), ("bias", None)), ("x", "out"), 2, 1,
)  # fmt: skip


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
    return lambda: TritonLabeller(deadline_s=2.0, command=[sys.executable, "-P", str(script)])


OK = "send({'label': {'status': 'ok', 'text': 'module {}', 'registers': 8, 'spill_b': 0, 'instructions': 3}})"


def cases(count):
    return [(replace(CASE, num_stages=1 + number), "sm_90") for number in range(count)]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Compiled for real, from the program to the table; and a program that Triton refuses."""
    pytest.importorskip("triton", reason="needs triton to compile")
    out = tmp_path_factory.mktemp("triton")
    broken = replace(CASE, constants=(("BLOCK", 100), *CASE.constants[1:]))
    done = label_programs([(CASE, "sm_90"), (broken, "sm_90")], out, quiet)
    return done, list(modules_of(read_modules(out))), out


def test_a_program_becomes_text_and_labels(real):
    done, (row, _), out = real
    assert done.stored == {"ok": 1, "failed": 1}
    assert row.status == "ok"
    assert "tt.func public @softmax" in row.text
    assert "tensor<256xf32>" in row.text
    assert "tt.divisibility = 16" in row.text
    assert "loc(" not in row.text
    assert "maxnumf" in row.text
    assert (row.num_warps, row.threads_per_block, row.spill_b) == (2, 64, 0)
    assert 8 <= row.registers < 100
    assert row.mix["mufu_ops"] > 0
    assert row.mix["tensor_ops"] == 0
    assert sum(row.mix.values()) < row.instructions
    assert 0 < row.occupancy <= 1
    assert row.module_id != row.case_id
    (facts,) = provenance_of(read_modules(out)).values()
    assert facts["compilers"]["triton"] == row.compiler


def test_a_program_that_triton_refuses_is_a_row_that_says_why(real):
    _, (_, row), _ = real
    assert (row.status, row.text, row.registers, row.module_id) == ("failed", None, None, None)
    assert "power of 2" in row.message


def test_goes_on_where_it_stopped(tmp_path):
    labeller = played(tmp_path, OK)
    first = label_programs(cases(2), tmp_path / "out", quiet, labeller=labeller)
    assert (first.stored, first.skipped, first.left) == ({"ok": 2}, 0, 0)
    again = label_programs(cases(3), tmp_path / "out", quiet, labeller=labeller)
    assert (again.stored, again.skipped) == ({"ok": 1}, 2)
    assert str(again) == "1 ok; 2 were there already"
    assert read_modules(tmp_path / "out").num_rows == 3


def test_ends_when_the_budget_is_over(tmp_path):
    done = label_programs(cases(3), tmp_path / "out", quiet, 0.0, labeller=played(tmp_path, OK))
    assert (done.stored, done.left, str(done)) == ({}, 3, "nothing new; 0 were there already; 3 are left")


def test_a_compiler_that_hangs_or_crashes_costs_one_row(tmp_path):
    fate = "request['case']['num_stages']"
    body = f"time.sleep(60) if {fate} == 1 else os._exit(3) if {fate} == 2 else {OK}"
    done = label_programs(cases(3), tmp_path / "out", quiet, labeller=played(tmp_path, body))
    assert done.stored == {"timeout": 1, "crashed": 1, "ok": 1}
    rows = {row.status: row for row in modules_of(read_modules(tmp_path / "out"))}
    assert "2 s" in rows["timeout"].message
    assert "status 3" in rows["crashed"].message
    again = label_programs(cases(3), tmp_path / "out", quiet, labeller=played(tmp_path, OK))
    assert (again.stored, again.skipped) == ({"ok": 1}, 2)


def test_ctrl_c_keeps_what_is_done(tmp_path):
    def interrupt(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    done = label_programs(cases(4), tmp_path / "out", interrupt, labeller=played(tmp_path, OK))
    assert (done.stored, done.left, done.interrupted) == ({"ok": 2}, 2, True)
    assert read_modules(tmp_path / "out").num_rows == 2


def test_a_child_that_cannot_start_is_said_so(tmp_path):
    def missing():
        return TritonLabeller(command=[sys.executable, "-c", "raise ImportError('no triton here')"])

    with pytest.raises(WorkerStartError, match="no triton here"):
        label_programs(cases(1), tmp_path, quiet, labeller=missing)


def test_the_packed_table_is_the_same_whatever_the_order(tmp_path):
    labeller = played(tmp_path, OK)
    label_programs(cases(3), tmp_path / "a", quiet, labeller=labeller)
    table = pack_modules(tmp_path / "a", tmp_path / "packed.parquet")
    read = read_shipped_modules(tmp_path / "packed.parquet")
    assert list(modules_of(read)) == list(modules_of(table))
    assert read["case_id"].to_pylist() == sorted(read["case_id"].to_pylist())
    with pytest.raises(StoreError, match="no compiled Triton programs"):
        pack_modules(tmp_path / "empty", tmp_path / "none.parquet")


def test_a_target_without_known_limits_is_unsupported(tmp_path):
    for target in ("sm_20", "gfx90a"):
        said = triton_labeller.label(CASE, target, tmp_path, defaultdict(OpcodeBook))
        assert said["status"] == "unsupported"
        assert target in said["message"]


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
    def fail(*args):
        raise RuntimeError(text)

    monkeypatch.setattr(triton_labeller, "ttir_of", fail)
    answer = triton_labeller.label(CASE, "sm_90", tmp_path, defaultdict(OpcodeBook))
    assert answer["status"] == "failed"
    assert said in answer["message"]
    assert "\n" not in answer["message"]


LISTING = """
 Function k:
  REG:16 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:352
        /*0000*/                   LDG.E R2, [R4.64] ;                   /* 0x0000000402027381 */
                                                                         /* 0x000ea2000c1e1900 */
        /*0010*/              @!P0 FFMA R2, R2, R2, R2 ;                 /* 0x0000000202028223 */
                                                                         /* 0x000fe20000000002 */
        /*0020*/                   NOP ;                                 /* 0x0000000000007918 */
                                                                         /* 0x000fc00000000000 */
"""
USAGE = "  REG:16 STACK:8 SHARED:0 LOCAL:0"


def cubin(path, *firsts):
    """An ELF file with nothing but a section of code and one of names, as cubins have them."""
    names = b"\0.text.k\0.shstrtab\0"
    code = b"".join(first.to_bytes(8, "little") + bytes(8) for first in firsts)
    table = 64 + len(code) + len(names)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    header[40:48] = table.to_bytes(8, "little")
    header[58:64] = b"".join(value.to_bytes(2, "little") for value in (64, 2, 1))
    sections = b""
    for name, at, size in ((1, 64, len(code)), (9, 64 + len(code), len(names))):
        sections += (
            name.to_bytes(4, "little") + bytes(20) + at.to_bytes(8, "little") + size.to_bytes(8, "little") + bytes(24)
        )
    path.write_bytes(bytes(header) + code + names + sections)
    return path


@pytest.fixture
def book(monkeypatch):
    """A book whose disassembler is played; `asked` are the options it was asked with."""
    from kernelcast.collectors.mlir import opcode_book

    asked = []

    def said(option, path, *more):
        asked.append(option)
        return LISTING if option == "-sass" else USAGE

    monkeypatch.setattr(opcode_book, "_said", said)
    return OpcodeBook(), asked


def test_encodings_met_in_a_listing_need_no_disassembler_again(book, tmp_path):
    counts, asked = book
    first = counts.read_code(cubin(tmp_path / "a", 0x402027381, 0x202028223, 0x7918))
    assert (first.registers, first.stack_b, first.total, first.mix["global_loads"], first.mix["ffma_ops"]) == (
        16,
        8,
        2,
        1,
        1,
    )
    second = counts.read_code(cubin(tmp_path / "b", 0x7381, 0x7381, 0x8223, 0x7918, 0x7918))
    assert asked == ["-sass", "-res-usage"]
    assert (second.total, second.mix["global_loads"], second.mix["ffma_ops"], second.mix["mufu_ops"]) == (3, 2, 1, 0)


def test_encodings_not_met_before_are_disassembled(book, tmp_path):
    counts, asked = book
    counts.read_code(cubin(tmp_path / "a", 0x7381))
    counts.read_code(cubin(tmp_path / "b", 0x7381, 0x7308))
    assert asked == ["-sass", "-sass"]


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"text of any kind, longer than the header of an object file is" * 3]
)
def test_what_is_no_cubin_is_said_to_be_none(content):
    from kernelcast.collectors.gpu.sass import DisassemblyError

    with pytest.raises(DisassemblyError):
        operations(content)


def test_counts_are_those_of_the_disassembler(real, tmp_path, monkeypatch):
    from kernelcast.collectors.gpu.sass import read_code
    from kernelcast.collectors.mlir.triton_build import build_text

    _, (row, _), _ = real
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path, _, _ = build_text(row.text, 90, num_warps=row.num_warps, num_stages=row.num_stages, folder=tmp_path)
    counts = OpcodeBook()
    assert counts.read_code(path) == counts.read_code(path) == read_code(path)
    assert row.instructions == read_code(path).total
