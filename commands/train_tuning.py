"""`kernelcast train-tuning`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..home import home_dir
from .console import Json, need_extra, note, out, print_json, progress_bar
from .out_place import check_folder


def train_tuning(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="NAME", help="Kinds of tuning problems; may be given again; default: all with rows."
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="A store or a folder of tables; may be given again; default: the shipped rows and yours.",
        ),
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where models go; default: KERNELCAST_HOME/tuning.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train the models that rank a compiler's choices, from measured configurations: kernelcast train-tuning."""
    folder = out_dir if out_dir is not None else home_dir() / "tuning"
    if out_dir is not None:
        check_folder(folder)
    try:
        from ..models.tuning.training import train_files

        with progress_bar() as progress:
            report = train_files(data, folder, names=kind, progress=progress)
    except ImportError as error:
        raise need_extra("train-tuning", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report.scores, report.n_rows)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    note(f"the models are in {folder}")


def _show(scores: Mapping[str, Mapping[str, float | None]], n_rows: Mapping[str, int]) -> None:
    from rich.table import Table

    table = Table(title="operations of shapes that were held out, means over operations", box=None, pad_edge=False)
    for title in (
        "",
        "rows",
        "operations",
        "error",
        "median",
        "within 10 %",
        "Kendall tau",
        "top-1 regret",
        "top-5 regret",
    ):
        table.add_column(title, justify="right" if title else "left")
    for name, own in scores.items():
        table.add_row(name, f"{n_rows[name]:,}", f"{own['n_tasks']:.0f}", *(_told(own, *column) for column in _COLUMNS))
    out().print(table)


_COLUMNS = (
    ("task_mean_mean_ape_pct", "{:.1f} %"), ("task_mean_median_ape_pct", "{:.1f} %"), ("task_mean_within_10_pct", "{:.0f} %"),
    ("task_mean_kendall_tau", "{:.2f}"), ("task_mean_top_1_regret_pct", "{:.1f} %"), ("task_mean_top_5_regret_pct", "{:.1f} %"),
)  # fmt: skip


def _told(scores: Mapping[str, float | None], name: str, form: str) -> str:
    value = scores[name]
    return "" if value is None else form.format(value)
