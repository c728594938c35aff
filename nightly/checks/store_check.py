"""The store after a night's collecting: which files are read tonight, and which are put aside.

Files never change and their names carry a digest of their content: one that was found sound is read again only to find what a
disk has lost since. New files are read every night; of the others those read the longest ago, for a share of the night.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...datasets.store.location import LocalLocation
from ...datasets.store.store import Store, StoreError
from ...datasets.store.verify import QUARANTINE, Verified, quarantine, verify
from ...files import home_dir, write_whole
from ..context import Night
from ..record.record import Finding, FindingKind, Level

_AGAIN = 0.05
"""The share of a night for reading again what was sound before."""


Known = dict[str, tuple[int, float, float]]
"""By file name: size in bytes, when it was last read (seconds since 1970), and how many seconds that took."""


def read_before(store: Store) -> tuple[Path, Known]:
    """Where it is kept which files of a store were read when, and what is kept; nothing where that cannot be read."""
    name = hashlib.sha256(store.location.name.encode()).hexdigest()[:16]
    path = home_dir() / "verified" / f"{name}.json"
    try:
        return path, msgspec.convert(json.loads(path.read_text(encoding="utf-8"))["files"], Known)
    except (OSError, ValueError, KeyError, TypeError):
        return path, {}


@dataclass(slots=True)
class Reading:
    """Which files are read tonight: new ones, and of the others those unread the longest, as many as fit into `seconds`.

    Called by `verify` for each file in turn. No old file is begun after twice the seconds.

    Attributes:
        known: What earlier nights read.
        sizes: Bytes by file name.
        seconds: Time for old files.
        clock: Gives the time in seconds.
        new: Files never read at this size.
        due: Old files to read.
        read: Seconds by file read.
        began: When reading began, by the clock.
        at: The file being read and when it was begun.
    """

    known: Known
    sizes: Mapping[str, int]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    new: set[str] = field(init=False)
    due: set[str] = field(init=False)
    read: dict[str, float] = field(default_factory=dict)
    began: float = field(init=False)
    at: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        self.began = self.clock()
        old = {name: self.known[name] for name, size in self.sizes.items() if self.known.get(name, (None,))[0] == size}
        self.new, self.due = set(self.sizes) - set(old), set()
        left = self.seconds
        for name, (_, _, took) in sorted(old.items(), key=lambda item: (item[1][1], item[0])):
            left -= took
            if left < 0:
                break
            self.due.add(name)

    def wants(self, name: str) -> bool:
        """Whether a file is read; the one before it is read by now."""
        self._ended()
        late = self.clock() - self.began > 2 * self.seconds
        # A file that came since the store was listed is new too.
        if name in self.sizes and name not in self.new and (late or name not in self.due):
            return False
        self.at = (name, self.clock())
        return True

    def finish(self, bad: Collection[str], now: float) -> Known:
        """What is known now: the files read before or tonight without those that are `bad` or gone."""
        self._ended()
        read_now = {name: (self.sizes[name], now, took) for name, took in self.read.items() if name in self.sizes}
        known = {**self.known, **read_now}
        return {name: known[name] for name in self.sizes if name in known and name not in bad}

    def _ended(self) -> None:
        if self.at is not None:
            self.read[self.at[0]] = self.clock() - self.at[1]
        self.at = None


def check_store(night: Night) -> tuple[dict[str, Any], list[Finding]]:
    """Read the files that are due and put aside damaged ones.

    Raises:
        StoreError: the store cannot be reached.
    """
    store = night.store
    path, known = read_before(store)
    reading = Reading(known, _sizes(store), _AGAIN * night.budget.total_s)
    result = verify(store, devices=night.devices, wanted=reading.wants)
    bad = {name for name, _ in (*result.damaged, *result.other_format)}
    known = reading.finish(bad, time.time())
    facts: dict[str, Any] = {
        "files": result.files, "files_left": len(reading.sizes) - len(reading.sizes.keys() & reading.read.keys()),
        "stored_rows": result.rows, "damaged_files": [name for name, _ in result.damaged],
        "other_format": [name for name, _ in result.other_format],
        "impossible_rows": dict(result.refused), "twice": dict(result.twice),
    }  # fmt: skip
    findings = [*_damaged(store, result), *_other_findings(store, result)]
    with contextlib.suppress(OSError):  # a full disk costs a night's reading again and nothing else
        write_whole(path, json.dumps({"store": store.location.name, "files": known}) + "\n")
    return facts, findings


def _sizes(store: Store) -> dict[str, int]:
    """Bytes of every file that counts; 0 at a URL, where asking for each costs a request and files are whole or not there."""
    location, sizes = store.location, {}
    for name in store.names():
        with contextlib.suppress(OSError):
            sizes[name] = (location.folder / name).stat().st_size if isinstance(location, LocalLocation) else 0
    return sizes


def _damaged(store: Store, result: Verified) -> list[Finding]:
    damaged = list(result.damaged)
    if not damaged:
        return []
    try:
        quarantine(store, damaged)
        done = f"They were moved out of the way, to `{QUARANTINE}` in the store, and the rest is used"
    except (StoreError, OSError) as error:
        done = f"They could not be moved to `{QUARANTINE}` ({error}); the rest is used"
    message = (f"{len(damaged)} files of the store are damaged: {_named(damaged)}. {done}. Look at the disk; a "
               "backup may have their rows.")  # fmt: skip
    return [Finding("storage", "needs-person", store.location.name, message, {"files": len(damaged)})]


def _other_findings(store: Store, result: Verified) -> list[Finding]:
    """Findings on files that have another format, impossible rows or rows twice, one of each kind."""
    other, refused, twice = result.other_format, result.refused, result.twice
    rows = sum(count for _, count in twice)
    table: tuple[tuple[FindingKind, Level, int, str], ...] = (
        ("storage", "warning", len(other), f"{len(other)} files have another row format and are not read: {_named(other)}."),
        ("rows", "warning", len(refused), f"{len(refused)} files have rows that cannot be true: {_named(refused)}. They stay "
         "and models learn from them. Check the device file and the program that measured them."),
        ("rows", "warning", rows, f"{rows} rows are stored twice, in {', '.join(name for name, _ in twice[:3])}. Models take "
         "the median of a case, so nothing is wrong with them; see whether a folder was copied into itself."),
    )  # fmt: skip
    return [
        Finding(kind, level, store.location.name, message, {"count": count})
        for kind, level, count, message in table
        if count
    ]


def _named(files: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in files[:3])
