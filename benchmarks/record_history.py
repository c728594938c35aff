"""Record nights of measurements between which the kernel libraries change, as an update would change them.

Each night measures the same repeated cases and some hundred new ones with PyTorch on one core. A night's version is a set of
environment variables that choose other code paths of the libraries below PyTorch: real kernels, really measured, of which
some families become slower or faster and others do not. One version comes back after another one was there.

    python -P benchmarks/record_history.py --store DIR --nights 1-5
    python -P benchmarks/record_history.py --store DIR --pack datasets/history
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from kernelcast.collectors.collector import Pace
from kernelcast.collectors.cpu.plans.shapes import Limits, plan
from kernelcast.collectors.kernel_campaign import run_campaign, store_sink
from kernelcast.datasets.store.store import Store, pack
from kernelcast.features.kernel import KernelSpec

VERSIONS: Mapping[str, Mapping[str, str]] = {
    "a": {},
    "b": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "c": {"MKL_CBWR": "COMPATIBLE"},
}
"""What each version sets: nothing; vectors of 256 bits in PyTorch's own kernels and no bf16 instructions in oneDNN; MKL's
oldest code path."""

NIGHTS = "aaabbaaccbba"
"""The version of each night: two that come back, four changes in all."""

FAMILIES = ("gemm", "softmax", "layernorm", "elementwise", "attention", "reduction")
REPEATED = 60
NEW = 300
_LIMITS = Limits(matrix_flops=5e8, operand_b=3e7)
_PACE = Pace(calibration=3, drift=0.08, block_cases=80)


def night_plan(night: int) -> list[KernelSpec]:
    """The cases of one night, counted from 1: half of the first ones are those of every night."""
    cases = plan(FAMILIES, REPEATED + NEW * len(NIGHTS), 20261122, cache_states=("hot",), limits=_LIMITS)
    repeated, new = cases[:REPEATED], cases[REPEATED + NEW * (night - 1) : REPEATED + NEW * night]
    mixed = [spec for pair in zip(repeated, new, strict=False) for spec in pair]
    return mixed + new[REPEATED:]


def record(night: int, store: Store, device: str, seconds: float) -> None:
    """Measure one night for so many seconds."""
    version = NIGHTS[night - 1]
    settings = VERSIONS[version]
    for name in {name for others in VERSIONS.values() for name in others}:
        os.environ.pop(name, None)
    os.environ.update(settings)
    note = {"night": night, "libraries": version, "library_settings": dict(settings), "plan_seed": 20261122}
    summary = run_campaign(night_plan(night), device=device, sink=store_sink(store), pace=_PACE, note=note,
                           until=time.monotonic() + seconds)  # fmt: skip
    print(f"night {night}, version {version}: {summary}", flush=True)


def main() -> None:
    """What the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="amd-epyc-9005-vm-2c")
    parser.add_argument("--nights", help="from-to, counted from 1")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--pack", type=Path, metavar="DIR")
    args = parser.parse_args()
    store = Store(args.store)
    if args.nights:
        first, last = (int(word) for word in args.nights.split("-"))
        for night in range(first, last + 1):
            record(night, store, args.device, args.seconds)
    if args.pack:
        print(*pack({family: [table] for family, table in store.read_all().items()}, args.pack), sep="\n")


if __name__ == "__main__":
    main()
