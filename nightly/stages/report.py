"""Stage 9: the night as one JSON file and one page, whatever happened before."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from ...files import write_whole
from ..context import Night, StageResult
from ..record.folders import REPORT_HTML, REPORT_JSON, nights_dir, remove_old
from ..record.record import Finding, NightRecord, StageRecord
from ..report_page import report_page

_RESERVE, _RESERVE_B = ".ballast", 512 * 1024


def reserve_report_space(folder: Path) -> None:
    """Reserve room for the report on the disk, so that a night whose disk fills up can still report that.

    Raises:
        OSError: there is no such room.
    """
    path = folder / _RESERVE
    if not path.exists():
        path.write_bytes(b"\0" * _RESERVE_B)


def release_report_space(folder: Path) -> None:
    """Give the room back."""
    with contextlib.suppress(OSError):
        (folder / _RESERVE).unlink(missing_ok=True)


def report(night: Night) -> StageResult:
    """Write the report, and remove nights older than the plan keeps.

    Raises:
        OSError: the night's folder is full or not writable.
    """
    release_report_space(night.folder)
    summary = "The report was written."
    findings: tuple[Finding, ...] = ()
    try:
        if removed := remove_old(nights_dir(), night.plan.keep.nights, night.folder):
            summary = f"The report was written; {len(removed)} old nights were removed."
    except OSError as error:
        message = f"An old night could not be removed: {error.strerror or error} ({error.filename}). Remove it by hand."
        findings = (Finding("storage", "warning", str(nights_dir()), message),)
    facts = {"html": str(night.folder / REPORT_HTML), "json": str(night.folder / REPORT_JSON)}
    result = StageResult(summary, facts, findings)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stage = StageRecord("report", "done", now, 0.0, result.summary, result.facts, result.findings)
    write_reports(night.folder, night.record.with_stage(stage))
    return result


def write_reports(folder: Path, record: NightRecord) -> None:
    """Write `report.json` and `report.html` of a record.

    Raises:
        OSError: the folder is full or not writable.
    """
    record.write(folder / REPORT_JSON)
    write_whole(folder / REPORT_HTML, report_page(record))
