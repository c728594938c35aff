"""Replicas that share a load: the shares that occur, each simulated once, and what all replicas give together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...features.batch.cases import Floats
from ..units import counted
from .batching.load import MAX_CLOSED, Load
from .batching.prompt_workers import PromptWork, Workers, simulate_apart
from .batching.simulation import Arrivals, Scheduling, Service, lengths, poisson, simulate
from .batching.step_table import StepTable
from .host_experts import host_notes
from .request import ServingRequest
from .speculation import Speculation

FULL_CACHE = 3.0
"""Half-widths of the time to the first token grow so much where sequences are preempted: of six public closed loops whose cache
is full three are inside without it and all with it. Times per token (5 of 6) and throughputs (18 of 19) are as they are."""
OVERLOADED = 1.05
"""Requests that come so many times as fast as they are answered are an overload."""


@dataclass(frozen=True, slots=True)
class Share:
    """What comes to each of some replicas.

    Attributes:
        replicas: How many have such a share.
        arrivals: The requests of one.
    """

    replicas: int
    arrivals: Arrivals


@dataclass(frozen=True, slots=True)
class Served:
    """What replicas give together: sums are those of a mean replica in `duration_s`.

    Attributes:
        shares: The shares that occur.
        runs: The simulation of each.
        weights: How often each counts in a mean replica; replicas without requests add nothing.
        duration_s: Seconds that the sums are of.
        prompts: Work of all workers of prompts; None where replicas compute their own.
    """

    shares: tuple[Share, ...]
    runs: tuple[Service, ...]
    weights: tuple[float, ...]
    duration_s: float
    prompts: PromptWork | None = None

    @property
    def arrivals(self) -> Arrivals:
        """The requests of all simulations, one after another."""
        first, *others = [share.arrivals for share in self.shares]
        if not others:
            return first
        every = (first, *others)
        steps = [part.steps for part in every if part.steps is not None]
        return Arrivals(
            np.concatenate([part.inputs for part in every]), np.concatenate([part.outputs for part in every]),
            steps=np.concatenate(steps) if steps else None,
        )  # fmt: skip

    @property
    def tokens(self) -> float:
        """Mean number of sequences that decode in a step of a replica that has requests."""
        steps = [weight * run.steps for weight, run in zip(self.weights, self.runs, strict=True)]
        return sum(count / sum(steps) * run.tokens for count, run in zip(steps, self.runs, strict=True))

    @property
    def steps(self) -> int:
        """Steps simulated."""
        return sum(run.steps for run in self.runs) + (0 if self.prompts is None else self.prompts.steps)

    @property
    def most_preempted(self) -> Service:
        """The simulation with the most preemptions."""
        return max(self.runs, key=lambda run: run.preemptions)

    @property
    def ttft_s(self) -> list[Floats]:
        """Time to the first token of each request, of each simulation."""
        return [run.first_s - run.sent_s for run in self.runs]

    def tpot_s(self, events: float) -> list[Floats]:
        """Time per token after it, of each simulation, where a step gives so many; NaN of answers of one token."""
        return [
            np.where(run.outputs > 1, (run.last_s - run.first_s) / np.maximum(run.outputs - 1, 1), np.nan) / events
            for run in self.runs
        ]

    @property
    def output_tokens(self) -> float:
        """Tokens of all answers of a mean replica."""
        return self.total(float(run.outputs.sum()) for run in self.runs)

    @property
    def input_tokens(self) -> float:
        """Tokens of all prompts of a mean replica."""
        return self.total(float(share.arrivals.inputs.sum()) for share in self.shares)

    def total(self, values: Iterable[float]) -> float:
        """The sum of a mean replica, from that of each simulation."""
        return sum(weight * value for weight, value in zip(self.weights, values, strict=True))

    def weighted(self, values: Sequence[Floats]) -> Floats | None:
        """Weights of the values of all simulations, one after another; None where all weigh alike."""
        if len(set(self.weights)) == 1:
            return None
        return np.concatenate([np.full(len(some), weight) for some, weight in zip(values, self.weights, strict=True)])


def loads_of(load: Load, replicas: int) -> list[tuple[int, Load]]:
    """How many replicas have which share of a load, larger shares first; those without requests are left out."""
    if replicas == 1 or load.kind == "queued":
        return [(replicas, load)]
    if load.trace is not None:
        # Requests of a trace go to the replicas in turn.
        firsts = range(min(replicas, len(load.trace)))
        return [(1, replace(load, trace=load.trace[first::replicas])) for first in firsts]
    if load.kind == "open":
        return [(replicas, replace(load, size=load.size / replicas))]
    return [(count, replace(load, size=size)) for count, size in even_shares(round(load.size), replicas) if size]


def even_shares(requests: int, replicas: int) -> list[tuple[int, int]]:
    """How many replicas have how many requests, which differ by one at most, larger shares first."""
    size, larger = divmod(requests, replicas)
    return [(count, each) for count, each in ((larger, size + 1), (replicas - larger, size)) if count]


def arrivals_of(load: Load, how: Scheduling) -> Arrivals:
    """The requests that a client sends."""
    random = np.random.default_rng(load.seed)
    if load.trace is not None:
        at_s, inputs, outputs = (np.array(column) for column in zip(*load.trace, strict=True))
        return Arrivals(inputs, outputs, at_s)
    count = load.count
    if count is None:
        # Three times what runs together: the ends of the queue weigh little.
        fits = how.cache_tokens / (load.input_tokens + load.output_tokens)
        count = int(min(max(3 * min(fits, how.sequences), 64), MAX_CLOSED))
    inputs, outputs = (lengths(mean, load.spread, count, random) for mean in (load.input_tokens, load.output_tokens))
    if load.kind == "open":
        return Arrivals(inputs, outputs, poisson(load.size, count, random))
    return Arrivals(inputs, outputs, None, min(round(load.size), count) if load.kind == "closed" else count)


def shares_of(load: Load, replicas: int, how: Scheduling, speculation: Speculation | None) -> tuple[Share, ...]:
    """The requests of replicas, larger shares first."""
    shares = []
    for count, share in loads_of(load, replicas):
        arrivals = arrivals_of(share, how)
        if speculation is not None:
            # Lengths and times stay those of the same load without guesses.
            steps = speculation.steps(arrivals.outputs, np.random.default_rng((load.seed, 1)))
            arrivals = replace(arrivals, steps=steps)
        shares.append(Share(count, arrivals))
    return tuple(shares)


def share_notes(load: Load, replicas: int) -> list[str]:
    """What to know of a number of requests that does not divide."""
    shares = even_shares(round(load.size), replicas)
    if load.kind not in ("closed", "static") or len(shares) == 1:
        return []
    (_, _), (fewer, size) = shares
    if size == 0:
        return [f"{fewer} of {replicas} replicas have no requests and draw idle power"]
    parts = " and ".join(f"{count} × {each}" for count, each in shares)
    return [f"{load.size:g} requests among {replicas} replicas: {parts}"]


def simulated_requests(load: Load, replicas: int) -> int:
    """Requests of a load that are simulated, of all shares together; 0 of a queue, whose number the cache decides."""
    return sum(share.count or 0 for _, share in loads_of(load, replicas))


def serve(table: StepTable, shares: Sequence[Share], how: Scheduling, load: Load, replicas: int) -> Served:
    """Run a replica of each share until all requests are answered.

    Raises:
        SpecError: a request is longer than what fits.
    """
    runs = [simulate(table, share.arrivals, how) for share in shares]
    durations_s = [max(run.duration_s, 1e-9) for run in runs]
    if load.trace is not None or load.kind == "static":
        # Such a load ends, and replicas that are done before it rest; others go on at their rates.
        ended_s = max(float(run.last_s.max()) for run in runs)
        durations_s = [max(ended_s - min(float(run.sent_s[0]) for run in runs), 1e-9)] * len(runs)
    weights = [
        share.replicas / replicas * (durations_s[0] / own_s) for share, own_s in zip(shares, durations_s, strict=True)
    ]
    return Served(tuple(shares), tuple(runs), tuple(weights), durations_s[0])


def serve_apart(prompts: Workers, answers: Workers, load: Load, transfer_s: Callable[[int], float]) -> Served:
    """Run requests with times through workers of prompts and of answers until all are answered.

    `transfer_s` says how long the cache of a prompt of so many tokens is sent.

    Raises:
        SpecError: a request is longer than what fits.
    """
    arrivals = arrivals_of(load, answers.how)
    sent_s = {tokens: transfer_s(tokens) for tokens in np.unique(arrivals.inputs).tolist()}
    runs, work = simulate_apart(
        prompts, answers, arrivals, np.array([sent_s[tokens] for tokens in arrivals.inputs.tolist()])
    )
    shares = [Share(1, Arrivals(arrivals.inputs[rows], arrivals.outputs[rows], run.sent_s)) for rows, run in runs]
    ended_s = max(float(run.last_s.max()) for _, run in runs)
    duration_s = max(ended_s - min(float(run.sent_s.min()) for _, run in runs), 1e-9)
    weights = (1 / answers.count,) * len(runs)
    return Served(tuple(shares), tuple(run for _, run in runs), weights, duration_s, work)


def service_notes(
    request: ServingRequest, served: Served, fitting: int | None, longest: float, host_b: float
) -> tuple[str, ...]:
    """What to know of an answer.

    Args:
        request: the question.
        served: what its replicas gave.
        fitting: sequences of full length that a replica's cache holds; None where that is unknown.
        longest: tokens of the longest request.
        host_b: bytes of experts in the host's memory of a device.
    """
    load, replicas = request.load, request.replicas
    notes = share_notes(load, replicas)
    of_replica = " of a replica" if replicas > 1 else ""
    under_way = max(share.arrivals.concurrency for share in served.shares)
    if fitting is not None and fitting < under_way and load.kind in ("closed", "static"):
        notes.append(
            f"the cache{of_replica} holds {fitting} sequences of {longest:.0f} tokens: the others wait for room"
        )
    if load.kind == "closed" and not load.spread and load.trace is None and under_way > 1 and load.output_tokens > 1:
        notes.append(
            "requests are equally long, so that answers end together and prompts wait for each other; with lengths that vary "
            "(spread 0.1) first tokens come earlier"
        )
    notes += request.facts.notes
    if request.prefill_workers:
        notes.append(
            f"prompts are computed by {counted(request.prefill_workers, 'worker')} ({request.prefill_plan}) alone; no such "
            "service was measured"
        )
    if request.plan.pp > 1:
        notes.append(
            "stages are taken to run one after another; an engine that fills them with several batches gives more tokens"
        )
    if request.speculation is not None:
        notes += request.speculation.notes
    if request.host_experts:
        notes += host_notes(request.host_experts, host_b)
    if load.kind == "open" and (ratio := max(run.overload for run in served.runs)) > OVERLOADED:
        notes.append(
            f"requests come {ratio:.2g} times as fast as they are answered, and wait ever longer; a rate below "
            f"{load.size / ratio:.2g} a second keeps up"
        )
    if (preemptions := (fullest := served.most_preempted).preemptions) > 0:
        notes.append(
            f"the cache was full {preemptions} times in {len(fullest.outputs)} requests of a replica: the sequence "
            "admitted last was dropped and computed again; fewer sequences (max_sequences), more devices or a smaller kv_dtype "
            f"keep room; the interval of the time to the first token is {FULL_CACHE:g} times as wide"
        )
    return tuple(notes)
