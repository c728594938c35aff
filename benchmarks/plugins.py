"""What the IREE plug-in gains: programs compiled by default, with data tiling, by the model alone, and with `--measure 4`.

Run `.venv/bin/python benchmarks/plugins.py` on an otherwise idle machine (`--only NAME` for one program, `--json FILE` for the
figures). The four modules of a program are timed side by side on one core, in turns; every round starts a fresh process, and
the fastest round of each module counts. Ratios are of times, so above 1 the tuned module is faster. None of the programs is
among the measured rows, which is checked first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from kernelcast.commands.measure.this_machine import this_device
from kernelcast.commands.measure.tune import measuring
from kernelcast.datasets.shipped import SHIPPED_DIR, TILES_DIR, read_shipped
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_from_row
from kernelcast.plugins.iree.compiler import compile_file, compile_with
from kernelcast.plugins.iree.tuning import TuningResult, tune
from plugin_programs import Program, drawn, modules, operations

TOP = 4
ROUNDS = 3
WAYS = ("default", "data tiling", "model alone", f"measure {TOP}")
ALLOWED_SLOWER = 1.03


def main() -> None:
    """Measure every program and print the table and its means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a program by its name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--device", help="name of this machine's CPU in the catalogue; default: by its name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="N drawn products and convolutions instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of what is drawn")
    options = parser.parse_args()
    device = this_device(options.device, catalogue())
    local = (*operations(), *modules()) if not options.drawn else tuple(drawn(options.drawn, options.seed))
    programs = [item for item in local if not options.only or item.name in options.only]
    seen = among_measured(programs)
    if seen and not options.drawn:
        raise SystemExit(f"among the measured shapes, so no test of the model: {', '.join(sorted(seen))}")
    programs = [item for item in programs if item.name not in seen]
    items = []
    # Rows of this run belong to no one's store, and must not teach the next program's models.
    with tempfile.TemporaryDirectory(prefix="kernelcast-plugins-") as home:
        os.environ["KERNELCAST_HOME"] = home
        print(f"{'program':24} {'kind':8} " + " ".join(f"{way:>13}" for way in WAYS), flush=True)
        for program in programs:
            items.append(item := timed(program, device, options.threads))
            cells = " ".join(f"{1e6 * item['seconds'][way]:10.1f} µs" for way in WAYS)
            print(f"{program.name:24} {program.kind:8} {cells}  {item['model_way']}", flush=True)
    messages = means(items)
    for line in report(messages, items):
        print(line)
    if options.json:
        options.json.write_text(json.dumps({"programs": items, "means": messages}, indent=1) + "\n")


def among_measured(programs: Sequence[Program]) -> set[str]:
    """Names of programs whose shape was measured for training."""
    measured = {shape_of(spec_from_row(row)) for family in ("gemm", "conv2d") for row in tiled_rows(family)}
    return {program.name for program in programs if program.spec is not None and shape_of(program.spec) in measured}


def tiled_rows(family: str) -> Iterator[dict[str, Any]]:
    """Shipped rows of IREE's kernels, as plain data."""
    for directory in (SHIPPED_DIR, TILES_DIR):
        table = read_shipped(family, directory=directory)
        yield from table.filter(pc.equal(table["impl"], "iree")).to_pylist()


def shape_of(spec: KernelSpec) -> tuple[object, ...]:
    """What makes two kernels the same work."""
    return spec.family, spec.variant, spec.dims


def timed(program: Program, device: str, threads: int) -> dict[str, Any]:
    """Seconds of one call, compiled in each of the ways, and what tuning took."""
    began = time.perf_counter()
    alone = tune(program.text, device, threads)
    alone_s = time.perf_counter() - began
    with (
        tempfile.TemporaryDirectory(prefix="kernelcast-plugins-") as folder,
        measuring(program.text, program.name, device, threads, catalogue(), lambda *_: None) as (measure, race),
    ):
        began = time.perf_counter()
        best = tune(program.text, device, threads, top=TOP, measure=measure, race=race)
        measured_s = time.perf_counter() - began
        paths = {way: Path(folder) / f"{i}.vmfb" for i, way in enumerate(WAYS)}
        compile_file(program.text, alone.target, paths["default"])
        compile_file(program.text, (*alone.target, "--iree-opt-data-tiling"), paths["data tiling"])
        for way, result in ((WAYS[2], alone), (WAYS[3], best)):
            paths[way] = compiled(program, result, Path(folder) / way.replace(" ", "-"))
        rounds = [race(paths) for _ in range(ROUNDS)]
    seconds = {way: min(each.get(way, math.inf) for each in rounds) for way in WAYS}
    return {"name": program.name, "kind": program.kind, "seconds": seconds, "model_way": alone.variant,
            "measure_way": best.variant, "tune_s": alone_s, "tune_measured_s": measured_s,
            "notes": [*alone.notes]}  # fmt: skip


def compiled(program: Program, result: TuningResult, folder: Path) -> Path:
    """The module compiled as the plug-in says."""
    folder.mkdir()
    return compile_with(program.text, result.target, result.chosen, folder)


def means(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Geometric means of the speed-ups, per slice, and the worst against the better of the two ways without us."""
    slices = {"all": found, "operations": [item for item in found if item["kind"] != "module"]}
    slices |= {kind: [item for item in found if item["kind"] == kind] for kind in ("gemm", "conv2d", "module")}
    return {name: _means(rows) for name, rows in slices.items() if rows}


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    messages: dict[str, float] = {"programs": len(rows)}
    for way in WAYS[2:]:
        for base in WAYS[:2]:
            ratios = [row["seconds"][base] / row["seconds"][way] for row in rows]
            messages[f"{way} over {base}"] = statistics.geometric_mean(ratios)
        against = [row["seconds"][way] / min(row["seconds"][base] for base in WAYS[:2]) for row in rows]
        messages[f"{way} at worst"] = max(against)
        messages[f"{way} slower by over 3 %"] = sum(ratio > ALLOWED_SLOWER for ratio in against)
    return messages


def report(told: Mapping[str, Mapping[str, float]], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The means as lines of text."""
    lines = [""]
    for name, figures in told.items():
        lines.append(f"{name} ({figures['programs']:.0f})")
        lines.extend(
            f"  {way:12} {figures[f'{way} over default']:.2f} × default, {figures[f'{way} over data tiling']:.2f} × data "
            f"tiling; at worst {figures[f'{way} at worst']:.3f} of the better of both, "
            f"{figures[f'{way} slower by over 3 %']:.0f} slower by over 3 %"
            for way in WAYS[2:]
        )
    tuning = (
        statistics.median(item["tune_s"] for item in found),
        statistics.median(item["tune_measured_s"] for item in found),
    )
    return [*lines, f"tuning took {tuning[0]:.1f} s by the model alone and {tuning[1]:.0f} s with measuring (medians)"]


if __name__ == "__main__":
    main()
