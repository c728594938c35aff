"""Taking over what an importer read: every table judged as a form, devices and physics checked, then stored or written.

Whatever the source, this is where rows are refused: a device the catalogue does not know (never replaced by another), sizes,
dtypes and labels that break the form, and times no run can reach on that device.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ..rows.checks import BOUND_SLACK, paper_bounds
from ..store.location import commit_files
from ..store.parquet_files import parquet_bytes
from ..store.store import Store
from .form import FormRows, judge_form
from .import_form import ImportReport, import_provenance, store_rows
from .importer import Importer, Note, Progress, guess_importer

SUSPICIOUS_SHARE = 0.05
"""Where more than this share of a table's rows beats physics, the rest of it may be mislabelled too, and this is said."""

_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What became of a source.

    Attributes:
        imported: Rows taken over, by family.
        duplicates: Rows that were stored before.
        notes: What was left out, and what to know of the rest.
        files: Files written.
    """

    imported: Mapping[str, int]
    duplicates: int
    notes: tuple[Note, ...]
    files: tuple[PurePath, ...]

    def __str__(self) -> str:
        rows = ", ".join(f"{count} {family}" for family, count in self.imported.items()) or "0"
        left = sum(note.rows for note in self.notes if not note.included)
        return f"{rows} rows imported, {self.duplicates} already there, {left} left out"


def import_source(
    importer: Importer,
    path: Path,
    target: Store | Path,
    *,
    source: str = "",
    licence: str | None = None,
    device: str | None = None,
    devices: Catalogue | None = None,
    progress: Progress = lambda what, done, total: None,
) -> SourceReport:
    """Read a source and keep its rows.

    Args:
        importer: which source it is.
        path: a clone, a folder of it, or one of its files.
        target: the store, or where the form goes: a `.parquet` file (all families in one table) or a folder (a file each).
        source: who measured the rows; the importer's own origin or name by default.
        licence: what the rows may be used for, kept in the provenance of stored rows.
        device: the device, for sources whose files do not name it.
        devices: the devices rows may be of; the shipped catalogue by default.
        progress: called with what is being done, steps done, steps in all.

    Raises:
        SpecError: nothing to read, no row can be used, a device that is missing, unknown or at odds with the files.
        StoreError: the store or the files cannot be written.
    """
    known = devices or catalogue()
    _check_request(importer, path, target, device, known)
    read = importer.read(path, device, progress)
    notes = list(read.notes)
    parts: dict[str, tuple[pa.Table, FormRows]] = {}
    for done, (family, table) in enumerate(read.tables.items()):
        progress(f"checking {family}", done, len(read.tables))
        rows = _judged(family, table, known, notes)
        if rows is not None:
            parts[family] = (table, rows)
    if not parts:
        why = "".join(f"\n  {note}" for note in notes)
        raise SpecError(f"{path}: no row can be imported ({read.files} files read){why}", field="path")
    who = source or importer.origin or importer.name
    tables = {family: _as_form(table, rows, who) for family, (table, rows) in parts.items()}
    if isinstance(target, Path):
        return SourceReport(
            {name: table.num_rows for name, table in tables.items()}, 0, tuple(notes), _write(tables, target)
        )
    digest = hashlib.sha256(b"".join(map(parquet_bytes, tables.values()))).hexdigest()
    provenance = import_provenance(path, digest, who, f"imported from {importer.name}", licence)
    stored: dict[str, ImportReport] = {}
    for done, (family, (_, rows)) in enumerate(parts.items()):
        progress(f"storing {family}", done, len(parts))
        named = replace(rows, source=np.full(len(rows), who))
        stored[family] = store_rows([named], target, provenance, who, skip_bad_rows=False)
    return SourceReport(
        {family: report.stored for family, report in stored.items()},
        sum(report.duplicates for report in stored.values()),
        tuple(notes),
        tuple(file for report in stored.values() for file in report.files),
    )


def _check_request(importer: Importer, path: Path, target: Store | Path, device: str | None, known: Catalogue) -> None:
    if not path.exists():
        raise SpecError(f"cannot read {path}: no such file or folder", field="path")
    if isinstance(target, Path) and target.suffix not in ("", ".parquet"):
        raise SpecError(f"--out is {target}; name a .parquet file or a folder", field="out")
    if device is not None:
        if importer.names_devices:
            raise SpecError(f"the files of {importer.name} name their devices; leave --device out", field="device")
        known.get(device)
    if not importer.looks_like(path):
        other = guess_importer(path)
        hint = f"; it looks like {other}: --from {other}" if other else ""
        raise SpecError(f"{path} holds nothing of {importer.name} ({importer.title}){hint}", field="from")


def _judged(family: str, table: pa.Table, known: Catalogue, notes: list[Note]) -> FormRows | None:
    """The rows of a table that can be used, or None; what is refused is added to `notes`, equal reasons together."""
    try:
        form = judge_form(
            table, origin=family, family=family, skip_bad_rows=True, known_devices=lambda name: _known(name, known)
        )
    except SpecError as error:
        notes.append(Note(table.num_rows, f"{family}: {str(error).splitlines()[1].strip()}, and alike"))
        return None
    seen: dict[tuple[str, str], list[str]] = {}
    for item in form.refused:
        seen.setdefault((item.column, _NUMBER.sub("#", item.reason)), []).append(item.reason)
    for (column, _), reasons in seen.items():
        alike = " (and alike)" if len(set(reasons)) > 1 else ""
        notes.append(Note(len(reasons), f"{family}: {column} {reasons[0]}{alike}"))
    rows = form.parts[family]
    possible = ~_too_fast(rows, known, notes)
    return rows.take(possible) if possible.any() else None


def _known(name: str, known: Catalogue) -> str:
    try:
        return known.get(name).name
    except SpecError as error:
        raise SpecError(
            f"{name!r} is not in the catalogue; describe it in a device file (--device-file)", field="device"
        ) from error


def _too_fast(rows: FormRows, known: Catalogue, notes: list[Note]) -> npt.NDArray[np.bool_]:
    """Rows that beat their device's lower bound, with a note per table-like group of them."""
    cases = rows.cases
    bounds = paper_bounds(cases, known)
    fast = rows.latency_s < (1 - BOUND_SLACK) * bounds
    for index, category in cases.groups("device", "impl", "dtype", "kv_dtype", "variant"):
        for size in np.unique(cases.sizes["head_dim"][index]) if "head_dim" in cases.sizes else (None,):
            group = index if size is None else index[cases.sizes["head_dim"][index] == size]
            bad = group[fast[group]]
            if not len(bad):
                continue
            what = " ".join(dict.fromkeys(word for word in category if word)) + (
                "" if size is None else f" head_dim={size:g}"
            )
            ratio = bounds[bad] / rows.latency_s[bad]
            worst = bad[np.argmax(ratio)]
            least = f"{rows.latency_s[worst]:.3g} s where at least {bounds[worst]:.3g} s are needed"
            reason = (
                f"{cases.family.name} on {what}: faster than the device can be, up to {ratio.max():.2f} times ({least})"
            )
            notes.append(Note(len(bad), reason))
            if len(bad) > SUSPICIOUS_SHARE * len(group) and len(bad) < len(group):
                notes.append(Note(
                    len(group) - len(bad), f"{cases.family.name} on {what}: {len(bad)} rows beside them are faster than the "
                    "device can be; these may be mislabelled too", included=True,
                ))  # fmt: skip
    return fast


def _write(tables: Mapping[str, pa.Table], target: Path) -> tuple[PurePath, ...]:
    """Write the form: one file of all families, or one each in a folder."""
    if target.suffix == ".parquet":
        tables = {target.stem: pa.concat_tables(tables.values(), promote_options="permissive")}
        target = target.parent
    files = [(target / f"{name}.parquet", parquet_bytes(table)) for name, table in tables.items()]
    commit_files(files)
    return tuple(file for file, _ in files)


def _as_form(table: pa.Table, rows: FormRows, source: str) -> pa.Table:
    """The rows of a form table that were accepted, under canonical names."""
    accepted = table.take(pa.array(rows.rows.tolist(), pa.int64()))
    canonical = {"device": rows.cases.device, "dtype": rows.cases.dtype, "variant": rows.cases.variant,
                 "source": np.full(len(rows), source)}  # fmt: skip
    for name, column in canonical.items():
        cells = pa.array(column.tolist(), pa.string())
        at = accepted.column_names.index(name) if name in accepted.column_names else None
        accepted = accepted.append_column(name, cells) if at is None else accepted.set_column(at, name, cells)
    return accepted
