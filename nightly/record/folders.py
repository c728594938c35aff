"""The folders of nights: their names, which are unfinished, which are old enough to go, and the lock of the one that runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from ...features.errors import SpecError
from ...files import LockedError, append_line, home_dir, is_locked, lock
from .record import NightRecord, RecordError

STATE, REPORT_JSON, REPORT_HTML, PLAN_JSON = "state.json", "report.json", "report.html", "plan.json"
CHOSEN, BLOCKS, CHALLENGERS, ERRORS = "chosen.jsonl", "blocks.jsonl", "challengers", "errors.log"

NIGHT_ID = re.compile(r"(?P<stamp>\d{8}T\d{6}Z)-(?P<plan>[A-Za-z0-9][A-Za-z0-9._-]{0,39})")

UNFINISHED = ("running", "interrupted")
RESUME_WITHIN_S = 24 * 3600.0
"""An unfinished night that began longer ago is not gone on with unasked: what it chose is of another day."""


_EARLIER = 60
"""Earlier nights that say how long training takes."""


def nights_dir() -> Path:
    """The folder of all nights."""
    return home_dir() / "nights"


def new_night(nights: Path, plan: str, now: datetime) -> Path:
    """An empty folder for a night that begins `now`, named by it; a name that is taken is never used again.

    Raises:
        OSError: the folder cannot be made.
    """
    nights.mkdir(parents=True, exist_ok=True)
    # A clock that was set back would give the name of a night that was: the stamp is moved on until it is free.
    for seconds in range(86_400):
        folder = nights / f"{now.astimezone(UTC) + timedelta(seconds=seconds):%Y%m%dT%H%M%SZ}-{plan}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise FileExistsError(f"{nights} has a night for every second of this day")


def night_folders(nights: Path) -> list[Path]:
    """The folders of nights, oldest first by their names."""
    if not nights.is_dir():
        return []
    return sorted(path for path in nights.iterdir() if NIGHT_ID.fullmatch(path.name) and path.is_dir())


def records(nights: Path, plan: str | None = None) -> Iterator[tuple[Path, NightRecord]]:
    """Folders with their record, newest first, of one plan or of all; one whose record is missing or damaged is left out."""
    for folder in reversed(night_folders(nights)):
        # A folder is named by its plan: of ten thousand nights only those asked for are read.
        if plan is not None and folder.name.partition("-")[2] != plan:
            continue
        with contextlib.suppress(RecordError):
            yield folder, NightRecord.read(folder / STATE)


def earlier_nights(plan: str, folder: Path) -> list[NightRecord]:
    """The newest nights of the plan of this name but the one in `folder`, at most `_EARLIER`."""
    return list(islice((record for path, record in records(nights_dir(), plan) if path != folder), _EARLIER))


def unfinished(nights: Path, plan: str, now: datetime) -> Path | None:
    """The newest night of the plan that was begun within a day and not ended."""
    for folder, record in records(nights, plan):
        try:
            # A clock that was set back makes the age negative, which is recent.
            young = (now - datetime.fromisoformat(record.began)).total_seconds() < RESUME_WITHIN_S
        except (ValueError, TypeError):
            continue  # a begin that is no time, or one without its offset: damage, which nothing is built on
        return folder if young and not ended(record) else None
    return None


def ended(record: NightRecord) -> bool:
    """Whether a night got to its end, its report included."""
    return record.outcome not in UNFINISHED and record.stage("report").status != "not-reached"


def remove_old(nights: Path, keep: int, own_folder: Path | None = None) -> list[str]:
    """Remove all but the newest `keep` nights that ended, and never `own_folder`; names of those removed.

    `own_folder` counts as one of them: after a clock was set back the night that runs is not the newest by its name.

    Raises:
        OSError: one cannot be removed.
    """
    over = [folder for folder, record in records(nights) if record.outcome not in UNFINISHED and folder != own_folder]
    old = over[keep - (own_folder is not None) :]
    for folder in old:
        shutil.rmtree(folder)
    return [folder.name for folder in old]


def note_block(folder: Path, block: str) -> None:
    """Write a block's name down and have it on disk before the block is stored.

    Raises:
        OSError: the disk is full; the block must then not be stored.
    """
    append_line(folder / BLOCKS, json.dumps(block))


def blocks_of(folder: Path) -> list[str]:
    """Names of the blocks a night began to store, in order; the last may not have got into the store.

    Raises:
        OSError: the file cannot be read.
    """
    path = folder / BLOCKS
    if not path.exists():
        return []
    # A line cut short by a crash names no block: it was on its way to disk before the block was.
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith('"') and line.endswith('"') and len(line) > 2]


_MOMENT_S = 0.1


class NightRunningError(Exception):
    """Another night is running on this machine; the message names it."""


@contextlib.contextmanager
def night_lock(nights: Path, plan: str) -> Iterator[None]:
    """Hold the folder of nights for one night of the plan called `plan`.

    Raises:
        NightRunningError: another night holds it.
        SpecError: the folder cannot be written.
    """
    path = nights / ".lock"
    holder = (f"a night of plan {plan} has been running since {datetime.now(UTC).isoformat(timespec='seconds')} "
              f"(process {os.getpid()} on {os.uname().nodename})")  # fmt: skip
    with contextlib.ExitStack() as stack:
        try:
            # `is_running` holds it for an instant, so it is tried once more after a moment.
            stack.enter_context(lock(path, holder=holder, wait_s=_MOMENT_S))
        except LockedError as error:
            raise NightRunningError(
                f"{error.holder or 'another night is running'}; wait for it or stop it ({path})"
            ) from None
        except OSError as error:
            raise SpecError(
                f"cannot write {path}: {error.strerror or error}; set KERNELCAST_HOME to another folder"
            ) from error
        yield


def is_running(nights: Path) -> bool:
    """Whether a night holds the folder: one whose record says `running` while nobody does was killed."""
    return is_locked(nights / ".lock")
