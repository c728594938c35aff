"""Files of a block, one per family: for cases in the plan's order, and as a fleet's driver gathers them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kernelcast.collectors.collector import Pace, chunks
from kernelcast.collectors.cpu.plans.shapes import plan
from kernelcast.collectors.fleet.case_pool import Pool, gathered
from kernelcast.collectors.fleet.driver import METHODS
from kernelcast.collectors.gpu.campaign import latency_plan
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, families

GPU = "nvidia-h200-sxm-141gb"
ONE_PLAN = 2000
"""Cases planned at once; more than that are several plans, one after the other."""


def planned(kind: str, count: int) -> list[KernelSpec]:
    """So many cases as `fleet run` plans them."""
    seeds = range(count // ONE_PLAN)
    if kind == "cpu":
        return [spec for seed in seeds for spec in plan(list(families()), ONE_PLAN, seed, threads=[1, 2])]
    device = catalogue().get(GPU)
    # 0.2 s a case is plenty: more than wanted come.
    return [spec for seed in seeds for spec in latency_plan(0.2 * ONE_PLAN, seed, [], device, [])[:ONE_PLAN]]


def of_a_block(specs: Sequence[KernelSpec], pace: Pace, devices: int) -> tuple[float, float]:
    """Mean rows and files of a block when so many devices share the cases one after the other."""
    pool, blocks, files = Pool(specs, pace.block_cases, devices), 0, 0
    while portion := pool.take(lambda: False):
        block: list[KernelSpec] = []
        for chunk in chunks(portion, pace, partial(_key, 2)):
            block += chunk
            if len(block) >= pace.block_cases:
                blocks, files, block = blocks + 1, files + len({spec.family for spec in block}), []
        if block:
            blocks, files = blocks + 1, files + len({spec.family for spec in block})
        pool.give_back([], device_lost=False)
    return len(specs) / blocks, files / blocks


def _key(cores: int, spec: KernelSpec) -> tuple[str, int]:
    return spec.impl, spec.threads or cores


def main() -> None:
    """Print the means."""
    for kind, method in METHODS.items():
        for count in (2000, 20_000):
            specs = planned(kind, count)
            before = of_a_block(specs, method.pace, 4)
            after = of_a_block(gathered(specs, method.pace.block_cases), method.pace, 4)
            print(f"{kind}, {len(specs)} cases: {before[1]:.2f} files in {before[0]:.1f} rows as planned, "
                  f"{after[1]:.2f} in {after[0]:.1f} gathered")  # fmt: skip


if __name__ == "__main__":
    main()
