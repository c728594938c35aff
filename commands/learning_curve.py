"""`kernelcast learning-curve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue
from .train import Data, KeepGood

if TYPE_CHECKING:
    from ..models.learning_curve import LearningCurves


def learning_curve(
    data: Data,
    rows: Annotated[
        str, typer.Option(metavar="N,N,…", help="Numbers of rows to train on.")
    ] = "100,300,1000,3000,10000",
    seeds: Annotated[int, typer.Option(help="Orders tried for each number of rows.")] = 3,
    order: Annotated[str, typer.Option(help="random, or file for the order of the table.")] = "random",
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Judge by this split, or all that 'val_*' names; may be given again (default: a tenth of the shapes).",
        ),
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(help="Train on this split (default: train with --split, else all).")
    ] = None,
    regressor: Annotated[str | None, typer.Option(help="What learns (default: blend).")] = None,
    html: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write an HTML report.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files, as after --data.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Show how errors fall with what was measured: train on more and more rows, judge by the same ones."""
    try:
        from ..models.curve_files import learning_curve_files
        from ..models.training import DEFAULT_REGRESSOR

        with progress_bar() as progress:
            found = learning_curve_files(
                [*data, *(more_data or [])], split=split or (), train_split=train_split, family=family,
                keep_good=keep_good, devices=read_catalogue(device_file), rows=_numbers(rows), seeds=seeds, order=order,
                regressor=regressor or DEFAULT_REGRESSOR, progress=progress,
            )  # fmt: skip
        if html is not None:
            from ..models.curve_report import write_curves

            write_curves(found, html)
    except ImportError as error:
        raise need_extra("learning-curve", "train", error) from error
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)
    if html is not None:
        note(f"the report is in {html}")


def _numbers(given: str) -> list[int]:
    try:
        return [int(word) for word in given.split(",")]
    except ValueError as error:
        raise SpecError(
            f"--rows is {given!r}; give whole numbers joined by commas, such as 100,300", field="rows"
        ) from error


def _show(found: LearningCurves) -> None:
    from rich.table import Table

    screen = Table(title=f"{found.regressor}: errors by rows trained on; median over orders (least–most)", box=None,
                   pad_edge=False)  # fmt: skip
    for head in ("family", "target"):
        screen.add_column(head)
    for head in ("rows", "seconds", "mean APE", "median APE", "within 10 %", "coverage", "width"):
        screen.add_column(head, justify="right", no_wrap=True)
    for curve in found.curves:
        for i, one in enumerate(curve.points):
            bands = (one.mean_ape_pct, one.median_ape_pct, one.within_10_pct, one.coverage_pct, one.width_pct)
            told = [f"{band.median:.1f} ({band.low:.1f}–{band.high:.1f})" if band.low < band.high else f"{band.median:.1f}"
                    for band in bands]  # fmt: skip
            names = (curve.family, curve.target) if i == 0 else ("", "")
            screen.add_row(*names, str(one.rows), f"{one.seconds.median:.0f}", *told)
    out().print(screen)
    for remark in found.notes:
        note(f"note: {remark}")
