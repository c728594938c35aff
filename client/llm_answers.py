"""What the service answers about services of language models: predictions of one, and plans for one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .answers import Coverage, DeviceName, Footprint, Interval

Energy = Annotated[Interval | None, Meta(description="Joules of all devices; null where unknown")]
Limit = Annotated[float | None, Meta(description="null: any")]


class SplitPlan(msgspec.Struct, frozen=True):
    """How a model is split over the devices of one replica."""

    tp: Annotated[int, Meta(description="Devices that split each layer")]
    pp: Annotated[int, Meta(description="Stages that split the layers")]
    ep: Annotated[int, Meta(description="Devices that share out the experts")]
    dp: Annotated[int, Meta(description="Groups of devices whose attention has sequences of its own")]


class NumberFormats(msgspec.Struct, frozen=True):
    """Number formats of a model."""

    dtype: Annotated[str, Meta(description="Activations")]
    weights: Annotated[str, Meta(description="Matrices")]
    experts: Annotated[str, Meta(description="Matrices of routed experts")]
    kv: Annotated[str, Meta(description="Key and value cache")]


class RequestLoad(msgspec.Struct, frozen=True):
    """The requests of a service."""

    kind: Annotated[str, Meta(description="closed: a number under way; open: a rate; static: one batch")]
    size: Annotated[float, Meta(description="Requests under way, requests per second, or sequences of the batch")]
    input_tokens: Annotated[float, Meta(description="Mean tokens of a prompt")]
    output_tokens: Annotated[float, Meta(description="Mean tokens of an answer")]
    rounds: Annotated[float, Meta(description="Requests per request under way")]
    spread: Annotated[float, Meta(description="Half the range of lengths, as a share of their mean")]
    cached: Annotated[float, Meta(description="Share of a prompt that the prefix cache already has")]


class LatencyPercentiles(msgspec.Struct, frozen=True):
    """A latency over requests or tokens, in seconds."""

    mean: Interval
    p50: Annotated[Interval, Meta(description="Its median")]
    p90: Annotated[Interval, Meta(description="The value that 90 % stay below")]
    p99: Annotated[Interval, Meta(description="The value that 99 % stay below")]


class ServingMemory(msgspec.Struct, frozen=True):
    """What the fullest device holds."""

    weights_b: Annotated[float, Meta(description="Bytes of weights")]
    cache_per_token_b: Annotated[float, Meta(description="What one more position of a sequence adds, bytes")]
    activations_b: Annotated[float, Meta(description="Bytes of activations at the widest place of a step")]
    device_b: Annotated[float | None, Meta(description="The device's memory; null where none is public")]
    usable_b: Annotated[float | None, Meta(description="What of it an engine takes")]
    sequences: Annotated[int | None, Meta(description="Sequences of the load's length that fit a replica's cache")]
    host_b: Annotated[float, Meta(description="Bytes of its weights that are in the host's memory instead")] = 0.0


class SpeculativeDecoding(msgspec.Struct, frozen=True):
    """Guesses that steps verify, and what they give."""

    tokens: Annotated[int, Meta(description="Guesses that a step verifies for each sequence")]
    acceptance: Annotated[float, Meta(description="Share of guesses accepted, of those after accepted ones, as given")]
    draft: Annotated[str | None, Meta(description="The model that guesses; null: n-grams, at no cost")]
    tokens_per_step: Annotated[
        Interval,
        Meta(description="Tokens that a step gives a sequence; 90 % of answers have a mean within the interval"),
    ]
    best_tokens: Annotated[
        int, Meta(description="Guesses, up to 8, of the least time per token by the times of steps alone; 0: none")
    ]


class ServingPrediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a service gives its users, and what it takes."""

    model: str
    device: DeviceName
    gpus: Annotated[int, Meta(description="Devices of all replicas, and of workers of prompts")]
    plan: SplitPlan
    replicas: Annotated[int, Meta(description="Copies that share the load")]
    engine: str
    engine_version: Annotated[str | None, Meta(description="null: the newest known")]
    formats: NumberFormats
    load: RequestLoad
    ttft_s: Annotated[LatencyPercentiles, Meta(description="Time to the first token")]
    tpot_s: Annotated[
        LatencyPercentiles | None,
        Meta(description="Time per token after the first, one value a request; null where no answer has a second"),
    ]
    itl_s: Annotated[
        LatencyPercentiles | None, Meta(description="Time between two tokens; null where no answer has a second")
    ]
    e2e_s: Annotated[LatencyPercentiles, Meta(description="Time to the last token")]
    throughput_tok_s: Annotated[Interval, Meta(description="Tokens of answers per second, all devices")]
    throughput_per_gpu_tok_s: Interval
    tokens_per_user_s: Annotated[
        Interval | None, Meta(description="Tokens per second of one user; null without decoding")
    ]
    total_tok_s: Annotated[Interval, Meta(description="Tokens of prompts and answers per second")]
    requests_s: Annotated[Interval, Meta(description="Requests per second")]
    power_w: Annotated[
        Interval | None, Meta(description="Mean power of one device, idle ones included; null where unknown")
    ]
    energy_per_token_j: Energy
    energy_per_request_j: Energy
    cost_per_million_tokens: Annotated[Interval | None, Meta(description="null where no price is given")]
    memory: ServingMemory
    batch: Annotated[float, Meta(description="Mean sequences that decode together in a replica")]
    preemptions: Annotated[
        int,
        Meta(description="How often a sequence of one replica lost its place in the cache, in all requests simulated"),
    ]
    speculation: Annotated[SpeculativeDecoding | None, Meta(description="null without guesses")]
    step_parts: Annotated[dict[str, float], Meta(description="Share of each part of a decode step")]
    coverage: Coverage
    notes: list[str]
    footprint_per_request: Annotated[
        Footprint | None, Meta(description="Of all devices; absent without a grid or a price")
    ] = None
    footprint_per_million_tokens: Annotated[Footprint | None, Meta(description="The same, of answers")] = None
    prefill_workers: Annotated[int, Meta(description="Workers of prompts beside the replicas; absent without any")] = 0
    prefill_plan: Annotated[SplitPlan | None, Meta(description="How one of them is split; absent without any")] = None


class ServingPredictions(msgspec.Struct, frozen=True):
    """A service under several loads."""

    services: Annotated[
        list[ServingPrediction], Meta(description="One for each number of requests under way, in order")
    ]


class PlanPoint(msgspec.Struct, frozen=True):
    """A plan and its service in closed form, a steady state."""

    device: DeviceName
    gpus: Annotated[int, Meta(description="Devices of all replicas")]
    replicas: int
    plan: SplitPlan
    formats: NumberFormats
    engine: str
    guesses: Annotated[int, Meta(description="Tokens that a step guesses for each sequence; 0: none")]
    concurrency: Annotated[int, Meta(description="Requests under way at one replica, the fullest where they differ")]
    chunk: Annotated[int, Meta(description="Most tokens of a step")]
    ttft_s: Annotated[float, Meta(description="Time to the first token")]
    tpot_s: Annotated[float, Meta(description="Time per token after it")]
    throughput_tok_s: Annotated[float, Meta(description="Tokens of answers per second, all devices")]
    energy_per_token_j: Annotated[float | None, Meta(description="Joules of all devices; null where unknown")]
    power_w: Annotated[float | None, Meta(description="Mean power of all devices; null where unknown")]
    cost_per_million_tokens: Annotated[float, Meta(description="In cost_unit")]
    carbon_g_per_million_tokens: Annotated[
        float | None, Meta(description="Grams of CO2e; null without a grid, and where the energy is unknown")
    ] = None


class DisaggregatedPlan(msgspec.Struct, frozen=True):
    """Prompts and answers on devices of their own: in closed form, and times as simulated."""

    device: DeviceName
    gpus: Annotated[int, Meta(description="Devices of all workers")]
    engine: str
    formats: NumberFormats
    prefill_plan: SplitPlan
    prefill_workers: Annotated[int, Meta(description="Workers of prompts")]
    decode_plan: SplitPlan
    decode_workers: Annotated[int, Meta(description="Workers of answers")]
    concurrency: Annotated[int, Meta(description="Sequences that one worker of answers runs")]
    transfer_s: Annotated[float, Meta(description="Time in which a prompt's keys and values are sent")]
    ttft_s: Annotated[float, Meta(description="Mean time to the first token")]
    tpot_s: Annotated[float, Meta(description="Mean time per token after it, the transfer included")]
    simulated_ttft_s: Annotated[LatencyPercentiles, Meta(description="Time to the first token as simulated")]
    simulated_tpot_s: Annotated[LatencyPercentiles, Meta(description="Time per token after it as simulated")]
    throughput_tok_s: Annotated[float, Meta(description="Tokens of answers per second, all devices")]
    energy_per_token_j: Annotated[float | None, Meta(description="Joules of all devices; null where unknown")]
    cost_per_million_tokens: Annotated[float, Meta(description="In cost_unit")]


class PipelineStage(msgspec.Struct, frozen=True):
    """A stage of a pipeline."""

    device: DeviceName
    layers: Annotated[int, Meta(description="Layers of the model that it has")]


class MixedPipeline(msgspec.Struct, frozen=True):
    """A pipeline over two kinds of devices: in closed form, and times as simulated."""

    stages: Annotated[list[PipelineStage], Meta(description="In the order of the layers, each on `tp` devices")]
    tp: int
    replicas: int
    devices: Annotated[dict[str, int], Meta(description="Devices of all replicas, by name")]
    formats: NumberFormats
    engine: str
    concurrency: Annotated[int, Meta(description="Requests under way at one replica")]
    ttft_s: Annotated[float, Meta(description="Time to the first token")]
    tpot_s: Annotated[float, Meta(description="Time per token after it")]
    simulated_ttft_s: Annotated[LatencyPercentiles, Meta(description="Time to the first token as simulated")]
    simulated_tpot_s: Annotated[LatencyPercentiles, Meta(description="Time per token after it as simulated")]
    throughput_tok_s: Annotated[float, Meta(description="Tokens of answers per second, all devices")]
    energy_per_token_j: Annotated[float | None, Meta(description="Joules of all devices; null where unknown")]
    cost_per_million_tokens: Annotated[float, Meta(description="In cost_unit")]
    command: Annotated[str, Meta(description="The command line of its engine, of one replica")]
    notes: list[str]


class PlanChoice(msgspec.Struct, frozen=True):
    """The best plan for an aim."""

    aim: Annotated[str, Meta(description="cost, latency, energy, throughput or gpus")]
    plan: PlanPoint
    service: Annotated[ServingPrediction, Meta(description="Its service as simulated")]
    runner_up: Annotated[PlanPoint | None, Meta(description="The best of the other settings; null where there is none")]
    probability: Annotated[
        float | None, Meta(description="That the plan is better than the runner-up; null without one")
    ]
    command: Annotated[str, Meta(description="The command line of its engine, of one replica")]
    notes: list[str]


class PlanRefusal(msgspec.Struct, frozen=True):
    """Plans refused for one kind of reason."""

    kind: Annotated[str, Meta(description="engine, divide, links, memory, kernels, ttft, tpot, load or power")]
    count: int
    nearest: Annotated[str, Meta(description="The reason of the one that was nearest to being possible")]


class ServicePlans(msgspec.Struct, frozen=True):
    """The best plans for a service."""

    model: str
    devices: list[str]
    gpus: int
    cost_unit: Annotated[str, Meta(description="price: that of the prices; GPU hours: none was given")]
    plans: Annotated[int, Meta(description="Plans compared, refused ones included")]
    possible: Annotated[int, Meta(description="Plans that are possible and keep the limits")]
    refusals: list[PlanRefusal]
    choices: list[PlanChoice]
    front: Annotated[
        list[PlanPoint],
        Meta(description="Plans that none beats in cost, time per token and energy per token together, by cost"),
    ]
    by_gpus: Annotated[list[PlanPoint], Meta(description="The plan of least cost at each number of devices")]
    disaggregated: Annotated[
        DisaggregatedPlan | None,
        Meta(description="The cheapest split of prompts and answers; null where none keeps the limits"),
    ]
    pipeline: Annotated[
        MixedPipeline | None,
        Meta(
            description="The cheapest pipeline over two kinds; null where none keeps the limits, or no `devices` is `name:4`"
        ),
    ] = None


class FleetBucket(msgspec.Struct, frozen=True):
    """Requests of alike sizes."""

    input_tokens: Annotated[float, Meta(description="Mean tokens of their prompts")]
    output_tokens: Annotated[float, Meta(description="Mean tokens of their answers")]
    share: Annotated[float, Meta(description="Share of all requests")]


class FleetKind(msgspec.Struct, frozen=True):
    """Replicas of one kind in a fleet."""

    device: DeviceName
    plan: SplitPlan
    formats: NumberFormats
    engine: str
    guesses: Annotated[int, Meta(description="Tokens that a step guesses for each sequence; 0: none")]
    replicas: int
    gpus: Annotated[int, Meta(description="Devices of all of them")]
    capacity_requests_s: Annotated[
        list[float], Meta(description="Requests per second of one replica, by bucket; 0: beyond the limits")
    ]
    shares: Annotated[list[float], Meta(description="Share of each bucket that they take")]


class ServiceFleet(msgspec.Struct, frozen=True):
    """The cheapest mix of replicas for requests of many sizes."""

    model: str
    gpus: int
    cost_unit: Annotated[str, Meta(description="price: that of the prices; GPU hours: none was given")]
    cost_per_hour: float
    cost_per_million_tokens: float
    one_kind_cost_per_hour: Annotated[
        float | None,
        Meta(description="Of the cheapest fleet of one kind of replica; null where none serves all sizes"),
    ]
    probability: Annotated[
        float | None, Meta(description="That the fleet costs less than that one; null where it is that one")
    ]
    buckets: list[FleetBucket]
    kinds: list[FleetKind]
    notes: list[str]
