"""What a GPU can do, measured in about a minute: peaks, the bandwidth and latency ladder, launch floors, power.

A child process measures and sends every fact as it is known (`probe_worker`); this side imports no GPU library. A child that
hangs or crashes costs the fact it was at: another goes on with the rest. The cases are in `probe_table`, the same for
every GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from ... import __version__
from ..pipe import ChildProcess, WorkerStartError

SILENCE_S = 60.0
"""Longest any one probe may take: the energy ones settle and read for some ten seconds, compiling takes a few."""

LIMIT_S = 300.0
"""Longest the whole may take; what is not measured by then is left."""

MOST_LOST = 4
"""Children lost before what is left is given up."""

Facts = dict[str, dict[str, Any]]
"""Flat names to `{"value": number or None, "source": when and by what, or why not}`, SI units."""


class ProbeChild(Protocol):
    """The child that measures; `ChildProcess` is one, tests play one."""

    ready: Mapping[str, Any]

    def start(self) -> None:
        """Start it; raises WorkerStartError."""
        ...

    def write(self, message: Mapping[str, Any]) -> None:
        """Send a request."""
        ...

    def read(self, deadline_s: float) -> dict[str, Any]:
        """The next message; raises TimeoutError, or EOFError when it is gone."""
        ...

    def last_words(self) -> str:
        """Why it ended."""
        ...

    def close(self) -> None:
        """Kill it."""
        ...


@dataclass(frozen=True, slots=True)
class Characterised:
    """What characterising gave: the facts, and what the device says of itself (name, attributes, versions)."""

    facts: Facts
    device: Mapping[str, Any]


def probe_child(index: int) -> ChildProcess:
    """The child for GPU `index`; -P keeps the working directory's folders from shadowing packages."""
    command = [sys.executable, "-P", "-m", "kernelcast.collectors.gpu.probe_worker", str(index)]
    return ChildProcess("GPU", command, {})


def characterize(
    names: Sequence[str] | None = None,
    *,
    index: int = 0,
    child: ProbeChild | None = None,
    silence_s: float = SILENCE_S,
    limit_s: float = LIMIT_S,
    progress: Callable[[str, int, int], None] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> Characterised:
    """Measure GPU `index`; nothing is stored.

    Args:
        names: facts wanted, in order; default: all of `probe_table.PROBES`.
        index: which GPU, as CUDA counts.
        child: what measures; default: a process of its own.
        silence_s: longest for one fact.
        limit_s: longest for all.
        progress: called with the fact being measured, facts done, facts in all.
        now_s: monotonic time.

    Raises:
        WorkerStartError: no child starts; torch or its CUDA device is missing, say.
    """
    if names is None:
        from .probe_table import PROBES

        names = [probe.name for probe in PROBES]
    child = probe_child(index) if child is None else child
    facts: Facts = {}
    device: dict[str, Any] = {}
    lost, until_s = 0, now_s() + limit_s
    try:
        while left := [name for name in names if name not in facts]:
            if lost == MOST_LOST or now_s() >= until_s:
                why = f"given up after {lost} lost processes" if lost == MOST_LOST else f"the {limit_s:g} s are over"
                facts |= _missing(left, why)
                break
            try:
                child.start()
            except WorkerStartError as error:
                if not facts:
                    raise
                facts |= _missing(left, str(error))
                break
            device = device or dict(child.ready)
            lost += _until_lost(child, left, facts, silence_s, until_s, progress, now_s)
    finally:
        child.close()
    return Characterised({name: facts[name] for name in names}, device)


def _until_lost(
    child: ProbeChild, left: Sequence[str], facts: Facts, silence_s: float, until_s: float,
    progress: Callable[[str, int, int], None] | None, now_s: Callable[[], float],
) -> int:  # fmt: skip
    """Fill `facts` with `left`; 1 when the child was lost on the way, and then the guilty one is None there."""
    done, at = len(facts), left[0]
    try:
        child.write({"probes": list(left)})
        while "done" not in (message := child.read(max(0.0, min(silence_s, until_s - now_s())))):
            if "at" in message:
                at = message["at"]
                if progress is not None:
                    progress(at, len(facts), len(left) + done)
            else:
                facts[message["fact"]] = measured_fact(message["value"], message["note"])
        return 0
    except TimeoutError:
        child.close()
        why = "the time for all facts was over" if now_s() >= until_s else f"no sign of life for {silence_s:g} s"
    except (EOFError, BrokenPipeError):
        why = child.last_words()
        child.close()
    # A child that saw its context break sent the guilty fact itself, and then ended.
    facts |= _missing([at] if at not in facts else [], why)
    return 1


def measured_fact(value: float | None, note: str) -> dict[str, Any]:
    """A fact as a device file has it; `note` says how it was measured, or why there is no value."""
    if value is None:
        return {"value": None, "source": f"not measured: {note}"}
    return {"value": value, "source": f"measured {datetime.now(UTC):%Y-%m-%d}, kernelcast {__version__}: {note}"}


def _missing(names: Iterable[str], why: str) -> Facts:
    return {name: measured_fact(None, why) for name in names}
