"""POST /v1/predict/mlir on a real server process: texts made to do harm, and a reader killed while it reads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATH = "/v1/predict/mlir"
MLP = """\
func.func @main(%x: tensor<64x1024xf32>, %w: tensor<1024x512xf32>) -> tensor<64x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %z = stablehlo.tanh %y : tensor<64x512xf32>
  return %z : tensor<64x512xf32>
}
"""
FLOPS = 2 * 64 * 1024 * 512

# Serves the fake kernels of conftest.py, programs included, with little patience for native parsers; prints its port.
_SERVER = """
import importlib.util, sys
from kernelcast.api.server import cap_threads, listen
cap_threads()
import functools, uvicorn
from kernelcast.api import app as application
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue
from kernelcast.workloads.mlir.predictor import load_module_predictor
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
kernels = fakes.FakePredictor()
application.NativeReader = functools.partial(application.NativeReader, deadline_s=1.5)
app = create_app(FixedSource(kernels, catalogue(), programs=load_module_predictor(kernels)))
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none")).run(sockets=[sock])
"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    fakes = Path(__file__).parents[1] / "conftest.py"
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(fakes)], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, cwd=fakes.parent)  # fmt: skip
    assert process.stdout is not None
    yield int(process.stdout.readline()), process
    helpers = children(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert "POST" not in err, err
    assert not [pid for pid in helpers if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    result = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == pid and words[0] != "Z":
            result.append(int(path.parent.name))
    return result


def over_the_wire(port: int, text: str, query: str = "device=h100") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    try:
        connection.request("POST", f"{PATH}?{query}", text.encode(), {"content-type": "text/plain"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def with_line(line: str, before: str = "") -> str:
    return before + MLP.replace("  return", f"  {line}\n  return")


SIGNS = "-" * 60_000
HOSTILE = {
    # Each of these ended or stopped a process that parsed it; none nests a bracket deeper than a few levels.
    "a chain of signs": with_line(f'"a.b"() {{m = affine_map<(d0) -> ({SIGNS}d0)>}} : () -> ()'),
    "aliases in a chain": with_line(
        '"a.b"() {v = #t30000} : () -> ()',
        "#t0 = [1]\n" + "".join(f"#t{i + 1} = [#t{i}]\n" for i in range(30_000)),
    ),
    "aliases that double": with_line(
        '"a.b"() {v = #t60} : () -> ()',
        "#t0 = [1]\n" + "".join(f"#t{i + 1} = [#t{i}, #t{i}]\n" for i in range(60)),
    ),
    "types that double": with_line(
        '"a.b"(%q) : (!t60) -> ()',
        "!t0 = tuple<i1>\n" + "".join(f"!t{i + 1} = tuple<!t{i}, !t{i}>\n" for i in range(60)),
    ),
    "brackets never closed": "func.func @main() {" + "(" * 250,
    "quotes never closed": 'func.func @main() { "' * 20_000,
    "a string that never ends": MLP + '"' + '\\"' * 100_000,
    "words and signs": MLP + "a-" * 100_000,
    "a number of a megabyte": with_line(f'"a.b"() {{v = 1{"0" * 2**20} : i64}} : () -> ()'),
    "sizes beyond all memory": with_line("%q = tensor.empty() : tensor<9223372036854775807x9223372036854775807xf32>"),
    "null characters": MLP + "\0" * 100_000,
    "many functions": "".join(f"func.func @f{i}() {{ return }}\n" for i in range(20_000)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_texts_made_to_do_harm_do_none(server, what):
    port, process = server
    started = time.monotonic()
    status, result = over_the_wire(port, HOSTILE[what])
    assert status == 200 or 400 <= status < 500, result
    assert time.monotonic() - started < 60
    assert process.poll() is None
    status, result = over_the_wire(port, MLP)
    assert status == 200
    assert result["answers"][0]["flops"] >= FLOPS


def test_a_reader_that_is_killed_while_it_reads_is_no_error_of_the_server(server):
    port, process = server
    over_the_wire(port, MLP)
    long = with_line("\n".join(f"  %q{i} = stablehlo.add %z, %z : tensor<64x512xf32>" for i in range(5_000)))
    answers: list[tuple[int, dict[str, Any]]] = []
    asking = threading.Thread(target=lambda: answers.append(over_the_wire(port, long)))
    asking.start()
    killed = 0
    # A reader that is killed is started again for the same text: until that is answered, or three are killed.
    while asking.is_alive() and killed < 3:
        for child in children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                killed += 1
        time.sleep(0.01)
    asking.join(240)
    assert killed
    ((status, result),) = answers
    assert status < 500, result
    assert over_the_wire(port, MLP)[0] == 200
