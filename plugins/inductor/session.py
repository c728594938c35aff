"""The plug-in switched on and off, and at work: lists of choices are judged before Inductor times them, times taken after."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...features.device import catalogue
from ...features.errors import SpecError
from . import torch_side
from .choices import ChoiceSpec, Product, maker_of, product_of, read, unwrapped
from .ranking import KIND, ChoiceHistory, Load, Measured, Ranking, decide, stack_of
from .reporting import Counts, forget_shown, say_once

if TYPE_CHECKING:
    from ..cost_model import CostModel
    from .row_store import StoredRows

_MARK = "kernelcast"
"""Key in `ChoiceCaller.annotations` (torch/_inductor/ir.py), torch's place for what is known of a choice before it is timed."""


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
    memory: ChoiceHistory
    ranking: Ranking
    least: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was found out about a choice before it was timed, and the choices that were to be timed with it."""

    product: Product
    reading: ChoiceSpec
    beside: list[Any]


class Session:
    """The two functions Inductor calls, `before` and `after`, and what they know. Both may raise; the caller guards them."""

    def __init__(self, settings: Settings, load: Load, keeper: StoredRows) -> None:
        self.counts = Counts()
        self.keeper = keeper
        self._settings = settings
        self._load = load
        self._known: dict[tuple[str, int | None], _Known] = {}
        # Inductor compiles in threads, too.
        self._lock = threading.RLock()

    def before(self, choices: list[Any]) -> list[Any]:
        """The choices of one list that stay, in their order."""
        with self._lock:
            around = torch_side.surroundings()
            product = product_of(choices, around)
            if product is None:
                self.counts.other_lists += 1
                _say_unread(choices)
                return choices
            readings = [read(choice, product, around) for choice in choices]
            for choice, reading in zip(choices, readings, strict=True):
                if reading.maker == "triton" and not reading.knobs:
                    _say_unread([choice])
            if not torch_side.times_come_back():
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

    def after(self, timings: Mapping[Any, float] | None, _name: str, _nodes: Any = None, choices: Sequence[Any] = (),
              *_further: Any) -> None:  # fmt: skip
        """Take the times of one list, milliseconds by choice; infinite ones failed."""
        with self._lock:
            if not timings or (seen := self._seen_of([*timings, *choices])) is None:
                return
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            product, readings, lost = seen
            known = self._of(product)
            times = [(readings[id(choice)], time) for choice, time in timings.items() if id(choice) in readings]
            times += [(reading, float("inf")) for reading in lost]
            rows = [row for reading, time in times if (row := self._row(reading, time, known, now)) is not None]
            self.keeper.keep(rows, known.facts)
            known.memory.learn(rows)
            known.ranking.learn(rows)

    def _row(self, reading: ChoiceSpec, time_ms: float, known: _Known, now: str) -> Measured | None:
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

    def _seen_of(self, choices: Sequence[Any]) -> tuple[Product, dict[int, ChoiceSpec], list[ChoiceSpec]] | None:
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
        around = torch_side.surroundings()
        product = product_of(choices, around)
        if product is None:
            return None
        return product, {id(choice): read(choice, product, around) for choice in choices}, []

    def _of(self, product: Product) -> _Known:
        key = (product.device_type, product.device_index)
        if key not in self._known:
            name, called = torch_side.device_name(*key)
            name = self._settings.devices.get("cpu" if product.device_type == "cpu" else "gpu", name)
            versions = torch_side.versions()
            stack = stack_of(versions)
            facts = {"device": name, "called": called, "kind": "inductor autotuning", "versions": versions, "stack": stack,
                     "started": datetime.now(UTC).isoformat(timespec="seconds"),
                     **torch_side.timing_facts(product.device_type)}  # fmt: skip
            known = _Known(
                name, facts, ChoiceHistory(stack), Ranking(name, self._load), torch_side.takes_minimum(key[0])
            )
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


TOP_K = 8
"""Triton templates that are timed of each product: Inductor offers about 20 by default and hundreds when asked for all."""


class Handle:
    """An installation; `remove()` or the end of a `with` block takes it out again. `active` is False where nothing is."""

    def __init__(self, hooks: torch_side.Hooks | None, session: Session | None) -> None:
        self._hooks = hooks
        self._session = session
        if hooks is not None:
            hooks.add(self._before, self._after)
            atexit.register(self._close)

    @property
    def active(self) -> bool:
        """Whether Inductor's lists go through this installation."""
        return self._hooks is not None

    def report(self) -> Counts:
        """What was done so far."""
        return Counts() if self._session is None else replace(self._session.counts)

    def remove(self) -> None:
        """Leave Inductor as it was, and put away what was measured. May be called again."""
        if self._hooks is not None:
            hooks, self._hooks = self._hooks, None
            _guarded(lambda: hooks.remove(self._before, self._after), "is not cleanly out of Inductor")
            atexit.unregister(self._close)
            self._close()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _before(self, choices: list[Any]) -> list[Any]:
        session = self._session
        if session is None:
            return choices
        remaining = _guarded(lambda: session.before(choices), "left a list of Inductor's choices as it was")
        return choices if remaining is None else remaining

    def _after(self, *raw: Any) -> None:
        if (session := self._session) is not None:
            _guarded(lambda: session.after(*raw), "did not keep the times of a list of choices")

    def _close(self) -> None:
        if self._session is not None:
            _guarded(self._session.keeper.flush, "could not put away what Inductor measured")


T = TypeVar("T")

_latest: Handle | None = None


def install(
    device: str | None = None,
    top_k: int = TOP_K,
    keep_extern: bool = True,
    store: StoredRows | Path | str | None = None,
    model: CostModel | Path | str | None = None,
) -> Handle:
    """Let kernelcast choose what TorchInductor times, and keep every time it measures.

    From now on, in this process, each list of choices for a matrix product is cut down before Inductor compiles and times
    it: the `top_k` Triton templates that the device's cost model expects to be fastest stay, and what was measured before
    decides where it can. Library calls (ATen, cuBLAS) always stay, unless `keep_extern` is False. Every time Inductor then
    measures becomes a row of the user's store and teaches the model, in this process and in later ones. A second call
    replaces the first.

    Args:
        device: name of the GPU or CPU in the catalogue; by default what torch says it compiles for.
        top_k: Triton templates of one product that are timed, 1 or more.
        keep_extern: whether library calls are timed beside the templates.
        store: folder of the store that rows go to and come from, or a `StoredRows`; by default `KERNELCAST_HOME/measurements`.
        model: a cost model or the path of its file; by default the one of kind `triton-gemm` that `CostModel.load` finds.

    Returns:
        A handle; `handle.remove()` or leaving its `with` block undoes everything. Where torch has no such hooks, or the store
        cannot be written, one warning says so, the handle is not `active`, and Inductor works as it does without kernelcast.

    Raises:
        SpecError: an unknown `device`, or a `top_k` below 1.
    """
    global _latest
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise SpecError(f"top_k is {top_k!r}; give how many Triton templates are to be timed, 1 or more", field="top_k")
    result = None if device is None else catalogue().get(device)
    settings = Settings({} if result is None else {result.kind: result.name}, top_k, keep_extern)
    if _latest is not None:
        _latest.remove()
    forget_shown()
    hooks = session = None
    try:
        hooks = torch_side.find_hooks()
        keeper = _keeper(store)
    except (SpecError, OSError, ImportError) as error:
        say_once(f"kernelcast is not installed in Inductor: {error}")
        hooks = None
    else:
        session = Session(settings, _loader(model), keeper)
    _latest = Handle(hooks, session)
    return _latest


def report() -> Counts:
    """What the latest installation of this process did; all zero where there is none. `print` it for a sentence."""
    return Counts() if _latest is None else _latest.report()


def _keeper(store: StoredRows | Path | str | None) -> StoredRows:
    if store is None or isinstance(store, Path | str):
        from .row_store import StoredRows

        return StoredRows(None if store is None else Path(store).expanduser())
    return store


def _loader(model: CostModel | Path | str | None) -> Load:
    if model is not None and not isinstance(model, Path | str):
        return lambda device: model

    def load(device: str) -> CostModel:
        from ..cost_model import CostModel

        return CostModel.load(KIND, device, model)

    return load


def _guarded(work: Callable[[], T], otherwise: str) -> T | None:
    """The result of `work`, None where it failed, which is said: no trouble of ours may end a user's compilation."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, Inductor goes on without us
        say_once(f"kernelcast {otherwise}: {type(error).__name__}: {error}", about=otherwise)
        return None
