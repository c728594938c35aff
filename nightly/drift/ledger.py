"""The regimes of a device on disk: spans of its life within which its rows may be learned from together.

KERNELCAST_HOME/regimes/nvidia-h200-sxm-141gb.json, and the file before it as nvidia-h200-sxm-141gb.previous.json
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from ...datasets.store import StoreError
from ...features.errors import SpecError
from ...home import home_dir
from ..record import Finding

FORMAT_VERSION = 1
Verdict = Literal["same", "shifted", "unclear", "too few"]

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much ln latency moved from one regime to the next: the median over `n` cases measured in both, the interval
    around it, and what that means: `unclear` is neither surely the same nor surely moved, `too few` has no interval.
    """

    log_ratio: float
    low: float
    high: float
    n: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Regime:
    """A span of a device's life. `shifts` are those against the regime `against` by `family/impl`; both empty for the first.
    `since` is when it began (UTC, ISO 8601; empty: as long as there are rows), `decided_by` what opened it.
    """

    id: str
    since: str
    software: str
    decided_by: str
    against: str | None = None
    shifts: Mapping[str, Shift] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """From `since` on, rows measured under `software` belong to `regime`."""

    since: str
    software: str
    regime: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is known of a device's regimes, oldest first. The last span's regime is the current one."""

    device: str
    regimes: tuple[Regime, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def current(self) -> Regime | None:
        """The regime of today; None before the first."""
        return self.regime(self.spans[-1].regime) if self.spans else None

    def regime(self, name: str) -> Regime:
        """The regime called `name`.

        Raises:
            SpecError: there is none.
        """
        for one in self.regimes:
            if one.id == name:
                return one
        known = ", ".join(one.id for one in self.regimes) or "none"
        raise SpecError(f"{self.device} has no regime {name!r}; regimes: {known}", field="regime")

    def regime_of(self, software: str, measured_at: str | None = None) -> str | None:
        """The regime that a row belongs to; None for software nobody has decided about.

        A row whose time is not known, or before all spans of its software, belongs to the first of them.
        """
        spans = [span for span in self.spans if span.software == software]
        if not spans:
            return None
        at = seconds_of(measured_at)
        return [spans[0], *(span for span in spans[1:] if seconds_of(span.since) <= at)][-1].regime

    def shift(self, old: str, new: str, key: str) -> Shift | None:
        """How ln latency of `family/impl` moved from regime `old` to `new`, over all regimes between; None where unknown.

        What is the same has moved by nothing. Half-widths add up, which is wide enough however the bridges depend on
        each other.
        """
        total, low, high, n = 0.0, 0.0, 0.0, 0
        for child, sign in self._path(old, new):
            step = child.shifts.get(key)
            if step is None or step.verdict == "too few":
                return None
            if step.verdict != "same":
                ends = sorted((sign * step.low, sign * step.high))
                total, low, high = total + sign * step.log_ratio, low + ends[0], high + ends[1]
            n = min(n or step.n, step.n)
        return Shift(total, low, high, n, "same" if (low, high) == (0.0, 0.0) else "shifted")

    def _path(self, old: str, new: str) -> Iterator[tuple[Regime, float]]:
        """The steps from one regime to another: regimes with a shift, and 1 where it is gone along, -1 where back."""
        up, down = self._line(old), self._line(new)
        shared = {one.id for one in up} & {one.id for one in down}
        yield from ((one, -1.0) for one in up if one.id not in shared)
        yield from ((one, 1.0) for one in reversed(down) if one.id not in shared)

    def _line(self, name: str) -> list[Regime]:
        """The regime and all it was compared with, back to the first."""
        line = [self.regime(name)]
        while line[-1].against is not None:
            line.append(self.regime(line[-1].against))
        return line

    def with_span(self, span: Span) -> Ledger:
        """The ledger with one more span; its regime is the current one."""
        return replace(self, spans=(*self.spans, span))

    def to_json(self) -> str:
        """The ledger as JSON."""
        return json.dumps(
            {"format_version": FORMAT_VERSION, **asdict(self)}, ensure_ascii=False, allow_nan=False, indent=1
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger that `to_json` wrote.

        Raises:
            SpecError: damaged, or of another version.
        """
        try:
            content = json.loads(text)
            if content["format_version"] != FORMAT_VERSION:
                raise SpecError(f"format version {content['format_version']!r}; this kernelcast reads {FORMAT_VERSION}")
            regimes = tuple(_regime(one) for one in content["regimes"])
            ledger = cls(str(content["device"]), regimes, tuple(Span(**one) for one in content["spans"]))
            _check(ledger)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SpecError(f"it is damaged or no ledger of regimes ({error})") from error
        return ledger


def seconds_of(moment: str | None) -> float:
    """Seconds since 1970 of a UTC time in ISO 8601, as rows and ids of nights give it; minus infinity where there is none."""
    given = moment or ""
    try:
        # The id of a night is its time and a name: 20261122T220000Z-every-night.
        found = datetime.fromisoformat(given.split("-", 1)[0] if "Z-" in given else given)
    except ValueError:
        return -math.inf
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def ledger_path(device: str, folder: Path | None = None) -> Path:
    """The file of a device's regimes, in `folder` or else in `KERNELCAST_HOME/regimes`.

    Raises:
        SpecError: a device name that cannot name a file.
    """
    if not _SAFE_NAME.fullmatch(device):
        raise SpecError(
            f"device name {device!r} cannot name a file; use letters, digits, '.', '_', '+' and '-'", field="device"
        )
    return (folder or home_dir() / "regimes") / f"{device}.json"


def read_ledger(device: str, folder: Path | None = None) -> tuple[Ledger, list[Finding]]:
    """The device's regimes; an empty ledger where there is no file yet.

    A damaged file is kept under another name, the file before it is read in its place, and a finding says so.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: a file that cannot be opened or set aside.
    """
    path = ledger_path(device, folder)
    found, why = _read(path, device)
    if found is not None:
        return found, []
    if why is None:
        return Ledger(device), []
    aside = path.with_name(f"{path.stem}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}Z")
    try:
        path.rename(aside)
    except OSError as error:
        raise StoreError(f"cannot set {path} aside, which is damaged: {error.strerror or error}") from error
    before, _ = _read(_previous(path), device)
    instead = (
        "the ledger before it is used, and what was decided last is decided again"
        if before is not None
        else "there is none before it, and tonight opens the first regime"
    )
    said = f"The regimes of {device} could not be read: {why}. The file is kept as {aside.name}; {instead}."
    return before or Ledger(device), [Finding("regime", "needs-person", device, said)]


def write_ledger(ledger: Ledger, folder: Path | None = None) -> Path:
    """Replace the device's file in one piece; the file before it stays beside it.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: the disk is full or not writable; the file before is untouched.
    """
    path = ledger_path(ledger.device, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _replace(_previous(path), path.read_bytes())
        _replace(path, ledger.to_json().encode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}; the regimes before are untouched") from error
    return path


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous.json")


def _read(path: Path, device: str) -> tuple[Ledger | None, str | None]:
    """The ledger in a file, or why it is none; neither where there is no file."""
    try:
        found = Ledger.from_json(path.read_text("utf-8"))
        if found.device != device:
            return None, f"it is of {found.device}"
        return found, None
    except FileNotFoundError:
        return None, None
    except (SpecError, UnicodeDecodeError) as error:
        return None, str(error)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def _regime(content: Mapping[str, Any]) -> Regime:
    shifts = {str(key): Shift(**one) for key, one in content["shifts"].items()}
    return Regime(**{**content, "shifts": shifts})


def _check(ledger: Ledger) -> None:
    """Every name is of a regime, each compared with one before it; numbers are finite.

    Raises:
        ValueError: the first thing that is not so.
    """
    before: list[str] = []
    for one in ledger.regimes:
        _texts(one.id, one.since, one.software, one.decided_by)
        if one.id in before or (one.against is not None and one.against not in before):
            raise ValueError(f"regime {one.id!r} is there twice, or compared with none before it")
        before.append(one.id)
        for key, shift in one.shifts.items():
            if shift.verdict not in get_args(Verdict) or not shift.low <= shift.log_ratio <= shift.high:
                raise ValueError(f"the shift of {key!r} is none")
            if not math.isfinite(shift.low + shift.high) or shift.n < 0:
                raise ValueError(f"the shift of {key!r} is not finite")
    for span in ledger.spans:
        _texts(span.since, span.software)
        if span.regime not in before:
            raise ValueError(f"a span of the unknown regime {span.regime!r}")


def _texts(*values: object) -> None:
    if strange := [value for value in values if not isinstance(value, str)]:
        raise ValueError(f"{strange[0]!r} is no text")
