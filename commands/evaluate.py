"""`kernelcast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, Model, model_dir, need_extra, note, print_json, progress_bar, read_catalogue
from .scores import show_evaluation
from .train import Data, KeepGood

Splits = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Only rows of this split, or of all that 'val_*' names; may be given again."),
]  # fmt: skip


def evaluate(
    data: Data,
    model: Model = None,
    split: Splits = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report with plots.")] = None,
    compare: Annotated[
        str,
        typer.Option(
            metavar="HELD_OUT", help="Train every regressor anew; judge on held-out rows: hash, region, device."
        ),
    ] = "",
    coverage: Annotated[float, typer.Option(help="Share of cases the intervals are to contain.")] = 0.9,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files, as after --data.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Compare predictions with measured rows: errors by slice, ranking, coverage and width of the intervals."""
    if compare and model is not None:
        raise SpecError("--compare trains its own models; leave --model out")
    if compare and len(split or ()) > 1:
        raise SpecError("--compare holds rows out by itself and takes one --split at most", field="split")
    files = [*data, *(more_data or [])]
    devices = read_catalogue(device_file)
    try:
        if compare:
            from ..models import comparison
            from ..models.tables import labelled_files

            only = split[0] if split else None
            tables = labelled_files(files, split=only, family=family, keep_good=keep_good, devices=devices)
            with progress_bar() as progress:
                found = comparison.compare(
                    tables, held_out=compare, coverage=coverage, devices=devices, progress=progress
                )
            if html is not None:
                from ..models.report import write_report

                write_report(found, html)
        else:
            from ..models import evaluation

            found = evaluation.evaluate_files(
                model_dir(model), files, split=split, family=family, keep_good=keep_good, html=html, coverage=coverage,
                devices=devices,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("evaluate", "train", error) from error
    if as_json:
        print_json(found.to_json())
    else:
        show_evaluation(found)
    if html is not None:
        note(f"the report is in {html}")
