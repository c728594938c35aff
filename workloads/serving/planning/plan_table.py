"""Questions to the planner in the rows of a table, and their answers as columns.

What a service is for is a matter of columns: `requests` is a batch job of so many requests, `rate` and `concurrency` a service,
long `input_tokens` a long context, whose memory and share of attention are in the answer, and `samples` answers to every
question, which share its prompt. Where `accuracy` is given, measured by whoever asks, a column says which rows no other one
beats in accuracy, cost and time of a question together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from ....features.errors import SpecError, listed
from ....models.predict.carbon import Electricity
from ....models.predict.prediction import Interval
from ...architectures.config.catalogue import facts_of
from ..predict import ServingPredictor
from .choice import AIMS, COST, THROUGHPUT
from .planner import Choice, plan_service
from .question import ENGINES, PERCENTILES, PlanQuestion, plan_question
from .sweep import under_way

Row = Mapping[str, Any]

TEXTS = ("model", "devices", "engines", "weights", "dtype", "kv_dtype", "draft", "aim")
"""Columns that are texts; `devices`, `engines` and `weights` separate names by commas."""
NUMBERS = (
    "gpus", "input_tokens", "output_tokens", "concurrency", "rate", "ttft_s", "tpot_s", "power_budget_w", "cached", "speculate",
    "acceptance", "host_experts", "requests", "samples", "accuracy", "power_limit_w", "clock_hz", "percentile",
)  # fmt: skip
"""Columns that are numbers."""
OPTIONS: Mapping[str, str] = {
    "input": "input_tokens", "output": "output_tokens", "ttft": "ttft_s", "tpot": "tpot_s", "power_budget": "power_budget_w",
}  # fmt: skip
"""Columns by the names of the options of `llm plan`."""
NEEDED = ("model", "devices", "input_tokens", "output_tokens")
"""Columns that every table has; of the others each row may lack any."""
_WHOLE = ("gpus", "speculate", "requests", "samples", "percentile")
_PLAIN = (
    "concurrency", "rate", "ttft_s", "tpot_s", "power_budget_w", "dtype", "kv_dtype", "speculate", "acceptance",
    "power_limit_w", "clock_hz",
)  # fmt: skip
"""Columns that are fields of a question as they are."""
PLAN = ("device", "gpus", "replicas", "tp", "pp", "ep", "dp", "weights", "engine", "guesses", "under_way", "command")
"""What the chosen plan is, each `plan_…`."""
ENDS = ("", "_lo", "_hi")
MEASURES = (
    ("ttft", "s"), ("tpot", "s"), ("throughput", "tok_s"), ("power", "w"), ("energy_per_token", "j"),
    ("cost_per_million_tokens", ""), ("question", "s"), ("question_cost", ""), ("job", "s"), ("job_cost", ""),
)  # fmt: skip
"""Words and units of what it gives, each `pred_…` with both ends of its interval: medians of requests, costs in the currency
of the prices or in hours of devices."""
FOOTPRINT = (
    ("carbon_per_million_tokens", "g", "carbon_g"),
    ("electricity_cost_per_million_tokens", "", "electricity_cost"),
)
"""The same of the electricity where a grid, or a price of it, is given: words, unit, and the field of a footprint."""
OTHERS = ("pred_memory_b", "pred_host_memory_b", "pred_attention_share", "probability", "best", "refused")
"""Bytes of the fullest device with the sequences that run together, bytes of all devices' weights in their hosts' memory,
attention's share of a decode step, the probability that the plan is better than the best of the other settings, whether no
other row is better, and why there is no answer."""
ADDED_TEXTS = ("plan_device", "plan_weights", "plan_engine", "plan_command", "refused")
"""Columns of answers that are texts."""
MAX_SAMPLES = 10_000
"""Most answers to one question."""


def plan_rows(
    rows: Sequence[Row], service: ServingPredictor, prices: Mapping[str, Any] | None = None,
    tell: Callable[[int], None] = lambda _: None, electricity: Electricity | None = None,
) -> dict[str, list[Any]]:  # fmt: skip
    """The columns to add to a table of questions; `refused` says why a row has no answer."""
    names = [f"plan_{name}" for name in PLAN]
    names += [column(word, end, unit) for word, unit in MEASURES for end in ENDS]
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in (*names, *OTHERS)}
    for index, row in enumerate(rows):
        tell(index)
        try:
            for name, value in _answer(row, service, prices).items():
                columns[name][index] = value
        except SpecError as error:
            columns["refused"][index] = f"{error.field}: {error}" if error.field else str(error)
    if electricity is not None:
        columns |= _footprints(columns, electricity)
    columns["best"] = _best(
        [_value(row, "accuracy") for row in rows], columns["pred_question_cost"], columns["pred_question_s"]
    )
    return columns


def column(word: str, end: str, unit: str) -> str:
    """The name of a column of `MEASURES`."""
    return f"pred_{word}{end}" + (f"_{unit}" if unit else "")


def _footprints(columns: Mapping[str, Sequence[Any]], electricity: Electricity) -> dict[str, list[Any]]:
    """Columns of `FOOTPRINT` from those of the energy."""
    energies = zip(*(columns[column("energy_per_token", end, "j")] for end in ENDS), strict=True)
    footprints = [electricity.footprint(None if None in ends else Interval(*ends), 1e6) for ends in energies]
    priced = (electricity.grid is not None, electricity.price_per_kwh is not None)
    return {
        column(word, end, unit): [amount and getattr(amount, part) for amount in map(attrgetter(field), footprints)]
        for (word, unit, field), is_priced in zip(FOOTPRINT, priced, strict=True) if is_priced
        for end, part in zip(ENDS, ("value", "lower", "upper"), strict=True)
    }  # fmt: skip


def _answer(row: Row, service: ServingPredictor, prices: Mapping[str, Any] | None) -> dict[str, Any]:
    requests, samples = _value(row, "requests"), _value(row, "samples")
    samples = 1 if samples is None else samples
    if not 1 <= samples <= MAX_SAMPLES:
        raise SpecError(f"samples must be between 1 and {MAX_SAMPLES:,}, got {samples:g}", field="samples")
    if requests is not None and requests < 1:
        raise SpecError(f"requests must be at least 1, got {requests:g}", field="requests")
    question = _question(row, service, prices, samples)
    if requests is not None and (question.rate is not None or question.concurrency is not None):
        raise SpecError("a job of so many requests has no rate and no concurrency; leave them out", field="requests")
    aim = row.get("aim") or (COST if requests is None else THROUGHPUT)
    if aim not in AIMS:
        raise SpecError(f"an aim is one of {listed(AIMS)}, not {aim!r}", field="aim")
    answer = plan_service(service, question)
    chosen = next((choice for choice in answer.choices if choice.aim == aim), None)
    if not answer.choices:
        raise SpecError(
            f"one kind of GPU has no plan; over two kinds there is {answer.pipeline}, as `kernelcast llm plan` says",
            field="devices",
        )
    if chosen is None:
        has = listed(choice.aim for choice in answer.choices)
        raise SpecError(f"plans do not differ in {aim} under this load; choose {has}", field="aim")
    return _columns(question, chosen, requests, samples)


def _question(row: Row, service: ServingPredictor, prices: Mapping[str, Any] | None, samples: float) -> PlanQuestion:
    values = {name: _value(row, name) for name in _PLAIN}
    percentile = _value(row, "percentile")
    cached = _value(row, "cached") or 0.0
    if values["rate"] is not None:
        values["rate"] *= samples
    words = {name: _words(row.get(name)) for name in ("devices", "engines", "weights")}
    model, _, inputs, outputs = needed = [_value(row, name) for name in NEEDED]
    if None in needed:
        name = NEEDED[needed.index(None)]
        raise SpecError(f"the row has no {name}", field=name)
    draft = row.get("draft")
    return plan_question(
        facts_of(model), words["devices"], service.predictor.devices, engines=words["engines"] or ENGINES,
        weights=words["weights"], prices=prices, draft=facts_of(draft) if draft else None, gpus=_value(row, "gpus"),
        input_tokens=inputs, output_tokens=outputs,
        # All but the first answer to a question find its prompt in the cache.
        cached=cached + (1 - cached) * (samples - 1) / samples, host_experts=_value(row, "host_experts") or 0.0,
        percentile=PERCENTILES[0] if percentile is None else percentile, **values,
    )  # fmt: skip


def _columns(question: PlanQuestion, chosen: Choice, requests: float | None, samples: float) -> dict[str, Any]:
    plan, service = chosen.plan, chosen.service
    setting, rate, memory = plan.setting, service.throughput_tok_s, service.memory
    tokens = max(round(question.output_tokens), 1)
    running = math.ceil(plan.sequences / setting.plan.dp)
    per_hour = question.price(setting.device) * plan.gpus
    cost, last = chosen.cost_per_million_tokens, service.e2e_s.p50
    of_question = cost.scaled(1e-6 * tokens * samples)
    measures = {
        "ttft": service.ttft_s.p50, "tpot": None if service.tpot_s is None else service.tpot_s.p50, "throughput": rate,
        "power": service.power_w, "energy_per_token": service.energy_per_token_j, "cost_per_million_tokens": cost,
        "question": last, "question_cost": of_question,
    }  # fmt: skip
    if requests is not None:
        # The queue is long: its ends weigh nothing.
        all_tokens = requests * samples * tokens
        job = Interval(all_tokens / rate.value, all_tokens / rate.upper, all_tokens / rate.lower)
        measures |= {"job": job, "job_cost": job.scaled(per_hour / 3600)}
    values: dict[str, Any] = {
        "plan_device": setting.device, "plan_gpus": plan.gpus, "plan_replicas": plan.replicas, "plan_tp": setting.plan.tp,
        "plan_pp": setting.plan.pp, "plan_ep": setting.plan.ep, "plan_dp": setting.plan.dp,
        "plan_weights": setting.formats.weights, "plan_engine": setting.engine,
        "plan_guesses": 0 if setting.speculation is None else setting.speculation.tokens,
        "plan_under_way": under_way(question, plan), "plan_command": chosen.command,
        "pred_memory_b": memory.weights_b + memory.activations_b + running * memory.cache_per_sequence_b,
        "pred_host_memory_b": plan.gpus * memory.host_b,
        "pred_attention_share": service.parts["attention"], "probability": chosen.probability,
    }  # fmt: skip
    for word, unit in MEASURES:
        interval = measures.get(word)
        if interval is not None:
            ends = (interval.value, interval.lower, interval.upper)
            values |= {column(word, end, unit): value for end, value in zip(ENDS, ends, strict=True)}
    return values


def _best(
    accuracy: Sequence[float | None], cost: Sequence[float | None], time_s: Sequence[float | None]
) -> list[bool | None]:
    """Of rows with an accuracy and an answer, those that no other equals or beats in accuracy, cost and time; else None."""
    points = [
        None if right is None or price is None or time is None else (-right, price, time)
        for right, price, time in zip(accuracy, cost, time_s, strict=True)
    ]
    known = {point for point in points if point is not None}
    return [
        None if point is None else not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in known
        )
        for point in points
    ]  # fmt: skip


def _words(text: object) -> list[str]:
    return [word.strip() for word in str(text or "").split(",") if word.strip()]


def _value(row: Row, name: str) -> Any:
    """A column's value, None where it is missing.

    Raises:
        SpecError: it is no number where one belongs.
    """
    value = row.get(name)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if name in TEXTS:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"{name} must be a number, got {value!r}", field=name)
    if name in _WHOLE:
        if value != int(value):
            raise SpecError(f"{name} must be a whole number, got {value!r}", field=name)
        return int(value)
    return value
