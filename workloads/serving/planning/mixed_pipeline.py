"""Pipelines over devices of two kinds: stages on one kind before those on the other, each with as many layers as serves best.

A model that no kind has enough devices for may fit on two kinds together. vLLM takes the layers of every stage from
`VLLM_PP_LAYER_PARTITION`; all stages split a layer over as many devices, and keep equally many positions. Stages run one after
another, so a step takes

    t = x·A + (1 - x)·B + sent

with x the share of layers that the first kind has, and A and B what the step would take if all stages were of one kind. The
kinds are in two machines, and each token's hidden state is sent once from one to the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ....features.batch.cases import Floats
from ....features.device import Catalogue, Device
from ....features.errors import SpecError
from ...architectures.memory import memory
from ...architectures.plan import ParallelPlan
from ...architectures.step import Formats, Step
from ..batching.load import Load
from ..batching.simulation import Scheduling
from ..batching.step_table import StepTable
from ..engine.service_profile import service_profile
from ..predict import ServingPredictor
from ..replicas import serve, shares_of
from ..request import scheduler_of
from ..service_steps import check_engine, check_formats
from ..speculation import Times
from ..steps import limit_w, waiting_w
from .command_line import command_line, command_notes
from .disaggregated import SimulatedTimes
from .question import PlanQuestion
from .space import MAX_STAGES, Refusals, Setting, formats_to_try, unlinked
from .sweep import MAX_BATCH, SLACK, SMALL_CHUNKS, Candidate, Replica, candidates, load_of, request_of

ENGINE = "vllm"
"""The engine whose stages take layers as they are given."""
SIMULATED = 40
"""Most pipelines simulated, the cheapest first, until one keeps the limits."""
SHARES = 4
"""Ways to deal layers out that are tried between the fewest and the most layers that the first kind has room for."""
NETWORK_B_PER_S = 12.5e9
"""Bandwidth between two machines: 100 Gbit/s Ethernet (IEEE 802.3), a judgement of what is usual."""
MESSAGE_S = 30e-6
"""Time of a message between two stages beyond its bytes, a judgement; bytes count between machines alone."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        device: Catalogue name.
        layers: Layers of the model that it has.
    """

    device: str
    layers: int


@dataclass(frozen=True, slots=True)
class MixedPipeline:
    """A pipeline over two kinds of devices.

    Attributes:
        stages: Its stages, in the order of the layers.
        plan: Its service in closed form; the device of its setting is that of the first stages.
        service: Its times as simulated.
        command: The command line of its engine.
        notes: What to know of it.
    """

    stages: tuple[Stage, ...]
    plan: Candidate
    service: SimulatedTimes
    command: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        stages = ", ".join(f"{stage.layers} on {stage.device}" for stage in self.stages)
        tp = self.plan.setting.plan.tp
        return f"{self.plan.replicas} × (tp {tp}, layers {stages}), {self.plan.setting.formats.weights_text}, {ENGINE}"

    @property
    def devices(self) -> dict[str, int]:
        """Devices of all replicas, by kind."""
        each = self.plan.replicas * self.plan.setting.plan.tp
        names = [stage.device for stage in self.stages]
        return {name: each * names.count(name) for name in dict.fromkeys(names)}


@dataclass(frozen=True, slots=True)
class _MixedSteps:
    """Times of steps of which two kinds have their shares of the layers.

    Attributes:
        times: Of a stage of each kind that had all layers.
        shares: Of the layers.
        waiting_w: Watts of a stage of each kind while it waits.
        all_waiting_w: Watts of all stages while they wait.
        sends: Times that one stage sends to the next.
        token_b: Bytes of a token that are sent.
    """

    times: tuple[Times, ...]
    shares: tuple[float, ...]
    waiting_w: tuple[float, ...]
    all_waiting_w: float
    sends: int
    token_b: float

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""
        sent_s = self.sends * MESSAGE_S + self.token_b / NETWORK_B_PER_S * np.array([step.tokens for step in steps])
        pairs = zip(*(item.seconds(steps) for item in self.times), strict=True)
        value, lower, upper = (self.shares[0] * a + self.shares[1] * b + sent_s for a, b in pairs)
        return value, lower, upper

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; while a stage works the others wait."""
        total_j = self.all_waiting_w * self.seconds(steps)[0]
        for item, share, watts in zip(self.times, self.shares, self.waiting_w, strict=True):
            total_j = total_j + share * (item.energy_j(steps) - watts * item.seconds(steps)[0])
        return np.asarray(total_j)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Stages on one kind of device: how many, each of how many ranks."""

    device: Device
    stages: int
    ranks: int

    def rooms(self, question: PlanQuestion, formats: Formats) -> list[float]:
        """Sequences of full length that the fullest stage has room for, by its layers; 0 where weights do not fit."""
        facts, plan, engine = question.facts, ParallelPlan(tp=self.ranks), scheduler_of(ENGINE, None)
        # A stage of one layer has the larger end of the model, too; what half of the layers take more is theirs.
        one_b, half_b = (facts.weights_of(replace(plan, pp=count)).size_b(formats) for count in (facts.layers, 2))
        layer_b = (half_b - one_b) / max(math.ceil(facts.layers / 2) - 1, 1)
        holds = memory(facts, Step.decode(min(engine.sequences, 256), question.longest), formats, plan)
        usable_b = engine.whole * (self.device.fact("memory_b") or math.inf) - holds.activations_b
        cache_b = holds.cache_per_sequence_b / facts.layers
        free_b = [usable_b - one_b - (layers - 1) * layer_b for layers in range(1, facts.layers + 1)]
        return [0.0] + [
            0.0 if left_b < 0 else left_b / (cache_b * layers) if cache_b else math.inf
            for layers, left_b in enumerate(free_b, 1)
        ]


def best_pipeline(service: ServingPredictor, question: PlanQuestion) -> MixedPipeline | None:
    """The pipeline over two kinds of least cost whose simulated request at the percentile keeps the limits.

    None where none of the `SIMULATED` cheapest does, or there are no `pairs`.
    """
    plans = [
        item for pair in pairs(service.predictor.devices, question) for item in _pipelines(service, question, *pair)
    ]
    plans.sort(key=lambda item: item[0].cost_per_million_tokens)
    tries = 0
    # Of a pipeline that misses a limit those with more requests under way miss it, too.
    missed: dict[tuple[object, ...], int] = {}
    for plan, replica, kinds, layers in plans:
        names = tuple((kind.device.name, kind.stages) for kind in kinds)
        key = names, layers, plan.setting, plan.chunk, plan.replicas
        if plan.concurrency >= missed.get(key, plan.concurrency + 1):
            continue
        times = _simulated(question, plan, replica, kinds)
        limits = ((times.ttft_s, question.ttft_s), (times.tpot_s, question.tpot_s))
        if all(limit is None or question.value_of(latency) <= limit for latency, limit in limits):
            return _answer(question, plan, times, kinds, layers)
        missed[key] = plan.concurrency
        tries += 1
        if tries == SIMULATED:
            break
    return None


_Pipeline = tuple[Candidate, Replica, tuple[_Kind, _Kind], tuple[int, int]]
"""A plan, one replica of it, its two kinds, and the layers of each."""


def pairs(every: Catalogue, question: PlanQuestion) -> Iterator[tuple[tuple[_Kind, _Kind], Formats]]:
    """Numbers of stages on two kinds, and formats that both multiply.

    Empty where nothing says how many there are of a kind: then one kind will do. Nor where the question guesses tokens or keeps
    experts on the host, which is not modelled, or does not ask for the engine.
    """
    if (
        not question.counts
        or ENGINE not in question.engines
        or question.speculation is not None
        or question.host_experts
    ):
        return
    for names in combinations(question.devices, 2):
        first, second = (every.get(name) for name in names)
        if first.vendor != second.vendor:
            # Collectives of one vendor's library do not reach the other's devices.
            continue
        formats = [item for item in formats_to_try(question, first) if item in formats_to_try(question, second)]
        for item in formats:
            try:
                for device in (first, second):
                    check_engine(ENGINE, device)
                    check_formats(ENGINE, item, device)
            except SpecError:
                continue
            for kinds in _stages(question, first, second):
                yield kinds, item


def _stages(question: PlanQuestion, first: Device, second: Device) -> Iterator[tuple[_Kind, _Kind]]:
    """Stages of as many ranks each as divide the model and are linked."""
    ranks = 1
    while ranks <= min(question.at_most(first.name), question.at_most(second.name)):
        plan = ParallelPlan(tp=ranks, pp=2)
        try:
            question.facts.check_plan(plan)
        except SpecError:
            # Models whose layers are not split, and ranks that do not divide them.
            ranks *= 2
            continue
        linked = all(unlinked(device, replace(plan, pp=1)) is None for device in (first, second))
        most = [question.at_most(device.name) // ranks if linked else 0 for device in (first, second)]
        for before in _sizes(most[0]):
            for after in _sizes(most[1]):
                if before + after <= min(MAX_STAGES, question.facts.layers, question.gpus // ranks):
                    yield _Kind(first, before, ranks), _Kind(second, after, ranks)
        ranks *= 2


def _sizes(most: int) -> list[int]:
    """Numbers of stages: powers of two, and as many as there are."""
    return sorted({*(1 << power for power in range(most.bit_length())), *([most] if most else [])})


def _pipelines(
    service: ServingPredictor, question: PlanQuestion, kinds: tuple[_Kind, _Kind], formats: Formats
) -> Iterator[_Pipeline]:
    """Every way to deal the layers out that has room, at every number of sequences that keeps the limits."""
    first, second = kinds
    count = question.facts.layers
    before, after = (kind.rooms(question, formats) for kind in kinds)
    rooms = {
        layers: min(before[math.ceil(layers / first.stages)], after[math.ceil((count - layers) / second.stages)])
        for layers in range(first.stages, count - second.stages + 1)
    }
    possible = [layers for layers, room in rooms.items() if room >= 1]
    for place in sorted(set(np.linspace(0, len(possible) - 1, SHARES).round().astype(int))) if possible else ():
        layers = possible[place]
        replica = _replica(service, question, kinds, formats, layers, rooms[layers])
        if replica is None:
            continue
        for chunk in (replica.chunk, *SMALL_CHUNKS):
            of_chunk = replace(replica, chunk=chunk, how=replace(replica.how, chunk=chunk))
            for item in candidates(_priced(question, kinds), [of_chunk], Refusals(), SLACK):
                yield item, of_chunk, kinds, (layers, count - layers)


def _priced(question: PlanQuestion, kinds: tuple[_Kind, _Kind]) -> PlanQuestion:
    """The question as of devices of one kind, with the mean price of those of a pipeline, and as many as whole ones take."""
    stages = sum(kind.stages for kind in kinds)
    each = stages * kinds[0].ranks
    replicas = min(
        question.gpus // each, *(question.at_most(kind.device.name) // (kind.stages * kind.ranks) for kind in kinds)
    )
    price = sum(question.price(kind.device.name) * kind.stages for kind in kinds) / stages
    name = kinds[0].device.name
    prices = None if question.prices is None else {name: price}
    return replace(question, devices=(name,), gpus=replicas * each, counts={}, prices=prices)


def _replica(
    service: ServingPredictor, question: PlanQuestion, kinds: tuple[_Kind, _Kind], formats: Formats, layers: int, room: float
) -> Replica | None:  # fmt: skip
    """One replica whose first kind has so many layers; None where its steps cannot be predicted."""
    first, second = kinds
    plan = ParallelPlan(tp=first.ranks, pp=first.stages + second.stages)
    load = Load("closed", 1, question.input_tokens, question.output_tokens, cached=question.cached)
    alone = ParallelPlan(tp=first.ranks)
    times = tuple(
        service.times(request_of(question, Setting(kind.device.name, alone, formats, ENGINE), load)) for kind in kinds
    )
    engine, profile = scheduler_of(ENGINE, None), service_profile(ENGINE, None, first.device.vendor)
    longest = question.longest
    how = Scheduling(
        chunk=engine.chunk, sequences=engine.sequences, cache_tokens=room * longest, mixes=engine.mixes, splits=engine.splits,
        reserved=engine.reserved, between_s=profile.between_s, cached=question.cached, ahead=engine.ahead,
    )  # fmt: skip
    wanted = MAX_BATCH if question.concurrency is None else round(question.concurrency)
    most = int(min(room, how.sequences, MAX_BATCH, wanted))
    limits_w = [kind.ranks * limit_w(kind.device, question.setting) for kind in kinds]
    stages_w = tuple(kind.ranks * waiting_w(kind.device, question.setting) for kind in kinds)
    all_waiting_w = sum(kind.stages * watts for kind, watts in zip(kinds, stages_w, strict=True))
    share = layers / question.facts.layers
    mixed = _MixedSteps(
        times, (share, 1 - share), stages_w, all_waiting_w, plan.pp - 1, question.facts.hidden * formats.itemsize_b
    )
    try:
        table = StepTable(
            # Tables of powers of two share their steps.
            mixed, batch=1 << (most - 1).bit_length(), length=longest, prompt=math.ceil(question.input_tokens), chunk=how.chunk,
            contexts=(1, max(2, math.ceil(question.input_tokens + question.output_tokens / 2))),
            overhead=profile.overhead_of(plan.stage_ranks), waiting_w=all_waiting_w, least_chunk=min(SMALL_CHUNKS),
        )  # fmt: skip
    except SpecError:
        return None
    idle_w = sum(kind.stages * kind.ranks * item.resting_w for kind, item in zip(kinds, times, strict=True))
    all_w = sum(kind.stages * watts for kind, watts in zip(kinds, limits_w, strict=True))
    return Replica(Setting(first.device.name, plan, formats, ENGINE), how.chunk, most, idle_w, all_w, table, how)


def _simulated(question: PlanQuestion, plan: Candidate, replica: Replica, kinds: tuple[_Kind, _Kind]) -> SimulatedTimes:
    load = load_of(question, plan)
    served = serve(replica.table, shares_of(load, plan.replicas, replica.how, None), replica.how, load, plan.replicas)
    profile = service_profile(ENGINE, None, kinds[0].device.vendor)
    tpot_s = served.tpot_s(1.0) if question.output_tokens > 1 else [np.zeros_like(run.first_s) for run in served.runs]
    architectures = [kind.device.architecture for kind in kinds]
    weights = served.weighted(served.ttft_s)
    return SimulatedTimes.of(np.concatenate(served.ttft_s), np.concatenate(tpot_s), profile, architectures, weights)


def _answer(
    question: PlanQuestion, plan: Candidate, times: SimulatedTimes, kinds: tuple[_Kind, _Kind], layers: tuple[int, int]
) -> MixedPipeline:
    stages = tuple(
        Stage(kind.device.name, size)
        for kind, count in zip(kinds, layers, strict=True)
        for size in (count // kind.stages + (place < count % kind.stages) for place in range(kind.stages))
    )
    partition = ",".join(str(stage.layers) for stage in stages)
    command = f"VLLM_PP_LAYER_PARTITION={partition} {command_line(question, plan)} --distributed-executor-backend ray"
    notes = (
        "both machines are in one Ray cluster; ranks of the first stages are on the first kind",
        f"between them {8e-9 * NETWORK_B_PER_S:g} Gbit/s are assumed; no such service was measured",
        *command_notes(question, plan),
    )
    return MixedPipeline(stages, plan, times, command, notes)
