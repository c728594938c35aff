"""What a service gives and takes: latencies with percentiles, throughput, power, energy, cost and memory, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...features.batch.cases import Floats
from ...features.device import Device
from ...features.errors import SpecError
from ...models.predict.power_law import Board, log_error
from ...models.predict.prediction import Interval
from ...models.predict.predictor import ArtifactPredictor
from ..architectures.memory import Memory, memory
from ..architectures.step import Step
from ..units import joules, plain, seconds, with_ends
from .batching.load import MAX_REQUESTS
from .batching.prompt_workers import Workers
from .batching.simulation import Scheduling, weighted_quantiles
from .batching.step_table import StepTable
from .engine.collectives import shipped_laws
from .engine.service_profile import ServiceProfile, service_profile
from .host_experts import link_share
from .replicas import FULL_CACHE, Served, Share, serve, serve_apart, service_notes, shares_of
from .request import ServingRequest, scheduler_of
from .service_steps import check_engine, check_formats, no_room, steps_of
from .speculation import UNMEASURED, SpeculationResult, SpeculativeSteps, Times, speculation_result
from .steps import SUSTAINED, KernelEstimates, limit_w, waiting_w

SHARES = (0.5, 0.9, 0.99)
"""Percentiles of every latency."""
_SERVED = ("closed", "open")
"""Loads that come through a server; batches are given to the engine itself."""
SIGMAS_OF_90 = 1.645
"""Standard deviations within which 90 % of a normal distribution are."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency over requests or tokens, in seconds.

    Attributes:
        mean: Its mean.
        p50: Its median.
        p90: The value that 90 % stay below.
        p99: The value that 99 % stay below.
    """

    mean: Interval
    p50: Interval
    p90: Interval
    p99: Interval


@dataclass(frozen=True, slots=True, repr=False)
class ServingPrediction:
    """What a service gives and takes.

    Attributes:
        request: The question.
        ttft_s: Time from sending a request to its first token.
        tpot_s: Time per token after the first, one value a request; None where no answer has a second token.
        itl_s: Time between two tokens; None likewise.
        e2e_s: Time from sending a request to its last token.
        throughput_tok_s: Tokens of answers per second, all devices together.
        total_tok_s: Tokens of prompts and answers per second.
        requests_s: Requests per second.
        power_w: Mean power of one device, those of replicas without requests included; None where unknown.
        energy_per_token_j: Joules of all devices per token of an answer; None where unknown.
        energy_per_request_j: Joules of all devices per request.
        memory: Memory of the fullest device, all places of the cache taken by the load; with a draft's.
        fitting: Sequences of this load's full length that fit in the cache of a replica; None where that is unknown.
        batch: Mean sequences that decode in a step of one replica that has requests.
        parts: Share of each part of a decode step at that batch.
        coverage: Share of services the intervals are built to contain.
        steps: Steps simulated.
        preemptions: How often a sequence of one replica, that with most, lost its place in the cache and was computed again.
        speculation: What guesses give; None without them.
        notes: What to know of the answer.
    """

    request: ServingRequest
    ttft_s: Latency
    tpot_s: Latency | None
    itl_s: Latency | None
    e2e_s: Latency
    throughput_tok_s: Interval
    total_tok_s: Interval
    requests_s: Interval
    power_w: Interval | None
    energy_per_token_j: Interval | None
    energy_per_request_j: Interval | None
    memory: Memory
    fitting: int | None
    batch: float
    parts: Mapping[str, float]
    coverage: float
    steps: int
    preemptions: int
    speculation: SpeculationResult | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        request = self.request
        then = "" if self.tpot_s is None else f"then {with_ends(self.tpot_s.p50, seconds)} a token (medians), "
        return (
            f"{request.facts.name} by {request.engine} on {request.gpus} × {request.device}: "
            f"first token {with_ends(self.ttft_s.p50, seconds)}, {then}"
            f"{with_ends(self.throughput_tok_s, plain)} tokens/s, {with_ends(self.energy_per_token_j, joules)} a token; "
            f"{100 * self.coverage:g} % intervals"
        )

    def cost_per_million_tokens(self, price_per_hour: float) -> Interval:
        """Price of a million tokens of answers at a price of one device and hour.

        Raises:
            SpecError: the price is negative or no number.
        """
        if not math.isfinite(price_per_hour) or price_per_hour < 0:
            raise SpecError(f"a price must be at least 0 per hour, got {price_per_hour!r}", field="prices")
        per_s = price_per_hour * self.request.gpus / 3600
        rate = self.throughput_tok_s
        return Interval(1e6 * per_s / rate.value, 1e6 * per_s / rate.upper, 1e6 * per_s / rate.lower)


class ServingPredictor:
    """Answers questions; times of steps are shared by those of one model, device, plan and engine, kernels by engines."""

    def __init__(self, predictor: ArtifactPredictor) -> None:
        self.predictor = predictor
        self._times: dict[tuple[object, ...], Times] = {}
        self._kernels = KernelEstimates()

    @property
    def known(self) -> int:
        """Models, devices, plans, formats and engines together whose steps it keeps."""
        return len(self._times)

    def times(self, request: ServingRequest) -> Times:
        """Times of the steps of a question."""
        guesses = None if request.speculation is None else (request.speculation.tokens, request.speculation.draft)
        key = (
            request.facts, request.device, request.plan, request.formats, request.engine, request.engine_version, guesses,
            request.host_experts, request.setting,
        )  # fmt: skip
        if key not in self._times:
            predictor = self.predictor.under(request.setting, SUSTAINED) if request.setting else self.predictor
            # Tables of steps end beyond the longest sequence, which the request has checked.
            endless = replace(request, facts=replace(request.facts, max_length=None))
            self._times[key] = steps_of(predictor, endless, self._kernels)
        return self._times[key]

    def table(
        self, request: ServingRequest, profile: ServiceProfile, *, batch: int, length: int, prompt: int, chunk: int,
        contexts: Sequence[int] = (), least_chunk: int | None = None,
    ) -> StepTable:  # fmt: skip
        """A table of the steps of a question's service; sizes are those of `StepTable`.

        Raises:
            SpecError: a kernel cannot be predicted.
        """
        device, times = self.predictor.devices.get(request.device), self.times(request)
        guesses, drafting = (times.tokens, times.drafting) if isinstance(times, SpeculativeSteps) else (0, None)
        return StepTable(
            times, batch=batch, length=length, prompt=prompt, chunk=chunk, contexts=contexts, guesses=guesses,
            drafting=drafting, overhead=profile.overhead_of(request.plan.stage_ranks),
            waiting_w=waiting_w(device, request.setting) * request.plan.devices, least_chunk=least_chunk,
        )  # fmt: skip

    def predict(self, request: ServingRequest) -> ServingPrediction:
        """What a service gives and takes.

        Raises:
            SpecError: the engine or a format does not run on the device, the model or a sequence does not fit, or a kernel
                cannot be predicted.
        """
        device = self.predictor.devices.get(request.device)
        request = replace(request, device=device.name)
        check_engine(request.engine, device)
        check_formats(request.engine, request.formats, device)
        if request.setting is not None:
            Board.of(device).check(request.setting, device.name)
        plan = set_up(self, request)
        if request.prefill_workers:
            served = self._apart(request, plan, device)
        else:
            served = serve(plan.table, plan.shares, plan.how, request.load, request.replicas)
        return _answer(request, plan, served, self.times(request), self._setting_error(request, served))

    def _apart(self, request: ServingRequest, plan: SetUp, device: Device) -> Served:
        """The service of replicas that decode what workers of prompts hand on."""
        load = request.load
        if load.trace is None:
            # Of each worker as many as of a replica: what fills and drains them is then a small part.
            load = replace(load, requests=min((load.count or 1) * request.workers, MAX_REQUESTS))
        trace = None if load.trace is None else tuple((time, new, 1) for time, new, _ in load.trace)
        prompts = replace(
            request, plan=request.prefill_plan, replicas=request.prefill_workers, prefill_workers=0,
            load=replace(load, output_tokens=1.0, trace=trace),
        )  # fmt: skip
        try:
            first = set_up(self, prompts)
        except SpecError as error:
            raise SpecError(f"a worker of prompts ({request.prefill_plan}): {error}", field="prefill_tp") from error

        def transfer_s(tokens: int) -> float:
            # The kind with fewer ranks has the larger shares, each over one link.
            size_b = max(
                memory(request.facts, Step.prefill(1, tokens), request.formats, plan).cache_per_sequence_b
                for plan in (request.prefill_plan, request.plan)
            )
            return float(shipped_laws().seconds(device, request.engine, "send", 2, np.array([size_b]))[0][0])

        return serve_apart(
            Workers(request.prefill_workers, first.table, first.how), Workers(request.replicas, plan.table, plan.how), load,
            transfer_s,
        )  # fmt: skip

    def _setting_error(self, request: ServingRequest, served: Served) -> float:
        """Half-width of ln of what a setting adds to errors, by how much longer a decode step takes."""
        if request.setting is None:
            return 0.0
        step = [
            Step.decode(max(1, round(served.tokens)), round(request.load.input_tokens + request.load.output_tokens / 2))
        ]
        usual = self.times(replace(request, setting=None)).seconds(step)[0]
        time = float(self.times(request).seconds(step)[0][0] / usual[0])
        return 0.0 if time == 1 else SIGMAS_OF_90 * float(log_error(time))


@dataclass(frozen=True, slots=True)
class SetUp:
    """What a simulation of a question needs, and what is known before it.

    Attributes:
        profile: What the service takes beyond steps.
        table: Steps.
        shares: Requests of the replicas, larger shares first.
        how: How the engine schedules them.
        memory: Memory of the fullest device.
        limit_w: Power limit of a device; infinite where it is not public.
        architecture: Of the device.
    """

    profile: ServiceProfile
    table: StepTable
    shares: tuple[Share, ...]
    how: Scheduling
    memory: Memory
    limit_w: float
    architecture: str


def set_up(service: ServingPredictor, request: ServingRequest) -> SetUp:
    """What a simulation of a question needs.

    Raises:
        SpecError: the model does not fit, or a kernel cannot be predicted.
    """
    device = service.predictor.devices.get(request.device)
    profile = service_profile(request.engine, request.engine_version, device.vendor, request.client)
    how, holds = scheduled(request, device, profile)
    shares = shares_of(request.load, request.replicas, how, request.speculation)
    every = [share.arrivals for share in shares]
    batch = max(min(how.sequences, len(some.inputs), some.concurrency or how.sequences) for some in every)
    longest = max(int(max(some.inputs + some.outputs)) for some in every)
    # What is preempted is computed again with what it has generated.
    again = how.reserved < 1 and batch * longest > how.cache_tokens
    prompt = longest if again else max(int(max(some.inputs)) for some in every)
    table = service.table(request, profile, batch=batch, length=longest, prompt=prompt, chunk=how.chunk)
    return SetUp(profile, table, shares, how, holds, limit_w(device, request.setting), device.architecture)


def scheduled(request: ServingRequest, device: Device, profile: ServiceProfile) -> tuple[Scheduling, Memory]:
    """How the engine of a replica schedules its share of a load, and what the fullest device holds.

    Raises:
        SpecError: the weights leave no room for a cache.
    """
    load, plan = request.load, request.plan
    engine = scheduler_of(request.engine, request.engine_version)
    chunk = request.chunk or engine.chunk
    longest = load.longest
    batch = min(request.sequences or engine.sequences, 256)
    formats, share = request.formats, request.host_experts
    step, guesses, tokens = Step.decode(batch, longest), 0, 1.0
    holds = memory(request.facts, step, formats, plan, device, host_experts=share)
    if (speculation := request.speculation) is not None:
        guesses = speculation.tokens
        tokens = max(load.output_tokens - 1, 1) / (speculation.mean_steps(load.output_tokens) or 1)
        step = Step.verify(batch, guesses, longest)
        holds = memory(request.facts, step, formats, plan, device, host_experts=share)
        holds = speculation.with_draft(holds, Step.decode(batch, longest), formats, plan)
    sequences = request.sequences or (10**9 if load.kind == "static" else engine.sequences)
    if load.kind == "queued":
        sequences = profile.running(sequences, load.output_tokens)
    room = math.inf
    if holds.device_b is not None:
        # Engines keep the workspace of their largest step beside the weights.
        others_b = holds.weights_b + holds.activations_b
        free_b = engine.whole * holds.device_b - others_b
        room_b = engine.of_free * free_b if engine.of_free < 1 else free_b
        if room_b <= 0:
            raise no_room(request, device, step, holds.weights_b, engine.whole * holds.device_b)
        if holds.cache_per_sequence_b:
            room = longest * room_b / holds.cache_per_sequence_b * plan.dp
    how = Scheduling(
        chunk=chunk, sequences=sequences, cache_tokens=room, mixes=engine.mixes, splits=engine.splits,
        reserved=engine.reserved, between_s=profile.between_s if load.kind in _SERVED else 0.0, cached=load.cached,
        ahead=engine.ahead, guesses=guesses, tokens=tokens,
    )  # fmt: skip
    return how, holds


def latency_of(values: Floats, spread: Callable[[float], Interval], weights: Floats | None = None) -> Latency:
    """A latency of requests that weigh so much, each point with its interval; values that are no numbers are left out.

    Without weights, which all weigh alike, points lie between two requests; else they are those of one.
    """
    known = np.isfinite(values)
    values = values[known]
    if weights is None:
        points = [float(values.mean()), *np.quantile(values, SHARES).tolist()]
    else:
        weights = weights[known]
        points = [float(np.average(values, weights=weights)), *weighted_quantiles(values, weights, SHARES)]
    return Latency(*(spread(point) for point in points))


def _answer(
    request: ServingRequest, plan: SetUp, served: Served, times: Times, setting_error: float
) -> ServingPrediction:
    arrivals, table, how, runs = served.arrivals, plan.table, plan.how, served.runs
    replicas, duration_s = request.replicas, served.duration_s
    ttft, tpot = served.ttft_s, served.tpot_s(request.events)
    output_sum, input_sum = served.output_tokens, served.input_tokens
    requests = served.total(len(run.outputs) for run in runs)
    batch = max(1, round(served.tokens))
    context = max(1, int(arrivals.inputs.mean() + arrivals.outputs.mean() / 2))
    usual = [Step.decode(batch, context), Step.prefill(1, max(1, int(arrivals.inputs.mean())))]
    link = link_share(times, usual, how.guesses)

    def spread(value: float, target: str) -> Interval:
        half = plan.profile.half_width(target, plan.architecture) * (1 if request.is_like_measured else UNMEASURED)
        half *= FULL_CACHE if served.most_preempted.preemptions and target == "ttft" else 1
        half = math.hypot(half, setting_error) if setting_error else half
        lower, upper = value * math.exp(-half), value * math.exp(half)
        # No step is faster than the link delivers experts.
        if link and target in ("ttft", "tpot", "e2e"):
            lower = max(lower, link * value)
        if link and target == "throughput":
            upper = min(upper, value / link)
        return Interval(value, lower, upper)

    def latency(values: Sequence[Floats], target: str) -> Latency:
        return latency_of(np.concatenate(values), lambda value: spread(value, target), served.weighted(values))

    gaps_s = np.concatenate([run.gaps_s for run in runs])
    gap_weights = np.concatenate([weight * run.weights for weight, run in zip(served.weights, runs, strict=True)])
    itl = None
    if len(gaps_s):
        points = (float(np.average(gaps_s, weights=gap_weights)), *weighted_quantiles(gaps_s, gap_weights, SHARES))
        itl = Latency(*(spread(point, "tpot") for point in points))
    power = per_token = per_request = None
    if table.knows_energy:
        idle_w = times.resting_w * request.plan.devices
        busy_s = served.total(run.busy_s for run in runs)
        total_j = served.total(run.energy_j for run in runs) + idle_w * max(0.0, duration_s - busy_s)
        if (work := served.prompts) is not None:
            idle_s = max(0.0, request.prefill_workers * duration_s - work.busy_s)
            total_j += (work.energy_j + times.resting_w * request.prefill_plan.devices * idle_s) / replicas
        devices = request.gpus / replicas
        total_j = min(total_j, plan.limit_w * devices * duration_s)
        power = spread(total_j / duration_s / devices, "power")
        power = replace(power, upper=min(power.upper, plan.limit_w))
        per_token, per_request = (spread(total_j / count, "energy") for count in (output_sum, requests))
    parts = times.parts(usual[:1])
    sums = {name: float(values[0]) for name, values in parts.items()}
    whole = sum(sums.values())
    longest = float((arrivals.inputs + arrivals.outputs).max())
    fitting = None if math.isinf(how.cache_tokens) else int(how.cache_tokens // longest)
    return ServingPrediction(
        request=request, ttft_s=latency(ttft, "ttft"), tpot_s=latency(tpot, "tpot") if max(arrivals.outputs) > 1 else None,
        itl_s=itl, e2e_s=latency([run.last_s - run.sent_s for run in runs], "e2e"),
        throughput_tok_s=spread(replicas * output_sum / duration_s, "throughput"),
        total_tok_s=spread(replicas * (output_sum + input_sum) / duration_s, "throughput"),
        requests_s=spread(replicas * requests / duration_s, "throughput"),
        power_w=power, energy_per_token_j=per_token, energy_per_request_j=per_request,
        memory=plan.memory, fitting=fitting, batch=served.tokens,
        parts={name: value / whole for name, value in sums.items()}, coverage=0.9, steps=served.steps,
        preemptions=served.most_preempted.preemptions,
        speculation=speculation_result(request.speculation, arrivals, times, batch, context),
        notes=service_notes(request, served, fitting, longest, plan.memory.host_b),
    )  # fmt: skip
