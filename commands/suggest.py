"""`kernelcast suggest`: which cases to measure on a device, so that `kernelcast calibrate` gains most from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, Model, model_dir, need_extra, note, out, print_json, read_catalogue
from .out_place import check_file

if TYPE_CHECKING:
    import pyarrow as pa

    from ..features.cases import Cases
    from ..models.suggestion import Suggested

_SETTINGS = ("dtype", "kv_dtype", "variant", "impl", "threads", "cache_state")
_ALWAYS = ("family", "device", "dtype", "variant", "impl")
"""Columns of the form that are written even where they are empty: a reader looks for them."""


def suggest(
    device: Annotated[str, typer.Option(help="The device to calibrate for; see `kernelcast devices`.")],
    n: Annotated[int, typer.Option("--n", help="How many cases.")] = 32,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY", help="Choose from this family; may be given again (default: all of the model)."),
    ] = None,
    impl: Annotated[
        list[str] | None,
        typer.Option(metavar="IMPL", help="Choose from cases of this impl; may be given again (default: all)."),
    ] = None,
    model: Model = None,
    candidates: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="Choose from the rows of this .parquet or .csv, whatever their device."),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write them as a .csv or .parquet to fill in.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Say which cases to measure first on a device: kernelcast suggest --device l40s --n 32 --out cases.csv

    Fill in latency_s, in seconds, and give the file to `kernelcast calibrate`. The most useful come first.
    """
    if out_file is not None:
        _check_out(out_file)
    devices = read_catalogue(device_file)
    try:
        from ..models.suggestion import suggest as find

        pool = None if candidates is None else _read_candidates(candidates, devices.get(device).name, family)
        found = find(model_dir(model), device, n, pool, family, impls=impl or (), seed=seed, devices=devices)
    except ImportError as error:
        raise need_extra("suggest", "train", error) from error
    if out_file is not None:
        _write(_form(found), out_file)
    total = sum(one.measuring_s for one in found)
    if as_json:
        print_json({"device": devices.get(device).name, "measuring_s": total, "cases": [_plain(one) for one in found]})
    else:
        _show(found)
        note(f"measuring them takes about {total:.1f} s of the device")
    if len(found) < n:
        note(f"these are all the candidates there are, {len(found)} instead of {n}")
    if out_file is not None:
        note(
            f"written to {out_file}: fill in latency_s (in seconds), then `kernelcast calibrate --data {out_file} --out DIR`,"
        )
        note("with --keep-good where some stay empty")


def _read_candidates(path: Path, device: str, families: Sequence[str] | None) -> list[Cases]:
    """The cases of a form table, by family; no label and no device is looked at."""
    import pyarrow as pa

    from ..datasets.form import judge_form
    from ..datasets.form_columns import TEXT_COLUMNS
    from ..datasets.tables import read_table

    table = read_table(path, TEXT_COLUMNS)
    if "device" in table.column_names:
        table = table.drop_columns(["device"])
    table = table.append_column("device", pa.array([device] * table.num_rows, pa.string()))
    only = families[0] if families and len(families) == 1 and "family" not in table.column_names else None
    form = judge_form(table, origin=str(path), family=only, need_labels=False)
    return [rows.cases for rows in form.parts.values()]


def _row(one: Suggested) -> dict[str, Any]:
    """A case as a row of the form; what is empty is None."""
    settings = {name: getattr(one.spec, name) or None for name in _SETTINGS}
    return {"family": one.spec.family, "device": one.device, **settings, **dict(one.spec.dims), **dict(one.spec.config)}


def _form(found: Sequence[Suggested]) -> pa.Table:
    """The cases in the bring-your-own-measurements form, with nothing in `latency_s`."""
    import pyarrow as pa

    rows = [_row(one) for one in found]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    kept = {
        name: column for name, column in columns.items() if name in _ALWAYS or any(cell is not None for cell in column)
    }
    text = {"family", "device", *_SETTINGS} - {"threads"}
    cells = {name: pa.array(column, pa.string() if name in text else pa.int64()) for name, column in kept.items()}
    return pa.table(cells | {"latency_s": pa.nulls(len(found), pa.float64())})


def _check_out(path: Path) -> None:
    """That the form has a place.

    Raises:
        SpecError: why not.
    """
    from ..datasets.tables import SUFFIXES

    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--out {path} must end in {' or '.join(SUFFIXES)}", field="out")
    check_file(path)


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    from ..datasets.files import StoreError, commit_files, parquet_bytes

    if path.suffix.lower() == ".csv":
        sink = pa.BufferOutputStream()
        pa_csv.write_csv(table, sink)
        content = bytes(sink.getvalue())
    else:
        content = parquet_bytes(table)
    try:
        commit_files([(path, content)])
    except StoreError as error:
        raise SpecError(str(error), field="out") from error


def _plain(one: Suggested) -> dict[str, Any]:
    """A case under the names of `/v1/predict`, and what is said of it."""
    spec = one.spec
    settings = {name: getattr(spec, name) for name in _SETTINGS}
    said = {"latency_s": one.latency_s, "measuring_s": one.measuring_s, "gain": one.gain, "deviation": one.deviation}
    return {"family": spec.family, "device": one.device, "sizes": dict(spec.dims), "config": dict(spec.config),
            **settings, **said}  # fmt: skip


def _show(found: Sequence[Suggested]) -> None:
    from rich.table import Table

    from .units import seconds

    table = Table(title=f"what to measure on {found[0].device}, the most useful first", box=None, pad_edge=False)
    for title in ("", "case", "predicted", "to measure", "then ±"):
        table.add_column(title, justify="left" if title == "case" else "right", overflow="fold")
    for i, one in enumerate(found, start=1):
        left = f"{100 * one.deviation:.0f} %"
        table.add_row(str(i), str(one.spec), seconds(one.latency_s), seconds(one.measuring_s), left)
    out().print(table)
    note("then ±: the typical error expected of the family's other cases once these are measured (one deviation)")
