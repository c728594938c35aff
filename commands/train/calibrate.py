"""`kernelcast measure suggest` and `train calibrate`: choose cases to measure on a device, and adapt a model to their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import console, names
from ..measure.measure import runnable_impls

if TYPE_CHECKING:
    import pyarrow as pa

    from ...features.batch.cases import Cases
    from ...models.selection.suggest import Suggestion
    from ...models.training.device_calibration import CalibratedDevice


def calibrate(
    out_dir: console.ModelOut,
    data: console.OptionalData = None,
    descriptor: Annotated[
        list[str] | None,
        typer.Option(
            "--descriptor", metavar="DEVICE", help="Use the measured facts in this device's file; may be repeated."
        ),
    ] = None,
    model: console.Model = None,
    split: Annotated[str | None, typer.Option(help="Only rows whose split column says this.")] = None,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Adapt a model to a device with 8 to 1,000 of its rows: kernelcast train calibrate --data few.parquet --out my-model.

    `kernelcast measure suggest` says which cases to measure for it. Where `kernelcast measure machine` ran, its file has some
    already: --device-file my-gpu.yaml --descriptor my-gpu. Predictions for other devices do not change.
    """
    with console.plain_errors("train calibrate", "calibrate"):
        from ...models.family_model.artifact import read_manifest
        from ...models.training.device_calibration import calibrate_to_devices
        from ...models.training.labelled_cases import labelled_files, with_descriptors

        devices = console.read_catalogue(device_file)
        files, base = data or [], console.model_dir(model)
        tables = (
            labelled_files(files, split=split, family=family, skip_bad_rows=skip_bad_rows, devices=devices)
            if files
            else []
        )
        tables = with_descriptors(tables, descriptor or [], devices, read_manifest(base)["families"])
        reports = calibrate_to_devices(base, tables, out_dir, devices=devices, files=files)
    if as_json:
        console.print_json(reports)
    else:
        _show_reports(reports)
    console.note(f"the adapted model is in {out_dir}")


def _show_reports(reports: Sequence[CalibratedDevice]) -> None:
    heads = ("family", "device", "rows", "target", "before", "after")
    rows = []
    for report in reports:
        used = str(report.rows) if report.rows == report.n_given else f"{report.rows} of {report.n_given}"
        head = (report.family, report.device, used)
        for target, before in report.before.items():
            rows.append((*head, target, _words(before), _words(report.after[target])))
            head = ("", "", "")
    title = "mean / median APE, each case answered without itself"
    console.show_table(heads, rows, numbers=("rows",), title=title)


def _words(errors: Any) -> str:
    return f"{errors['mean_ape_pct']:.1f} / {errors['median_ape_pct']:.1f} %"


_SETTINGS = ("dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "timing")
_ANY = "any"
"""What `--impl` says for every implementation that the model knows."""

_ALWAYS = ("family", "device", "dtype", "variant", "impl")
"""Columns of the form that are written even where they are empty: a reader looks for them."""


def suggest(
    device: names.OneDevice,
    n: Annotated[int, typer.Option("--n", help="How many cases.")] = 32,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY", help="Choose from this family; may be given again (default: all of the model)."),
    ] = None,
    impl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IMPL",
            help="Only cases of this impl, or: any; may be given again (default: what kernelcast measures there).",
        ),
    ] = None,
    model: console.Model = None,
    candidates: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="Choose from the rows of this .parquet or .csv, whatever their device."),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write them as a .csv or .parquet to fill in.")
    ] = None,
    seed: console.Seed = 0,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Suggest which cases to measure first on a device: kernelcast measure suggest --device l40s --n 32 --out cases.csv

    Lists what this project can run on one such device; --impl any lists all that the model knows. `kernelcast measure` runs
    them there, or fill in latency_s, in seconds; then give the file to `kernelcast train calibrate`. The most useful come
    first.
    """
    from ..predict.predict_table import check_table, write_table

    if out_file is not None:
        check_table(out_file)
    devices = console.read_catalogue(device_file)
    target = names.device(device, devices)
    with console.plain_errors("measure suggest", "calibrate"):
        from ...models.selection.suggest import suggest as find

        pool = None if candidates is None else _read_candidates(candidates, target.name, family)
        runnable = pool is None and not impl
        chosen = runnable_impls(target, devices) if runnable else impl or ()
        suggestions = find(
            console.model_dir(model), target.name, n, pool, family, impls=() if _ANY in chosen else chosen,
            single_device=runnable, seed=seed, devices=devices,
        )  # fmt: skip
    if out_file is not None:
        write_table(_form(suggestions), out_file)
    total = sum(case.measuring_s for case in suggestions)
    if as_json:
        console.print_json(
            {"device": target.name, "measuring_s": total, "cases": [_plain(case) for case in suggestions]}
        )
    else:
        _show_suggestions(suggestions)
        console.note(f"measuring them takes about {total:.1f} s of the device")
    if len(suggestions) < n:
        console.note(f"these are all the candidates there are, {len(suggestions)} instead of {n}")
    if out_file is not None:
        console.note(
            f"written to {out_file}: `kernelcast measure {out_file}` on that machine, or fill in latency_s (in seconds), then "
            f"`kernelcast train calibrate --data FILE --out DIR`"
        )
        console.note("add --skip-bad-rows if you leave some of them empty")


def _read_candidates(path: Path, device: str, families: Sequence[str] | None) -> list[Cases]:
    """The cases of a form table, by family; no label and no device is looked at."""
    import pyarrow as pa

    from ...datasets.form.form import TEXT_COLUMNS, judge_form
    from ...datasets.rows.table_columns import read_table

    table = read_table(path, TEXT_COLUMNS)
    if "device" in table.column_names:
        table = table.drop_columns(["device"])
    table = table.append_column("device", pa.array([device] * table.num_rows, pa.string()))
    only = families[0] if families and len(families) == 1 and "family" not in table.column_names else None
    form = judge_form(table, origin=str(path), family=only, need_labels=False)
    return [rows.cases for rows in form.parts.values()]


def _form(suggestions: Sequence[Suggestion]) -> pa.Table:
    """The cases in the bring-your-own-measurements form, with nothing in `latency_s`."""
    import pyarrow as pa

    settings = [{name: getattr(case.spec, name) or None for name in _SETTINGS} for case in suggestions]
    rows: list[dict[str, Any]] = [
        {"family": case.spec.family, "device": case.device, **words, **dict(case.spec.dims), **dict(case.spec.config)}
        for case, words in zip(suggestions, settings, strict=True)
    ]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    text = {"family", "device", *_SETTINGS} - {"threads"}
    cells = {
        name: pa.array(column, pa.string() if name in text else pa.int64())
        for name, column in columns.items()
        if name in _ALWAYS or any(cell is not None for cell in column)
    }
    return pa.table(cells | {"latency_s": pa.nulls(len(suggestions), pa.float64())})


def _plain(case: Suggestion) -> dict[str, Any]:
    """A case under the names of `/v1/predict`, and what is said of it."""
    spec = case.spec
    settings = {name: getattr(spec, name) for name in _SETTINGS}
    estimates = {name: getattr(case, name) for name in ("latency_s", "measuring_s", "gain", "deviation")}
    return {"family": spec.family, "device": case.device, "sizes": dict(spec.dims), "config": dict(spec.config),
            **settings, **estimates}  # fmt: skip


def _show_suggestions(suggestions: Sequence[Suggestion]) -> None:
    heads = ("", "case", "predicted", "to measure", "then ±")
    rows = []
    for i, case in enumerate(suggestions, start=1):
        times = (console.seconds(case.latency_s), console.seconds(case.measuring_s))
        rows.append((str(i), str(case.spec), *times, f"{100 * case.deviation:.0f} %"))
    title = f"what to measure on {suggestions[0].device}, the most useful first"
    console.show_table(heads, rows, numbers=set(heads) - {"case"}, title=title)
    console.note(
        "then ±: the typical error expected of the family's other cases once these are measured (one deviation)"
    )
