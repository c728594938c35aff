"""Answers of a planner: every plan in closed form, the best for each aim simulated, and how sure their ranking is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ....features.errors import SpecError
from ....models.predict.prediction import Interval
from ...units import counted
from ..predict import ServingPrediction, ServingPredictor
from .choice import AIMS, COST, GPUS, LATENCY, Aim, aims_of, pareto_front, probability_less, ranked, spread
from .command_line import command_line, command_notes
from .disaggregated import Split, best_split
from .mixed_pipeline import MixedPipeline, best_pipeline
from .question import PlanQuestion
from .space import Refusal, Refusals, Setting, settings
from .sweep import SLACK, Candidate, candidates, keeps_times, load_of, replicas_of, request_of

TRIES = 200
"""Most plans simulated per aim that miss the limits. After them the best of all that were simulated and keep them is taken."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best plan for an aim.

    Attributes:
        aim: Its name.
        plan: The plan.
        service: Its service as simulated.
        cost_per_million_tokens: As simulated, with the interval of its throughput.
        runner_up: The best of the other settings; None where there is none.
        runner_up_service: Its service as simulated.
        probability: That the plan is better than the runner-up; None without one.
        command: The command line of its engine.
        notes: What to know of it.
    """

    aim: str
    plan: Candidate
    service: ServingPrediction
    cost_per_million_tokens: Interval
    runner_up: Candidate | None
    runner_up_service: ServingPrediction | None
    probability: float | None
    command: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class PlanAnswer:
    """What a planner found.

    Attributes:
        question: The question.
        plans: Plans that were compared, refused ones included.
        possible: Plans that are possible and within a tenth of the limits on latency, or below.
        refusals: Those that are not, by kind of reason.
        choices: The best plan for each aim.
        front: Plans that no other beats in cost, time per token and energy per token together, by cost.
        by_gpus: The plan of least cost at each number of devices.
        split: The cheapest split of prompts and answers over devices of their own, in closed form; None where there is none.
        pipeline: The cheapest pipeline over two kinds of devices; None where there is none, nothing says how many there are
            of a kind, or a choice costs less.
    """

    question: PlanQuestion
    plans: int
    possible: int
    refusals: Mapping[str, Refusal]
    choices: tuple[Choice, ...]
    front: tuple[Candidate, ...]
    by_gpus: tuple[Candidate, ...]
    split: Split | None
    pipeline: MixedPipeline | None = None

    def __repr__(self) -> str:
        name, gpus = self.question.facts.name, counted(self.question.gpus, "GPU")
        plans = f"{self.possible:,} of {self.plans:,} plans are possible"
        return f"{name} on up to {gpus}: {plans}, best for {len(self.choices)} aims"

    def __str__(self) -> str:
        best = [f"{AIMS[choice.aim].title}: {choice.service!r}" for choice in self.choices]
        best += [] if self.pipeline is None else [f"least cost over two kinds: {self.pipeline}"]
        return "\n  ".join([repr(self), *best])


def plan_service(
    service: ServingPredictor, question: PlanQuestion, tell: Callable[[str], None] = lambda _: None
) -> PlanAnswer:
    """The best plans for a service.

    Args:
        service: What predicts a service.
        question: What is asked.
        tell: Called with what is done next.

    Raises:
        SpecError: no plan is possible, or none keeps the limits, in closed form or as simulated; the message has the nearest.
    """
    refusals = Refusals()
    tell("plans")
    replicas = replicas_of(service, question, settings(question, service.predictor.devices, refusals), refusals)
    items = candidates(question, replicas, refusals, SLACK)
    tell("pipelines over two kinds")
    pipeline = best_pipeline(service, question)
    if not items:
        if pipeline is None:
            raise SpecError(_why_none(question, refusals), field=_field(refusals))
        return PlanAnswer(question, refusals.count, 0, refusals.kinds, (), (), (), None, pipeline)
    checks = _Checks(service, question)
    tell("limits")
    # What is best in one aim may, as simulated, be best in another: all are searched before one is chosen.
    for name in (LATENCY, *aims_of(question)):
        checks.best_that_keeps(ranked(items, AIMS[name]), AIMS[name])
    choices = []
    for name in aims_of(question):
        tell(AIMS[name].title)
        if (choice := _choice(name, ranked(items, AIMS[name]), checks)) is not None:
            choices.append(choice)
    if not choices and pipeline is None:
        raise SpecError(checks.why_none(), field=checks.field())
    least = min((choice.cost_per_million_tokens.value for choice in choices), default=math.inf)
    if pipeline is not None and pipeline.plan.cost_per_million_tokens >= least:
        # Two machines for what one serves at less cost.
        pipeline = None
    shown = [item for item in items if keeps_times(question, item)]
    by_gpus = {
        gpus: ranked([item for item in shown if item.gpus == gpus], AIMS[COST])[0]
        for gpus in sorted({item.gpus for item in shown})
    }
    return PlanAnswer(
        question, len(items) + refusals.count, len(items), refusals.kinds, tuple(choices), tuple(pareto_front(shown)),
        # Workers of prompts would read the experts for one prompt at a time.
        tuple(by_gpus.values()), None if question.host_experts else best_split(service, question, replicas),
        pipeline,
    )  # fmt: skip


LIMITED = (("ttft_s", "ttft_s"), ("tpot_s", "tpot_s"), ("power_w", "power_budget_w"))
"""Fields of a `Candidate` that a question may limit, each with the question's field."""


class _Checks:
    """Simulations of plans, each once."""

    def __init__(self, service: ServingPredictor, question: PlanQuestion) -> None:
        self._service, self.question = service, question
        self._known: dict[Candidate, ServingPrediction] = {}

    def service(self, item: Candidate) -> ServingPrediction:
        """The simulated service of a plan."""
        if item not in self._known:
            self._known[item] = self._service.predict(
                request_of(
                    self.question, item.setting, load_of(self.question, item), replicas=item.replicas, chunk=item.chunk
                )
            )
        return self._known[item]

    def excess(self, item: Candidate) -> tuple[float, ...]:
        """The simulated service over each of `LIMITED`, at most 1 where the limit is kept; 0 without one.

        Times are those of the request at the percentile; where power is unknown nothing says that a budget holds.
        """
        service = as_simulated(self.question, item, self.service(item))
        limits = (getattr(self.question, limit) for _, limit in LIMITED)
        values = (getattr(service, value) for value, _ in LIMITED)
        return tuple(
            0.0 if limit is None else value / limit if math.isfinite(value) else math.inf
            for value, limit in zip(values, limits, strict=True)
        )

    def best_that_keeps(self, items: Sequence[Candidate], aim: Aim) -> tuple[Candidate, ServingPrediction] | None:
        """The best plan for an aim of those whose simulated service is known to keep the limits; plans are simulated up to the
        first that does.

        Times and power fall at most in proportion to the requests under way: after one that misses a limit by a factor, those
        of its setting, size of steps and number of replicas are skipped that have more than that share of its requests.
        """
        most: dict[tuple[Setting, int, int], float] = {}
        tries = 0
        for item in items:
            key = item.setting, item.chunk, item.replicas
            if item.concurrency > most.get(key, math.inf):
                continue
            over = max(self.excess(item))
            if over <= 1:
                break
            most[key] = item.concurrency / over
            tries += 1
            if tries == TRIES:
                break
        known = [item for item in items if item in self._known and max(self.excess(item)) <= 1]
        best = min(known, key=lambda item: _simulated(aim, (item, self.service(item)), self.question), default=None)
        return None if best is None else (best, self.service(best))

    def _nearest(self) -> tuple[Candidate, tuple[float, ...]]:
        return min(((item, self.excess(item)) for item in self._known), key=lambda pair: max(pair[1]))

    def field(self) -> str:
        """The limit that the nearest plan misses by most, as a field of the question."""
        over = self._nearest()[1]
        return LIMITED[over.index(max(over))][1]

    def why_none(self) -> str:
        """Why no plan is chosen."""
        item, over = self._nearest()
        service = as_simulated(self.question, item, self.service(item))
        value, limit = LIMITED[over.index(max(over))]
        is_power = value == "power_w"
        at = "" if is_power else f" for {self.question.percentile} % of requests"
        way = _LESS_POWER if is_power else "ask for a longer limit or more devices"
        return (
            f"{len(self._known)} plans for {self.question.facts.name} within {SLACK - 1:.0%} of the limits in a steady state "
            f"miss them when simulated. Nearest {item.replicas} × ({item.setting}), {item.concurrency} requests under way "
            f"each: {value} {getattr(service, value):.4g}, of {getattr(self.question, limit):g}{at}; {way}"
        )


def _choice(name: str, items: Sequence[Candidate], checks: _Checks) -> Choice | None:
    """The best plan for an aim, and the best of the other settings."""
    aim, question = AIMS[name], checks.question
    first = checks.best_that_keeps(items, aim)
    if first is None:
        return None
    second = checks.best_that_keeps([item for item in items if item.setting != first[0].setting], aim)
    if second is not None and _simulated(aim, second, question) < _simulated(aim, first, question):
        # The simulation ranks them the other way.
        first, second = second, first
    plan, service = first
    notes = [*service.notes, *command_notes(question, plan)]
    probability = None
    if second is not None:
        mine, other = (_simulated(aim, item, question) for item in (first, second))
        # Numbers of devices are no predictions, and answers of one token have no time per token.
        if name != GPUS and mine > 0 and other > 0:
            probability = probability_less(mine / other, spread(plan, second[0], aim.target))
    price = question.price(plan.setting.device)
    return Choice(
        name, plan, service, service.cost_per_million_tokens(price), None if second is None else second[0],
        None if second is None else second[1], probability, command_line(question, plan), tuple(notes),
    )  # fmt: skip


def _simulated(aim: Aim, item: tuple[Candidate, ServingPrediction], question: PlanQuestion) -> float:
    """The measure of an aim by the simulation."""
    return aim.measure(as_simulated(question, item[0], item[1]))


def as_simulated(question: PlanQuestion, item: Candidate, service: ServingPrediction) -> Candidate:
    """A plan with the numbers of its simulation."""
    energy_j = service.energy_per_token_j.value if service.energy_per_token_j else math.nan
    power_w = service.power_w.value * item.gpus if service.power_w else math.nan
    return replace(
        item, ttft_s=question.value_of(service.ttft_s),
        # Answers of one token keep any limit on the time per token after it.
        tpot_s=0.0 if service.tpot_s is None else question.value_of(service.tpot_s),
        throughput_tok_s=service.throughput_tok_s.value, energy_per_token_j=energy_j, power_w=power_w,
        cost_per_million_tokens=service.cost_per_million_tokens(question.price(item.setting.device)).value,
    )  # fmt: skip


_LESS_POWER = "for less power ask for a power limit of each GPU (power_limit_w, --power-limit-w) or for fewer requests"
LIMITS: Mapping[str, str] = {"ttft": "ttft_s", "tpot": "tpot_s", "power": "power_budget_w", "load": "rate"}
"""Kinds of refusals of plans that run, but not as asked, with the field of the question."""


def _why_none(question: PlanQuestion, refusals: Refusals) -> str:
    kinds = refusals.kinds
    limits = [kinds[kind] for kind in LIMITS if kind in kinds]
    if limits:
        parts = "; ".join(
            f"{kind}: {kinds[kind].count} plans, nearest {kinds[kind].nearest}" for kind in LIMITS if kind in kinds
        )
        way = f"; {_LESS_POWER}" if "power" in kinds and question.setting is None else ""
        return f"none of {refusals.count} plans for {question.facts.name} keeps what is asked. {parts}{way}"
    parts = "; ".join(f"{kind}: {item.count} plans, nearest {item.nearest}" for kind, item in kinds.items())
    more = (
        f". Say how many there are of each ({question.devices[0]}:{question.gpus}) to try pipelines over two kinds"
        if len(question.devices) > 1 and not question.counts else ""
    )  # fmt: skip
    return f"no plan for {question.facts.name} on up to {question.gpus} devices is possible. {parts}{more}"


def _field(refusals: Refusals) -> str:
    return next((field for kind, field in LIMITS.items() if kind in refusals.kinds), "gpus")
