"""Taking a user's form file into the store, with its origin kept and rows that are already there left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ...features.device import canonical_name, catalogue
from ...features.errors import SpecError, check_text
from ...features.kernel import KernelSpec
from ..rows.checks import Refused
from ..rows.schema import Measurement, Provenance
from ..store.store import Store
from .form import FormRows, read_form

_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of the rows of a file.

    Attributes:
        stored: Rows stored.
        duplicates: Rows that were stored before.
        unmeasured: Rows without a measurement.
        refused: Rows refused: position in the file from 0, column and reason.
        files: New files of the store.
    """

    stored: int
    duplicates: int
    unmeasured: int
    refused: tuple[Refused, ...]
    files: tuple[PurePath, ...]

    def __str__(self) -> str:
        return (
            f"{self.stored} rows stored, {self.duplicates} already there, {self.unmeasured} without a measurement, "
            f"{len(self.refused)} refused"
        )


def import_form(
    path: Path | str,
    store: Store,
    source: str,
    *,
    family: str | None = None,
    licence: str | None = None,
    skip_bad_rows: bool = True,
) -> ImportReport:
    """Append the measurements of a form file (CSV or Parquet) to the store.

    Args:
        path: the file.
        store: where the rows go.
        source: who measured them, in a word or a link; rows that have a `source` of their own keep it.
        family: the family of all rows, for tables without a `family` column.
        licence: what the rows may be used for, kept in the provenance.
        skip_bad_rows: store the good rows when others are refused; otherwise any refused row stores nothing.

    Device names are made canonical where the catalogue knows them; other devices are kept under their own names.

    Raises:
        SpecError: an unreadable file, no good row, no source, or a refused row without `skip_bad_rows`.
        RowsRefused: a row faster than physics allows, without `skip_bad_rows`.
        StoreError: the store cannot be written.
    """
    path = Path(path)
    if not source.strip():
        raise SpecError("say who measured the rows: source is empty", field="source")
    check_text(source, "source")
    check_text(licence or "", "licence")
    form = read_form(
        path, family=family, skip_bad_rows=skip_bad_rows, known_devices=lambda name: canonical_name(name, catalogue())
    )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    provenance = import_provenance(path, digest, source, "imported form", licence)
    stored = store_rows(list(form.parts.values()), store, provenance, source, skip_bad_rows=skip_bad_rows)
    refused = sorted([*form.refused, *stored.refused], key=lambda item: item.row)
    return replace(stored, unmeasured=len(form.unmeasured), refused=tuple(refused))


def import_provenance(path: Path, digest: str, source: str, kind: str, licence: str | None) -> Provenance:
    """Where rows that are imported now come from; `digest` is of their content."""
    facts = {"file": path.name or path.resolve().name, "sha256": digest, "source": source, "kind": kind,
             "imported_at": datetime.now(UTC).isoformat(timespec="seconds")}  # fmt: skip
    return Provenance(f"import-{digest[:12]}", facts | ({"licence": licence} if licence else {}))


def store_rows(
    parts: Iterable[FormRows], store: Store, provenance: Provenance, source: str, *, skip_bad_rows: bool
) -> ImportReport:
    """Append rows that were judged, as one block, without those the store has already.

    `source` is that of rows that name none; positions in `refused` are the rows' own. Nothing is said of unmeasured rows.

    Raises:
        RowsRefused: a row faster than physics allows, without `skip_bad_rows`.
        StoreError: the store cannot be written.
    """
    fresh: list[Measurement] = []
    positions: list[int] = []
    duplicates = 0
    for rows in parts:
        seen = _stored_keys(store, rows)
        measurements = _measurements(rows, provenance.block, source)
        for position, measurement in zip(rows.rows.tolist(), measurements, strict=True):
            key = _key(measurement)
            duplicates += key in seen
            if key not in seen:
                seen.add(key)
                fresh.append(measurement)
                positions.append(position)
    impossible: list[Refused] = []
    files = store.append(fresh, provenance, on_refused=impossible.extend if skip_bad_rows else None)
    refused = tuple(Refused(positions[item.row], item.column, item.reason) for item in impossible)
    return ImportReport(len(fresh) - len(refused), duplicates, 0, refused, tuple(files))


def _measurements(rows: FormRows, block: str, source: str) -> Iterator[Measurement]:
    cases = rows.cases
    for i in range(len(rows)):
        own_source = str(rows.source[i]) or source
        energy_j = _optional(rows.energy_j[i])
        yield Measurement(
            spec=_spec(rows, i),
            device=str(cases.device[i]),
            status="ok",
            block=block,
            latency_s=float(rows.latency_s[i]),
            power_w=_optional(rows.power_w[i]),
            power_limit_w=_optional(rows.power_limit_w[i]),
            energy_j=energy_j,
            energy_source=None if energy_j is None else f"as reported by {own_source}",
            source=own_source,
            split=str(rows.split[i]) or None,
        )


def _spec(rows: FormRows, i: int) -> KernelSpec:
    """The spec of row `i`; the form's judgement has checked what `KernelSpec.of` would check."""
    cases = rows.cases
    dtype, kv_dtype = str(cases.dtype[i]), str(cases.kv_dtype[i])
    knobs = ((name, column[i]) for name, column in sorted(cases.config.items()))
    return KernelSpec(
        family=cases.family.name,
        dtype=dtype,
        dims=tuple((name, int(cases.sizes[name][i])) for name in cases.family.dim_names),
        variant=str(cases.variant[i]),
        impl=str(cases.impl[i]),
        kv_dtype=None if kv_dtype == dtype else kv_dtype,
        config=tuple((name, int(value)) for name, value in knobs if not np.isnan(value)),
        threads=None if np.isnan(cases.threads[i]) else int(cases.threads[i]),
        cache_state=str(cases.cache_state[i]),
        timing=str(cases.timing[i]),
    )


def _optional(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _key(m: Measurement) -> _Key:
    return m.device, m.case_id, m.source, m.latency_s, m.power_w, m.energy_j


def _stored_keys(store: Store, rows: FormRows) -> set[_Key]:
    """Content of the rows that are already stored for the same family and devices."""
    columns = ["device", "case_id", "source", "latency_s", "power_w", "energy_j"]
    table = store.read(rows.cases.family.name, sorted(set(rows.cases.device.tolist())), columns)
    return set(zip(*(table[name].to_pylist() for name in columns), strict=True))
