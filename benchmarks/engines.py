"""The compiled engine against onnxruntime: microseconds of processor time per row, by kind of graph and rows per call.

Run `make bench-engines`. Rows are inputs of real cases: `sweep`, sizes of one device and dtype, as a search for the best sizes
asks them; `mixed`, of many devices and dtypes, as a table has them. Both engines take turns in one run, and the least of some
rounds counts: other work on the machine only adds. Memory is that of a process of its own that has answered one prediction.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernelcast.features.batch.cases import Cases
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.engine.onnx_arrays import ForestArrays, NetworkArrays, arrays_of
from kernelcast.models.engine.runtime import ENGINE_ENV, Runtime, library
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor

FAMILY = "gemm"
COUNTS = (1, 16, 256, 4096)
ROUNDS, ROUND_S = 8, 0.03
MIXED = (("nvidia-h200-sxm-141gb", "bf16"), ("nvidia-h200-sxm-141gb", "fp32"), ("amd-epyc-9005-vm-2c", "fp32"),
         ("nvidia-a100-pcie-40gb", "fp32"), ("nvidia-l40s", "fp8"), ("nvidia-t4", "fp32"))  # fmt: skip
_ANSWER = """
import time
start = time.perf_counter()
import kernelcast
kernelcast.predict("gemm", device="nvidia-h200-sxm-141gb", dtype="bf16", m=64, n=64, k=64)
print(time.perf_counter() - start, open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
"""


def main() -> None:
    """Measure and print everything."""
    if library() is None:
        sys.exit("error: this installation has no compiled engine; install kernelcast where there is a C++ compiler")
    graphs = load_predictor(default_model_dir()).family(FAMILY).model.graphs
    print("graph                 columns  rows of  " + "".join(f"{f'n = {n}':>22}" for n in COUNTS))
    for kind, x in (("sweep", inputs(MIXED[:1])), ("mixed", inputs(MIXED))):
        for name, chosen in [*((described(graph), [graph]) for graph in graphs), ("all of them", list(graphs))]:
            engines = [runtime(engine, chosen) for engine in ("native", "onnxruntime")]
            print(f"{name:30} {kind:8}", end=" ", flush=True)
            for n in COUNTS:
                quick, plain = per_row_us(engines, x[:n])
                print(f"{quick:10.2f} of {plain:8.2f}", end="", flush=True)
            print(f"  largest difference {difference(engines, x):.1e}", flush=True)
    if sys.platform == "linux":
        for engine in ("native", "onnxruntime"):
            seconds, kib = fresh(engine)
            print(f"{engine}: first prediction after {seconds:.2f} s, resident memory {kib / 1024:.0f} MiB")


def inputs(where: Sequence[tuple[str, str]]) -> Any:
    """What the graphs read of matrix products of random sizes on these devices and dtypes, as many as the largest count."""
    rng = np.random.default_rng(0)
    sizes = 2 ** rng.uniform(5, 13, (max(COUNTS), 3))
    picked = [where[i % len(where)] for i in range(len(sizes))]
    specs = [
        KernelSpec.of(FAMILY, dtype, m=int(m), n=int(n), k=int(k))
        for (_, dtype), (m, n, k) in zip(picked, sizes, strict=True)
    ]
    learned = load_predictor(default_model_dir()).family(FAMILY)._learned
    cases = Cases.from_specs(specs, [device for device, _ in picked])
    categories = cases.categories
    return learned.query(cases, learned.inputs_of(categories.distinct), categories.code).x


def described(graph: bytes) -> str:
    """The kind and size of a graph."""
    arrays = arrays_of(graph)
    if isinstance(arrays, ForestArrays):
        return f"{len(arrays.roots)} trees, {len(arrays.leaf_value)} leaves"
    return f"network, {len(arrays.columns)} columns" if isinstance(arrays, NetworkArrays) else "other"


def runtime(engine: str, graphs: Sequence[bytes]) -> Runtime:
    """The graphs on one engine."""
    os.environ[ENGINE_ENV] = engine
    return Runtime(graphs)


def per_row_us(engines: Sequence[Runtime], x: Any) -> list[float]:
    """Processor time per row of each engine, µs: the least of rounds in turns."""
    rounds = [[once(lambda engine=engine: engine.run(x)) for engine in engines] for _ in range(ROUNDS)]  # type: ignore[misc]
    return [min(values) / len(x) * 1e6 for values in zip(*rounds, strict=True)]


def once(work: Callable[[], Any]) -> float:
    """Seconds of processor time of one call, over some hundredths of a second of calls."""
    calls, start = 0, time.process_time()
    while (spent := time.process_time() - start) < ROUND_S or not calls:
        work()
        calls += 1
    return spent / calls


def difference(engines: Sequence[Runtime], x: Any) -> float:
    """The largest difference between two engines' answers."""
    item, other = (engine.run(x) for engine in engines)
    return max(float(np.abs(item[i] - other[i]).max()) for i in item)


def fresh(engine: str) -> tuple[float, int]:
    """Seconds to a first prediction and resident KiB of a process of its own; the best of three."""
    env = {**os.environ, ENGINE_ENV: engine}
    runs = [subprocess.run([sys.executable, "-P", "-c", _ANSWER], env=env, capture_output=True, text=True, check=True)
            for _ in range(3)]  # fmt: skip
    items = [run.stdout.split() for run in runs]
    return min(float(seconds) for seconds, _ in items), min(int(kib) for _, kib in items)


if __name__ == "__main__":
    main()
