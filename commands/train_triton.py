"""`kernelcast train-triton`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Json, need_extra, note, out, print_json, progress_bar


def train_triton(
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PARQUET|DIR",
            help="What `compile-triton-programs` wrote; may be given again; default: the shipped table.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")
    ] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Trees of each member.")] = 300,
    as_json: Json = False,
) -> None:
    """Train a model of compiled code on Triton programs: kernelcast train-triton --out my-model."""
    try:
        from ..models.mlir.triton_files import train_labels
        from ..models.mlir.triton_training import Recipe

        with progress_bar() as progress:
            report = train_labels(data or [], out_dir, Recipe(folds=folds, rounds=rounds, seed=seed), progress)
    except ImportError as error:
        raise need_extra("train-triton", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report.errors)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    note(f"{report.n_rows} rows of {report.n_programs} programs; the model is in {out_dir}")


def _show(errors: dict[str, dict[str, float]]) -> None:
    from rich.table import Table

    table = Table(title="errors for programs, each held out once", box=None, pad_edge=False)
    for title in ("", "rows", "registers R²", "off by", "spills AUC", "instructions off by", "shared memory exact"):
        table.add_column(title, justify="right" if title else "left")
    for name, own in errors.items():
        table.add_row(
            name, f"{own['n']:.0f}", f"{own['registers_r2']:.3f}", f"{own['registers_mae']:.1f}", f"{own['spill_auc']:.3f}",
            f"{own['instructions_median_ape_pct']:.1f} %", f"{own['shared_exact_pct']:.0f} %",
        )  # fmt: skip
    out().print(table)
