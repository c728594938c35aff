"""Prompts and answers on workers of their own, as a simulation: requests go through both, with their caches.

A request goes to a worker of prompts at random. Its first token comes from there; then its keys and values are sent, nothing of
it hidden behind the prompt, and the next worker of answers goes on. Workers of one kind are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from .simulation import Arrivals, Scheduling, Service, simulate
from .step_table import StepTable

_SEED = 1
"""Of the draw of workers, beside that of arrivals."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of one kind.

    Attributes:
        count: How many.
        table: Steps of one.
        how: How one schedules.
    """

    count: int
    table: StepTable
    how: Scheduling


@dataclass(frozen=True, slots=True)
class PromptWork:
    """What workers of prompts do, all together.

    Attributes:
        busy_s: Seconds in steps.
        energy_j: Joules in steps.
        steps: Steps that ran.
    """

    busy_s: float
    energy_j: float
    steps: int


def simulate_apart(
    prompts: Workers, answers: Workers, arrivals: Arrivals, transfer_s: Floats
) -> tuple[list[tuple[npt.NDArray[np.int64], Service]], PromptWork]:
    """What each worker of answers gives its requests, sent and first token included, and the work of the others.

    Of each worker of answers that has requests: their places in `arrivals`, and its service.

    Args:
        prompts: workers of prompts.
        answers: workers of answers.
        arrivals: requests with times.
        transfer_s: seconds in which the cache of each is sent, shape `(n,)`.

    Raises:
        SpecError: a request is longer than what fits.
    """
    at_s = arrivals.at_s
    if at_s is None:
        raise ValueError("requests that go through two kinds of workers have times")
    first_s = np.empty_like(at_s)
    busy_s = energy_j = 0.0
    steps = 0
    of_request = np.random.default_rng(_SEED).integers(prompts.count, size=len(at_s))
    for some in _of_each(of_request):
        ones = np.ones(len(some), dtype=np.int64)
        run = simulate(prompts.table, Arrivals(arrivals.inputs[some], ones, at_s[some]), prompts.how)
        first_s[some] = run.first_s
        busy_s, energy_j, steps = busy_s + run.busy_s, energy_j + run.energy_j, steps + run.steps
    how = replace(answers.how, decode_only=True, between_s=0.0, cached=0.0)
    order = np.argsort(first_s, kind="stable")
    runs = []
    for some in _of_each(np.arange(len(order)) % answers.count):
        rows = order[some]
        # Workers of answers read the prompt and its first token.
        comes_s = first_s[rows] + transfer_s[rows]
        again = np.argsort(comes_s, kind="stable")
        rows, comes_s = rows[again], comes_s[again]
        run = simulate(answers.table, Arrivals(arrivals.inputs[rows] + 1, arrivals.outputs[rows], comes_s), how)
        runs.append((rows, _from_sending(run, at_s[rows], first_s[rows])))
    return runs, PromptWork(busy_s, energy_j, steps)


def _from_sending(run: Service, sent_s: Floats, first_s: Floats) -> Service:
    """The service of a worker of answers as the client sees it.

    What a request takes beyond its decode steps, the transfer and the wait for a place, lies between its first two tokens.
    """
    # An answer of one token ends where its prompt does.
    last_s = np.where(run.outputs > 1, run.last_s, first_s)
    decodes = run.outputs > 1
    count, steps = int(decodes.sum()), float(run.weights.sum())
    if not count:
        return replace(run, sent_s=sent_s, first_s=first_s, last_s=last_s, waited_s=first_s - sent_s)
    step_s = float(run.gaps_s @ run.weights) / steps
    beyond_s = np.where(decodes, np.maximum(last_s - first_s - (run.outputs - 1) * step_s, 0.0), 0.0)
    # As many gaps as before: the first of each answer is as long as a step and what lies beyond.
    gaps_s = np.concatenate([run.gaps_s, beyond_s[decodes] + step_s])
    weights = np.concatenate([run.weights * max(1 - count / steps, 0.0), np.ones(count)])
    return replace(
        run, sent_s=sent_s, first_s=first_s, last_s=last_s, gaps_s=gaps_s, weights=weights,
        waited_s=first_s - sent_s + beyond_s,
    )  # fmt: skip


def _of_each(which: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """The places of each number that occurs."""
    for number in np.unique(which):
        yield np.flatnonzero(which == number)
