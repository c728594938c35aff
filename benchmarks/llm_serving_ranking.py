"""How plans and devices are ranked by throughput: Kendall's tau, and the share of the best throughput that the pick keeps.

Plans are compared at the same number of GPUs: where rows have fewer, replicas fill the rest, so that plans of one load per GPU
stand beside each other. Under a limit on the time per token all plans and loads of a model on a device are compared by
throughput per GPU.
`spreads` is what certainty.py of the planner rests on: errors of ln(a / b) of pairs that differ in one thing alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.planning.choice import SPREADS, probability_less
from kernelcast.workloads.serving.request import ServingRequest
from kernelcast.workloads.serving.table import request_of

Row = Mapping[str, Any]
APART = 0.05
"""Pairs measured closer than this are ties: services measured again differ by a few percent."""
LIMITS_S = (0.01, 0.02, 0.03, 0.05, 0.1)
"""Limits on the time per token under which plans are chosen."""


@dataclass(frozen=True, slots=True)
class Service:
    """A measured service.

    Attributes:
        row: Its row.
        asked: Its question.
        measured: Tokens per second per GPU.
        predicted: The same as predicted.
    """

    row: Row
    asked: ServingRequest
    measured: float
    predicted: float

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.asked.gpus

    @property
    def load(self) -> tuple[Any, ...]:
        """Its load per GPU, and its lengths."""
        load = self.asked.load
        size = None if load.kind == "queued" else load.size / self.gpus
        return self.row["table"], load.kind, size, load.input_tokens, load.output_tokens, load.cached, self.asked.client

    @property
    def setting(self) -> dict[str, Any]:
        """What may be chosen."""
        asked = self.asked
        # One 16-bit format is as fast as the other.
        formats = tuple(getattr(asked.formats, item.name).replace("fp16", "bf16") for item in fields(asked.formats))
        return {"device": asked.device, "plan": asked.plan, "formats": formats, "engine": asked.engine}


def services(rows: Sequence[Row]) -> list[Service]:
    """Rows with a throughput, measured and predicted alike: stated, or what follows from a closed loop's latencies."""
    result = []
    for row in rows:
        if row["refused"]:
            continue
        try:
            asked = request_of(row)
        except SpecError:
            continue
        pair = next(filter(None, (values(row) for values in _THROUGHPUTS)), None)
        if pair is not None:
            result.append(Service(row, asked, pair[0] / asked.gpus, pair[1] / asked.gpus))
    return result


def _stated(name: str, predicted: str) -> Callable[[Row], tuple[float, float] | None]:
    return lambda row: (row[name], row[predicted]) if row[name] and row[predicted] else None


def _from_latencies(row: Row) -> tuple[float, float] | None:
    size, length = row["concurrency"] or row["batch"], row["osl"]
    numbers = [row[name] for name in ("ttft_s", "tpot_s", "pred_ttft_s", "pred_tpot_s")]
    if not size or not length or length < 2 or not all(numbers):
        return None
    first, per_token, first_predicted, per_token_predicted = numbers
    seconds = first + per_token * (length - 1), first_predicted + per_token_predicted * (length - 1)
    return size * length / seconds[0], size * length / seconds[1]


_THROUGHPUTS = (
    _stated("throughput_tok_s", "pred_throughput_tok_s"), _stated("total_tok_s", "pred_total_tok_s"), _from_latencies,
)  # fmt: skip


def tau(measured: Sequence[float], predicted: Sequence[float], apart: float = 0.0) -> float | None:
    """Kendall's tau of pairs that are measured more than `apart` from each other; None without any."""
    signs = [
        math.copysign(1, a - b) * math.copysign(1, c - d) if c != d else 0.0
        for (a, c), (b, d) in combinations(zip(measured, predicted, strict=True), 2) if a != b and abs(math.log(a / b)) > apart
    ]  # fmt: skip
    return float(np.mean(signs)) if signs else None


@dataclass(frozen=True, slots=True)
class Ranked:
    """A group of alternatives.

    Attributes:
        key: What they have in common.
        names: The alternatives.
        measured: Their throughput per GPU, means of rows alike.
        predicted: The same as predicted.
    """

    key: tuple[Any, ...]
    names: tuple[Any, ...]
    measured: tuple[float, ...]
    predicted: tuple[float, ...]

    @property
    def keeps(self) -> float:
        """Share of the best throughput that the one predicted best has."""
        return self.measured[int(np.argmax(self.predicted))] / max(self.measured)


def grouped(
    items: Sequence[Service], key: Callable[[Service], tuple[Any, ...]], name: Callable[[Service], Any], least: int
) -> list[Ranked]:
    """Groups of at least so many alternatives."""
    groups: dict[tuple[Any, ...], dict[Any, list[Service]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        groups[key(item)][name(item)].append(item)
    return [
        Ranked(
            which, tuple(some),
            *(
                tuple(float(np.mean([getattr(item, end) for item in alike])) for alike in some.values())
                for end in ("measured", "predicted")
            ),
        )
        for which, some in groups.items() if len(some) >= least
    ]  # fmt: skip


def _same(item: Service) -> tuple[Any, ...]:
    return (item.row["model"], item.row["engine"], *item.load)


GROUPS: Mapping[str, tuple[Callable[[Service], tuple[Any, ...]], Callable[[Service], Any]]] = {
    "plans, as many GPUs each": (
        lambda item: (item.asked.device, item.gpus, *_same(item)), lambda item: (item.asked.plan, item.setting["formats"]),
    ),
    "plans, replicas fill the GPUs": (
        lambda item: (item.asked.device, *_same(item)), lambda item: (item.asked.plan, item.setting["formats"]),
    ),
    "GPUs, same plan": (
        lambda item: (item.asked.plan, item.gpus, *_same(item)), lambda item: item.asked.device,
    ),
    "engines, same plan": (
        lambda item: (item.asked.plan, item.setting["formats"], item.asked.device, item.gpus, item.row["model"], *item.load),
        lambda item: item.asked.engine,
    ),
}  # fmt: skip
"""What groups have in common, and what is chosen in them."""


def summary(groups: Sequence[Ranked]) -> list[str]:
    """Groups, alternatives, mean tau of all pairs and of pairs that are apart, share kept: mean, least, groups of 96 %."""
    keeps = [group.keeps for group in groups]
    taus = [
        [value for group in groups if (value := tau(group.measured, group.predicted, apart)) is not None]
        for apart in (0.0, APART)
    ]
    return [
        str(len(groups)), str(sum(len(group.names) for group in groups)),
        *(f"{np.mean(some):.2f}" if some else "" for some in taus), f"{100 * np.mean(keeps):.1f}", f"{100 * min(keeps):.0f}",
        f"{100 * np.mean(np.array(keeps) >= 0.96):.0f}",
    ]  # fmt: skip


def under_limits(items: Sequence[Service]) -> Iterator[list[str]]:
    """By limit on the time per token: choices, share of the best throughput per GPU kept, share of picks within the limit."""
    groups: dict[tuple[Any, ...], list[Service]] = defaultdict(list)
    for item in items:
        if item.row["tpot_s"] and item.row["pred_tpot_s"] and item.asked.load.kind == "closed":
            load = item.asked.load
            groups[item.row["model"], item.asked.device, load.input_tokens, load.output_tokens].append(item)
    for limit in LIMITS_S:
        kept, within = [], 0
        for some in groups.values():
            real = [item for item in some if item.row["tpot_s"] <= limit]
            thought = [item for item in some if item.row["pred_tpot_s"] <= limit]
            if len(real) < 3 or len(real) == len(some) or not thought:
                continue
            pick = max(thought, key=lambda item: item.predicted)
            # One that misses the limit by no more than services measured again differ still serves.
            if pick.row["tpot_s"] <= limit * (1 + APART):
                within += 1
                kept.append(min(1.0, pick.measured / max(item.measured for item in real)))
            else:
                kept.append(0.0)
        if kept:
            yield [
                f"{1e3 * limit:g} ms",
                str(len(kept)),
                f"{100 * np.mean(kept):.1f}",
                f"{100 * within / len(kept):.0f}",
            ]


def spreads(items: Sequence[Service]) -> Iterator[list[str]]:
    """90 % of errors of ln(a / b) of pairs of one model under one load per GPU, by the one thing in which they differ."""
    for target in ("throughput", "tpot"):
        groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], float]]] = defaultdict(list)
        alone: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        for item in items:
            if item.asked.engine not in ("vllm", "sglang", "trtllm"):
                continue
            real, thought = (
                (item.measured, item.predicted)
                if target == "throughput"
                else (item.row["tpot_s"], item.row["pred_tpot_s"])
            )
            if not real or not thought:
                continue
            error = math.log(thought / real)
            groups[(item.row["model"], *item.load)].append((item.setting, error))
            load = item.load
            alone[item.row["model"], *item.setting.values(), load[0], *load[3:]].append(error)
        differences: dict[str, list[float]] = defaultdict(list)
        for some in groups.values():
            for (one, first), (other, second) in combinations(some, 2):
                differs = [name for name in one if one[name] != other[name]]
                if len(differs) == 1:
                    differences[differs[0]].append(abs(first - second))
        differences["load"] = [abs(a - b) for some in alone.values() for a, b in combinations(some, 2)]
        for name, values in differences.items():
            yield [target, name, str(len(values)), f"{np.median(values):.2f}", f"{np.quantile(values, 0.9):.2f}"]


def certainties(items: Sequence[Service]) -> Iterator[list[str]]:
    """How often the service predicted better is better, by the probability that the planner gives for it."""
    for target in ("throughput", "tpot"):
        groups: dict[tuple[Any, ...], list[tuple[dict[str, Any], float, float]]] = defaultdict(list)
        for item in items:
            real, thought = (
                (1 / item.measured, 1 / item.predicted)
                if target == "throughput"
                else (item.row["tpot_s"], item.row["pred_tpot_s"])
            )
            if item.asked.engine in ("vllm", "sglang", "trtllm") and real and thought:
                groups[(item.row["model"], *item.load)].append((item.setting, real, thought))
        said, right = [], []
        for some in groups.values():
            for one, other in combinations(some, 2):
                differs = [name for name in one[0] if one[0][name] != other[0][name]]
                if not differs:
                    continue
                better, worse = sorted((one, other), key=lambda pair: pair[2])
                wide = math.sqrt(sum(SPREADS[target][name] ** 2 for name in differs))
                said.append(probability_less(better[2] / worse[2], wide))
                right.append(better[1] < worse[1])
        for low, high in ((0.5, 0.7), (0.7, 0.9), (0.9, 0.99), (0.99, 1.01)):
            some = [place for place, value in enumerate(said) if low <= value < high]
            yield [
                target, f"{low:g} to {min(high, 1):g}", str(len(some)), f"{np.mean([said[place] for place in some]):.2f}",
                f"{np.mean([right[place] for place in some]):.2f}",
            ]  # fmt: skip


def ranking_page(rows: Sequence[Row]) -> str:
    """The tables as Markdown."""
    items = services(rows)
    heads = [
        "ranked",
        "least",
        "groups",
        "alternatives",
        "tau",
        f"tau, {100 * APART:g} % apart",
        "keeps %",
        "least %",
        "keep 96 %",
    ]
    lines = [heads, ["---"] * len(heads)]
    for name, (key, choice) in GROUPS.items():
        lines += [
            [name, str(least), *summary(groups)] for least in (2, 3) if (groups := grouped(items, key, choice, least))
        ]
    tables = [
        lines,
        [["limit on time per token", "choices", "keeps %", "picks within %"], ["---"] * 4, *under_limits(items)],
        [["errors of ln(a / b)", "differ in", "pairs", "median", "90 %"], ["---"] * 5, *spreads(items)],
        [["better in", "said", "pairs", "mean said", "right"], ["---"] * 5, *certainties(items)],
    ]  # fmt: skip
    worst = sorted(
        (group for name in ("plans, replicas fill the GPUs",) for group in grouped(items, *GROUPS[name], 3)),
        key=lambda group: group.keeps,
    )[:10]  # fmt: skip
    shown = [
        f"{100 * group.keeps:.0f} % kept: {group.key}\n"
        + "\n".join(
            f"    {measured:9.1f} {predicted:9.1f}  {name}"
            for name, measured, predicted in zip(group.names, group.measured, group.predicted, strict=True)
        )
        for group in worst
    ]  # fmt: skip
    return "\n\n".join(["\n".join("| " + " | ".join(cells) + " |" for cells in table) for table in tables] + shown)
