"""What an importer of someone else's measurements is, and how it gathers rows of the form and what it left out.

An importer turns files as another project or profiler writes them into tables of the bring-your-own form, in SI units. It
judges only what the files themselves tell; sizes, dtypes, devices and physics are judged once for all sources where the
tables are taken over (`import_source`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..features.device import catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import discover

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""

MS = 1e-3
"""Seconds in a millisecond."""

US = 1e-6
"""Seconds in a microsecond."""

SHORT_KERNEL_S = 333e-6
"""Power of shorter kernels does not reproduce where a sensor is read every 100 ms: what aiconfigurator's tables give for one
case in two frameworks is 40 to 53 % apart below 30 µs."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know about an import: how many rows it is about, what was done and why.

    `kept` is False where the rows were left out or refused, True where they are in but something of them is not, or is
    doubtful.
    """

    rows: int
    reason: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.rows} rows {'kept' if self.kept else 'left out'}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportedTables:
    """What an importer read: a table of the form per family, what is to be said of it, and how many files it is from."""

    tables: Mapping[str, pa.Table]
    notes: tuple[Note, ...]
    files: int


@dataclass(frozen=True, slots=True)
class Importer:
    """A source of measurements in a form of its own; one file in `importers/` each.

    `looks_like` tells by names and first lines, quickly, whether a path is one. `read(path, device, progress)` reads a
    file or folder; `device` is what the user named, None for nothing. `names_devices` says that the files name their
    devices, so that naming another is an error. `origin` is where the source is published, empty for a tool's own output.
    """

    name: str
    title: str
    looks_like: Callable[[Path], bool]
    read: Callable[[Path, str | None, Progress], ImportedTables]
    names_devices: bool = True
    origin: str = ""


@cache
def importers() -> Mapping[str, Importer]:
    """Every importer by name."""
    from . import importers as package

    return MappingProxyType(discover(package, "IMPORTER"))


def get_importer(name: str) -> Importer:
    """The importer called `name`.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    known = importers()
    if name not in known:
        raise SpecError(f"no importer {name!r}; importers: {listed(known)}", field="from")
    return known[name]


def guess_importer(path: Path) -> str | None:
    """The name of the importer a path looks like one of, None where there is none or more than one."""
    found = [name for name, importer in importers().items() if importer.looks_like(path)]
    return found[0] if len(found) == 1 else None


def agreed_device(said: str, given: str | None, origin: str) -> str:
    """The device a file says, or the one the user names for a file that says none or a name the catalogue does not know.

    Raises:
        SpecError: neither, or both and they are different devices.
    """
    if not said and not given:
        raise SpecError(f"{origin} does not say which device it is from; name it with --device", field="device")
    if not said or not given:
        return said or given or ""
    try:
        known = catalogue().get(said).name
    except SpecError:
        return given
    if known != catalogue().get(given).name:
        raise SpecError(f"{origin} is from {said}, not from {given}; leave --device out", field="device")
    return said


class Harvest:
    """Gathers rows of the form by family, and notes by reason."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._parts: dict[str, list[pa.Table]] = {}
        self._notes: dict[tuple[str, bool], int] = {}
        self._files = 0

    def file_read(self) -> None:
        """Count one file."""
        self._files += 1

    def leave_out(self, rows: int, reason: str) -> None:
        """Say that rows were left out, and why; equal reasons add up."""
        self._say(rows, reason, kept=False)

    def remark(self, rows: int, reason: str) -> None:
        """Say something of rows that are kept."""
        self._say(rows, reason, kept=True)

    def add(self, family: str, rows: int, /, **columns: Any) -> None:
        """Add rows of one family: every column an array of shape `(rows,)`, or one value for all of them.

        Numbers are missing where NaN, texts where empty.
        """
        if not rows:
            return
        given = {"family": family, "source": self._source} | columns
        self._parts.setdefault(family, []).append(pa.table({name: _arrow(one, rows) for name, one in given.items()}))

    def done(self) -> ImportedTables:
        """What was gathered."""
        tables = {
            family: pa.concat_tables(parts, promote_options="permissive")
            for family, parts in sorted(self._parts.items())
        }
        notes = tuple(Note(rows, reason, kept) for (reason, kept), rows in self._notes.items())
        return ImportedTables(tables, notes, self._files)

    def _say(self, rows: int, reason: str, *, kept: bool) -> None:
        if rows:
            self._notes[reason, kept] = self._notes.get((reason, kept), 0) + int(rows)


def _arrow(given: Any, rows: int) -> pa.Array:
    values: npt.NDArray[Any] = np.broadcast_to(np.asarray(given), (rows,))
    if values.dtype.kind in "US":
        return pa.array([word or None for word in values.tolist()], pa.string())
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        whole = bool(np.all(missing | (np.floor(values) == values) & (np.abs(values) < 2**53)))
        kind = pa.int64() if whole and not missing.all() else pa.float64()
        cells = [None if gone else value for value, gone in zip(values.tolist(), missing.tolist(), strict=True)]
        return pa.array(cells, pa.float64()).cast(kind)
    return pa.array(values.tolist(), pa.int64())
