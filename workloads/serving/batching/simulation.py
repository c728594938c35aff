"""Continuous batching as a discrete-event simulation over a table of step times.

An engine runs one step after the other. Before each it admits waiting requests while keys and values of theirs have room;
the step then decodes one token of every running sequence and computes as many tokens of admitted prompts as its budget
leaves. Engines that do not mix run a step of prompts alone first. Steps between two events (an arrival, the end of a
sequence, a full cache) differ in context alone, by which a table is linear between its points: they are run as one.

Where the cache has no room for what a step adds, the sequence admitted last is preempted, as in vLLM's V1 scheduler
(`vllm/v1/core/sched/scheduler.py`): its keys and values are dropped, it waits before all others, and its prompt and the tokens
generated so far are computed again, as one prompt whose last position gives the next token.

With speculative decoding a step gives a sequence several tokens: an answer takes `Arrivals.steps` of them, over which its
positions grow evenly.

A request comes to the engine `between_s` after it is sent. An engine that forms a step while the one before it runs takes what
came before that one began: a request waits for up to two steps.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from ....features.errors import SpecError
from .step_table import StepTable

MAX_STEPS = 200_000_000
"""Most steps simulated: some days of a server, so that a load in the wrong unit ends."""
_OVERLOAD_LEAST = 100
"""Requests of which so many show whether they wait ever longer."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How an engine forms steps.

    Attributes:
        chunk: Most tokens of a step (vLLM's `max_num_batched_tokens`, TensorRT-LLM's `max_num_tokens`).
        sequences: Most sequences that run together.
        cache_tokens: Positions of keys and values that fit.
        mixes: Whether prompts and decoding share a step; else steps of prompts go first.
        splits: Whether a prompt may be computed in chunks.
        reserved: Share of the tokens that sequences have yet to generate whose room is left free when a request is admitted.
        cached: Share of a prompt whose keys and values the prefix cache has; its last token is always computed.
        between_s: Seconds of the engine and its client per request outside steps: parsing, tokenising, sending.
        ahead: Whether a step is formed while the one before it runs.
        guesses: Tokens guessed for each decoding sequence, which a step verifies beside the one that it decodes.
        tokens: Mean tokens that a step gives a sequence; read by closed forms alone.
        decode_only: Whether requests come with their first token and the keys and values of their prompts, of which nothing is
            computed here.
    """

    chunk: int
    sequences: int
    cache_tokens: float
    mixes: bool = True
    splits: bool = True
    reserved: float = 1.0
    between_s: float = 0.0
    cached: float = 0.0
    ahead: bool = False
    guesses: int = 0
    tokens: float = 1.0
    decode_only: bool = False


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests in the order in which they are sent.

    Attributes:
        inputs: Tokens of each prompt, shape `(n,)`.
        outputs: Tokens of each answer, shape `(n,)`.
        at_s: When each is sent, shape `(n,)`; None: a closed loop sends the next when one is answered.
        concurrency: Requests under way in a closed loop.
        steps: Steps in which each is decoded after its first token, shape `(n,)`; None: one for each token.
    """

    inputs: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    at_s: Floats | None = None
    concurrency: int = 0
    steps: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """What a simulation gives; times are shapes `(n,)` in the order of the requests.

    Attributes:
        sent_s: When a request was sent.
        first_s: When its first token came.
        last_s: When its last token came.
        outputs: Tokens of its answer.
        gaps_s: Times between two tokens that occurred, or between two steps that give several, any order.
        weights: How often each of `gaps_s` did.
        duration_s: From the first request to the last answer.
        busy_s: Seconds in steps.
        energy_j: Joules of all devices in steps.
        steps: Steps that ran.
        tokens: Mean number of sequences that decode in a step.
        preemptions: How often a sequence lost its place in the cache.
        waited_s: How long each request waited in all; None: until its first token.
    """

    sent_s: Floats
    first_s: Floats
    last_s: Floats
    outputs: npt.NDArray[np.int64]
    gaps_s: Floats
    weights: Floats
    duration_s: float
    busy_s: float
    energy_j: float
    steps: int
    tokens: float
    preemptions: int = 0
    waited_s: Floats | None = None

    @property
    def overload(self) -> float:
        """How many times as fast as they are answered requests come: by what later ones wait longer; 1 of few requests."""
        n = len(self.sent_s)
        if n < _OVERLOAD_LEAST:
            return 1.0
        early, late = (slice(start, start + n // 4) for start in (n // 4, 3 * n // 4))
        waits_s = self.first_s - self.sent_s if self.waited_s is None else self.waited_s
        gap_s = float(self.sent_s[late].mean() - self.sent_s[early].mean())
        return 1 + float(waits_s[late].mean() - waits_s[early].mean()) / gap_s if gap_s > 0 else 1.0


def simulate(table: StepTable, arrivals: Arrivals, how: Scheduling) -> Service:
    """Run an engine until all requests are answered.

    Raises:
        SpecError: a request is longer than what fits.
    """
    inputs, outputs = arrivals.inputs.tolist(), arrivals.outputs.tolist()
    n = len(inputs)
    full = [i + o for i, o in zip(inputs, outputs, strict=True)]
    longest = max(full)
    if longest > how.cache_tokens:
        raise SpecError(
            f"a sequence of {longest} tokens does not fit: there is room for {max(0, int(how.cache_tokens))}; "
            "use more devices, smaller formats or shorter sequences", field="memory",
        )  # fmt: skip
    closed = arrivals.at_s is None
    sent = [0.0] * n if arrivals.at_s is None else arrivals.at_s.tolist()
    first, last = [0.0] * n, [0.0] * n
    # Requests on their way, in the order in which they were sent.
    upcoming = min(arrivals.concurrency, n) if closed else n
    coming: deque[int] = deque(range(upcoming))
    waiting: deque[int] = deque()
    prompts: deque[list[int]] = deque()
    ends: list[tuple[int, int]] = []
    gaps: list[float] = []
    weights: list[float] = []
    now = busy = energy = began = 0.0
    ran = counter = running = decoded = preemptions = admissions = 0
    # Seconds since the last step that decoded, in engines whose prompts go first.
    stalled = 0.0
    # Decode steps of each answer, those of them that are left, and positions that each adds to its sequence.
    needed = [o - 1 for o in outputs] if arrivals.steps is None else arrivals.steps.tolist()
    left = list(needed)
    grows = [(o - 1) / s if o - 1 != s else 1 for o, s in zip(outputs, needed, strict=True)]
    # Tokens to compute before a sequence decodes, when each was admitted, and when preempted ones gave their last token.
    sizes, admitted, stopped = list(inputs), [0] * n, dict[int, float]()
    # Positions of running sequences, what a step adds to them, those of admitted prompts, and of all of these when answered.
    total: float = 0
    pace: float = 0
    prompt_tokens = whole = 0
    room = how.cache_tokens
    while True:
        formed = began if how.ahead and (running or prompts) else now
        while coming and sent[coming[0]] + how.between_s <= formed:
            waiting.append(coming.popleft())
        while whole > room and total + prompt_tokens + pace > room and running + len(prompts) > 1:
            preemptions += 1
            if prompts:
                request = prompts.pop()[0]
                prompt_tokens -= sizes[request]
            else:
                last_in = max(ends, key=lambda item: admitted[item[1]])
                ends.remove(last_in)
                heapq.heapify(ends)
                request = last_in[1]
                left[request] = last_in[0] - counter
                positions = inputs[request] + (needed[request] - left[request]) * grows[request]
                total -= positions
                pace -= grows[request]
                running -= 1
                sizes[request] = int(positions) + 1
                stopped[request] = now - stalled
            whole -= full[request]
            waiting.appendleft(request)
        while waiting and running + len(prompts) < how.sequences:
            request = waiting[0]
            occupied = total + prompt_tokens + pace + sizes[request]
            if (1 - how.reserved) * occupied + how.reserved * (whole + full[request]) > room and running + len(prompts):
                break
            waiting.popleft()
            whole += full[request]
            admissions += 1
            admitted[request] = admissions
            if how.decode_only and request not in stopped:
                first[request] = sent[request]
                heapq.heappush(ends, (counter + left[request], request))
                running += 1
                total += inputs[request]
                pace += grows[request]
                continue
            prompt_tokens += sizes[request]
            prompts.append([request, min(int(how.cached * inputs[request]), inputs[request] - 1)])
        if prompts:
            # At least one token is left for prompts, however many sequences decode.
            budget = max(how.chunk - (running * (how.guesses + 1) if how.mixes else 0), 1)
            chunks: list[tuple[int, int]] = []
            finished: list[int] = []
            for item in prompts:
                rest = sizes[item[0]] - item[1]
                if rest > budget and (not how.splits and chunks):
                    break
                new = min(rest, budget) if how.splits else rest
                chunks.append((new, item[1]))
                item[1] += new
                budget -= new
                if item[1] == sizes[item[0]]:
                    finished.append(item[0])
                if budget <= 0:
                    break
            beside = running if how.mixes else 0
            context = total / beside if beside else 0.0
            step_s = table.mixed(beside, context, chunks)
            energy += table.mixed(beside, context, chunks, energy=True)
            began = now
            now += step_s
            busy += step_s
            ran += 1
            if running and not how.mixes:
                stalled += step_s
            if beside:
                gaps.append(step_s)
                weights.append(float(beside))
                counter += 1
                total += pace
                decoded += beside
            for request in finished:
                prompts.popleft()
                prompt_tokens -= sizes[request]
                if request in stopped:
                    # What is computed again gives what a decode step would.
                    left[request] -= 1
                    gaps.append(now - stopped.pop(request))
                    weights.append(1.0)
                else:
                    first[request] = now
                heapq.heappush(ends, (counter + left[request], request))
                running += 1
                total += inputs[request] + (needed[request] - left[request]) * grows[request]
                pace += grows[request]
        elif running:
            line = table.decoding(running)
            steps = ends[0][0] - counter
            context, growth = total / running, pace / running
            if steps > 0:
                if whole > room:
                    steps = min(steps, max(1, int((room - total) / pace)))
                step_s = line(context + growth * (steps - 1) / 2)
                if coming and now + steps * step_s > (comes := sent[coming[0]] + how.between_s):
                    until = max(1, int((comes - now) / line(context)) + 1) + (how.ahead and comes > now)
                    steps = min(steps, until)
                    step_s = line(context + growth * (steps - 1) / 2)
                began = now + (steps - 1) * step_s
                now += steps * step_s
                busy += steps * step_s
                energy += steps * table.decoding(running, energy=True)(context + growth * (steps - 1) / 2)
                ran += steps
                counter += steps
                total += steps * pace
                decoded += steps * running
                after_prompts = stalled > 0
                if after_prompts:
                    gaps.append(step_s + stalled)
                    weights.append(float(running))
                    stalled = 0.0
                gaps.append(step_s)
                weights.append(float((steps - after_prompts) * running))
        elif coming:
            began = now = max(now, sent[coming[0]] + how.between_s)
            continue
        else:
            break
        while ends and ends[0][0] <= counter:
            request = heapq.heappop(ends)[1]
            last[request] = now
            running -= 1
            total -= inputs[request] + needed[request] * grows[request]
            pace -= grows[request]
            whole -= full[request]
            if closed and upcoming < n:
                sent[upcoming] = now
                coming.append(upcoming)
                upcoming += 1
        if ran > MAX_STEPS:
            raise SpecError(f"the load takes more than {MAX_STEPS:,} steps; ask for fewer requests", field="requests")
    return Service(
        np.array(sent), np.array(first), np.array(last), arrivals.outputs, np.array(gaps),
        np.array(weights), now - sent[0], busy, energy, ran, decoded / max(ran, 1), preemptions,
    )  # fmt: skip


def lengths(mean: float, spread: float, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Whole lengths, evenly spread from `mean·(1 - spread)` to `mean·(1 + spread)`, at least 1; shape `(count,)`."""
    low, high = mean * (1 - spread), mean * (1 + spread)
    drawn = np.full(count, mean) if spread == 0 else random.uniform(low, high, count)
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def poisson(rate: float, count: int, random: np.random.Generator) -> Floats:
    """Times of arrivals of a Poisson process of `rate` per second, the first at 0; shape `(count,)`."""
    return np.concatenate([[0.0], np.cumsum(random.exponential(1 / rate, count - 1))])


def weighted_quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    """Quantiles of values that occur `weights` times each; NaN of none."""
    if not len(values):
        return [float("nan")] * len(shares)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return [float(values[order][np.searchsorted(below, share * below[-1])]) for share in shares]
