"""`kernelcast llm calibrate`: an engine's profile from measured steps of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ...features.errors import SpecError
from .. import console
from .steps import TEXT_COLUMNS

LABELS = ("step_s", "step_p50_s")
"""Columns that may hold a step's measured time; the first that is there is read."""


def calibrate(
    steps: Annotated[
        Path, typer.Option(metavar="FILE", help="Measured steps, as for `kernelcast llm steps`, with step_s or step_p50_s.")
    ],
    out: Annotated[Path, typer.Option(metavar="YAML", help="Where the profile goes.")],
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Fit what an engine adds to its kernels to some 20 measured steps: kernelcast llm calibrate --steps mine.parquet --out mine.yaml

    All steps are of one engine. `kernelcast llm steps --profile mine.yaml` uses the profile.
    """
    console.check_file(out)
    with console.plain_errors("llm calibrate", "calibrate"):
        import numpy as np

        from ...datasets.rows.table_columns import read_table
        from ...models.predict.predictor import load_predictor
        from ...workloads.serving.engine_profile import profile_text, shipped_profile
        from ...workloads.serving.profile_fit import fit_profile, half_width, left_out_errors
        from ...workloads.serving.step_rows import NEEDED, OPTIONAL, step_columns, step_groups

        given = read_table(steps, TEXT_COLUMNS)
        label = next((name for name in LABELS if name in given.column_names), None)
        if label is None:
            raise SpecError(f"{steps} has no measured times; give a column {' or '.join(LABELS)}", field=LABELS[0])
        columns = {name: given[name].to_pylist() for name in (*NEEDED, *OPTIONAL) if name in given.column_names}
        engines = sorted({(str(a), str(b or "")) for a, b in zip(
            columns.get("engine", []), columns.get("engine_version", [None] * given.num_rows), strict=True
        )})  # fmt: skip
        if len({name for name, _ in engines}) > 1:
            names = ", ".join(dict.fromkeys(name for name, _ in engines))
            raise SpecError(f"{steps} has steps of {names}; a profile is of one engine", field="engine")
        start = shipped_profile(*engines[-1]) if engines else None
        predictor = load_predictor(console.model_dir(model), console.read_catalogue(device_file))
        groups, refused = step_groups(predictor, columns, start)
        table, rows = step_columns(groups, refused)
        seconds = np.array([given[label][row].as_py() or np.nan for row in rows], dtype=np.float64)
        if start is None or not np.all(np.isfinite(seconds) & (seconds > 0)):
            raise SpecError(f"{label} must be a positive number of seconds in every row that is fitted", field=label)
        fitted = fit_profile(start, table, seconds)
        folds = [place % _FOLDS for place in range(len(rows))]
        errors = left_out_errors(start, table, seconds, folds)
        before = np.log(start.seconds(table) / seconds)
    spreads = {}
    for name, of_phase in (("decode_spread", ~table.prompt), ("prompt_spread", table.prompt)):
        own = half_width(errors[of_phase])
        # Too few steps of a kind say nothing of its spread.
        spreads[name] = getattr(start, name) if own is None else own
    fitted = replace(fitted, **spreads, version=engines[-1][1] or start.version, source=f"{len(rows)} steps of {steps.name}")
    out.write_text(profile_text([fitted], "# Written by kernelcast llm calibrate.\n"), encoding="utf-8")
    report = {"out": str(out), "steps": len(rows), "refused": sum(item is not None for item in refused)}
    for name, item in (("before", before), ("after", errors)):
        percent = 100 * np.abs(np.expm1(item))
        report[name] = {"mean_ape_pct": float(percent.mean()), "median_ape_pct": float(np.median(percent))}
    if as_json:
        console.print_json(report)
        return
    for name, words in (("before", "with the shipped profile"), ("after", "each step answered without itself")):
        errors_pct = report[name]
        console.show_fact(name, f"mean {errors_pct['mean_ape_pct']:.1f} %, median {errors_pct['median_ape_pct']:.1f} %, {words}")
    console.note(f"the profile of {len(rows)} steps is in {out}, {report['refused']} rows refused")


_FOLDS = 20
"""Parts of the steps, each answered by a profile fitted to the others: with 20 steps, one each."""
