"""Every configuration of forty shapes by Triton on a GPU: what choosing by the model costs, beside the best there is.

    python -P benchmarks/triton_sweep.py measure --out DIR [--minutes 4]            needs a GPU, torch and Triton
    .venv/bin/python -P benchmarks/triton_sweep.py judge [--rows DIR] [--model DIR | --held-out] [--perf-model FILE]

Configurations of products and of attention run on shapes of prompts and of decoding. Shapes share binaries, which are compiled
in the background. Judging needs no GPU. Judged are the configuration that the tuning model puts first and the best of its first
five; beside them one and five drawn blindly, the order that is best on the other shapes of the part, the formula's time on
paper without anything learned, and for products the rankings of `triton_rivals.py`. `--held-out` trains on the same rows,
without the shape that is judged; the rows then have to include the shipped ones, as they do by default.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from kernelcast.collectors.gpu.campaign import LATENCY_PACE, SENTINELS, one_worker
from kernelcast.collectors.gpu.kernels.compile_ahead import cache_environment, compile_ahead
from kernelcast.collectors.gpu.measure.worker import GpuCollector, GpuWorkerOptions
from kernelcast.collectors.gpu.plan.tiled_kernels import AttentionCode, GemmCode
from kernelcast.collectors.kernel_campaign import run_campaign, store_sink
from kernelcast.collectors.meters.find import gpu_facts
from kernelcast.commands.measure.this_machine import this_gpu
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.files import home_dir
from kernelcast.process import core_count
from triton_judge import judged_tasks, latency_errors, scores_of, shape_lines, table
from triton_rivals import Ranking, nv_matmul_heuristics, triton_perf_model

CONFIGURATIONS = 48
SEED = 2026
GEMMS = {
    "bf16": (
             (1, 6144, 4096), (1, 28672, 4096), (8, 4096, 14336), (16, 4096, 4096), (16, 10240, 8192), (33, 7168, 2048),
             (64, 28672, 4096), (64, 4096, 4096), (128, 6144, 4096), (128, 8192, 28672), (256, 4096, 14336), (512, 28672, 4096),
             (500, 3584, 3584), (1024, 4096, 4096), (1024, 18944, 3584), (2048, 6144, 4096), (2048, 1536, 8960),
             (4096, 4096, 4096), (4096, 28672, 4096), (8192, 8192, 8192), (8192, 1024, 8192), (3000, 3001, 3003),
             (777, 1111, 2221)),
    "fp8": ((16, 6144, 4096), (64, 28672, 4096), (512, 4096, 14336), (2048, 6144, 4096), (8192, 8192, 8192)),
}  # fmt: skip
"""Rows, columns and depth of products: of layers of Llama 3 8B and 70B, Qwen 2.5 1.5B and 7B, and odd ones."""

ATTENTIONS = tuple(
    {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": size, "window": 0}
    for batch, heads, kv_heads, q_len, kv_len, size in (
        (1, 32, 8, 512, 512, 128), (4, 32, 8, 2048, 2048, 128), (1, 32, 8, 8192, 8192, 128), (8, 12, 12, 512, 512, 64),
        (2, 28, 4, 1024, 3072, 128), (1, 16, 16, 4096, 4096, 64), (1, 32, 8, 1, 2048, 128), (16, 32, 8, 1, 2048, 128),
        (64, 32, 8, 1, 1024, 128), (8, 64, 8, 1, 16384, 128), (128, 14, 2, 1, 512, 64), (4, 32, 32, 1, 4096, 128),
    )
)  # fmt: skip


def _shuffled(*choices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All tuples in an order that every shape shares: the first ones that fit are then nearly the same for all of a kind."""
    every = list(itertools.product(*choices))
    return [every[i] for i in np.random.default_rng(SEED).permutation(len(every))]


_GEMM_TILES = _shuffled((16, 32, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128), (4, 8), (2, 3, 4))
_SPLIT_TILES = _shuffled((16, 64), (64, 128), (64, 128), (4,), (3,))
_ATTENTION_TILES = _shuffled((16, 32, 64, 128), (16, 32, 64, 128), (2, 4, 8), (1, 2, 3, 4))


def sweep() -> Iterator[KernelSpec]:
    """All configurations of all shapes."""
    for dtype, shapes in GEMMS.items():
        for m, n, k in shapes:
            aligned = (k % 16 == 0, n % 16 == 0)
            whole = (GemmCode(dtype, aligned, False, *tiles) for tiles in _GEMM_TILES)
            fitting = (code.knobs(8, 1) for code in whole if code.sensible and code.tile_m <= max(64, m))
            split = [
                GemmCode(dtype, aligned, True, *tiles).knobs(8, 4) for tiles in _SPLIT_TILES if m <= 64 and all(aligned)
            ]
            for knobs in (*itertools.islice(fitting, CONFIGURATIONS), *split):
                yield KernelSpec.of("gemm", dtype, impl="triton", config=knobs, m=m, n=n, k=k)
    for sizes in ATTENTIONS:
        codes = (AttentionCode("bf16", sizes["head_dim"], *tiles) for tiles in _ATTENTION_TILES)
        fitting = (code.knobs() for code in codes if code.sensible and (code.tile_m <= 32) >= (sizes["q_len"] == 1))
        for knobs in itertools.islice(fitting, CONFIGURATIONS):
            yield KernelSpec.of("attention", "bf16", impl="triton", config=knobs, **sizes)  # type: ignore[arg-type]


def measure(folder: Path, minutes: float) -> None:
    """Measure the sweep, a shape after another in random order of its configurations; run again to go on."""
    device, reader = this_gpu(None, 0, catalogue())
    assert reader is not None, "no library reads the board"
    specs = list(sweep())
    order = np.random.default_rng(SEED)
    specs = [specs[i] for i in order.permutation(len(specs))]
    cache, store = home_dir() / "compiled", Store(str(folder))
    until = time.monotonic() + 60 * minutes
    collector = GpuCollector(GpuWorkerOptions(device.name), env=cache_environment(cache), until=until)
    collector.start(device)
    with compile_ahead(specs, reader.compute_capability() or 0, max(1, core_count() - 2), cache):
        done = run_campaign(
            specs, device=device.name, sink=store_sink(store), sentinels=SENTINELS, key_of=one_worker, pace=LATENCY_PACE,
            collector_for=collector, skip=store.case_ids(device.name), until=until,
            note={"gpu": gpu_facts(reader), "sweep": "every configuration of forty shapes"},
        )  # fmt: skip
    print(done)


def judge(args: argparse.Namespace) -> None:
    """Print what every ranking costs, a line a shape, and errors of the kernels' model."""
    rivals: dict[str, Ranking] = {}
    if args.perf_model:
        rivals["Triton 3.1's perf_model"] = triton_perf_model(args.perf_model)
    try:
        rivals["nvMatmulHeuristics"] = nv_matmul_heuristics()
    except ModuleNotFoundError:
        print("nvMatmulHeuristics is not installed (PyPI: nvidia-matmul-heuristics)")
    tasks = judged_tasks(args.rows, args.model, args.held_out, rivals)
    scores, errors = scores_of(tasks), latency_errors(tasks)
    print(shape_lines(tasks), table(scores), "Kernels' model:", json.dumps(errors, indent=2), sep="\n\n")
    if args.json:
        args.json.write_text(json.dumps({"scores": scores, "errors": errors}, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    measuring = ways.add_parser("measure")
    measuring.add_argument("--out", type=Path, required=True)
    measuring.add_argument("--minutes", type=float, default=4.0)
    judging = ways.add_parser("judge")
    judging.add_argument(
        "--rows", type=Path, action="append", help="folder of measured rows; default: the shipped ones"
    )
    judging.add_argument("--model", type=Path, help="folder of model files; default: those installed")
    judging.add_argument("--held-out", action="store_true", help="train anew without the shape that is judged")
    judging.add_argument("--perf-model", type=Path, help="`triton/ops/matmul_perf_model.py` of Triton 3.1")
    judging.add_argument("--json", type=Path, help="also write the scores here")
    args = parser.parse_args()
    if args.way == "measure":
        measure(args.out, args.minutes)
    else:
        judge(args)


if __name__ == "__main__":
    main()
