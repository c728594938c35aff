"""Native parsers in their child process: what they answer, and what happens when a text breaks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelcast import process as child_module
from kernelcast.features.mlir.parse import parser_process as mlir_reader
from kernelcast.features.mlir.parse.native_parsers import installed
from kernelcast.features.mlir.parse.parser_process import NativeReader
from kernelcast.features.mlir.understanding import TOLERANT, read

TEXT = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  %0 = math.exp %x : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}"

pytestmark = pytest.mark.skipif(
    not any(reader.name == "iree" for reader in installed()), reason="IREE is not installed"
)


@pytest.fixture(scope="module")
def shared() -> Iterator[NativeReader]:
    with NativeReader() as reader:
        reader.warm()
        yield reader


def child_of(reader: NativeReader) -> subprocess.Popen[bytes]:
    process = reader.child.process
    assert process is not None
    return process


def test_it_answers_as_the_parsers_in_this_process_do(shared: NativeReader) -> None:
    there, here = read(TEXT, native=shared), read(TEXT)
    assert there == here
    assert there.reader == "iree"
    assert shared.child.starts == 1


def test_it_passes_on_why_parsers_refuse(shared: NativeReader) -> None:
    module = read("%0 = nosuch.op : f32", native=shared)
    assert module.reader == TOLERANT
    assert module.refusals[0][0] == "iree"
    assert "nosuch" in module.refusals[0][1]


def test_texts_may_be_large_and_not_ascii(shared: NativeReader) -> None:
    lines = "".join(f'  %{i} = math.exp %x {{name = "größe 🙂"}} : tensor<4xf32>\n' for i in range(20_000))
    text = "func.func @f(%x: tensor<4xf32>) {\n" + lines + "  return\n}"
    module = read(text, native=shared)
    body = module.functions[0].body
    assert body is not None
    assert len(body.blocks[0].ops) == 20_001


def test_threads_get_their_own_answers(shared: NativeReader) -> None:
    answers: dict[int, str | None] = {}

    def ask(number: int) -> None:
        answers[number] = shared(f'"a.b"() {{number = {number} : i64}} : () -> ()').generic

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"number = {number} : i64" in (answers[number] or "") for number in range(16))


def test_a_crash_is_a_refusal_and_the_next_text_gets_a_new_process() -> None:
    with NativeReader() as reader:
        reader.warm()
        os.kill(child_of(reader).pid, signal.SIGABRT)
        module = read(TEXT, native=reader)
        assert module.reader == TOLERANT
        assert module.refusals == (("native", "the parsers ended with signal 6 (SIGABRT)"),)
        assert read(TEXT, native=reader).reader == "iree"
        assert reader.child.starts == 2


def test_a_hang_is_a_refusal_and_ends_the_process() -> None:
    with NativeReader(deadline_s=0.2) as reader:
        reader.warm()
        process = child_of(reader)
        os.kill(process.pid, signal.SIGSTOP)
        start_s = time.monotonic()
        module = read(TEXT, native=reader)
        assert time.monotonic() - start_s < 60
        assert module.reader == TOLERANT
        assert "took longer than" in module.refusals[0][1]
        assert process.returncode == -signal.SIGKILL


def test_a_process_that_grew_too_large_is_replaced_unnoticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with NativeReader() as reader:
        reader.warm()
        process = child_of(reader)
        process.stdin.close()  # type: ignore[union-attr]  its input ends: it ends by its own choice, with status 0
        process.wait(timeout=120)
        monkeypatch.setattr(child_module, "_pipes", _pipes_reopened(process, child_module._pipes))
        assert reader(TEXT).reader == "iree"
        assert reader.child.starts == 2


def _pipes_reopened(gone: subprocess.Popen[bytes], pipes: object):  # type: ignore[no-untyped-def]
    """The pipes of a process whose input was closed here, as if it had closed its end itself."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    broken = os.fdopen(write_end, "wb", buffering=0)

    def of(process: subprocess.Popen[bytes]):  # type: ignore[no-untyped-def]
        return (broken, process.stdout) if process is gone else pipes(process)  # type: ignore[operator]

    return of


def test_memory_is_limited() -> None:
    with NativeReader() as reader:
        reader.warm()
        limits = Path(f"/proc/{child_of(reader).pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
        assert line.split()[3] == str(2 << 30)


def test_the_child_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    with NativeReader() as reader:
        reader.warm()
        environment = Path(f"/proc/{child_of(reader).pid}/environ").read_bytes()
        assert b"SOME_TOKEN" not in environment


def test_closing_ends_the_process_and_may_be_done_twice() -> None:
    reader = NativeReader()
    reader.close()
    reader.warm()
    process = child_of(reader)
    reader.close()
    reader.close()
    assert process.returncode is not None


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "import os\nfrom kernelcast.features.mlir.parse.parser_process import NativeReader\nreader = NativeReader()\n"
        "reader.warm()\n"
        "print(reader.child.process.pid, flush=True)\nos._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240, check=True)
    child = int(done.stdout)
    until = time.monotonic() + 60
    while time.monotonic() < until and Path(f"/proc/{child}/stat").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{child}/stat").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()


def test_without_parsers_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlir_reader, "installed", lambda: ())
    reader = NativeReader()
    reader.warm()
    assert read(TEXT, native=reader).reader == TOLERANT
    assert reader.child.starts == 0


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/false", "the parsers ended with status 1"),
        ("/nowhere/python", "the parsers could not be started: No such file or directory"),
    ],
)
def test_a_child_that_cannot_start_is_a_refusal(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with NativeReader() as reader:
        reader.warm()
        module = read(TEXT, native=reader)
        assert module.reader == TOLERANT
        assert module.refusals == (("native", said),)


def test_broken_texts_never_break_the_service(shared: NativeReader) -> None:
    for text in (
        "\0" * 10,
        '"a.b"(',
        "tensor<" * 50,
        "%0 = arith.constant dense<> : tensor<99999999999999999999xf32>",
        "{-#",
        "#a = #a",
    ):
        assert shared(text).reader in ("", "iree", "torch-mlir", "jaxlib")
