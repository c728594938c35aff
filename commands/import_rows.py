"""`kernelcast import`: take someone's own measurements, or a clone of another project's, into the store or the form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, note, print_json, progress_bar, read_catalogue, store_errors

if TYPE_CHECKING:
    from ..datasets.form.import_form import ImportReport
    from ..datasets.form.import_source import SourceReport
    from ..datasets.form.importer import Importer

_SHOWN = 10
_FORM = (".csv", ".parquet")


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Tables of measured rows (.parquet, .csv); with --from, files or folders."
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Who measured the rows, in a word or a link; with --from, the source's own by default."),
    ] = None,
    licence: Annotated[str | None, typer.Option(help="What the rows may be used for.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: Annotated[
        bool,
        typer.Option(
            "--skip-bad-rows", "--keep-good", help="Leave refused rows out and store the others; --from always does."
        ),
    ] = False,
    store: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="Where rows go; default: KERNELCAST_HOME/measurements.")
    ] = None,
    source_form: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="Whose form the files have; a wrong name lists what there is."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="With --from: the device, where the files do not name it.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="With --from: write the form there (a .parquet file or a folder); store nothing."
        ),
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Check measured rows, row by row, and store them; rows stored before are left out."""
    if source_form is None:
        for value, option in ((device, "--device"), (out, "--out"), (device_file, "--device-file")):
            if value is not None:
                raise SpecError(
                    f"{option} goes with --from; tables of the form name their devices", field=option.strip("-")
                )
        _import_forms(files, source, licence, family, keep_good, store, as_json)
        return
    from ..datasets.form.importer import get_importer

    if family is not None:
        raise SpecError("leave --family out: with --from, the source says of which family its rows are", field="family")
    if out is not None and store is not None:
        raise SpecError("give --out or --store, not both", field="out")
    if out is not None and len(files) > 1:
        raise SpecError("give one file or folder with --out", field="out")
    importer = get_importer(source_form)
    reports = {
        str(path): _import_source(importer, path, source, licence, device, out, store, device_file) for path in files
    }
    if as_json:
        print_json({path: _source_json(report) for path, report in reports.items()})


def _source_json(report: SourceReport) -> dict[str, Any]:
    notes = [{"rows": remark.rows, "reason": remark.reason, "kept": remark.included} for remark in report.notes]
    return {"kept": report.imported, "duplicates": report.duplicates, "notes": notes, "files": report.files}


def _form_json(report: ImportReport) -> dict[str, Any]:
    return {"kept": report.stored, "duplicates": report.duplicates, "unmeasured": report.unmeasured,
            "refused": report.refused, "files": report.files}  # fmt: skip


def _import_source(
    importer: Importer, path: Path, source: str | None, licence: str | None, device: str | None, out: Path | None,
    store: str | None, device_file: list[Path] | None,
) -> SourceReport:  # fmt: skip
    from ..datasets.form.import_source import import_source
    from ..datasets.store.store import Store, StoreError

    try:
        with progress_bar() as progress:
            done = import_source(
                importer, path, out or Store(store), source=source or "", licence=licence, device=device,
                devices=read_catalogue(device_file), progress=progress,
            )  # fmt: skip
    except StoreError as error:
        raise SpecError(f"{path}: {error}") from error
    note(f"{path}: {done}")
    for remark in sorted(done.notes, key=lambda entry: entry.included):
        note(f"  {remark}")
    if out is not None:
        for file in done.files:
            note(f"wrote {file}")
    return done


def _import_forms(
    files: list[Path], source: str | None, licence: str | None, family: str | None, keep_good: bool, store: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    from ..datasets.form.import_form import import_form
    from ..datasets.store.store import Store, StoreError

    for path in files:
        if path.suffix.lower() not in _FORM and (looks := _looks_like(path)):
            raise SpecError(f"{path} looks like {looks}; add --from {looks}", field="from")
    if source is None:
        raise SpecError("missing option '--source': say who measured the rows, in a word or a link", field="source")
    with store_errors():
        target = Store(store)
    reports = {}
    for path in files:
        try:
            done = import_form(path, target, source, family=family, licence=licence, keep_good=keep_good)
        except StoreError as error:
            raise SpecError(f"{path}: {error}") from error
        reports[str(path)] = done
        note(f"{path}: {done}")
        for refused in done.refused[:_SHOWN]:
            note(f"  {refused}")
        if len(done.refused) > _SHOWN:
            note(f"  and {len(done.refused) - _SHOWN} more")
    if as_json:
        print_json({path: _form_json(report) for path, report in reports.items()})


def _looks_like(path: Path) -> str | None:
    from ..datasets.form.importer import guess_importer

    return guess_importer(path)
