"""Single specs that come at the same time, predicted in one go: what a prediction costs is mostly its start.

Nothing waits for company: the specs that were read in one turn of the event loop are predicted at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ..features.kernel import KernelSpec
from ..models.prediction import Prediction
from .source import Loaded

_MOST = 32
"""Specs predicted in one go; more would hold up the event loop, and gain little."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A spec that waits for its prediction."""

    loaded: Loaded
    spec: KernelSpec
    device: str
    coverage: float
    answer: asyncio.Future[Prediction]


class Gathering:
    """Collects specs on one event loop and predicts them together."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    async def predict(self, loaded: Loaded, spec: KernelSpec, device: str, coverage: float) -> Prediction:
        """The prediction of one spec by the model that was loaded when it was read.

        Raises:
            SpecError: the model refuses the spec; others that came with it are answered all the same.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Prediction] = loop.create_future()
        self._waiting.append(_Waiting(loaded, spec, device, coverage, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._answer_all)
        return await answer

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[int, float], list[_Waiting]] = {}
        for one in waiting:
            # Who has gone away meanwhile needs no answer.
            if not one.answer.done():
                groups.setdefault((id(one.loaded), one.coverage), []).append(one)
        for group in groups.values():
            for start in range(0, len(group), _MOST):
                _answer(group[start : start + _MOST])


def _answer(group: Sequence[_Waiting]) -> None:
    """Answer specs that share a model and a coverage; where one is refused, each for itself."""
    first = group[0]
    try:
        found = first.loaded.predictor.predict(
            [one.spec for one in group], [one.device for one in group], coverage=first.coverage
        )
    except Exception as error:  # noqa: BLE001 - whatever fails is told to the request it is about, whose boundary reports it
        if len(group) == 1:
            first.answer.set_exception(error)
            return
        for one in group:
            _answer([one])
    else:
        for one, prediction in zip(group, found, strict=True):
            one.answer.set_result(prediction)
