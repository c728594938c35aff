"""Stage 9: the night as one JSON file and one page, whatever happened before."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .context import Did, Night
from .folders import REPORT_HTML, REPORT_JSON, nights_dir, records, remove_old
from .record import Finding, NightRecord, StageRecord, write_whole
from .report_page import report_page

_BALLAST, _BALLAST_B = ".ballast", 512 * 1024
_EARLIER = 60
"""Nights before this one that the page draws."""


def set_ballast(folder: Path) -> None:
    """Take room on the disk that the report is given back at the end: a full disk must not keep a night from saying so.

    Raises:
        OSError: there is no such room.
    """
    path = folder / _BALLAST
    if not path.exists():
        path.write_bytes(b"\0" * _BALLAST_B)


def drop_ballast(folder: Path) -> None:
    """Give the room back."""
    with contextlib.suppress(OSError):
        (folder / _BALLAST).unlink(missing_ok=True)


def report(night: Night) -> Did:
    """Write the report, and remove nights older than the plan keeps.

    Raises:
        OSError: the night's folder is full or not writable.
    """
    drop_ballast(night.folder)
    did = Did(
        "The report was written.", {"html": str(night.folder / REPORT_HTML), "json": str(night.folder / REPORT_JSON)}
    )
    gone = _removed(night)
    if isinstance(gone, Finding):
        did = replace(did, findings=(gone,))
    elif gone:
        did = replace(did, said=f"The report was written; {len(gone)} old nights were removed.")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    own = StageRecord("report", "done", now, 0.0, did.said, did.facts, did.findings)
    write_reports(night.folder, night.record.with_stage(own))
    return did


def write_reports(folder: Path, record: NightRecord) -> None:
    """Write `report.json` and `report.html` of a record.

    Raises:
        OSError: the folder is full or not writable.
    """
    record.write(folder / REPORT_JSON)
    earlier: list[NightRecord] = []
    for other, one in records(nights_dir()):
        if other != folder:
            earlier.append(one)
        if len(earlier) == _EARLIER:
            break
    write_whole(folder / REPORT_HTML, report_page(record, earlier))


def _removed(night: Night) -> list[str] | Finding:
    try:
        return remove_old(nights_dir(), night.plan.keep.nights, night.folder)
    except OSError as error:
        said = f"An old night could not be removed: {error.strerror or error} ({error.filename}). Remove it by hand."
        return Finding("storage", "warning", str(nights_dir()), said)
