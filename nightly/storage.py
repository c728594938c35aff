"""The store after a night's collecting: what of it is read and judged tonight, what is put aside, and when it is packed.

Files never change and their names carry a digest of their content: one that was found sound is read again only to find what a
disk has lost since. New files are read every night; of the others those read the longest ago, for a share of the night.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..datasets.compaction import Compacted, compact_in_place
from ..datasets.listing import Listing
from ..datasets.naming import PACKED, ROWS, kind_of
from ..datasets.roots import LocalRoot
from ..datasets.store import Store, StoreError, StoreWarning
from ..datasets.verifying import QUARANTINE, Verified, quarantine, verify
from ..home import home_dir
from .context import Night
from .record import Finding, write_whole

_AGAIN = 0.05
"""The share of a night for reading again what was sound before."""

_COMPACTED = 0.1
"""The share of the time left that packing may take: what is left over is for training."""

_FEWEST_FILES = 200
"""So many files of single blocks are worth packing: opening one costs every later reading some milliseconds."""


@dataclass(slots=True)
class Known:
    """What is known of a store's files: by name the size in bytes, when it was last read (seconds since 1970) and how long
    that took. Kept under KERNELCAST_HOME/verified, one file a store; without it all is read again.
    """

    path: Path
    files: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store) -> Known:
        """What was written last; nothing where that cannot be read."""
        name = hashlib.sha256(store.root_name.encode()).hexdigest()[:16]
        known = cls(home_dir() / "verified" / f"{name}.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(known.path.read_text(encoding="utf-8"))["files"]
            known.files = {str(file): (int(size), float(at), float(took)) for file, (size, at, took) in content.items()}
        return known

    def write(self, store: Store) -> None:
        """Keep it; a full disk costs a night's reading again and nothing else."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps({"store": store.root_name, "files": self.files}) + "\n")


@dataclass(slots=True)
class Reading:
    """Which files are read tonight: `new` ones, and of the others the longest unread for `seconds` by what they took then.

    Called by `verify` for each file in turn; no old one is begun after twice the seconds.
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
        files, self.began = self.known.files, self.clock()
        old = [name for name, size in self.sizes.items() if name in files and files[name][0] == size]
        self.new, self.due = set(self.sizes) - set(old), set()
        left = self.seconds
        for name in sorted(old, key=lambda one: (files[one][1], one)):
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
        kept = {name: self.known.files[name] for name in self.sizes if name in self.known.files}
        told = {name: (self.sizes[name], now, took) for name, took in self.read.items() if name in self.sizes}
        self.known.files = {name: one for name, one in (kept | told).items() if sound(name)}

    def _ended(self) -> None:
        if self.at is not None:
            self.read[self.at[0]] = self.clock() - self.at[1]
        self.at = None


def storage(night: Night) -> tuple[dict[str, Any], list[Finding]]:
    """Read what is due, put aside what is damaged, pack where that is worth it.

    Raises:
        StoreError: the store cannot be reached.
    """
    store = night.store
    reading = Reading(Known.of(store), _sizes(store), _AGAIN * night.budget.total_s)
    found = verify(store, devices=night.devices, wanted=reading.wants)
    bad = {name for name, _ in (*found.damaged, *found.newer)}
    reading.finish(lambda name: name not in bad, time.time())
    facts: dict[str, Any] = {
        "files": found.files, "files_left": len(reading.sizes) - len(reading.sizes.keys() & reading.read.keys()),
        "stored_rows": found.rows, "damaged_files": [name for name, _ in found.damaged], "missing": list(found.missing),
        "newer": [name for name, _ in found.newer], "impossible_rows": dict(found.refused), "twice": dict(found.twice),
    }  # fmt: skip
    findings = [*_damaged(store, found), *_told(store, found)]
    packed, told = _packed(night)
    reading.known.write(store)
    return facts | packed, [*findings, *told]


def _sizes(store: Store) -> dict[str, int]:
    """Bytes of every file that counts; 0 at a URL, where asking for each costs a request and files are whole or not there."""
    place = store.place
    # What is missing is told by `verify`.
    listing = Listing(place, lambda name, said: None)
    names = [name for folder in listing.folders() for name in (*folder.rows, *folder.blocks)]
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = (place.folder / name).stat().st_size if isinstance(place, LocalRoot) else 0
    return found


def _damaged(store: Store, found: Verified) -> list[Finding]:
    damaged = list(found.damaged)
    if not damaged:
        return []
    try:
        quarantine(store, damaged)
        done = f"They were moved out of the way, to `{QUARANTINE}` in the store, and the rest is used"
    except (StoreError, OSError) as error:
        done = f"They could not be moved to `{QUARANTINE}` ({error}); the rest is used"
    said = (f"{len(damaged)} files of the store are damaged: {_named(damaged)}. {done}. Look at the disk, and at a backup for "
            "their rows.")  # fmt: skip
    return [Finding("storage", "needs-person", store.root_name, said, {"files": len(damaged)})]


def _told(store: Store, found: Verified) -> list[Finding]:
    """What else there is to say of the files, a sentence a kind."""
    where, findings = store.root_name, []
    if found.missing:
        said = (f"{len(found.missing)} packed files that a compaction wrote are missing: {', '.join(found.missing[:3])}. Their "
                "rows are not read. Bring them back from a backup.")  # fmt: skip
        findings.append(Finding("storage", "needs-person", where, said, {"files": len(found.missing)}))
    if found.newer:
        said = (f"{len(found.newer)} files were written by a newer kernelcast and are not read: {_named(found.newer)}. Install "
                "that version here too.")  # fmt: skip
        findings.append(Finding("storage", "warning", where, said, {"files": len(found.newer)}))
    if found.refused:
        said = (f"{len(found.refused)} files have rows that cannot be true: {_named(found.refused)}. They stay and are learned "
                "from; look at the device file, and at what measured them.")  # fmt: skip
        findings.append(Finding("rows", "warning", where, said, {"files": len(found.refused)}))
    if found.twice:
        rows = sum(count for _, count in found.twice)
        said = (f"{rows} rows are stored twice, in {', '.join(name for name, _ in found.twice[:3])}. Models take the median "
                "of a case, so nothing is wrong with them; see whether a folder was copied into itself.")  # fmt: skip
        findings.append(Finding("rows", "warning", where, said, {"rows": rows}))
    return findings


def _packed(night: Night) -> tuple[dict[str, Any], list[Finding]]:
    """Make few files of many, where there are many; what goes wrong on the way harms nothing and is told."""
    kinds = [kind_of(name.rpartition("/")[2]) for name in _sizes(night.store)]
    single = kinds.count(ROWS)
    if single < _FEWEST_FILES:
        return {}, []
    until = time.monotonic() + _COMPACTED * night.budget.left_s

    def stop_late(folder: str, done: int, total: int) -> None:  # noqa: ARG001
        if done < total and time.monotonic() > until:
            raise StoreError(f"its share of the night was over after {done} of {total} files")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            done: Compacted = compact_in_place(night.store, progress=stop_late)
    except (StoreError, OSError) as error:
        said = (f"The store's {single} small files were not all packed: {error}. Nothing is lost; the next night goes on, or "
                "`kernelcast data compact --in-place` does it now.")  # fmt: skip
        return {}, [Finding("storage", "info", night.store.root_name, said, {"files": single})]
    before = single + kinds.count(PACKED)
    return {"packed": {"read": done.read, "written": done.written, "before": before, "rows": done.rows}}, []


def _named(found: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in found[:3])
