"""What the service answers: the types that it encodes, that clients decode, and that its OpenAPI document describes.

Names end in their SI unit; None is what is unknown. A client passes over fields that a newer service adds.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Schema = dict[str, Any]
"""A JSON Schema, draft 2020-12."""

Bound = Annotated[str, Meta(description="The limit that binds on paper: compute, dram, cache, launch …")]
Coverage = Annotated[float, Meta(description="Share of cases the intervals are built to contain")]
InDomain = Annotated[bool, Meta(description="Whether the model was trained on cases like this one")]
Method = Annotated[str, Meta(description="How the prediction came about, with any stand-in")]
Notes = Annotated[list[str], Meta(description="Why a case is out of domain, and other cautions")]
DeviceName = Annotated[str, Meta(description="Catalogue name of the device")]
Timing = Annotated[
    str, Meta(description="What the times contain: device, the kernel alone; call, one call with its launch")
]


class Interval(msgspec.Struct, frozen=True):
    """A predicted value with its interval, lower ≤ value ≤ upper, in the SI unit the field's name ends in."""

    value: Annotated[float, Meta(description="The prediction", ge=0)]
    lower: Annotated[float, Meta(description="Lower end of the interval", ge=0)]
    upper: Annotated[float, Meta(description="Upper end of the interval", ge=0)]


class Footprint(msgspec.Struct, frozen=True):
    """What electricity emits and costs, with the interval of its energy."""

    carbon_g: Annotated[Interval | None, Meta(description="Grams of CO2 equivalents; null without a grid or energy")]
    electricity_cost: Annotated[
        Interval | None, Meta(description="In the currency of the price; null without one or energy")
    ]
    grid: Annotated[str | None, Meta(description="The grid in words; null without one")]
    g_per_kwh: Annotated[float | None, Meta(description="Its grams of CO2 equivalents per kilowatt-hour")]
    source: Annotated[str | None, Meta(description="Where that is from")]
    price_per_kwh: Annotated[float | None, Meta(description="Price of a kilowatt-hour; null without one")]
    pue: Annotated[float, Meta(description="Power of the data centre over that of its devices")]


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one kernel costs on one device; power and energy are None where no model has seen power."""

    family: Annotated[str, Meta(description="Kernel family")]
    device: DeviceName
    latency_s: Annotated[Interval, Meta(description="Time of one run in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of one run in joules: latency times power")]
    coverage: Coverage
    bound: Bound
    breakdown: Annotated[dict[str, float], Meta(description="Seconds that each limit alone would take")]
    method: Method
    timing: Timing
    in_domain: InDomain
    notes: Notes
    footprint: Annotated[Footprint | None, Meta(description="Of one run; absent without a grid or a price")] = None


class Batch(msgspec.Struct, frozen=True):
    """Predictions in the order of the request."""

    predictions: list[Prediction]


class Intervals(msgspec.Struct, frozen=True):
    """Predicted values with their intervals, one per row, in the SI unit the field's name ends in; null where unknown."""

    value: list[float | None]
    lower: list[float | None]
    upper: list[float | None]


class Words(msgspec.Struct, frozen=True):
    """Words, each once, and which of them each row has."""

    words: list[str]
    codes: Annotated[list[int], Meta(description="Positions in `words`, one per row")]

    def rows(self) -> list[str]:
        """The word of every row."""
        return [self.words[code] for code in self.codes]


class RowNotes(msgspec.Struct, frozen=True):
    """Notes that rows share."""

    rows: Annotated[list[int], Meta(description="Positions of the rows")]
    notes: list[str]


class Columns(msgspec.Struct, frozen=True):
    """Predictions in columns, in the order of the request's rows."""

    family: Annotated[str, Meta(description="Kernel family")]
    n: Annotated[int, Meta(description="Number of rows")]
    coverage: Coverage
    latency_s: Annotated[Intervals, Meta(description="Time of one run in seconds")]
    power_w: Annotated[Intervals | None, Meta(description="Mean power in watts; null where no row's is known")]
    energy_j: Annotated[Intervals | None, Meta(description="Energy of one run; null where no row's is known")]
    bound: Annotated[Words, Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    method: Annotated[Words, Meta(description="How the prediction came about, with any stand-in")]
    timing: Annotated[
        Words, Meta(description="What the times contain: device, the kernel alone; call, with its launch")
    ]
    in_domain: Annotated[list[bool], Meta(description="Whether the model was trained on cases like each row")]
    notes: Annotated[
        list[RowNotes], Meta(description="Why rows are out of domain, and other cautions; equal ones together")
    ]


class KernelPart(msgspec.Struct, frozen=True):
    """One kernel of a whole model; latency, power and energy are those of a single run."""

    name: Annotated[str, Meta(description="What the model calls it, or else what it is")]
    count: Annotated[int, Meta(description="How many times the model runs it")]
    family: Annotated[str, Meta(description="Kernel family")]
    latency_s: Annotated[Interval, Meta(description="Time of one run in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of one run in joules")]
    time_share: Annotated[float, Meta(description="Share of all kernels' time that its runs take")]
    energy_share: Annotated[float | None, Meta(description="Share of the model's energy; null where it is unknown")]
    bound: Bound
    method: Method
    in_domain: InDomain
    notes: Notes


class FamilyPart(msgspec.Struct, frozen=True):
    """All kernels of one family in a whole model."""

    family: Annotated[str, Meta(description="Kernel family")]
    launches: Annotated[int, Meta(description="Runs of its kernels")]
    latency_s: Annotated[float, Meta(description="Time they take together in seconds")]
    energy_j: Annotated[float | None, Meta(description="Energy they take together in joules")]
    time_share: Annotated[float, Meta(description="Share of all kernels' time")]
    energy_share: Annotated[float | None, Meta(description="Share of the model's energy; null where it is unknown")]


class WholeModelPrediction(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a whole model costs on one device."""

    device: DeviceName
    latency_s: Annotated[Interval, Meta(description="Time of one run of the model in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Energy over latency in watts; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of one run; null where a kernel's is unknown")]
    coverage: Coverage
    bound_s: Annotated[float, Meta(description="Seconds that no run of these kernels can beat")]
    launch_s: Annotated[float, Meta(description="Seconds of the latency that are gaps between kernels")]
    launches: Annotated[int, Meta(description="Runs of all kernels")]
    in_domain: Annotated[bool, Meta(description="Whether the model was trained on cases like all of these")]
    notes: Annotated[list[str], Meta(description="The kernels' notes, each once, with how many it is about")]
    without_energy: Annotated[list[str], Meta(description="Kernels whose energy is unknown")]
    dominant: Annotated[list[int], Meta(description="Positions of the fewest kernels that take 80 % of the time")]
    families: Annotated[list[FamilyPart], Meta(description="Per family, the slowest first")]
    kernels: Annotated[list[KernelPart], Meta(description="Per kernel, in the order of the request")]
    footprint: Annotated[Footprint | None, Meta(description="Of one run; absent without a grid or a price")] = None


class WholeModelPredictions(msgspec.Struct, frozen=True):
    """A whole model on one device after the other, in the order of the request."""

    answers: list[WholeModelPrediction]


class Group(msgspec.Struct, frozen=True):
    """Operations that run as one kernel; latency and energy are those of all its runs."""

    title: Annotated[str, Meta(description="What it is, in words")]
    kind: Annotated[str, Meta(description="contraction, softmax, elementwise … unknown")]
    ops: Annotated[list[str], Meta(description="The operations in it, by name")]
    lines: Annotated[
        list[int], Meta(description="Their lines in the text, from 1; empty where the reader does not tell")
    ]
    runs: Annotated[float, Meta(description="How often it runs, loops multiplied")]
    latency_s: Annotated[float, Meta(description="Seconds that all its runs take")]
    energy_j: Annotated[float | None, Meta(description="Joules that all its runs take; null where it is unknown")]
    time_share: Annotated[float, Meta(description="Share of the program's time")]
    flops: Annotated[float, Meta(description="Arithmetic of all its runs")]
    bytes: Annotated[float, Meta(description="Bytes all its runs move across its border")]
    bound: Bound
    spec: Annotated[str, Meta(description="The kernel it was recognised as; empty where there is no family for it")]
    stand_in: Annotated[str, Meta(description="How that kernel differs from what it does; empty where it does not")]
    understood: Annotated[bool, Meta(description="False where its cost is a guess that widens the interval")]
    op_shares: Annotated[
        list[float], Meta(description="Share of its time of each of ops, as the limits of each alone would have it")
    ]
    line_shares: Annotated[list[float], Meta(description="The same of each of lines")]


class NotUnderstood(msgspec.Struct, frozen=True):
    """An operation whose cost is unknown."""

    op: Annotated[str, Meta(description="Its name")]
    reason: Annotated[str, Meta(description="Why its cost is unknown")]


class Program(msgspec.Struct, frozen=True):
    """What one run of a function costs on one device."""

    function: Annotated[str, Meta(description="The function that was predicted")]
    device: DeviceName
    compiler: Annotated[str, Meta(description="The compiler that was assumed; empty where none matters")]
    threads: Annotated[int | None, Meta(description="CPU threads that were assumed; null on a GPU")]
    latency_s: Annotated[Interval, Meta(description="Time of one run of the function in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of one run in joules; null where it is unknown")]
    coverage: Coverage
    method: Annotated[str, Meta(description="How the prediction came about")]
    in_domain: Annotated[bool, Meta(description="Whether the models were trained on cases like this one")]
    notes: Annotated[list[str], Meta(description="What a reader must know of this answer")]
    bound_s: Annotated[float, Meta(description="Seconds that no run of these kernels can beat")]
    breakdown: Annotated[dict[str, float], Meta(description="The parts of that time in seconds, by limit")]
    flops: Annotated[float, Meta(description="Arithmetic of one run; a multiply-add is two")]
    bytes: Annotated[float, Meta(description="Bytes moved between kernels and with arguments and results")]
    footprint_b: Annotated[float, Meta(description="Bytes of arguments and results")]
    intensity: Annotated[float, Meta(description="flops per byte")]
    utilization: Annotated[float | None, Meta(description="Achieved arithmetic over the device's peak, 0 to 1")]
    groups: Annotated[list[Group], Meta(description="The kernels, in the order of the program")]
    not_understood: Annotated[list[NotUnderstood], Meta(description="Operations whose cost is unknown")]
    characteristics: Annotated[
        dict[str, Interval], Meta(description="Further learned targets, such as code_instructions or spills")
    ]


class ReaderRefusal(msgspec.Struct, frozen=True):
    """A reader that was asked first and could not read the text."""

    reader: Annotated[str, Meta(description="Name of the reader")]
    reason: Annotated[str, Meta(description="What it said")]


class Programs(msgspec.Struct, frozen=True):
    """A program on one device after the other, in the order of the request."""

    reader: Annotated[str, Meta(description="The reader that read the text")]
    refusals: Annotated[list[ReaderRefusal], Meta(description="Readers asked before it, and why they did not")]
    functions: Annotated[list[str], Meta(description="Every function of the text that can be asked about")]
    answers: Annotated[list[Program], Meta(description="One per device")]


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number in SI units and where it comes from."""

    value: float
    source: Annotated[str | None, Meta(description="Left out in the list of devices; the page of one has it")] = None


class Device(msgspec.Struct, frozen=True):
    """A device of the catalogue; names of facts end in their unit."""

    name: str
    title: str
    vendor: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    architecture: str
    compute_capability: str | None
    aliases: list[str]
    facts: Annotated[dict[str, Fact], Meta(description="Datasheet facts")]
    matrix_flops_per_s: Annotated[dict[str, Fact], Meta(description="Dense matrix peak by dtype, FLOP/s")]
    vector_flops_per_s: Annotated[dict[str, Fact], Meta(description="Peak of the ordinary units by dtype, FLOP/s")]
    measured: Annotated[dict[str, Fact], Meta(description="What characterising the device gave")]


class Devices(msgspec.Struct, frozen=True):
    """Every device that can be asked about, its facts without their sources."""

    devices: list[Device]


class Ranked(msgspec.Struct, frozen=True):
    """One configuration with what it is predicted to cost."""

    config: Annotated[dict[str, int], Meta(description="Knobs that are set; empty: the compiler's own choice")]
    latency_s: Annotated[Interval, Meta(description="Time of one run in seconds")]
    power_w: Annotated[Interval | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[Interval | None, Meta(description="Energy of one run in joules; null where it is unknown")]
    slower_than_best: Annotated[float, Meta(description="Its time over that of the best, minus 1")]
    bound: Bound
    in_domain: Annotated[
        bool | None,
        Meta(description="Whether the model was trained on cases like this one; null where that is not known"),
    ]
    notes: Notes


class Ranking(msgspec.Struct, frozen=True):
    """The fastest configurations, the best first; of equals, the one given first."""

    device: DeviceName
    family: str
    impl: Annotated[str, Meta(description="Whose configurations these are")]
    timing: Timing
    considered: Annotated[int, Meta(description="How many configurations were ranked")]
    ranked: list[Ranked]
    method: Annotated[str, Meta(description="What ranked them")]
    tied: Annotated[
        int,
        Meta(description="How many leading ones cannot be told from the best by what is known of the ranking's error"),
    ]


class DeviceCost(msgspec.Struct, frozen=True):
    """What the kernel costs on one device, or why nothing can be said of it there."""

    device: DeviceName
    title: str
    kind: Annotated[str, Meta(description="gpu or cpu")]
    prediction: Prediction | None
    refusal: Annotated[str | None, Meta(description="Why there is no prediction; null where there is one")]
    flops_per_s: Annotated[Interval | None, Meta(description="Arithmetic over time; null for kernels without any")]
    joules_per_flop: Annotated[
        Interval | None, Meta(description="Energy over arithmetic; null where energy is unknown or there is none")
    ]
    of_bound: Annotated[
        float | None, Meta(description="Least time on paper over predicted time: 1 is as fast as can be")
    ]
    cost_per_million_calls: Annotated[
        Interval | None, Meta(description="In the currency of the price; null where no price was given")
    ]


class Comparison(msgspec.Struct, frozen=True):
    """One kernel on every device asked about, in the order of the request or of the catalogue."""

    family: str
    timing: Timing
    flops: Annotated[float, Meta(description="Arithmetic operations of one run")]
    bytes: Annotated[float, Meta(description="Compulsory traffic of one run in bytes")]
    answers: list[DeviceCost]


class Curve(msgspec.Struct, frozen=True):
    """The kernel along the sweep on one device; every list has one value per swept value."""

    device: DeviceName
    latency_s: Annotated[Intervals, Meta(description="Time of one run in seconds")]
    power_w: Annotated[Intervals | None, Meta(description="Mean power in watts; null where none is known")]
    energy_j: Annotated[Intervals | None, Meta(description="Energy of one run in joules; null where none is known")]
    lower_bound_s: Annotated[list[float], Meta(description="Seconds that no run can beat")]
    bound: Annotated[list[str], Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    method: Annotated[Words, Meta(description="How each prediction came about, with any stand-in")]
    in_domain: Annotated[list[bool], Meta(description="Whether the model was trained on cases like each")]


class Sweep(msgspec.Struct, frozen=True):
    """The swept values, rising where they were spread over a range, and a curve per device in the order of the request."""

    dim: Annotated[str, Meta(description="The size or knob that was swept")]
    timing: Timing
    values: list[int]
    curves: list[Curve]


class DeviceRoof(msgspec.Struct, frozen=True):
    """The kernel under the roof of one device."""

    device: DeviceName
    dtype: Annotated[str, Meta(description="What the spec's dtype runs as there; the peak is that dtype's")]
    peak_flops_per_s: Annotated[Fact, Meta(description="The roof's level part; of a CPU, that of the threads used")]
    bandwidth_b_per_s: Annotated[Fact, Meta(description="Slope of the roof: the memory's bandwidth")]
    ridge_intensity: Annotated[float, Meta(description="Operations per byte where both parts meet")]
    intensity: Annotated[float, Meta(description="Operations per byte of the kernel")]
    attained_flops_per_s: Annotated[
        Interval, Meta(description="Arithmetic over predicted time; above the slope where a cache serves it")
    ]
    of_limit: Annotated[
        float, Meta(description="Least time on paper over predicted time: the share of the binding limit")
    ]
    bound: Bound
    lower_bound_s: Annotated[float, Meta(description="Seconds that no run can beat")]
    latency_s: Annotated[Interval, Meta(description="Predicted time of one run in seconds")]
    breakdown: Annotated[dict[str, float], Meta(description="Seconds that each limit alone would take")]
    in_domain: InDomain


class Roofline(msgspec.Struct, frozen=True):
    """One kernel under the roofs of the devices, in the order of the request."""

    timing: Timing
    flops: Annotated[float, Meta(description="Arithmetic operations of one run")]
    bytes: Annotated[float, Meta(description="Compulsory traffic of one run in bytes")]
    answers: list[DeviceRoof]
