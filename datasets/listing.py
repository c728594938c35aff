"""What a store holds, by the names of its files alone: no file is opened to list, but the few records of compactions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from .committing import StoreError, StoreWarning, UnreachableError, VanishedError
from .naming import RECORD, digest_in, digest_of, new_name
from .replacing import Live, Replacement, live, record_of
from .roots import TEMPORARY, Root

CHANGED = "its content is not what its name says"
MISSING = "it is missing; its rows are not read"


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one family on one device: their folder's name below the root, and which of them count."""

    name: str
    family: str
    device: str
    live: Live

    @property
    def rows(self) -> list[str]:
        """Names below the root of the files whose rows count, in the order they were stored."""
        return [f"{self.name}/{one}" for one in self.live.rows]

    @property
    def blocks(self) -> list[str]:
        """Names below the root of the files that hold the provenance of packed rows."""
        return [f"{self.name}/{one}" for one in self.live.blocks]


def folder_name(family: str, device: str) -> str:
    """Where rows of a family on a device lie below the root."""
    return f"family={family}/device={device}"


class Listing:
    """Lists a root. Records of compactions are read once: they never change."""

    def __init__(self, root: Root, told: Callable[[str, str], None] | None = None) -> None:
        """`told` is called with a file's name and what is wrong with it, instead of a `StoreWarning`."""
        self._root, self._told = root, told or self._warn
        self._records: dict[str, Replacement] = {}
        self._damaged: set[str] = set()

    def families(self) -> list[str]:
        """Families that have a folder, sorted."""
        return [one.removeprefix("family=") for one in self._root.folders() if one.startswith("family=")]

    def folders(self, family: str = "*", device: str = "*", *, idle: bool = False) -> list[Folder]:
        """Folders with files that count, with `idle` also those without, sorted by family and device; `*` stands for all."""
        found: list[Folder] = []
        for one in self.families() if family == "*" else [family]:
            for name, files in self._files(one, device).items():
                held = self.live(name, files)
                if held.rows or idle:
                    found.append(Folder(name, one, name.rpartition("device=")[2], held))
        return found

    def folder(self, family: str, device: str) -> Folder:
        """One folder as it is now."""
        name = folder_name(family, device)
        return Folder(name, family, device, self.live(name, self._files(family, device).get(name, [])))

    def files(self, family: str = "*") -> dict[str, list[str]]:
        """Every file by folder, those that do not count too: the last part of its name."""
        names = self.families() if family == "*" else [family]
        return {folder: files for one in names for folder, files in self._files(one, "*").items()}

    def names(self, folder: str) -> list[str]:
        """Every file of one folder, the last part of its name; folders in it are nobody's of ours."""
        start = len(folder) + 1
        return [path[start:] for path in self._root.find(folder) if "/" not in path[start:]]

    def leftovers(self) -> list[str]:
        """Names of files that writers left unfinished when they were killed."""
        return sorted(
            f"{folder}/{name}" for folder, names in self.files().items() for name in names if name.endswith(TEMPORARY)
        )

    def _files(self, family: str, device: str) -> dict[str, list[str]]:
        below = f"family={family}" if device == "*" else folder_name(family, device)
        found: dict[str, list[str]] = {}
        for path in self._root.find(below):
            folder, _, name = path.rpartition("/")
            if folder.count("/") == 1 and folder.partition("/")[2].startswith("device="):
                found.setdefault(folder, []).append(name)
        return dict(sorted(found.items()))

    def live(self, folder: str, names: list[str]) -> Live:
        """What counts of the files `names` of a folder."""
        found = live(names, lambda name: self.record(f"{folder}/{name}"))
        if found.gone or found.unread:
            # Files that came while the folder was being listed may be missing from the list; now they cannot be.
            found = live(self.names(folder), lambda name: self.record(f"{folder}/{name}"))
        for name in found.gone:
            self._told(f"{folder}/{name}", MISSING)
        return found

    def record(self, name: str) -> Replacement | None:
        """The record of a compaction; None, with a `StoreWarning`, for one that is damaged."""
        if name in self._damaged:
            return None
        if name not in self._records:
            try:
                with self._root.open(name) as file:
                    content = file.read()
                last = name.rpartition("/")[2]
                if digest_in(last) != digest_of([content]):
                    raise StoreError(CHANGED)
                self._records[name] = record_of(last, content)
            except VanishedError:
                return None
            except UnreachableError:
                raise
            except StoreError as error:
                self._damaged.add(name)
                self._told(
                    name, f"{error}; where its copy is damaged too, rows of the packed files it names are not read"
                )
                return None
        return self._records[name]

    def _warn(self, name: str, said: str) -> None:
        warnings.warn(f"{self._root.name}/{name}: {said}", StoreWarning, stacklevel=5)


def write_record(root: Root, folder: str, record: Replacement, *, stamp: str | None = None) -> None:
    """Write a record under a new name, as old as `stamp` says or of now."""
    content = record.content()
    root.write([(f"{folder}/{new_name(digest_of([content]), RECORD, stamp=stamp)}", content)])
