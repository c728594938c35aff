"""A mixed fleet for requests of many sizes: which replicas, how many, and which sizes each takes, at least cost.

Sizes of requests are gathered in buckets. A replica of kind g serves T(g, b) requests of bucket b in a second within the limits
on latency; a share x of the bucket's rate r takes x·r / T(g, b) of a replica, and shares of several buckets add up. The fewest
costs over whole numbers n of replicas are

    minimise Σ price·n   with   Σ_g x(g, b) = 1,   Σ_b x(g, b)·r(b) / T(g, b) ≤ n(g),   Σ devices·n ≤ all,   Σ watts·n ≤ budget

as in Griggs et al., "Mélange: Cost Efficient Large Language Model Serving by Exploiting GPU Heterogeneity", arXiv 2404.14527,
but with shares of a bucket that may be any number. HiGHS solves it (`scipy.optimize.milp`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....features.batch.cases import Floats
from ....features.errors import SpecError
from ..predict import ServingPredictor
from .choice import AIMS, COST, probability_less, ranked, setting_spread
from .question import PlanQuestion
from .space import Refusals, Setting, settings
from .sweep import Candidate, candidates, replicas_of

SIZE_FIELDS = ("input_tokens", "output_tokens", "weight")
"""What a size of requests has; `weight`, how often it occurs, may be missing."""
MAX_BUCKETS = 16
"""Most buckets: each takes a sweep of some kinds of replicas."""
MAX_SIZES = 1_000_000
"""Most requests that a distribution is given by."""
KINDS = 2
"""Kinds of replicas tried of each device and size: the cheapest that keep the limits."""
_SECONDS = 20.0
"""Longest search; the best fleet until then is the answer, which a note says."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests of alike sizes.

    Attributes:
        input_tokens: Mean tokens of their prompts.
        output_tokens: Mean tokens of their answers.
        share: Share of all requests.
    """

    input_tokens: float
    output_tokens: float
    share: float


@dataclass(frozen=True, slots=True)
class Kind:
    """Replicas of one kind in a fleet.

    Attributes:
        setting: What one is.
        replicas: How many.
        capacity: Requests per second of one, by bucket, shape `(buckets,)`; 0 of those that it cannot serve within the limits.
        shares: Share of each bucket that they take, shape `(buckets,)`.
        power_w: Most power of one.
    """

    setting: Setting
    replicas: int
    capacity: Floats
    shares: Floats
    power_w: float

    @property
    def gpus(self) -> int:
        """Devices of all of them."""
        return self.replicas * self.setting.plan.devices


@dataclass(frozen=True, slots=True, repr=False)
class Fleet:
    """A fleet.

    Attributes:
        kinds: Its replicas, by kind.
        buckets: Sizes of requests.
        cost_per_hour: In the currency of the prices, or in devices.
        cost_per_million_tokens: Of answers.
        one_kind: Cost per hour of the cheapest fleet of one kind of replica; None where no kind alone serves all sizes.
        probability: That this fleet costs less than that one, of the errors that throughputs of two kinds do not share; None
            where it is that one, or there is none.
        notes: What to know of it.
    """

    kinds: tuple[Kind, ...]
    buckets: tuple[Bucket, ...]
    cost_per_hour: float
    cost_per_million_tokens: float
    one_kind: float | None
    probability: float | None
    notes: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return sum(kind.gpus for kind in self.kinds)

    def __repr__(self) -> str:
        kinds = " + ".join(f"{kind.replicas} × {kind.setting!s}" for kind in self.kinds)
        return f"{kinds}: {self.cost_per_hour:.4g} per hour, {self.cost_per_million_tokens:.4g} per million tokens"


def buckets_of(inputs: Floats, outputs: Floats, weights: Floats | None = None) -> tuple[Bucket, ...]:
    """Requests in at most `MAX_BUCKETS` buckets, whose sides are a factor of each other, as fine as that allows.

    Args:
        inputs: tokens of prompts, shape `(n,)`.
        outputs: tokens of answers, shape `(n,)`.
        weights: how often each occurs, shape `(n,)`; None: once.

    Raises:
        SpecError: there are none or too many, or one is no length.
    """
    columns = {
        "input_tokens": np.asarray(inputs, dtype=np.float64),
        "output_tokens": np.asarray(outputs, dtype=np.float64),
    }
    weight = np.ones(len(columns["input_tokens"])) if weights is None else np.asarray(weights, dtype=np.float64)
    columns["weight"] = weight
    if not 1 <= len(weight) <= MAX_SIZES:
        raise SpecError(f"sizes of 1 to {MAX_SIZES:,} requests are taken, got {len(weight):,}", field="sizes")
    for name, values in columns.items():
        if not np.isfinite(values).all() or (values < (0 if name == "weight" else 1)).any():
            raise SpecError(
                f"sizes: {name} must be a number of at least {0 if name == 'weight' else 1} in every row", field="sizes"
            )
    if not 0 < weight.sum() < math.inf:
        raise SpecError("sizes: the weights add up to nothing", field="sizes")
    logs = np.log2(np.stack([columns["input_tokens"], columns["output_tokens"]]))
    side = 1.0
    while True:
        cells, index = np.unique(np.floor(logs / side), axis=1, return_inverse=True)
        if cells.shape[1] <= MAX_BUCKETS:
            break
        side += 0.5
    total = np.bincount(index.ravel(), weight)
    means = [
        np.bincount(index.ravel(), weight * columns[name]) / np.maximum(total, 1e-300) for name in list(columns)[:2]
    ]
    return tuple(
        Bucket(float(a), float(b), float(share))
        for a, b, share in zip(*means, total / total.sum(), strict=True)
        if share > 0
    )


def plan_fleet(service: ServingPredictor, question: PlanQuestion, buckets: Sequence[Bucket]) -> Fleet:
    """The cheapest fleet for requests of many sizes.

    Args:
        service: What predicts a service.
        question: What is asked; its lengths are those of the mean request, its rate is that of all requests.
        buckets: Sizes.

    Raises:
        SpecError: no rate is given, no kind of replica serves a bucket, or so many devices do not serve all.
        ImportError: scipy is not installed.
    """
    if question.rate is None:
        raise SpecError("a fleet for a distribution of sizes needs the rate of requests", field="rate")
    most = max(bucket.input_tokens + bucket.output_tokens for bucket in buckets)
    if question.facts.max_length is not None and most > question.facts.max_length:
        raise SpecError(
            f"sizes: {most:.0f} tokens are longer than the {question.facts.max_length} that {question.facts.name} is made for; "
            "leave such requests out", field="sizes",
        )  # fmt: skip
    kinds = _kinds(service, question, buckets)
    capacity, power_w = _capacities(service, question, kinds, buckets)
    for place, bucket in enumerate(buckets):
        if not capacity[:, place].any():
            raise SpecError(
                f"no replica serves requests of {bucket.input_tokens:.0f} tokens in and {bucket.output_tokens:.0f} out "
                f"({100 * bucket.share:.1f} % of them) within the limits; allow longer times or other devices", field="sizes",
            )  # fmt: skip
    rates = np.array([question.rate * bucket.share for bucket in buckets])
    cost = np.array([question.price(kind.device) * kind.plan.devices for kind in kinds])
    counts, shares, best = _solve(question, kinds, capacity, power_w, rates, cost)
    alone = {
        kind: cost[place] * _replicas_needed(rates / capacity[place])
        for place, kind in enumerate(kinds)
        if capacity[place].all()
        and _replicas_needed(rates / capacity[place]) * kind.plan.devices <= question.at_most(kind.device)
    }  # fmt: skip
    cheapest = min(alone, key=lambda kind: alone[kind], default=None)
    used = {kind: cost[place] * counts[place] for place, kind in enumerate(kinds) if counts[place]}
    tokens_s = float(sum(rate * bucket.output_tokens for rate, bucket in zip(rates, buckets, strict=True)))
    per_hour = float(cost @ counts)
    return Fleet(
        tuple(
            Kind(kind, int(counts[place]), capacity[place], shares[place], float(power_w[place]))
            for place, kind in enumerate(kinds) if counts[place]
        ),
        tuple(buckets), per_hour, 1e6 * per_hour / 3600 / tokens_s, None if cheapest is None else float(alone[cheapest]),
        None if cheapest is None else _probability(used, cheapest, float(alone[cheapest])),
        () if best else (f"the search ended after {_SECONDS:g} s; a cheaper fleet may exist",),
    )  # fmt: skip


def _probability(costs: Mapping[Setting, float], single: Setting, alone: float) -> float | None:
    """Probability that a fleet of kinds of such costs costs less than one of a single kind; None where that is the fleet.

    The error of ln(fleet / single) is Σ w·e - e(single), with w the kinds' shares of the fleet's cost. Of errors whose pairs
    differ by s(i, j) its square is Σ w(i)·s(i, single)² - ½ Σ w(i)·w(j)·s(i, j)², whatever they have in common.
    """
    if set(costs) == {single}:
        return None
    total = sum(costs.values())
    shares = {kind: part / total for kind, part in costs.items()}
    square = sum(share * setting_spread(kind, single, "throughput") ** 2 for kind, share in shares.items())
    square -= 0.5 * sum(
        first * second * setting_spread(kind, other, "throughput") ** 2
        for kind, first in shares.items() for other, second in shares.items()
    )  # fmt: skip
    return probability_less(total / alone, math.sqrt(max(square, 0.0)))


def mean_sizes(buckets: Sequence[Bucket]) -> tuple[float, float]:
    """Mean tokens of prompts and of answers."""
    return (
        sum(item.share * item.input_tokens for item in buckets), sum(item.share * item.output_tokens for item in buckets)
    )  # fmt: skip


def _kinds(service: ServingPredictor, question: PlanQuestion, buckets: Sequence[Bucket]) -> list[Setting]:
    """Kinds of replicas that are worth trying: of every device the cheapest for the mean request, and for the longest."""
    longest = max(buckets, key=lambda bucket: bucket.input_tokens + bucket.output_tokens)
    sizes = ((question.input_tokens, question.output_tokens), (longest.input_tokens, longest.output_tokens))
    kinds: dict[Setting, None] = {}
    for input_tokens, output_tokens in sizes:
        refusals = Refusals()
        of_size = replace(
            question,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            rate=None,
            power_budget_w=None,
            concurrency=None,
        )
        every = settings(question, service.predictor.devices, refusals)
        items = candidates(of_size, replicas_of(service, of_size, every, refusals), refusals)
        if not items:
            reasons = "; ".join(f"{kind}: {item.nearest}" for kind, item in refusals.kinds.items())
            raise SpecError(
                f"no replica serves requests of {input_tokens:.0f} tokens in and {output_tokens:.0f} out. {reasons}",
                field="sizes",
            )  # fmt: skip
        for device in question.devices:
            best = ranked([item for item in items if item.setting.device == device], AIMS[COST])
            kinds |= dict.fromkeys(list(dict.fromkeys(item.setting for item in best))[:KINDS])
    return list(kinds)


def _capacities(
    service: ServingPredictor, question: PlanQuestion, kinds: Sequence[Setting], buckets: Sequence[Bucket]
) -> tuple[Floats, Floats]:
    """Requests per second of one replica of each kind at each bucket, shape `(kinds, buckets)`, and its watts `(kinds,)`."""
    capacity, power_w = np.zeros((len(kinds), len(buckets))), np.zeros(len(kinds))
    place = {kind: index for index, kind in enumerate(kinds)}
    for column, bucket in enumerate(buckets):
        of_size = replace(
            question,
            input_tokens=bucket.input_tokens,
            output_tokens=bucket.output_tokens,
            rate=None,
            power_budget_w=None,
        )
        best: dict[Setting, Candidate] = {}
        for item in candidates(of_size, replicas_of(service, of_size, kinds, Refusals()), Refusals()):
            if item.setting not in best or item.throughput_tok_s > best[item.setting].throughput_tok_s:
                best[item.setting] = item
        for kind, item in best.items():
            row = place[kind]
            capacity[row, column] = item.throughput_tok_s / item.replicas / max(round(bucket.output_tokens), 1)
            power_w[row] = max(power_w[row], item.power_w / item.replicas)
    return capacity, power_w


def _replicas_needed(busy: Floats) -> int:
    """Replicas of a kind that serve all buckets, each of which keeps so many of them busy."""
    return math.ceil(float(busy.sum()) - 1e-9)


def _solve(
    question: PlanQuestion, kinds: Sequence[Setting], capacity: Floats, power_w: Floats, rates: Floats, cost: Floats
) -> tuple[Floats, Floats, bool]:
    """Replicas by kind, shares of buckets by kind, and whether no cheaper fleet exists."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, m = capacity.shape
    # Unknowns: n replicas, then shares row by row.
    size = n + n * m
    serve, load = np.zeros((m, size)), np.zeros((n, size))
    highest = np.ones(size)
    highest[:n] = [question.at_most(kind.device) // kind.plan.devices for kind in kinds]
    for kind in range(n):
        load[kind, kind] = -1.0
        for bucket in range(m):
            share = n + kind * m + bucket
            serve[bucket, share] = 1.0
            if capacity[kind, bucket]:
                load[kind, share] = rates[bucket] / capacity[kind, bucket]
            else:
                highest[share] = 0.0
    rows = [LinearConstraint(serve, 1.0, 1.0), LinearConstraint(load, -np.inf, 0.0)]
    used = np.zeros(size)
    used[:n] = [kind.plan.devices for kind in kinds]
    rows.append(LinearConstraint(used, 0, question.gpus))
    for device, count in question.counts.items():
        of_device = np.zeros(size)
        of_device[:n] = [kind.plan.devices if kind.device == device else 0 for kind in kinds]
        rows.append(LinearConstraint(of_device, 0, count))
    if question.power_budget_w is not None:
        watts = np.zeros(size)
        watts[:n] = power_w
        rows.append(LinearConstraint(watts, 0, question.power_budget_w))
    # A little for every device, so that of fleets of equal cost the smallest is taken.
    objective = np.concatenate([cost + 1e-6 * cost.max() * used[:n], np.zeros(n * m)])
    solution = milp(
        objective, constraints=rows, bounds=Bounds(0, highest), integrality=np.arange(size) < n,
        options={"time_limit": _SECONDS},
    )  # fmt: skip
    if solution.x is None:
        needed = min(
            (
                (_replicas_needed(rates / row) * kind.plan.devices, kind.device)
                for row, kind in zip(capacity, kinds, strict=True) if row.all()
            ),
            default=None,
        )  # fmt: skip
        more = "" if needed is None else f"; {needed[0]} × {needed[1]} would"
        budget = "" if question.power_budget_w is None else f" within {question.power_budget_w:g} W"
        raise SpecError(
            f"{question.gpus} devices{budget} do not serve {question.rate:g} requests/s of these sizes{more}",
            field="gpus",
        )
    return np.rint(solution.x[:n]), solution.x[n:].reshape(n, m), solution.status == 0
