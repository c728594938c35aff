"""`kernelcast calibrate`: adapt a model to a device with a handful of its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import DeviceFiles, Json, Model, model_dir, need_extra, note, out, print_json, read_catalogue
from .train import KeepGood

if TYPE_CHECKING:
    from ..models.adaptation import Adapted


def calibrate(
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the adapted model goes.")],
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again."),
    ] = None,
    descriptor: Annotated[
        list[str] | None,
        typer.Option(
            "--descriptor", metavar="DEVICE", help="Use the measured facts in this device's file; may be repeated."
        ),
    ] = None,
    model: Model = None,
    split: Annotated[str | None, typer.Option(help="Only rows whose split column says this.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Adapt a model to a device with 8 to 128 of its rows: kernelcast calibrate --data few.parquet --out my-model.

    `kernelcast suggest` says which cases to measure for it. Where `kernelcast characterize` ran, its file has some already:
    --device-file my-gpu.yaml --descriptor my-gpu. Other devices are answered as before.
    """
    try:
        from ..models.adaptation import adapt
        from ..models.artifact import read_manifest
        from ..models.descriptor import with_descriptors
        from ..models.tables import labelled_files

        devices = read_catalogue(device_file)
        files, base = data or [], model_dir(model)
        tables = (
            labelled_files(files, split=split, family=family, keep_good=keep_good, devices=devices) if files else []
        )
        tables = with_descriptors(tables, descriptor or [], devices, read_manifest(base)["families"])
        reports = adapt(base, tables, out_dir, devices=devices, files=files)
    except ImportError as error:
        raise need_extra("calibrate", "train", error) from error
    if as_json:
        print_json(reports)
    else:
        _show(reports)
    note(f"the adapted model is in {out_dir}")


def _show(reports: Sequence[Adapted]) -> None:
    from rich.table import Table

    table = Table(title="mean / median APE, each case answered without itself", box=None, pad_edge=False)
    for title in ("family", "device", "rows", "target", "before", "after"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for one in reports:
        used = str(one.rows) if one.rows == one.given else f"{one.rows} of {one.given}"
        for i, target in enumerate(one.before):
            head = (one.family, one.device, used) if i == 0 else ("", "", "")
            table.add_row(*head, target, _words(one.before[target]), _words(one.after[target]))
    out().print(table)


def _words(errors: Any) -> str:
    return f"{errors['mean_ape_pct']:.1f} / {errors['median_ape_pct']:.1f} %"
