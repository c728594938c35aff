"""What the service answers of whole models, programs and kernels beside each other, and of models."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .answers import Coverage, DeviceName, Footprint, InDomain, Interval, Prediction


class Difference(msgspec.Struct, frozen=True):
    """A difference with its interval, lower ≤ value ≤ upper; each may be negative."""

    value: Annotated[float, Meta(description="The prediction")]
    lower: Annotated[float, Meta(description="Lower end of the interval")]
    upper: Annotated[float, Meta(description="Upper end of the interval")]


class EstimatedPart(msgspec.Struct, frozen=True):
    """A part of a step: a kernel, an operator, a module or a phase."""

    name: Annotated[str, Meta(description="Its place, such as layers.attention.qkv, or an operator's name")]
    runs: Annotated[int, Meta(description="Kernels of a model, or calls of a program's operators, that it runs")]
    latency_s: Annotated[float, Meta(description="Seconds of all its runs")]
    energy_j: Annotated[float | None, Meta(description="Joules of all its runs; null where they are unknown")]
    time_share: Annotated[float, Meta(description="Share of the time of all kernels")]
    bound: Annotated[str, Meta(description="What binds most of its time: compute, dram, cache, launch")]
    stand_in: Annotated[str, Meta(description="What it is estimated as, where no kernel family describes it")]


class EstimatedMemory(msgspec.Struct, frozen=True):
    """What the fullest device holds."""

    total_b: Annotated[float, Meta(description="All of it in bytes")]
    parts_b: Annotated[dict[str, float], Meta(description="Bytes by what they are: weights, cache, activations …")]
    device_b: Annotated[float | None, Meta(description="The device's memory; null where none is public")]
    usable_b: Annotated[float | None, Meta(description="What of it is taken as usable")]
    fits: Annotated[bool | None, Meta(description="Whether all of it fits; null where the memory is not public")]
    sequences: Annotated[
        int | None, Meta(description="Sequences of this length that fit; null where they keep nothing")
    ]


class EstimatedSaving(msgspec.Struct, frozen=True):
    """A change that would save time."""

    kind: Annotated[str, Meta(description="weights, batch, launches, compiled or products")]
    change: Annotated[str, Meta(description="What changes, in words")]
    saved_s: Annotated[Difference, Meta(description="Seconds saved of a step, for the same work")]
    share: Annotated[float, Meta(description="Those over the time of the step")]


class DeviceEstimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step on one device, or why nothing can be said of it there; of a plan, on its devices."""

    device: DeviceName
    title: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    refusal: Annotated[str | None, Meta(description="Why there are no totals; null where there are some")]
    coverage: Coverage
    latency_s: Annotated[Interval | None, Meta(description="Time of the step in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Mean power of one device; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of all devices; null where it is unknown")]
    tokens_per_s: Annotated[Interval | None, Meta(description="New tokens of all sequences; null for a program")]
    samples_per_s: Annotated[
        Interval | None, Meta(description="Sequences, or samples of a program that says how many it runs on")
    ]
    energy_per_token_j: Annotated[Interval | None, Meta(description="Energy of all devices for each new token")]
    cost: Annotated[Interval | None, Meta(description="Of the step on all devices; null where no price was given")]
    cost_per_million_tokens: Annotated[Interval | None, Meta(description="The same for a million new tokens")]
    bound_by: Annotated[str, Meta(description="device, or host where that takes longer to call the kernels")]
    idle_share: Annotated[
        float | None, Meta(description="Share of a program's run in which a GPU waits for its host; null for a model")
    ]
    bound: Annotated[dict[str, float], Meta(description="Share of the kernels' time by what binds it")]
    bound_s: Annotated[float | None, Meta(description="Seconds that no run of these kernels can beat")]
    launches: Annotated[int, Meta(description="Kernels that run")]
    memory: EstimatedMemory | None
    modules: Annotated[list[EstimatedPart], Meta(description="By place or module, longest first")]
    kernels: Annotated[list[EstimatedPart], Meta(description="By kernel of a model or operator of a program")]
    phases: Annotated[list[EstimatedPart], Meta(description="Forward, backward and optimiser")]
    savings: Annotated[list[EstimatedSaving], Meta(description="Where time could be won, the most first")]
    in_domain: InDomain
    notes: Annotated[list[str], Meta(description="What to know of the answer")]
    footprint: Annotated[
        Footprint | None, Meta(description="Of the step on all devices; absent without a grid or a price")
    ] = None


class ModelSummary(msgspec.Struct, frozen=True):
    """What is known of a model."""

    name: Annotated[str, Meta(description="Its name, usually the repository's")]
    architecture: Annotated[str, Meta(description="model_type of its configuration")]
    parameters: Annotated[int, Meta(description="All parameters, each once")]
    active_parameters: Annotated[int, Meta(description="Parameters that one token meets")]
    layers: Annotated[int, Meta(description="Layers, without those of an encoder beside them")]
    hidden: Annotated[int, Meta(description="Width of the residual stream")]
    dtype: Annotated[str, Meta(description="Number format of its activations")]
    weights: Annotated[str, Meta(description="Number format of its matrices")]
    generates: Annotated[bool, Meta(description="Whether it can decode")]
    encodes: Annotated[bool, Meta(description="Whether it has an encoder beside its decoder")]
    fixed_length: Annotated[int | None, Meta(description="Positions of every input, where that fixes them")]
    max_length: Annotated[int | None, Meta(description="Most positions of a sequence, where they are limited")]
    source: Annotated[str, Meta(description="Where the facts come from")]


class Estimates(msgspec.Struct, frozen=True):
    """A step of a model, or one run of a captured program, on every device of the request."""

    model: Annotated[ModelSummary | None, Meta(description="The model; null for a program")]
    phase: Annotated[str | None, Meta(description="prefill, decode, forward, train or encode; null for a program")]
    batch: Annotated[int | None, Meta(description="Sequences, or samples where a program says how many")]
    length: Annotated[int | None, Meta(description="New tokens of each sequence, or its cached positions in decode")]
    step: Annotated[str, Meta(description="What runs, in words")]
    formats: Annotated[dict[str, str], Meta(description="Number formats: dtype, weights, experts, kv")]
    devices: Annotated[int, Meta(description="Devices of the plan")]
    answers: list[DeviceEstimate]


class ShippedModels(msgspec.Struct, frozen=True):
    """The models that ship, by the name to ask for them."""

    models: list[ModelSummary]


class CapPoint(msgspec.Struct, frozen=True):
    """A run under one setting of the device."""

    power_limit_w: Annotated[float | None, Meta(description="The power limit; null: the board's own")]
    clock_hz: Annotated[float | None, Meta(description="The locked clock; null: none")]
    latency_s: Annotated[Interval, Meta(description="Seconds of the run")]
    power_w: Annotated[Interval, Meta(description="Mean power in watts")]
    energy_j: Annotated[Interval, Meta(description="Joules of the run")]
    time: Annotated[float, Meta(description="Time over that of the default")]
    energy: Annotated[float, Meta(description="Energy over that of the default")]
    servers: Annotated[int | None, Meta(description="Servers under the budget; null without one")]
    throughput: Annotated[
        float | None, Meta(description="Runs per second of these over those of as many servers as fit by default")
    ]


class BestCap(msgspec.Struct, frozen=True):
    """The most efficient power limit or clock, and the curves it is chosen from."""

    device: DeviceName
    slowdown: Annotated[float | None, Meta(description="Longest time accepted over the default's, less 1; null: any")]
    best: Annotated[CapPoint, Meta(description="The point of least energy accepted; by a budget, of most throughput")]
    usual: Annotated[CapPoint, Meta(description="The default")]
    limits: Annotated[list[CapPoint], Meta(description="Points of power limits, rising; the last is the default")]
    clocks: Annotated[list[CapPoint], Meta(description="Points of locked clocks, rising; none by a budget")]


class KernelBesideOthers(msgspec.Struct, frozen=True):
    """A kernel beside the others on its device."""

    kernel: Annotated[str, Meta(description="The kernel in words")]
    alone: Annotated[Prediction, Meta(description="What it costs alone")]
    slowdown: Annotated[
        Interval | None, Meta(description="Time of a run over that alone; null where only bounds are known")
    ]
    latency_s: Annotated[Interval | None, Meta(description="Seconds of a run beside the others; null likewise")]
    shortest_s: Annotated[
        float, Meta(description="Least seconds of a run: lower end of the interval, or of the kernel alone")
    ]
    longest_s: Annotated[
        float,
        Meta(
            description="Most seconds of a run: upper end of the interval, or with a run of every other for each launch"
        ),
    ]


class Colocation(msgspec.Struct, frozen=True):
    """Kernels that run on one device at the same time, over and over."""

    device: DeviceName
    coverage: Coverage
    method: Annotated[str, Meta(description="law, or bounds of more than two kernels on a GPU")]
    source: Annotated[str | None, Meta(description="Where the law's numbers are from; null for bounds")]
    all_shortest_s: Annotated[
        float, Meta(description="Least seconds until one run of each has ended, where all start together")
    ]
    all_longest_s: Annotated[float, Meta(description="Most seconds likewise")]
    kernels: Annotated[list[KernelBesideOthers], Meta(description="Each of them, in the order of the request")]
    notes: Annotated[list[str], Meta(description="How far to trust it")]
