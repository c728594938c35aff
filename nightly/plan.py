"""What a night is told to do. Every part has a default, so that a plan of one line works on this machine's CPU."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Collecting = Literal["cpu", "gpu", "fleet", "replay"]


@dataclass(frozen=True, slots=True)
class Characterise:
    """Every how many days the device itself is measured anew (peaks, bandwidths, latencies); 0 for never."""

    every_days: float = 7.0


@dataclass(frozen=True, slots=True)
class Choose:
    """How a night's measuring time is shared: shares of it for cases that fill the space, for what the service is asked
    for, for cases measured before (`repeats`), and for those that tie new software to old (`bridge`, only when there is
    some); the rest goes to what the model knows least of.

    `usage_log` is the folder the service writes to (`KERNELCAST_USAGE_LOG`); None: KERNELCAST_HOME/usage.
    """

    space_filling: float = 0.2
    usage: float = 0.3
    repeats: float = 0.05
    bridge: float = 0.2
    usage_log: str | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Who challenges the champion: by which `regressors`, on which rows beside the store's, at most `most_rows` a family.

    `data` are further files of measured rows; `with_shipped` adds the shipped tables. `challengers` are of `adapted`,
    `retrained` and `past`.
    """

    regressors: tuple[str, ...] = ("blend",)
    data: tuple[str, ...] = ()
    with_shipped: bool = True
    most_rows: int = 20_000
    challengers: tuple[str, ...] = ("adapted", "retrained", "past")


@dataclass(frozen=True, slots=True)
class Gate:
    """What a challenger has to show: the share of shapes held out for it, and how sure its being no worse must be.

    `may_forget` lets one pass that no longer answers for a family and device the champion was measured on.
    """

    hold_out: float = 0.1
    confidence: float = 0.95
    may_forget: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """How many past nights stay on disk, and how many past models may challenge again."""

    nights: int = 30
    models: int = 10


@dataclass(frozen=True, slots=True)
class Fleet:
    """The Ray cluster to measure on (None: one on this machine alone), and the devices of it (empty: all it has)."""

    address: str | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded rows played instead of a device: a Parquet file of one family or a store's folder.

    `speed` is how many times faster than measuring they come; 0 for at once.
    """

    rows: str = ""
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A night's plan; `docs/nightly.md` says what each key does.

    `device` None is this machine's; `families`, `threads` and `impls` empty are all there are. `store` is a folder or an
    address such as `s3://bucket/rows`; None: KERNELCAST_HOME/measurements. `registry` is the address of an MLflow database;
    None: promotion moves the champion pointer alone.
    """

    name: str = "nightly"
    minutes: float = 20.0
    device: str | None = None
    collector: Collecting = "cpu"
    store: str | None = None
    families: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    threads: tuple[int, ...] = ()
    impls: tuple[str, ...] = ()
    seed: int = 0
    energy_minutes: float = 0.0
    registry: str | None = None
    characterise: Characterise = field(default_factory=Characterise)
    choose: Choose = field(default_factory=Choose)
    train: Train = field(default_factory=Train)
    gate: Gate = field(default_factory=Gate)
    keep: Keep = field(default_factory=Keep)
    fleet: Fleet = field(default_factory=Fleet)
    replay: Replay = field(default_factory=Replay)

    @property
    def budget_s(self) -> float:
        """Seconds of the whole night."""
        return 60.0 * self.minutes

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; equal plans give equal JSON."""
        return dict(json.loads(json.dumps(asdict(self))))

    @property
    def hash(self) -> str:
        """Sixteen hex digits of the plan's content: another plan under the same name has another."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def differences(before: dict[str, Any], after: dict[str, Any], under: str = "") -> list[str]:
    """What changed between two plans' JSON, in words: `minutes: 20.0 -> 6.0`."""
    found: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{under}{name}.")
        elif old != new:
            found.append(f"{under}{name}: {without_password(json.dumps(old))} -> {without_password(json.dumps(new))}")
    return found


def without_password(text: str) -> str:
    """The text with what stands before an `@` of an address taken out: reports are read by many."""
    return re.sub(r"://[^/@\s]*@", "://…@", text)
