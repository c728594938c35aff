"""Prompts and answers on devices of their own: how many of each, and what that gives.

Workers of one machine compute prompts, one at a time, and hand keys and values to others that decode. With `p` the time of a
prompt and ρ the share of it that a worker is busy, prompts at random times wait ρ/(2(1 - ρ))·p (Pollaczek–Khinchine, a
service of constant length). The first token comes from the worker of the prompt; the second waits until each rank has sent
its share of the cache over one link (`engine/collectives.py`; of the kind with fewer ranks), nothing of it hidden behind the
prompt. Decoding workers run steps without prompts. Both have the same formats and engine; a machine's split is repeated on the
others.

That is how splits are ranked. The cheapest are then simulated (`batching/prompt_workers.py`), with requests at random times.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Floats
from ....features.device import Device
from ....features.errors import SpecError
from ....models.predict.prediction import Interval
from ...architectures.memory import memory
from ...architectures.plan import ParallelPlan
from ...architectures.step import Step
from ..batching.prompt_workers import Workers, simulate_apart
from ..batching.simulation import Arrivals, poisson
from ..engine.collectives import MOST_DEVICES, shipped_laws
from ..engine.service_profile import ELSEWHERE, ServiceProfile, service_profile
from ..predict import Latency, ServingPredictor, latency_of
from .question import PlanQuestion
from .space import Setting
from .sweep import BATCHES, MOST_BUSY, Replica

TRIED = 4
"""Plans of each kind of worker that are paired: those of the most tokens per device within the limits."""
SIMULATED = 12
"""Most splits simulated, the cheapest first, until one keeps the limits."""
REQUESTS = 1000
"""Requests of a simulation."""


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """Times of requests as simulated; intervals are those of the engine, wider as no such service was measured.

    Attributes:
        ttft_s: Time to the first token.
        tpot_s: Time per token after it, the transfer included.
    """

    ttft_s: Latency
    tpot_s: Latency

    @classmethod
    def of(
        cls, ttft_s: Floats, tpot_s: Floats, profile: ServiceProfile, architectures: Sequence[str],
        weights: Floats | None = None,
    ) -> SimulatedTimes:  # fmt: skip
        """Those of requests that weigh so much (None: alike), each of shape `(n,)`, on devices of such architectures."""

        def latency(values: Floats, target: str) -> Latency:
            half = ELSEWHERE * max(profile.half_width(target, name) for name in architectures)
            return latency_of(
                values, lambda value: Interval(value, value * math.exp(-half), value * math.exp(half)), weights
            )

        return cls(latency(ttft_s, "ttft"), latency(tpot_s, "tpot"))


@dataclass(frozen=True, slots=True)
class Split:
    """Devices split between prompts and answers.

    Attributes:
        prefill: What a worker of prompts is.
        decode: What a worker of answers is.
        prefill_workers: Workers of prompts in all machines.
        decode_workers: Workers of answers.
        concurrency: Sequences that one of these decodes.
        transfer_s: Time in which a prompt's keys and values are sent.
        ttft_s: Mean time to the first token.
        tpot_s: Mean time per token after it, the transfer included.
        throughput_tok_s: Tokens of answers per second.
        energy_per_token_j: Joules of all devices per token of an answer; NaN where unknown.
        cost_per_million_tokens: In the currency of the prices, or hours of devices.
        service: Its times as simulated; None before that.
    """

    prefill: Setting
    decode: Setting
    prefill_workers: int
    decode_workers: int
    concurrency: int
    transfer_s: float
    ttft_s: float
    tpot_s: float
    throughput_tok_s: float
    energy_per_token_j: float
    cost_per_million_tokens: float
    service: SimulatedTimes | None = None

    @property
    def gpus(self) -> int:
        """Devices of all workers."""
        return self.prefill_workers * self.prefill.plan.devices + self.decode_workers * self.decode.plan.devices


@dataclass(frozen=True, slots=True)
class _Prompts:
    """A worker of prompts: seconds and joules of one prompt, and seconds in which its cache is sent."""

    replica: Replica
    prompt_s: float
    prompt_j: float
    transfer_s: float


@dataclass(frozen=True, slots=True)
class _Answers:
    """A worker of answers with so many sequences: requests per second, seconds of a step, joules of an answer."""

    replica: Replica
    sequences: int
    requests_s: float
    step_s: float
    answer_j: float


@dataclass(frozen=True, slots=True)
class _Machine:
    """So many workers of prompts, and others of answers, in one machine."""

    prompts: _Prompts
    answers: _Answers
    workers: int
    others: int


def best_split(service: ServingPredictor, question: PlanQuestion, replicas: Sequence[Replica]) -> Split | None:
    """The split of least cost whose simulated median request keeps the limits.

    None where none of the cheapest does, an answer has one token, or a concurrency is given.
    """
    if question.output_tokens < 2 or question.concurrency is not None:
        return None
    groups: dict[tuple[object, ...], list[Replica]] = defaultdict(list)
    for replica in replicas:
        if replica.setting.speculation is not None:
            # Guesses beside workers of prompts are not modelled.
            continue
        groups[replica.setting.device, replica.setting.formats, replica.setting.engine].append(replica)
    splits = [
        pair for some in groups.values()
        for pair in _splits(question, service.predictor.devices.get(some[0].setting.device), some)
    ]  # fmt: skip
    splits.sort(key=lambda pair: pair[0].cost_per_million_tokens)
    for split, machine in splits[:SIMULATED]:
        device = service.predictor.devices.get(split.decode.device)
        times = _simulated(question, device, split, machine)
        limits = ((times.ttft_s, question.ttft_s), (times.tpot_s, question.tpot_s))
        if all(limit is None or question.value_of(latency) <= limit for latency, limit in limits):
            return replace(split, service=times)
    return None


def _simulated(question: PlanQuestion, device: Device, split: Split, machine: _Machine) -> SimulatedTimes:
    outputs, inputs = round(question.output_tokens), round(question.input_tokens)
    rate = split.throughput_tok_s / outputs * machine.workers / split.prefill_workers
    first, second = machine.prompts, machine.answers
    at_s = poisson(rate, REQUESTS, np.random.default_rng(0))
    runs, _ = simulate_apart(
        Workers(machine.workers, first.replica.table, first.replica.how),
        Workers(machine.others, second.replica.table, replace(second.replica.how, sequences=second.sequences)),
        Arrivals(_alike(inputs), _alike(outputs), at_s), np.full(REQUESTS, first.transfer_s),
    )  # fmt: skip
    ttft_s = np.concatenate([run.first_s - run.sent_s for _, run in runs])
    tpot_s = np.concatenate([(run.last_s - run.first_s) / (outputs - 1) for _, run in runs])
    profile = service_profile(split.decode.engine, None, device.vendor)
    return SimulatedTimes.of(ttft_s, tpot_s, profile, [device.architecture])


def _alike(tokens: int) -> npt.NDArray[np.int64]:
    return np.full(REQUESTS, tokens, dtype=np.int64)


def _splits(question: PlanQuestion, device: Device, replicas: Sequence[Replica]) -> Iterator[tuple[Split, _Machine]]:
    machine = min(int(device.fact("fabric_devices") or MOST_DEVICES), question.at_most(device.name))
    steps = round(question.output_tokens) - 1
    # One of each has to have room.
    small = [replica for replica in replicas if _size(replica) < machine]
    ranked = sorted(_prompts(question, device, small), key=lambda item: item.prompt_s * _size(item.replica))
    # Of each plan the size of steps that is fastest.
    prompts = list({item.replica.setting.plan: item for item in reversed(ranked)}.values())[::-1][:TRIED]
    sent_s = {item.replica.setting.plan: item.transfer_s for item in ranked}
    answers = sorted(_answers(question, small), key=lambda item: -item.requests_s / _size(item.replica))
    for sender in prompts:
        longest_s = (question.tpot_s or math.inf) - sender.transfer_s / steps
        fast: dict[ParallelPlan, _Answers] = {}
        for item in answers:
            if item.step_s <= longest_s:
                fast.setdefault(item.replica.setting.plan, item)
        for second in list(fast.values())[:TRIED]:
            # The kind with fewer ranks has the larger shares, each over one link.
            first = replace(sender, transfer_s=max(sender.transfer_s, sent_s[second.replica.setting.plan]))
            for workers in range(1, machine // _size(first.replica) + 1):
                others = (machine - workers * _size(first.replica)) // _size(second.replica)
                for count in range(1, others + 1):
                    split = _split(question, first, second, workers, count)
                    if split is not None:
                        yield split, _Machine(first, second, workers, count)


def _size(replica: Replica) -> int:
    return replica.setting.plan.devices


def _prompts(question: PlanQuestion, device: Device, replicas: Sequence[Replica]) -> Iterator[_Prompts]:
    tokens = round(question.input_tokens)
    for replica in replicas:
        setting, table, how = replica.setting, replica.table, replica.how
        done, prompt_s, prompt_j = min(int(how.cached * tokens), tokens - 1), 0.0, 0.0
        while done < tokens:
            new = min(tokens - done, how.chunk) if how.splits else tokens - done
            prompt_s += table.mixed(0, 0.0, [(new, done)])
            prompt_j += table.mixed(0, 0.0, [(new, done)], energy=True) if table.knows_energy else math.nan
            done += new
        cache_b = memory(question.facts, Step.prefill(1, tokens), setting.formats, setting.plan).cache_per_sequence_b
        try:
            sent_s, _ = shipped_laws().seconds(device, setting.engine, "send", 2, np.array([cache_b]))
        except SpecError:
            # A device without known links cannot hand anything on.
            return
        yield _Prompts(replica, prompt_s, prompt_j, float(sent_s[0]))


def _answers(question: PlanQuestion, replicas: Sequence[Replica]) -> Iterator[_Answers]:
    steps, context = round(question.output_tokens) - 1, question.input_tokens + question.output_tokens / 2
    for replica in replicas:
        table = replica.table
        for sequences in (*(size for size in BATCHES if size < replica.most), replica.most):
            step_s = table.decoding(sequences)(context)
            step_j = table.decoding(sequences, energy=True)(context) if table.knows_energy else math.nan
            yield _Answers(replica, sequences, sequences / (steps * step_s), step_s, steps * step_j / sequences)


def _split(question: PlanQuestion, first: _Prompts, second: _Answers, workers: int, count: int) -> Split | None:
    """So many workers of each kind in a machine; None where they miss a limit."""
    between_s, busiest = first.replica.how.between_s, MOST_BUSY
    if question.ttft_s is not None:
        # As busy as makes prompts wait until the limit.
        waits = (question.ttft_s - between_s) / first.prompt_s - 1
        if waits <= 0:
            return None
        busiest = min(busiest, 2 * waits / (1 + 2 * waits))
    requests_s = min(busiest * workers / first.prompt_s, MOST_BUSY * count * second.requests_s)
    size = workers * _size(first.replica) + count * _size(second.replica)
    most = question.at_most(first.replica.setting.device)
    machines = most // size
    if question.rate is not None:
        machines = math.ceil(question.rate / requests_s)
        requests_s = question.rate / machines
    busy = requests_s * first.prompt_s / workers
    ttft_s = first.prompt_s * (1 + busy / (2 * (1 - busy))) + between_s
    outputs = round(question.output_tokens)
    tpot_s = second.step_s + first.transfer_s / (outputs - 1)
    if machines * size > most or not machines:
        return None
    resting_w = workers * (1 - busy) * first.replica.idle_w
    resting_w += count * (1 - requests_s / (count * second.requests_s)) * second.replica.idle_w
    energy_j = (first.prompt_j + second.answer_j + resting_w / requests_s) / outputs
    throughput = machines * requests_s * outputs
    if question.power_budget_w is not None and not energy_j * throughput <= question.power_budget_w:
        return None
    per_hour = question.price(first.replica.setting.device) * machines * size
    return Split(
        first.replica.setting, second.replica.setting, machines * workers, machines * count, second.sequences, first.transfer_s,
        ttft_s, tpot_s, throughput, energy_j, 1e6 * per_hour / 3600 / throughput,
    )  # fmt: skip
