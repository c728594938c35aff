"""`kernelcast export-ops`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError, listed
from ..home import home_dir
from .console import (
    DeviceFiles,
    Json,
    Model,
    model_dir,
    need_extra,
    note,
    out,
    print_json,
    progress_bar,
    read_catalogue,
)
from .out_place import check_folder

if TYPE_CHECKING:
    from ..models.tuning.distilling import Errors
    from ..models.tuning.export_files import Exported


def export_ops(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Devices the models know; may be given again; default: all."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Kernel families; may be given again; default: all that can be."),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the files go; default: where plug-ins look first."),
    ] = None,
    model: Model = None,
    rows: Annotated[
        int, typer.Option(min=50, max=1_000_000, help="Operations asked about per device and number format measured.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of everything random.")] = 0,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Small models of single operations for compilers' passes: kernelcast export-ops --device my-gpu.

    They are taught by the model: your own with --model, or the champion. Takes minutes.
    """
    folder = home_dir() / "tuning" if out_dir is None else out_dir
    if out_dir is not None:
        check_folder(folder)
    try:
        from ..models.predictor import load_predictor
        from ..models.tuning.distilling import Recipe, families
        from ..models.tuning.export_files import export_files

        catalogue = read_catalogue(device_file)
        devices = [catalogue.get(name) for name in dict.fromkeys(device or catalogue.names())]
        wanted = list(dict.fromkeys(family or families()))
        if unknown := [name for name in wanted if name not in families()]:
            raise SpecError(
                f"no models of single operations of {unknown[0]!r}; families: {listed(families())}", field="family"
            )
        recipe = Recipe.of_rows(rows, seed)
        predictor = load_predictor(model_dir(model), catalogue)
        with progress_bar() as progress:
            report = export_files(predictor, wanted, devices, folder, recipe=recipe, progress=progress)
    except ImportError as error:
        raise need_extra("export-ops", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report.exported)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    took_s = sum(one.asking_s + one.fitting_s for one in report.exported)
    size_b = sum(one.size_b for one in report.exported)
    note(f"{len(report.exported)} models of {size_b / 1e6:.2f} MB together, made in {took_s:.0f} s, are in {folder}")


def _show(exported: Iterable[Exported]) -> None:
    from rich.table import Table

    table = Table(title="errors in latency: mean / median absolute, and share within 10 %", box=None, pad_edge=False)
    titles = ("model", "device", "numbers", "against the predictor's fresh answers", "against measured rows")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place > len(titles) - 3 else "left")
    for one in exported:
        by_rows = {(found.device, found.dtype): found for found in one.against_rows}
        for found in one.against_teacher:
            rows = by_rows.get((found.device, found.dtype))
            carried = "" if found.measured else " (carried over)"
            table.add_row(one.kind, found.device + carried, found.dtype, _told(found), _told(rows))
    out().print(table)


def _told(found: Errors | None) -> str:
    if found is None or not found.latency.get("n"):
        return "–"
    own = found.latency
    return f"{own['mean_ape_pct']:.1f} / {own['median_ape_pct']:.1f} %, {own['within_10_pct']:.0f} % of {own['n']:.0f}"
