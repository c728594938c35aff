"""One installation at work: judges every list of choices before Inductor times it, and takes the times afterwards."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Protocol

from .choices import Product, Reading, Surroundings, maker_of, product_of, read, unwrapped
from .measured_choices import Keeper, Measured, Memory, stack_of
from .ranking import Load, Ranking, decide
from .reporting import Counts, say_once

_MARK = "kernelcast"
"""Key in `ChoiceCaller.annotations` (torch/_inductor/ir.py), torch's place for what is known of a choice before it is timed."""


class Torch(Protocol):
    """What is asked of torch; `torch_side` is it, tests play it."""

    def surroundings(self) -> Surroundings:
        """What decides times beside a choice."""

    def device_name(self, device_type: str, index: int | None) -> tuple[str, str]:
        """The device's name in the catalogue, or one of its own, and what it calls itself."""

    def versions(self) -> dict[str, str]:
        """Versions of what compiles."""

    def timing_facts(self, device_type: str) -> dict[str, Any]:
        """How choices are timed."""

    def takes_minimum(self, device_type: str) -> bool:
        """Whether a time is the least of its samples."""

    def seconds_spent(self, name: str, seen: dict[str, int]) -> float | None:
        """Seconds the list just timed took, None where nothing was timed."""

    def times_come_back(self) -> bool:
        """Whether times are handed back at all."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user chose.

    Attributes:
        devices: Catalogue names by the kind of device torch has (`cpu`, `gpu`).
        top_k: Triton templates that stay.
        keep_extern: Whether library calls always stay.
    """

    devices: Mapping[str, str]
    top_k: int
    keep_extern: bool


@dataclass(slots=True)
class _Known:
    """Everything about one device: its names, what was measured on it, and the model that ranks for it."""

    name: str
    facts: Mapping[str, Any]
    memory: Memory
    ranking: Ranking
    least: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found out about a choice before it was timed, and the choices that were to be timed with it."""

    product: Product
    reading: Reading
    beside: list[Any]


class Session:
    """The two functions Inductor calls, `before` and `after`, and what they know. Both may raise; the caller guards them."""

    def __init__(self, settings: Settings, torch: Torch, load: Load, keeper: Keeper) -> None:
        self.counts = Counts()
        self.keeper = keeper
        self._settings = settings
        self._torch = torch
        self._load = load
        self._known: dict[tuple[str, int | None], _Known] = {}
        self._steps: dict[str, int] = {}
        # Inductor compiles in threads, too.
        self._lock = threading.RLock()

    def before(self, choices: list[Any]) -> list[Any]:
        """The choices of one list that stay, in their order."""
        with self._lock:
            around = self._torch.surroundings()
            product = product_of(choices, around)
            if product is None:
                self.counts.other_lists += 1
                _say_unread(choices)
                return choices
            readings = [read(choice, product, around) for choice in choices]
            for choice, reading in zip(choices, readings, strict=True):
                if reading.maker == "triton" and not reading.knobs:
                    _say_unread([choice])
            if not self._torch.times_come_back():
                say_once(
                    "Inductor's pipelined autotuning hands no times back, so nothing is learnt from this compilation"
                )
            known = self._of(product)
            decision = decide(
                readings, known.memory, lambda group: known.ranking.order(product, group), top_k=self._settings.top_k,
                keep_extern=self._settings.keep_extern, on_cpu=product.device_type == "cpu",
            )  # fmt: skip
            results = [choices[at] for at in decision.positions]
            for at in decision.positions:
                marks = getattr(choices[at], "annotations", None)
                if isinstance(marks, dict):
                    marks[_MARK] = _Seen(product, readings[at], results)
            self.counts.lists += 1
            self.counts.choices += len(choices)
            self.counts.pruned_by_failure += decision.by_failure
            self.counts.pruned_by_memory += decision.by_memory
            self.counts.pruned_by_model += decision.by_model
            return results

    def after(self, timings: Mapping[Any, float] | None, name: str, _nodes: Any = None, choices: Sequence[Any] = (),
              *_further: Any) -> None:  # fmt: skip
        """Take the times of one list, milliseconds by choice; infinite ones failed."""
        with self._lock:
            spent_s = self._torch.seconds_spent(name, self._steps)
            if not timings:
                return
            if spent_s is not None:
                self.counts.timed += len(timings)
                self.counts.timing_s += spent_s
            seen = self._seen_of([*timings, *choices])
            if seen is None:
                return
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            product, readings, lost = seen
            known = self._of(product)
            times = [(readings[id(choice)], time) for choice, time in timings.items() if id(choice) in readings]
            times += [(reading, float("inf")) for reading in lost]
            rows = [row for reading, time in times if (row := self._row(reading, time, known, now)) is not None]
            self.keeper.keep(rows, known.name, known.facts)
            known.memory.learn(rows)
            known.ranking.learn(rows)

    def _row(self, reading: Reading, time_ms: float, known: _Known, now: str) -> Measured | None:
        """The row of one choice; None where no row can stand for it, or its time is none (a result of no elements takes 0)."""
        ran = isfinite(time_ms)
        self.counts.measured += ran
        self.counts.failed += not ran
        if reading.spec is None or (ran and time_ms <= 0):
            self.counts.not_kept += 1
            return None
        return Measured(
            spec=reading.spec, device=known.name, status="ok" if ran else "failed",
            latency_s=time_ms * 1e-3 if ran else None, note=reading.note, stack=known.facts["stack"], measured_at=now,
            least=known.least,
        )  # fmt: skip

    def _seen_of(self, choices: Sequence[Any]) -> tuple[Product, dict[int, Reading], list[Reading]] | None:
        """The product, each choice's reading by its identity, and the readings of those that did not compile."""
        marks = {id(item): mark for item in choices if (mark := _mark(item)) is not None}
        if marks:
            first = next(iter(marks.values()))
            handed = {id(unwrapped(item)) for item in choices}
            lost = [
                item for item in first.beside if getattr(item, "failed", False) and id(unwrapped(item)) not in handed
            ]
            readings = [mark.reading for item in lost if (mark := _mark(item)) is not None]
            return first.product, {at: mark.reading for at, mark in marks.items()}, readings
        around = self._torch.surroundings()
        product = product_of(choices, around)
        if product is None:
            return None
        return product, {id(choice): read(choice, product, around) for choice in choices}, []

    def _of(self, product: Product) -> _Known:
        key = (product.device_type, product.device_index)
        if key not in self._known:
            name, called = self._torch.device_name(*key)
            name = self._settings.devices.get("cpu" if product.device_type == "cpu" else "gpu", name)
            versions = self._torch.versions()
            stack = stack_of(versions)
            facts = {"device": name, "called": called, "kind": "inductor autotuning", "versions": versions, "stack": stack,
                     "started": datetime.now(UTC).isoformat(timespec="seconds"),
                     **self._torch.timing_facts(product.device_type)}  # fmt: skip
            known = _Known(name, facts, Memory(stack), Ranking(name, self._load), self._torch.takes_minimum(key[0]))
            rows = self.keeper.remembered(name)
            known.memory.learn(rows)
            known.ranking.learn(rows)
            self._known[key] = known
        return self._known[key]


def _mark(choice: Any) -> _Seen | None:
    marks = getattr(choice, "annotations", None)
    result = marks.get(_MARK) if isinstance(marks, dict) else None
    return result if isinstance(result, _Seen) else None


def _say_unread(choices: Sequence[Any]) -> None:
    """Say that Triton templates are kept as they are; of other makers' choices nothing would have been left out."""
    for choice in map(unwrapped, choices):
        if maker_of(choice) == "triton":
            name = str(getattr(choice, "name", type(choice).__name__)).rsplit("_", 1)[0]
            say_once(
                f"Inductor's choices {name} are no matrix products kernelcast can read; all of them are kept and timed"
            )
            return
