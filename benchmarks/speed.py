"""Speed and memory, each against its target: start-up, MLIR text, one REST prediction, a table, training.

Run `.venv/bin/python benchmarks/speed.py` on an otherwise idle machine. Timings of shared machines are noisy, so every
figure is the median of several runs, with the range beside it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kernelcast.features.device import catalogue
from kernelcast.features.mlir.understanding import read, understand
from kernelcast.features.mlir.vectors.program_vector import extract

PROGRAM = str(Path(sys.executable).with_name("kernelcast"))
DEVICE = "amd-epyc-9005-vm-2c"
SHIPPED = Path(__file__).parents[1] / "datasets" / "data" / "shipped"
BODY = json.dumps(
    {"family": "gemm", "device": DEVICE, "dtype": "fp32", "sizes": {"m": 384, "n": 768, "k": 768}, "threads": 1}
)
HEADERS = {"Content-Type": "application/json"}
LAYER = """
  %a{i} = stablehlo.dot_general {x}, %w, contracting_dims = [1] x [0] : (T, tensor<{n}x{n}xf32>) -> T
  %b{i} = stablehlo.broadcast_in_dim %bias, dims = [1] : (tensor<{n}xf32>) -> T
  %c{i} = stablehlo.add %a{i}, %b{i} : T
  %d{i} = stablehlo.reduce(%c{i} init: %zero) applies stablehlo.maximum across dimensions = [1] : (T, tensor<f32>) -> R
  %e{i} = stablehlo.broadcast_in_dim %d{i}, dims = [0] : (R) -> T
  %f{i} = stablehlo.subtract %c{i}, %e{i} : T
  %g{i} = stablehlo.exponential %f{i} : T
  %h{i} = stablehlo.reduce(%g{i} init: %zero) applies stablehlo.add across dimensions = [1] : (T, tensor<f32>) -> R
  %i{i} = stablehlo.broadcast_in_dim %h{i}, dims = [0] : (R) -> T
  %j{i} = stablehlo.divide %g{i}, %i{i} : T
  %k{i} = stablehlo.tanh %j{i} : T
  %l{i} = stablehlo.add {x}, %k{i} : T"""
"""Twelve operations."""


def main() -> None:
    """Measure and print everything."""
    report("kernelcast predict, cold start", "s", 0.7, repeat(cold_predict, 7))
    for operations, target in ((300, 4.0), (5000, 50.0)):
        for layers in ("equal", "unlike"):
            vectors(operations, 512, layers)
            milliseconds = [vectors(operations, 520 + 8 * i, layers) for i in range(9)]
            report(f"MLIR text of {operations} operations, {layers} layers", "ms", target, milliseconds)
    with tempfile.TemporaryDirectory() as folder:
        for what, unit, target, values in (*served(), *trained(Path(folder))):
            report(what, unit, target, values)


def report(what: str, unit: str, target: float, values: list[float]) -> None:
    """One line: median, range and target."""
    middle = statistics.median(values)
    print(f"{what:44} {middle:9.3f} {unit:5} ({min(values):.3f} to {max(values):.3f}), target {target:g}", flush=True)


def repeat(measure: Callable[[], float], times: int) -> list[float]:
    """The measurement, several times."""
    return [measure() for _ in range(times)]


def cold_predict() -> float:
    """Seconds from starting the command to its answer."""
    command = [PROGRAM, "predict", "gemm", "m=384", "n=768", "k=768", "dtype=fp32", "threads=1", "--device", DEVICE]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def vectors(operations: int, columns: int, layers: str) -> float:
    """Milliseconds from a text of layers of `columns`, equal or unlike, to what a model reads, in this process."""
    rng = random.Random(operations)
    text = f"func.func @main(%x: T, %w: tensor<{columns}x{columns}xf32>, %bias: tensor<{columns}xf32>) -> T {{\n"
    text += "  %zero = stablehlo.constant dense<0.0> : tensor<f32>"
    last = "%x"
    for i in range(operations // 12):
        layer = LAYER if layers == "equal" else LAYER.replace("tanh", rng.choice(("tanh", "sine", "cosine", "floor")))
        text += layer.format(i=i, x=last, n=columns)
        last = f"%l{i}"
    text = (text + f"\n  return {last} : T\n}}").replace("R", "tensor<128xf32>")
    text = text.replace("T", f"tensor<128x{columns}xf32>")
    start = time.perf_counter()
    extract(understand(read(text)), catalogue().get(DEVICE))
    return (time.perf_counter() - start) * 1e3


def served() -> list[tuple[str, str, float, list[float]]]:
    """Start to ready, latency of one prediction over a kept connection, and resident memory of the server."""
    start = time.perf_counter()
    server = subprocess.Popen(
        [PROGRAM, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"].removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        ask(connection)
        ready_s = time.perf_counter() - start
        for _ in range(200):
            ask(connection)
        rounds = [statistics.median(repeat(lambda: ask(connection), 500)) * 1e3 for _ in range(5)]
        tail = sorted(repeat(lambda: ask(connection), 2000))[1980] * 1e3
        status = Path(f"/proc/{server.pid}/status").read_text()
        resident = float(status.split("VmRSS:")[1].split()[0]) / 1024
    finally:
        server.terminate()
        server.wait()
    return [
        ("server, start to first answer", "s", 2.0, [ready_s]),
        ("one REST prediction, p50", "ms", 1.5, rounds),
        ("one REST prediction, p99", "ms", 10.0, [tail]),
        ("server, resident memory", "MiB", 300.0, [resident]),
    ]


def ask(connection: http.client.HTTPConnection) -> float:
    """Seconds of one request."""
    start = time.perf_counter()
    connection.request("POST", "/v1/predict", BODY, HEADERS)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    return time.perf_counter() - start


def trained(folder: Path) -> list[tuple[str, str, float, list[float]]]:
    """Seconds and peak memory of training on all shipped data, and rows predicted per second from a table."""
    tables = sorted(str(path) for path in SHIPPED.glob("*.parquet"))
    start = time.perf_counter()
    subprocess.run(
        [PROGRAM, "train", "--data", *tables, "--out", str(folder / "model")], check=True, capture_output=True
    )
    seconds = time.perf_counter() - start
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    size_mib = sum(path.stat().st_size for path in (folder / "model").iterdir()) / 2**20
    return [
        (f"training on all shipped data ({os.cpu_count()} cores)", "s", 90.0, [seconds]),
        ("training, peak memory", "GiB", 3.0, [peak_gib]),
        ("model, size on disk", "MiB", 15.0, [size_mib]),
    ]


if __name__ == "__main__":
    main()
