"""The store after a night's collecting: which files are read tonight, and which are put aside.

Files never change and their names carry a digest of their content: one that was found sound is read again only to find what a
disk has lost since. New files are read every night; of the others those read the longest ago, for a share of the night.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...datasets.store.location import LocalLocation
from ...datasets.store.store import Store, StoreError
from ...datasets.store.verify import QUARANTINE, Verified, quarantine, verify
from ...files import home_dir, write_whole
from ..context import Night
from ..record.record import Finding, FindingKind, Level

_AGAIN = 0.05
"""The share of a night for reading again what was sound before."""


@dataclass(slots=True)
class ReadFiles:
    """Which files of a store were read when. Kept under KERNELCAST_HOME/verified, one file a store; without it all files
    are read again.

    Attributes:
        path: The file it is written to.
        files: By file name: size in bytes, when it was last read (seconds since 1970), and how many seconds that took.
    """

    path: Path
    files: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store) -> ReadFiles:
        """What was written last; empty where that cannot be read."""
        name = hashlib.sha256(store.location.name.encode()).hexdigest()[:16]
        known = cls(home_dir() / "verified" / f"{name}.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(known.path.read_text(encoding="utf-8"))["files"]
            known.files = {str(file): (int(size), float(at), float(took)) for file, (size, at, took) in content.items()}
        return known

    def write(self, store: Store) -> None:
        """Keep it; a full disk costs a night's reading again and nothing else."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps({"store": store.location.name, "files": self.files}) + "\n")


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

    known: ReadFiles
    sizes: Mapping[str, int]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    new: set[str] = field(init=False)
    due: set[str] = field(init=False)
    read: dict[str, float] = field(default_factory=dict)
    began: float = field(init=False)
    at: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        files, self.began = self.known.files, self.clock()
        old = [name for name, size in self.sizes.items() if name in files and files[name][0] == size]
        self.new, self.due = set(self.sizes) - set(old), set()
        left = self.seconds
        for name in sorted(old, key=lambda item: (files[item][1], item)):
            left -= files[name][2]
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

    def finish(self, sound: Callable[[str], bool], now: float) -> None:
        """Remember the files read that were sound, and forget those that are gone."""
        self._ended()
        known = {name: self.known.files[name] for name in self.sizes if name in self.known.files}
        read_now = {name: (self.sizes[name], now, took) for name, took in self.read.items() if name in self.sizes}
        self.known.files = {name: entry for name, entry in (known | read_now).items() if sound(name)}

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
    reading = Reading(ReadFiles.read(store), _sizes(store), _AGAIN * night.budget.total_s)
    result = verify(store, devices=night.devices, wanted=reading.wants)
    bad = {name for name, _ in (*result.damaged, *result.other_format)}
    reading.finish(lambda name: name not in bad, time.time())
    facts: dict[str, Any] = {
        "files": result.files, "files_left": len(reading.sizes) - len(reading.sizes.keys() & reading.read.keys()),
        "stored_rows": result.rows, "damaged_files": [name for name, _ in result.damaged],
        "other_format": [name for name, _ in result.other_format],
        "impossible_rows": dict(result.refused), "twice": dict(result.twice),
    }  # fmt: skip
    findings = [*_damaged(store, result), *_other_findings(store, result)]
    reading.known.write(store)
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
