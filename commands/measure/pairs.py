"""`kernelcast measure pairs`: kernels beside each other on two cores of this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ...features.errors import SpecError, listed
from .. import console
from .this_machine import this_device

_SAVE_S = 20.0
"""How often rows are written: what a killed campaign loses."""


def measure_pairs(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file of rows; run again to add more.")],
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes to measure; some 40 pairs each.")] = 8.0,
    families: console.Families = "",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds draw equal pairs.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine; default: by its CPU's name.")
    ] = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure how much longer kernels take beside each other, on two otherwise idle cores of this machine's CPU."""
    known = console.read_catalogue(device_file)
    name = this_device(device, known)
    if out.suffix != ".parquet":
        raise SpecError(f"--out is {out}; rows go to a .parquet file", field="out")
    console.check_folder(out.parent)
    with console.plain_errors("measure pairs", "collect"):
        from ...collectors.cpu.pairs.campaign import FAMILIES, PairBench, pairs, pool, two_cores
        from ...collectors.host import machine_facts, state_facts
        from ...datasets.records.kernel_pairs import read_pairs, write_pairs

        wanted = console.words(families) or list(FAMILIES)
        if unknown := [family for family in wanted if family not in FAMILIES]:
            raise SpecError(f"--families has {unknown[0]!r}; pairs are of {listed(FAMILIES)}", field="families")
        cores = two_cores()
        stored, facts = read_pairs(out) if out.exists() else ([], {})
        rows = {row.key: row for row in stored}
        before, block = len(rows), f"pairs-{len(facts)}"
        facts[block] = {**machine_facts(name), **state_facts(), "seed": seed, "cores_used": list(cores)}
        with PairBench(name, cores) as bench, console.progress_bar() as show:
            saved = time.monotonic()
            until = saved + 60 * minutes
            for a, b in pairs(pool(wanted, seed=seed), seed):
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
        write_pairs(out, list(rows.values()), facts)
    good = sum(row.status == "ok" for row in rows.values())
    if as_json:
        console.print_json({"out": str(out), "pairs": len(rows), "measured": good, "new": len(rows) - before})
    console.note(f"{len(rows) - before} pairs measured, {len(rows)} in {out}, {good} of them with times")
