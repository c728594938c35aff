"""The folder of nights, as a server may read it: no link is followed, nothing long is read, and what is damaged says so."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import msgspec

from .nights_wire import FORMAT_VERSION, NIGHT_ID, NightReport, NightSummary, summary_of

REPORT, STATE, PAGE = "report.json", "state.json", "report.html"
MAX_REPORT_B = 8 << 20
MAX_PAGE_B = 16 << 20
_MAX_KEPT = 512
"""Lines of the list that are kept for as long as their files stay as they are."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_decode = msgspec.json.Decoder(NightReport).decode

Stamp = tuple[int, int, int]


class NightError(Exception):
    """A night that cannot be told of; `status` is the HTTP status that says why."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class NightsFolder:
    """The nights in `folder`; a folder that is not there holds none. Safe for threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[tuple[Stamp | None, ...], NightSummary]] = {}
        self._turn = threading.Lock()

    def ids(self) -> list[str]:
        """The nights, newest first.

        Raises:
            NightError: 500, the folder cannot be read.
        """
        try:
            with os.scandir(self._folder) as entries:
                found = [one.name for one in entries if NIGHT_ID.fullmatch(one.name) and not one.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NightError(500, f"the folder of nights cannot be read: {error.strerror or error}") from error
        return sorted(found, reverse=True)

    def report(self, night: str) -> tuple[bytes, NightReport]:
        """A night's report as it is stored, checked; of a night that still runs, its state so far.

        Raises:
            NightError: 404, there is no such night; 500, its file cannot be used.
        """
        self._check_place(night)
        content = self._read(night, REPORT, MAX_REPORT_B)
        if content is None or self._is_older(night, REPORT, STATE):
            state = self._read(night, STATE, MAX_REPORT_B)
            if state is not None:
                found = _checked(state, night, STATE)
                # A night that was interrupted has a report, and is gone on with.
                if content is None or found.outcome == "running":
                    return state, found
        if content is None:
            raise NightError(404, f"the night {night} has no {REPORT} and no {STATE} (yet)")
        return content, _checked(content, night, REPORT)

    def page(self, night: str) -> str:
        """A night's report as HTML.

        Raises:
            NightError: 404, there is no such night or it has no page; 500, the page cannot be used.
        """
        self._check_place(night)
        content = self._read(night, PAGE, MAX_PAGE_B)
        if content is None:
            raise NightError(404, f"the night {night} has no {PAGE} (yet); GET /v1/nights/{night} says how far it is")
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NightError(500, f"{PAGE} of the night {night} is not UTF-8") from error

    def summary(self, night: str) -> NightSummary:
        """A night's line in the list; one that cannot be read says why."""
        stamps = tuple(self._stamp(night, name) for name in (REPORT, STATE, PAGE))
        with self._turn:
            kept = self._kept.get(night)
        if kept is not None and kept[0] == stamps:
            return kept[1]
        try:
            found = summary_of(self.report(night)[1], has_page=stamps[2] is not None)
        except NightError as error:
            found = NightSummary(night, problem=str(error))
        with self._turn:
            while len(self._kept) >= _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[night] = (stamps, found)
        return found

    def _check_place(self, night: str) -> None:
        if NIGHT_ID.fullmatch(night) is None:
            shown = night if len(night) <= 60 else f"{night[:60]}…"
            raise NightError(
                404,
                f"no night is called {shown!r}; a name is such as 20261122T220000Z-rack, and GET /v1/nights lists them",
            )
        try:
            found = os.lstat(self._folder / night)
        except FileNotFoundError as error:
            raise NightError(404, f"there is no night {night}; GET /v1/nights lists those there are") from error
        except OSError as error:
            raise _unreadable(night, "", error) from error
        if not stat.S_ISDIR(found.st_mode):
            raise NightError(
                500, f"{night} is no folder of its own in the folder of nights, and links are not followed"
            )

    def _read(self, night: str, name: str, most_b: int) -> bytes | None:
        """A file of the night, None where there is none."""
        try:
            handle = os.open(self._folder / night / name, os.O_RDONLY | _NO_LINK)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NightError(500, f"{name} of the night {night} is a link, which is not followed") from error
            raise _unreadable(night, name, error) from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise NightError(500, f"{name} of the night {night} is no file")
            with os.fdopen(handle, "rb", closefd=False) as file:
                content = file.read(most_b + 1)
        except OSError as error:
            raise _unreadable(night, name, error) from error
        finally:
            os.close(handle)
        if len(content) > most_b:
            raise NightError(500, f"{name} of the night {night} is longer than {most_b >> 20} MiB and is not read")
        return content

    def _is_older(self, night: str, name: str, other: str) -> bool:
        one, two = self._stamp(night, name), self._stamp(night, other)
        return one is not None and two is not None and one[0] < two[0]

    def _stamp(self, night: str, name: str) -> Stamp | None:
        """What changes when the file does; None where there is no file."""
        try:
            found = os.lstat(self._folder / night / name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _checked(content: bytes, night: str, name: str) -> NightReport:
    try:
        found = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NightError(500, f"{name} of the night {night} is damaged or no report of a night: {error}") from error
    if found.format_version != FORMAT_VERSION:
        raise NightError(
            500,
            f"{name} of the night {night} has format version {found.format_version}; this kernelcast reads {FORMAT_VERSION}",
        )
    if found.id != night:
        raise NightError(500, f"{name} of the night {night} is of another night, {found.id[:120]!r}")
    return found


def _unreadable(night: str, name: str, error: OSError) -> NightError:
    which = f"{name} of the night {night}" if name else f"the night {night}"
    return NightError(500, f"{which} cannot be read: {error.strerror or type(error).__name__}")
