"""Every plan of a question in closed form: tables of steps are filled once per setting, and read for thousands of plans."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ....features.device import Device
from ....features.errors import SpecError
from ...units import counted
from ..batching.closed_form import Steady, closed_loop
from ..batching.load import Load
from ..batching.simulation import Scheduling
from ..batching.step_table import StepTable
from ..engine.service_profile import service_profile
from ..predict import ServingPredictor, scheduled
from ..request import ENGINES, ServingRequest, scheduler_of
from ..steps import limit_w
from .question import PlanQuestion
from .space import Refusals, Setting

MAX_BATCH = 1024
"""Most sequences of one replica that are planned for."""
MOST_BUSY = 0.9
"""Share of what a replica can do that random arrivals may ask of it: nearer to all of it they wait for each other ever longer
(by the Pollaczek–Khinchine formula 4.5 times a service of constant length). A judgement."""
SMALL_CHUNKS = (2048, 1024, 512)
"""Tokens of a step that are tried beside the engine's default: shorter steps delay running sequences less."""
SLACK = 1.1
"""Plans that miss a limit on latency by so much in closed form may keep it as simulated, which then decides."""
BATCHES = tuple(sorted({*(1 << power for power in range(11)), *(3 << power for power in range(2, 9))}))
"""Sequences of a replica that are tried: powers of two, and what is midway from 12 on."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its settings, and its service in closed form.

    Attributes:
        setting: What one replica is.
        replicas: Copies that share the load.
        concurrency: Requests under way at one replica, of a number that does not divide at those that have most.
        sequences: Most sequences that run together in one replica: of those under way, or at a rate as many as keep the limits.
        chunk: Most tokens of a step.
        ttft_s: Time to the first token.
        tpot_s: Time per token after it.
        throughput_tok_s: Tokens of answers per second of all replicas.
        energy_per_token_j: Joules of all devices per token of an answer; NaN where unknown.
        power_w: Mean power of all devices; NaN where unknown.
        cost_per_million_tokens: In the currency of the prices, or hours of devices.
    """

    setting: Setting
    replicas: int
    concurrency: int
    sequences: int
    chunk: int
    ttft_s: float
    tpot_s: float
    throughput_tok_s: float
    energy_per_token_j: float
    power_w: float
    cost_per_million_tokens: float

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.setting.plan.devices * self.replicas


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a setting at one size of chunk, at each number of sequences that it can run.

    Attributes:
        setting: What it is.
        chunk: Most tokens of a step.
        most: Most sequences that run together; others wait.
        idle_w: Watts of all its devices that have nothing to run; NaN where unknown.
        limit_w: Power limits of all its devices; infinite where not public.
        table: Times of steps.
        how: How its engine schedules.
    """

    setting: Setting
    chunk: int
    most: int
    idle_w: float
    limit_w: float
    table: StepTable
    how: Scheduling

    def steady(self, sequences: int, question: PlanQuestion) -> Steady:
        """Its service with so many sequences under way; those that have no room wait."""
        running = min(sequences, self.most)
        inputs, outputs = round(question.input_tokens), max(round(question.output_tokens), 1)
        service = closed_loop(self.table, running, inputs, outputs, self.how)
        if sequences == running:
            return service
        # By Little's law, what is not running waits.
        wait_s = (sequences - running) * outputs / service.throughput_tok_s
        return replace(service, ttft_s=service.ttft_s + wait_s)


def replicas_of(
    service: ServingPredictor, question: PlanQuestion, every: Iterable[Setting], refusals: Refusals
) -> list[Replica]:
    """One replica of every setting that a model fits, at each size of chunk; what is refused is counted in `refusals`."""
    return [replica for setting in every for replica in _replicas(service, question, setting, refusals)]


def candidates(
    question: PlanQuestion, replicas: Iterable[Replica], refusals: Refusals, slack: float = 1.0
) -> list[Candidate]:
    """Every plan of replicas that keeps the limits; what does not is counted in `refusals`.

    Limits on latency are `slack` times as long: `SLACK` where a simulation decides afterwards.
    """
    plans = (item for replica in replicas for item in _plans(question, replica, refusals, slack))
    return [item for item in plans if _keeps(question, item, refusals, slack)]


def keeps_times(question: PlanQuestion, item: Candidate | Steady, slack: float = 1.0) -> bool:
    """Whether a service in closed form keeps `slack` times the limits on latency."""
    return item.ttft_s <= slack * (question.ttft_s or math.inf) and item.tpot_s <= slack * (question.tpot_s or math.inf)


def under_way(question: PlanQuestion, item: Candidate) -> int:
    """Requests under way in all replicas of a plan."""
    return item.concurrency * item.replicas if question.concurrency is None else round(question.concurrency)


def load_of(question: PlanQuestion, item: Candidate) -> Load:
    """The load under which a plan is simulated: the one asked for, else as many requests under way as it is made for."""
    if question.rate is not None:
        return Load("open", question.rate, question.input_tokens, question.output_tokens, cached=question.cached)
    size = float(under_way(question, item))
    return Load("closed", size, question.input_tokens, question.output_tokens, cached=question.cached)


def request_of(
    question: PlanQuestion, setting: Setting, load: Load, *, replicas: int = 1, chunk: int | None = None
) -> ServingRequest:
    """The service of a setting as a question to `ServingPredictor`."""
    return ServingRequest(
        question.facts,
        setting.device,
        load,
        setting.formats,
        setting.plan,
        setting.engine,
        replicas=replicas,
        chunk=chunk,
        speculation=setting.speculation,
        host_experts=setting.host_experts,
        setting=question.setting,
    )


def _replicas(
    service: ServingPredictor, question: PlanQuestion, setting: Setting, refusals: Refusals
) -> Iterator[Replica]:
    device, plan, engine = service.predictor.devices.get(setting.device), setting.plan, ENGINES[setting.engine]
    profile = service_profile(setting.engine, None, device.vendor)
    longest = question.longest
    load = Load("closed", 1, question.input_tokens, question.output_tokens, cached=question.cached)
    # All that a closed form reads of decode steps: their mean context, and what none of it takes.
    middle = max(2, math.ceil(question.input_tokens + question.output_tokens / 2))
    request = request_of(question, setting, load, chunk=engine.chunk)
    try:
        how, _ = scheduled(request, device, profile)
    except SpecError as error:
        refusals.add("memory", str(error), _weights_share(question, setting, device))
        return
    if how.cache_tokens < longest:
        refusals.add(
            "memory", f"{setting}: the cache has room for {max(0, int(how.cache_tokens))} of the {longest} tokens of one",
            longest / max(how.cache_tokens, 1.0),
        )  # fmt: skip
        return
    wanted = MAX_BATCH if question.concurrency is None else round(question.concurrency)
    # Of a device whose memory is not public nothing says what does not fit.
    fitting = how.cache_tokens if math.isinf(how.cache_tokens) else how.cache_tokens // longest
    most = int(min(fitting, how.sequences, MAX_BATCH, wanted))
    chunks = dict.fromkeys((engine.chunk, *(SMALL_CHUNKS if scheduler_of(setting.engine, None).splits else ())))
    try:
        table = service.table(
            request, profile, batch=most, length=longest, prompt=math.ceil(question.input_tokens), chunk=engine.chunk,
            contexts=(1, middle), least_chunk=min(chunks),
        )  # fmt: skip
    except SpecError as error:
        refusals.add("kernels", f"{setting}: {error}", count=len(chunks))
        return
    idle_w, each_w = service.times(request).resting_w, limit_w(device, question.setting)
    for chunk in chunks:
        of_chunk = replace(how, chunk=chunk)
        yield Replica(setting, chunk, most, plan.devices * idle_w, plan.devices * each_w, table, of_chunk)


def _weights_share(question: PlanQuestion, setting: Setting, device: Device) -> float:
    """Bytes of a device's weights over its memory."""
    return question.facts.weights_of(setting.plan).size_b(setting.formats) / (device.fact("memory_b") or math.inf)


def _plans(question: PlanQuestion, replica: Replica, refusals: Refusals, slack: float) -> Iterator[Candidate]:
    """Numbers of replicas and of sequences for one."""
    most = question.at_most(replica.setting.device) // replica.setting.plan.devices
    if question.rate is not None:
        yield from _at_rate(question, replica, most, question.rate, refusals, slack)
    elif question.concurrency is not None:
        for replicas in _counts(1, min(most, round(question.concurrency))):
            sequences, service = _shared(question, replica, replicas, round(question.concurrency))
            yield _candidate(question, replica, replicas, sequences, service)
    else:
        for sequences in (*(size for size in BATCHES if size < replica.most), replica.most):
            item = replica.steady(sequences, question)
            yield _candidate(question, replica, _powered(question, replica, most, item), sequences, item)


def _shared(question: PlanQuestion, replica: Replica, replicas: int, requests: int) -> tuple[int, Steady]:
    """Requests under way at the fullest of replicas, which are no more than requests, and the service of a mean one."""
    fewer, larger = divmod(requests, replicas)
    if larger == 0:
        return fewer, replica.steady(fewer, question)
    more, less = replica.steady(fewer + 1, question), replica.steady(fewer, question)
    tokens = [larger * more.throughput_tok_s, (replicas - larger) * less.throughput_tok_s]

    def mean(fuller: float, emptier: float) -> float:
        """Of values of tokens or requests, which come from either kind of replica as its throughput is."""
        return (tokens[0] * fuller + tokens[1] * emptier) / sum(tokens)

    return fewer + 1, Steady(
        mean(more.ttft_s, less.ttft_s), mean(more.tpot_s, less.tpot_s), sum(tokens) / replicas,
        mean(more.energy_per_token_j, less.energy_per_token_j),
    )  # fmt: skip


def _powered(question: PlanQuestion, replica: Replica, most: int, service: Steady) -> int:
    """As many replicas as a power budget feeds, at least one."""
    if question.power_budget_w is None:
        return most
    each_w = min(service.energy_per_token_j * service.throughput_tok_s, replica.limit_w)
    return most if math.isnan(each_w) else max(1, min(most, int(question.power_budget_w / each_w)))


def _at_rate(
    question: PlanQuestion, replica: Replica, most: int, rate: float, refusals: Refusals, slack: float
) -> Iterator[Candidate]:
    """Numbers of replicas that sustain a rate within the limits on latency, each with the sequences under way that result."""
    outputs = max(round(question.output_tokens), 1)
    sizes = (*(size for size in BATCHES if size < replica.most), replica.most)
    services = [(size, replica.steady(size, question)) for size in sizes]
    within = [(size, item) for size, item in services if keeps_times(question, item, slack)]
    if not within:
        # With the fewest sequences it is as fast as it can be; `_keeps` says which limit it misses.
        yield _candidate(question, replica, most, *services[0])
        return
    capacity = MOST_BUSY * max(item.throughput_tok_s for _, item in within) / outputs
    fewest = math.ceil(rate / capacity)
    if fewest > most:
        refusals.add(
            "load", f"{counted(most, 'replica')} of {replica.setting} can take {most * capacity:.4g} of {rate:g} requests/s",
            rate / (most * capacity),
        )  # fmt: skip
        return
    for replicas in _counts(fewest, most):
        share = rate / replicas
        size, item = next(
            (pair for pair in within if pair[1].throughput_tok_s >= share * outputs),
            max(within, key=lambda pair: pair[1].throughput_tok_s),
        )
        busy = min(share * outputs / item.throughput_tok_s, 1.0)
        # A replica that is not always busy rests in between.
        energy_j = item.energy_per_token_j + (1 - busy) * replica.idle_w / (share * outputs)
        service = replace(item, throughput_tok_s=share * outputs, energy_per_token_j=energy_j)
        # Requests at random times come in bursts: more run together than on average.
        yield _candidate(question, replica, replicas, size, service, within[-1][0])


def _counts(fewest: int, most: int) -> list[int]:
    """Numbers of replicas: all of a few, else by doubling."""
    if most - fewest < 16:
        return list(range(fewest, most + 1))
    return sorted({*(fewest << power for power in range((most // fewest).bit_length())), most})


def _candidate(
    question: PlanQuestion, replica: Replica, replicas: int, concurrency: int, service: Steady, sequences: int = 0
) -> Candidate:
    gpus = replicas * replica.setting.plan.devices
    throughput = replicas * service.throughput_tok_s
    power_w = min(service.energy_per_token_j * throughput, replicas * replica.limit_w)
    per_s = question.price(replica.setting.device) * gpus / 3600
    return Candidate(
        replica.setting, replicas, concurrency, sequences or min(concurrency, replica.most), replica.chunk, service.ttft_s,
        service.tpot_s, throughput, power_w / throughput, power_w, 1e6 * per_s / throughput,
    )  # fmt: skip


def _keeps(question: PlanQuestion, item: Candidate, refusals: Refusals, slack: float) -> bool:
    """Whether a plan keeps the limits, those on latency `slack` times as long."""
    for name, value, limit, unit, more in (
        ("ttft", item.ttft_s, question.ttft_s, "s to the first token", slack),
        ("tpot", item.tpot_s, question.tpot_s, "s per token", slack),
        ("power", item.power_w, question.power_budget_w, "W", 1.0),
    ):
        # Where power is unknown nothing says that a budget holds.
        if limit is not None and not value <= more * limit:
            word = f"{value:.4g} {unit}" if math.isfinite(value) else f"an unknown number of {unit}"
            refusals.add(
                name,
                f"{item.replicas} × ({item.setting}), {item.concurrency} requests under way each, takes {word}, of {limit:g}",
                value / limit if math.isfinite(value) else math.inf,
            )  # fmt: skip
            return False
    return True
