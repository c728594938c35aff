"""Switching the plug-in on and off, and asking what it did."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ...features.device import catalogue
from ...features.errors import SpecError
from . import torch_side
from .measured_choices import Keeper
from .ranking import KIND, Load, Model
from .reporting import Counts, forget_shown, say_once
from .session import Session, Settings

TOP_K = 8
"""Triton templates that are timed of each product: Inductor offers about 20 by default and hundreds when asked for all."""


class Handle:
    """An installation; `remove()` or the end of a `with` block takes it out again. `active` is False where nothing is."""

    def __init__(self, hooks: torch_side.Hooks | None, session: Session | None) -> None:
        self._hooks = hooks
        self._session = session
        # A forked child must not store its parent's rows a second time.
        self._process = os.getpid()
        if hooks is not None:
            hooks.add(self._before, self._after)
            atexit.register(self._close)

    @property
    def active(self) -> bool:
        """Whether Inductor's lists go through this installation."""
        return self._hooks is not None

    def report(self) -> Counts:
        """What was done so far."""
        return Counts() if self._session is None else self._session.counts.copy()

    def remove(self) -> None:
        """Leave Inductor as it was, and put away what was measured. May be called again."""
        if self._hooks is not None:
            _guarded(self._removed, "is not cleanly out of Inductor")
            self._hooks = None

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _removed(self) -> None:
        if self._hooks is not None:
            self._hooks.remove(self._before, self._after)
        atexit.unregister(self._close)
        self._close()

    def _before(self, choices: list[Any]) -> list[Any]:
        session = self._session
        remaining = (
            None
            if session is None
            else _guarded(lambda: session.before(choices), "left a list of Inductor's choices as it was")
        )
        return choices if remaining is None else remaining

    def _after(self, *raw: Any) -> None:
        session = self._session
        if session is not None:
            _guarded(lambda: session.after(*raw), "did not keep the times of a list of choices")

    def _close(self) -> None:
        session = self._session
        if session is not None and os.getpid() == self._process:
            _guarded(session.keeper.close, "could not put away what Inductor measured")


T = TypeVar("T")

_latest: Handle | None = None


def install(
    device: str | None = None,
    top_k: int = TOP_K,
    keep_extern: bool = True,
    store: Keeper | Path | str | None = None,
    model: Model | Path | str | None = None,
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
        store: folder of the store that rows go to and come from, or what takes them instead (`rows.Keeper`); by default
            `KERNELCAST_HOME/measurements`.
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
        session = Session(settings, torch_side, _loader(model), keeper)
    _latest = Handle(hooks, session)
    return _latest


def report() -> Counts:
    """What the latest installation of this process did; all zero where there is none. `print` it for a sentence."""
    return Counts() if _latest is None else _latest.report()


def _keeper(store: Keeper | Path | str | None) -> Keeper:
    if store is None or isinstance(store, Path | str):
        from .row_store import StoredRows

        return StoredRows(None if store is None else Path(store).expanduser())
    return store


def _loader(model: Model | Path | str | None) -> Load:
    def load(device: str) -> Model:
        from ..cost_model import CostModel

        return CostModel.load(KIND, device, model if isinstance(model, Path | str) else None)

    if model is None or isinstance(model, Path | str):
        return load
    raw = model
    return lambda device: raw


def _guarded(work: Callable[[], T], otherwise: str) -> T | None:
    """The result of `work`, None where it failed, which is said: no trouble of ours may end a user's compilation."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, Inductor goes on without us
        say_once(f"kernelcast {otherwise}: {type(error).__name__}: {error}", about=otherwise)
        return None
