"""`kernelcast evaluate` and `kernelcast evaluate curve`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError
from .. import console

if TYPE_CHECKING:
    from ...models.evaluation.evaluation import Evaluation
    from ...models.evaluation.learning_curve import LearningCurves
    from ...models.metrics import Metrics


def evaluate(
    data: console.Data,
    model: console.Model = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only rows of this split, or of all that 'val_*' names; may be given again."),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report with plots.")] = None,
    compare: Annotated[
        str,
        typer.Option(metavar="HELD_OUT", help="Retrain every regressor; judge on held-out rows: hash, region, device."),
    ] = "",
    coverage: console.Coverage = 0.9,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    more_data: console.MoreData = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Compare predictions with measured rows: errors by slice, ranking, coverage and width of the intervals."""
    if compare and model is not None:
        raise SpecError("--compare trains its own models; leave --model out")
    if compare and len(split or ()) > 1:
        raise SpecError("--compare holds rows out by itself and takes one --split at most", field="split")
    files = [*data, *(more_data or [])]
    devices = console.read_catalogue(device_file)
    with console.plain_errors("evaluate", "train"):
        if compare:
            from ...models.evaluation.evaluation import compare as compare_regressors
            from ...models.training.labelled_cases import labelled_files

            only = split[0] if split else None
            tables = labelled_files(files, split=only, family=family, skip_bad_rows=skip_bad_rows, devices=devices)
            with console.progress_bar() as progress:
                evaluation = compare_regressors(
                    tables, held_out=compare, coverage=coverage, devices=devices, progress=progress
                )
        else:
            from ...models.evaluation.evaluation import evaluate_files

            evaluation = evaluate_files(
                console.model_dir(model), files, split=split or (), family=family, skip_bad_rows=skip_bad_rows,
                coverage=coverage, devices=devices,
            )  # fmt: skip
        from ...models.evaluation.reports import report_html

        _answer(evaluation, as_json, show_evaluation, report_html, html)


def _answer(
    result: Any, as_json: bool, show: Callable[[Any], None], page: Callable[[Any], str], html: Path | None
) -> None:
    """Write the report where one is wanted, and print the result."""
    if html is not None:
        from ...models.evaluation.charts import write_page

        write_page(page(result), html)
    if as_json:
        console.print_json(result.to_json())
    else:
        show(result)
    if html is not None:
        console.note(f"the report is in {html}")


_HEADS = ("rows", "mean APE", "median APE", "within 10 %", "Spearman", "coverage", "width")
_TARGETS = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}


def show_evaluation(evaluation: Evaluation) -> None:
    """Every regressor by family, then the slices of the one the evaluation tells of."""
    compared = (
        (row.family, _TARGETS[row.target], row.regressor, row.device, *_cells(row.metrics))
        for row in evaluation.compared
    )
    heads, title = ("family", "target", "regressor", "left out", *_HEADS), evaluation.title
    console.show_table(heads, compared, numbers=_HEADS, title=f"{title}; intervals for {evaluation.coverage * 100:g} %")
    console.out().print()
    sliced = (
        (_TARGETS[part.target], part.family or "all", part.by, part.name, *_cells(part.metrics))
        for part in evaluation.slices
    )
    heads = ("target", "family", "slice", "", *_HEADS)
    console.show_table(heads, sliced, numbers=_HEADS, title=f"{evaluation.regressor} by slice")
    for remark in evaluation.notes:
        console.note(f"note: {remark}")


def _cells(metrics: Metrics) -> list[str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{value:.1f} %"

    rank = "" if metrics.spearman is None else f"{metrics.spearman:.3f}"
    return [str(metrics.n), percent(metrics.mean_ape_pct), percent(metrics.median_ape_pct), percent(metrics.within_10_pct),
            rank, percent(metrics.coverage_pct), percent(metrics.width_pct)]  # fmt: skip


def learning_curve(
    data: console.Data,
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
    regressor: Annotated[str | None, typer.Option(help="Regressor to train (default: blend).")] = None,
    html: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write an HTML report.")] = None,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    more_data: console.MoreData = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Show how errors fall with what was measured: train on more and more rows, judge by the same ones."""
    with console.plain_errors("evaluate curve", "train"):
        from ...models.evaluation.learning_curve import curves_html, learning_curve_files
        from ...models.training.training import DEFAULT_REGRESSOR

        with console.progress_bar() as progress:
            curves = learning_curve_files(
                [*data, *(more_data or [])], split=split or (), train_split=train_split, family=family,
                skip_bad_rows=skip_bad_rows, devices=console.read_catalogue(device_file), rows=_numbers(rows),
                seeds=seeds, order=order, regressor=regressor or DEFAULT_REGRESSOR, progress=progress,
            )  # fmt: skip
        _answer(curves, as_json, _show, curves_html, html)


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in console.words(text)]
    except ValueError as error:
        raise SpecError(
            f"--rows is {text!r}; give whole numbers joined by commas, such as 100,300", field="rows"
        ) from error


def _show(curves: LearningCurves) -> None:
    from ...models.evaluation.learning_curve import FIGURES

    heads = ("family", "target", "rows", "seconds", "mean APE", "median APE", "within 10 %", "coverage", "width")
    title = f"{curves.regressor}: errors by rows trained on; median over orders (least–most)"
    rows = []
    for curve in curves.curves:
        names = (curve.family, curve.target)
        for point in curve.points:
            bands = [getattr(point, name) for name in FIGURES]
            bands_shown = [
                f"{band.median:.1f} ({band.low:.1f}–{band.high:.1f})" if band.low < band.high else f"{band.median:.1f}"
                for band in bands
            ]
            rows.append((*names, str(point.rows), f"{point.seconds.median:.0f}", *bands_shown))
            names = ("", "")
    console.show_table(heads, rows, numbers=heads[2:], title=title)
    for remark in curves.notes:
        console.note(f"note: {remark}")
