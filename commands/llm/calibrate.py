"""`kernelcast llm calibrate`: an engine's profile from measured steps of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ...features.errors import SpecError
from ...files import write_whole
from .. import console
from .steps import TEXT_COLUMNS

LABELS = ("step_s", "step_p50_s")
"""Columns that may hold a step's measured time; the first that is there is read."""


def calibrate(
    steps: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Measured steps, as for `kernelcast llm steps`, with step_s or step_p50_s."),
    ],
    out: Annotated[Path, typer.Option(metavar="YAML", help="Where the profile goes.")],
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Fit what an engine adds to its kernels to some 20 steps: kernelcast llm calibrate --steps mine.parquet --out mine.yaml

    All steps are of one engine. `kernelcast llm steps --profile mine.yaml` uses the profile.
    """
    console.check_file(out)
    with console.plain_errors("llm calibrate", "calibrate"):
        import numpy as np

        from ...datasets.rows.table_columns import read_table
        from ...models.predict.predictor import load_predictor
        from ...workloads.serving.engine.profile import engine_name, profile_text, shipped_profile
        from ...workloads.serving.engine.profile_fit import fit_profile, half_width, left_out_errors
        from ...workloads.serving.step_rows import NEEDED, OPTIONAL, step_columns, step_groups

        measured = read_table(steps, TEXT_COLUMNS)
        label = next((name for name in LABELS if name in measured.column_names), None)
        if label is None:
            raise SpecError(f"{steps} has no measured times; give a column {' or '.join(LABELS)}", field=LABELS[0])
        columns = {name: measured[name].to_pylist() for name in (*NEEDED, *OPTIONAL) if name in measured.column_names}
        engines = sorted({(engine_name(a), str(b or "")) for a, b in zip(
            columns.get("engine", []), columns.get("engine_version", [None] * measured.num_rows), strict=True
        )})  # fmt: skip
        if len({name for name, _ in engines}) > 1:
            names = ", ".join(dict.fromkeys(name for name, _ in engines))
            raise SpecError(f"{steps} has steps of {names}; a profile is of one engine", field="engine")
        start = shipped_profile(*engines[-1]) if engines else None
        predictor = load_predictor(console.model_dir(model), console.read_catalogue(device_file))
        groups, refused = step_groups(predictor, columns, start)
        table, rows = step_columns(groups, refused)
        labels = [measured[label][row].as_py() for row in rows]
        if start is None or not all(isinstance(item, int | float) and 0 < item < np.inf for item in labels):
            raise SpecError(f"{label} must be a positive number of seconds in every row that is fitted", field=label)
        seconds = np.array(labels, dtype=np.float64)
        fitted = fit_profile(start, table, seconds)
        folds = [place % _FOLDS for place in range(len(rows))]
        errors = left_out_errors(start, table, seconds, folds)
        before = np.log(start.seconds(table) / seconds)
        if (typical := float(np.exp(np.median(np.abs(errors))))) > MOST_OFF:
            raise SpecError(
                f"half of the {len(rows)} steps are off by more than {typical:.3g} times after the fit: {label} is in seconds, "
                "of whole steps", field=label,
            )  # fmt: skip
    fitted = replace(
        fitted, version=engines[-1][1] or start.version, source=f"{len(rows)} steps of {steps.name}",
        # Too few steps of a kind say nothing of its spread.
        decode_spread=half_width(errors[~table.prompt]) or start.decode_spread,
        prompt_spread=half_width(errors[table.prompt]) or start.prompt_spread,
    )  # fmt: skip
    write_whole(out, profile_text([fitted], "# Written by kernelcast llm calibrate.\n"))
    counts = {"steps": len(rows), "refused": sum(item is not None for item in refused)}
    percents = {name: 100 * np.abs(np.expm1(item)) for name, item in (("before", before), ("after", errors))}
    if as_json:
        console.print_json({"out": str(out), **counts} | {
            name: {"mean_ape_pct": float(item.mean()), "median_ape_pct": float(np.median(item))}
            for name, item in percents.items()
        })  # fmt: skip
        return
    remarks = {"before": "with the shipped profile", "after": "each step answered without itself"}
    for name, item in percents.items():
        console.show_fact(name, f"mean {item.mean():.1f} %, median {np.median(item):.1f} %, {remarks[name]}")
    console.note(f"the profile of {counts['steps']} steps is in {out}, {counts['refused']} rows refused")


MOST_OFF = 3.0
"""Factor by which a usual step may be off after a fit: none of a measured engine is; wrong units are off by more."""
_FOLDS = 20
"""Parts of the steps, each answered by a profile fitted to the others: with 20 steps, one each."""
