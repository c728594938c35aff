"""`kernelcast measure pairs`: kernels beside each other, on two cores of this machine or two streams of its GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console
from .this_machine import this_device, this_gpu

if TYPE_CHECKING:
    from ...collectors.cpu.pairs.campaign import PairBench
    from ...collectors.gpu.measure.pairs import GpuPairBench
    from ...collectors.meters.find import GpuReader
    from ...features.device import Device
    from ...features.kernel import KernelSpec

    Drawn = tuple[PairBench | GpuPairBench, Iterator[tuple[KernelSpec, KernelSpec]], dict[str, Any]]
    """What measures, the pairs in their order, and what to record about the machine."""

_SAVE_S = 20.0
"""How often rows are written: what a killed campaign loses."""


def measure_pairs(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file of rows; run again to add more.")],
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes to measure; some 40 pairs each.")] = 8.0,
    families: console.Families = "",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds draw equal pairs.")] = 0,
    gpu: Annotated[bool, typer.Option("--gpu", help="On two streams of this machine's GPU, not on its CPU.")] = False,
    index: console.GpuIndex = 0,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of what measures; default: by the name it reports.")
    ] = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure how much longer kernels take beside each other, on two cores or a GPU that are otherwise idle."""
    known = console.read_catalogue(device_file)
    if out.suffix != ".parquet":
        raise SpecError(f"--out is {out}; rows go to a .parquet file", field="out")
    console.check_folder(out.parent)
    wanted = console.words(families)
    with console.plain_errors("measure pairs", "gpu" if gpu else "collect"):
        from ...collectors.host import machine_facts, state_facts
        from ...datasets.records.kernel_pairs import read_pairs, write_pairs

        if gpu:
            measuring, pairs, extra = _on_gpu(*this_gpu(device, index, known), index, wanted, seed)
        else:
            measuring, pairs, extra = _on_cores(this_device(device, known), wanted, seed)
        stored, facts = read_pairs(out) if out.exists() else ([], {})
        rows = {row.key: row for row in stored}
        before, block = len(rows), f"pairs-{len(facts)}"
        with measuring as bench, console.progress_bar() as show:
            name = bench.device
            facts[block] = {**machine_facts(name), **state_facts(), **extra, "seed": seed, **bench.facts()}
            saved = time.monotonic()
            until = saved + 60 * minutes
            try:
                for a, b in pairs:
                    if (name, a.case_id, b.case_id) in rows:
                        continue
                    row = bench.measure(a, b)
                    rows[row.key] = row
                    left_s = max(0.0, until - time.monotonic())
                    show("measuring pairs", round(600 * minutes - 10 * left_s), round(600 * minutes))
                    if time.monotonic() - saved > _SAVE_S:
                        write_pairs(out, list(rows.values()), facts)
                        saved = time.monotonic()
                    if left_s == 0.0:
                        break
            finally:
                write_pairs(out, list(rows.values()), facts)
    good = sum(row.status == "ok" for row in rows.values())
    if as_json:
        console.print_json({"out": str(out), "pairs": len(rows), "measured": good, "new": len(rows) - before})
    console.note(f"{len(rows) - before} pairs measured, {len(rows)} in {out}, {good} of them with times")


def _on_cores(name: str, families: list[str], seed: int) -> Drawn:
    from ...collectors.cpu.pairs.campaign import FAMILIES, PairBench, pairs, pool, two_cores

    _check(families, FAMILIES)
    return PairBench(name, two_cores()), pairs(pool(families or FAMILIES, seed=seed), seed), {}


def _on_gpu(device: Device, reader: GpuReader | None, index: int, families: list[str], seed: int) -> Drawn:
    from ...collectors.gpu.measure.pairs import GpuPairBench, gpu_pairs, gpu_pool
    from ...collectors.gpu.plan.sweeps import SWEEPS
    from ...collectors.meters.find import gpu_facts, gpu_state

    _check(families, list(SWEEPS))
    kernels = gpu_pool(device, families or list(SWEEPS), seed)
    facts = {} if reader is None else {"gpu": gpu_facts(reader), "gpu_state": gpu_state(reader)}
    return GpuPairBench(device, index), gpu_pairs(kernels, device, seed), facts


def _check(families: Sequence[str], possible: Sequence[str]) -> None:
    if unknown := [family for family in families if family not in possible]:
        raise SpecError(f"--families has {unknown[0]!r}; pairs are of {listed(possible)}", field="families")
