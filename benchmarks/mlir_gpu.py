"""Programs as XLA runs them on a GPU: written, measured there, and compared with what is answered.

    .venv/bin/python benchmarks/mlir_gpu.py --write texts.parquet                                   anywhere with jax
    python benchmarks/mlir_gpu.py --measure texts.parquet --out rows.parquet [--seconds 500]        a GPU and jax for CUDA
    .venv/bin/python benchmarks/mlir_gpu.py --judge [FILE] [--show]                                 anywhere

Calls of a program are enqueued one after the other and waited for together, so that a call takes as long as the longer of the
host and the GPU. Measuring needs jax and what kernelcast's collectors do. `--judge` without a file judges by the shipped rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kernelcast.collectors.mlir.compilers.xla import kernels_in
from kernelcast.collectors.mlir.operands import signature

SHIPPED = Path(__file__).parents[1] / "datasets" / "data" / "programs" / "xla-gpu.parquet"
WARM_S, LATENCY_S, BATCH_S, LEAST_BATCHES = 0.08, 0.15, 0.02, 5
"""Seconds of calls before any counts, and of those that do; of a batch, after which the host waits; fewest batches."""

ROWS_OF_TABLES = 32_000
"""Integers are drawn below it: places in the tables of vocabularies."""

_TOGETHER, _MOST_HELD_B = 48, 2e10
"""Programs compiled before any is measured, and bytes of operands that are kept for the next program."""


class Operands:
    """Arrays on the GPU by shape, type and place, made there once."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def of(self, text: str) -> list[Any]:
        """The operands of a module, ready."""
        if sum(array.nbytes for array in self._made.values()) > _MOST_HELD_B:
            self._made.clear()
        arguments = enumerate(signature(text).arguments)
        arrays = [self._array(argument.shape or (), argument.dtype, place) for place, argument in arguments]
        for array in arrays:
            array.block_until_ready()
        return arrays

    def _array(self, shape: tuple[int, ...], dtype: str, place: int) -> Any:
        import jax
        import jax.numpy as jnp

        key = (shape, dtype, place if np.prod(shape, dtype=np.int64) < 1 << 24 else place % 3)
        if key not in self._made:
            seed = jax.random.PRNGKey(len(self._made))
            if dtype in ("f16", "bf16", "f32", "f64"):
                kind = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32, "f64": jnp.float64}[dtype]
                self._made[key] = (0.05 * jax.random.normal(seed, shape, jnp.float32)).astype(kind)
            elif dtype == "i1":
                self._made[key] = jax.random.bernoulli(seed, 0.5, shape)
            else:
                named = dtype.replace("ui", "uint") if dtype.startswith("ui") else dtype.replace("i", "int")
                self._made[key] = jax.random.randint(seed, shape, 0, ROWS_OF_TABLES).astype(named)
        return self._made[key]


def measured(execute: Callable[[list[Any]], list[Any]], operands: list[Any]) -> dict[str, Any]:
    """Seconds of a call among others and alone, and how many calls that took."""

    def calls_s(count: int) -> float:
        began, results = time.perf_counter(), []
        for _ in range(count):
            results = execute(operands)
        for result in results:
            result.block_until_ready()
        return (time.perf_counter() - began) / count

    call_s, until = calls_s(1), time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        call_s = calls_s(max(1, min(2000, round(0.2 * BATCH_S / call_s))))
    count, batches = max(1, min(3000, round(BATCH_S / call_s))), list[float]()
    until = time.perf_counter() + LATENCY_S
    while time.perf_counter() < until or len(batches) < LEAST_BATCHES:
        batches.append(calls_s(count))
    low_s, latency_s, high_s = np.quantile(batches, (0.1, 0.5, 0.9)).tolist()
    return {
        "latency_s": latency_s, "latency_low_s": low_s, "latency_high_s": high_s,
        "alone_s": float(np.median([calls_s(1) for _ in range(7)])), "calls": count * len(batches),
    }  # fmt: skip


def measure(source: Path, out: Path, limit_s: float) -> None:
    """Compile and measure the programs of a table until the time is over; what is refused is said and left out."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jaxlib
    from jaxlib import _jax, xla_client

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    began, device, operands = time.perf_counter(), jax.devices()[0], Operands()
    devices, rows = _jax.DeviceList((device,)), list[dict[str, Any]]()

    def built(row: dict[str, Any]) -> tuple[Any, float]:
        start = time.perf_counter()
        executable = device.client.compile_and_load(row["text"], devices, xla_client.CompileOptions())
        return executable, time.perf_counter() - start

    with ThreadPoolExecutor() as pool:
        texts = pq.read_table(source).to_pylist()
        for start in range(0, len(texts), _TOGETHER):
            for row, future in [(row, pool.submit(built, row)) for row in texts[start : start + _TOGETHER]]:
                if time.perf_counter() - began > limit_s:
                    break
                try:
                    executable, compile_s = future.result()
                    taken = measured(executable.execute, operands.of(row["text"]))
                except xla_client.XlaRuntimeError as error:
                    print(f"{row['program']}: {str(error).splitlines()[0]}")
                    continue
                kernels = kernels_in(executable.hlo_modules()[0].to_string())
                rows.append(row | taken | {"device": device.device_kind, "compile_s": compile_s, "kernels": kernels,
                                           "jaxlib": jaxlib.__version__})  # fmt: skip
            pq.write_table(pa.Table.from_pylist(rows), out)
            print(f"{time.perf_counter() - began:5.0f} s  {len(rows)} programs in {out}", flush=True)


def judge(path: Path, *, show: bool) -> None:
    """Print errors of the answers by device and by who wrote the programs, beside the time that no run can beat."""
    import kernelcast

    judged = []
    for row in pq.read_table(path).to_pylist():
        answer = kernelcast.predict_mlir(row["text"], row["device"], compiler="xla")
        latency, own = answer.latency_s, row["program"].startswith("jax-gpu/")
        judged.append((row["device"], own, row["latency_s"], latency.value, answer.bound_s,
                       latency.lower <= row["latency_s"] <= latency.upper))  # fmt: skip
        if show:
            print(f"{row['program']:70s} {1e6 * row['latency_s']:9.1f} µs {latency.value / row['latency_s'] - 1:+7.1%}")
    every = [("all", judged)] + [
        (device, [each for each in judged if each[0] == device]) for device in {each[0] for each in judged}
    ]
    every += [
        ("sizes of a GPU", [each for each in judged if each[1]]),
        ("sizes of a CPU", [each for each in judged if not each[1]]),
    ]
    print(f"{'programs':24s} {'n':>4s} {'mean / median / within 10 %':>28s} {'inside':>7s} {'roofline':>22s}")
    for name, part in every:
        _, _, latency_s, answered_s, bound_s, inside = (np.array(column) for column in zip(*part, strict=True))
        words = [
            f"{100 * errors.mean():.1f} / {100 * np.median(errors):.1f} / {np.mean(errors <= 0.1):.0%}"
            for errors in (abs(answered_s / latency_s - 1), abs(bound_s / latency_s - 1))
        ]
        print(f"{name:24s} {len(part):4d} {words[0]:>28s} {inside.mean():7.0%} {words[1]:>22s}")


def main() -> None:
    """Write, measure or judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument(
        "--write", type=Path, metavar="FILE", help="write the programs of a GPU's size to a table of texts"
    )
    ways.add_argument(
        "--measure", type=Path, metavar="FILE", help="measure the programs of a table on this machine's GPU"
    )
    ways.add_argument(
        "--judge", type=Path, metavar="FILE", nargs="?", const=SHIPPED, help="judge answers by measured rows"
    )
    parser.add_argument("--out", type=Path, default=Path("xla-gpu.parquet"), help="where measured rows go")
    parser.add_argument("--seconds", type=float, default=500.0, help="measure nothing after so many seconds")
    parser.add_argument("--show", action="store_true", help="print every program")
    args = parser.parse_args()
    if args.write is not None:
        from kernelcast.datasets.records.mlir_modules import texts_table
        from programs.jax.gpu_sized import gpu_sized_texts

        pq.write_table(texts_table(list(gpu_sized_texts())), args.write)
    elif args.measure is not None:
        measure(args.measure, args.out, args.seconds)
    else:
        judge(args.judge, show=args.show)


if __name__ == "__main__":
    main()
