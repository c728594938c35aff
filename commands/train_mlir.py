"""`kernelcast train-mlir`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue

if TYPE_CHECKING:
    from ..models.mlir.train_files import ProgramReport


def train_mlir(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="What `collect-mlir` wrote, stored or packed; may be given again."),
    ],
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")
    ] = 5,
    epochs: Annotated[float, typer.Option(min=0.01, help="Factor on how long the networks learn.")] = 1.0,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Train a model of whole MLIR programs on measured ones: kernelcast train-mlir --data programs/ --out my-model."""
    try:
        from ..models.mlir.train_files import train_modules
        from ..models.mlir.training import Recipe

        with progress_bar() as progress:
            report = train_modules(
                data, out_dir, recipe=Recipe(folds=folds, seed=seed).lasting(epochs), devices=read_catalogue(device_file),
                progress=progress,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("train-mlir", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report)
    note(f"the model is in {out_dir}")


def _show(report: ProgramReport) -> None:
    from rich.table import Table

    for device, members in report.errors.items():
        title = f"{device}: errors for {report.n_programs[device]} programs, each held out once"
        table = Table(title=title, box=None, pad_edge=False)
        for column in ("", "rows", "mean APE", "median APE", "within 10 %", "Kendall τ"):
            table.add_column(column, justify="right" if column else "left")
        rows = {**{name: own["all"] for name, own in members.items()},
                **{f"  blend, {name}": own for name, own in members["blend"].items() if name != "all"}}  # fmt: skip
        for name, errors in rows.items():
            table.add_row(
                name, f"{errors['n']:.0f}", f"{errors['mean_ape_pct']:.1f} %", f"{errors['median_ape_pct']:.1f} %",
                f"{errors['within_10_pct']:.0f} %", f"{errors['kendall_tau']:.3f}",
            )  # fmt: skip
        out().print(table)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
