"""Where nights are on disk: their names, which of them are unfinished, and which are old enough to go."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ..home import home_dir
from .record import NightRecord, RecordError

STATE, REPORT_JSON, REPORT_HTML, PLAN_JSON = "state.json", "report.json", "report.html", "plan.json"
CHOSEN, BLOCKS, CHALLENGERS, ERRORS = "chosen.jsonl", "blocks.jsonl", "challengers", "errors.log"

NIGHT_ID = re.compile(r"(?P<stamp>\d{8}T\d{6}Z)-(?P<plan>[A-Za-z0-9][A-Za-z0-9._-]{0,39})")

UNFINISHED = ("running", "interrupted")
RESUME_WITHIN_S = 24 * 3600.0
"""An unfinished night that began longer ago is not gone on with unasked: what it chose is of another day."""


def nights_dir() -> Path:
    """The folder of all nights."""
    return home_dir() / "nights"


def new_night(nights: Path, plan: str, now: datetime) -> Path:
    """An empty folder for a night that begins `now`, named by it; a name that is taken is never used again.

    Raises:
        OSError: the folder cannot be made.
    """
    nights.mkdir(parents=True, exist_ok=True)
    stamp = now.astimezone(UTC).replace(microsecond=0)
    # A clock that was set back would give the name of a night that was: the stamp is moved on until it is free.
    for seconds in range(86_400):
        moved = datetime.fromtimestamp(stamp.timestamp() + seconds, UTC)
        folder = nights / f"{moved:%Y%m%dT%H%M%SZ}-{plan}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise FileExistsError(f"{nights} has a night for every second of this day")


def night_folders(nights: Path) -> list[Path]:
    """The folders of nights, oldest first by their names."""
    if not nights.is_dir():
        return []
    return sorted(path for path in nights.iterdir() if NIGHT_ID.fullmatch(path.name) and path.is_dir())


def records(nights: Path) -> Iterator[tuple[Path, NightRecord]]:
    """Folders with their record, newest first; one whose record is missing or damaged is left out."""
    for folder in reversed(night_folders(nights)):
        with contextlib.suppress(RecordError):
            yield folder, NightRecord.read(folder / STATE)


def unfinished(nights: Path, plan: str, now: datetime) -> Path | None:
    """The newest night of the plan that was begun within a day and not ended."""
    for folder, record in records(nights):
        if record.plan == plan:
            # A clock that was set back makes the age negative, which is recent.
            young = (now - datetime.fromisoformat(record.began)).total_seconds() < RESUME_WITHIN_S
            return folder if young and not ended(record) else None
    return None


def ended(record: NightRecord) -> bool:
    """Whether a night got to its end, its report included."""
    return record.outcome not in UNFINISHED and record.stage("report").status != "not-reached"


def remove_old(nights: Path, keep: int) -> list[str]:
    """Remove all but the newest `keep` nights that ended; names of those removed.

    Raises:
        OSError: one cannot be removed.
    """
    old = [folder for folder, record in records(nights) if record.outcome not in UNFINISHED][keep:]
    for folder in old:
        shutil.rmtree(folder)
    return [folder.name for folder in old]
