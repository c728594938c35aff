"""Tables of engine steps: each row's model, device, plan, engine and step, and their times.

Columns: `model`, `device`, `engine`, `prefill_tokens`, `prefill_requests`, `prefill_kv_tokens`, `decode_requests` and
`decode_kv_tokens` are needed; `engine_version`, `tp`, `pp`, `ep`, `dp`, `num_gpus`, `precision`, `weight_dtype`, `kv_dtype` may
be left out or empty, and so may the columns that describe a model that does not ship (`architectures/config/catalogue.py`).
Tokens are those of all sequences of a step together; positions of decoding sequences contain the new one. No other column is
read, labels in particular.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ...features.errors import SpecError, listed
from ...models.predict.predictor import ArtifactPredictor
from ..architectures.config.catalogue import FACTS, row_facts
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.memory import memory
from ..architectures.plan import ParallelPlan
from ..architectures.step import ACTIVATIONS, Formats, Sequences, Step
from .engine.profile import EngineProfile, StepColumns, engine_name, has_number
from .service_steps import check_engine, check_formats
from .steps import StepTimes

NEEDED = (
    "model", "device", "engine", "prefill_tokens", "prefill_requests", "prefill_kv_tokens", "decode_requests",
    "decode_kv_tokens",
)  # fmt: skip
OPTIONAL = ("engine_version", "tp", "pp", "ep", "dp", "num_gpus", "precision", "weight_dtype", "kv_dtype", *FACTS)
_SETTING = ("model", "device", "engine", *OPTIONAL)
_NAMES: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "fp4": "nvfp4"}
"""Formats by other names that tables use."""


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Times of the rows of a table, NaN where one is refused.

    Attributes:
        value_s: Seconds, shape `(n,)`.
        lower_s: Lower ends of the 90 % intervals.
        upper_s: Upper ends.
        refused: Why a row is refused, None where it is not.
    """

    value_s: Floats
    lower_s: Floats
    upper_s: Floats
    refused: list[str | None]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one model on one device under one plan in one engine.

    Attributes:
        rows: Their positions in the table.
        steps: Their steps.
        times: What gives the times of steps.
    """

    rows: list[int]
    steps: list[Step]
    times: StepTimes


def step_groups(
    predictor: ArtifactPredictor, columns: Mapping[str, Sequence[Any]], profile: EngineProfile | None = None
) -> tuple[list[RowGroup], list[str | None]]:
    """The rows that can be read, in groups, and why each of the others cannot.

    Args:
        predictor: a trained model.
        columns: the table, by column.
        profile: of every engine; None: the shipped ones.

    Raises:
        SpecError: a column is missing.
    """
    if missing := [name for name in NEEDED if name not in columns]:
        raise SpecError(f"the table has no column {listed(missing)}; needed are {listed(NEEDED)}", field=missing[0])
    n = len(columns["model"])
    refused: list[str | None] = [None] * n
    settings: dict[tuple[Any, ...], list[int]] = {}
    table = [columns.get(name, [None] * n) for name in _SETTING]
    for name, column in zip(_SETTING, table, strict=True):
        if any(isinstance(value, list | dict) for value in column):
            raise SpecError(f"the column {name} holds lists; a row has one value", field=name)
    for row, setting in enumerate(zip(*table, strict=True)):
        settings.setdefault(setting, []).append(row)
    groups = []
    for setting, rows in settings.items():
        try:
            times = _times(predictor, dict(zip(_SETTING, setting, strict=True)), profile)
        except SpecError as error:
            for row in rows:
                refused[row] = str(error)
            continue
        good, steps = [], []
        for row in rows:
            try:
                step = _step({name: columns[name][row] for name in NEEDED[3:]})
                _check_room(times, step)
                steps.append(step)
                good.append(row)
            except SpecError as error:
                refused[row] = str(error)
        groups.append(RowGroup(good, steps, times))
    return groups, refused


def predict_rows(
    predictor: ArtifactPredictor, columns: Mapping[str, Sequence[Any]], profile: EngineProfile | None = None
) -> RowTimes:
    """Times of every row of a table; arguments and errors are those of `step_groups`."""
    groups, refused = step_groups(predictor, columns, profile)
    ends = np.full((3, len(refused)), np.nan)
    for group in groups:
        for rows, steps, reason in _answerable(group):
            if reason is not None:
                refused[rows[0]] = reason
            elif rows:
                ends[:, rows] = group.times.seconds(steps)
    return RowTimes(ends[0], ends[1], ends[2], refused)


def step_columns(groups: Sequence[RowGroup], refused: list[str | None]) -> tuple[StepColumns, list[int]]:
    """The steps of groups as a profile sees them, and their rows; rows that cannot be predicted are added to `refused`."""
    parts, taken = [], []
    for group in groups:
        for rows, steps, reason in _answerable(group):
            if reason is not None:
                refused[rows[0]] = reason
            elif rows:
                parts.append(group.times.columns(steps))
                taken += rows
    if not parts:
        raise SpecError("no row can be predicted; `kernelcast llm steps --table` says why, row by row", field="steps")
    return StepColumns.joined(parts), taken


def _answerable(group: RowGroup) -> list[tuple[list[int], list[Step], str | None]]:
    """The rows of a group that can be predicted together, and each of the others with the reason."""
    if not group.rows:
        return []
    try:
        group.times.columns(group.steps)
    except SpecError:
        pass
    else:
        return [(group.rows, group.steps, None)]
    good: tuple[list[int], list[Step], None] = ([], [], None)
    results: list[tuple[list[int], list[Step], str | None]] = [good]
    for row, step in zip(group.rows, group.steps, strict=True):
        try:
            group.times.columns([step])
        except SpecError as error:
            results.append(([row], [step], str(error)))
        else:
            good[0].append(row)
            good[1].append(step)
    return results


def _times(predictor: ArtifactPredictor, setting: Mapping[str, Any], profile: EngineProfile | None) -> StepTimes:
    for name in ("model", "device", "engine"):
        if not isinstance(setting[name], str) or not setting[name]:
            raise SpecError(f"{name} is empty", field=name)
    facts = row_facts(setting)
    engine = engine_name(setting["engine"])
    if profile is not None and profile.engine != engine:
        raise SpecError(f"the profile is of {profile.engine}, the row of {engine}", field="engine")
    version, formats = setting["engine_version"], row_formats(facts, setting)
    device = predictor.devices.get(setting["device"])
    check_engine(engine, device)
    check_formats(engine, formats, device)
    return StepTimes(
        predictor, facts, setting["device"], plan_of(setting), formats=formats, engine=engine,
        engine_version=str(version) if version is not None and has_number(str(version)) else None, profile=profile,
    )  # fmt: skip


def _check_room(times: StepTimes, step: Step) -> None:
    facts = times.facts
    if facts.max_length is not None and step.longest > facts.max_length:
        raise SpecError(
            f"a sequence of {step.longest} tokens is longer than the {facts.max_length} that {facts.name} is made for",
            field="decode_kv_tokens" if step.groups[-1].decodes else "prefill_tokens",
        )
    holds = memory(facts, step, times.formats or formats_of(facts), times.plan, times.device)
    if holds.device_b is not None and holds.weights_b + holds.cache_b > holds.device_b:
        raise SpecError(
            f"weights of {holds.weights_b / 1e9:.4g} GB and a cache of {holds.cache_b / 1e9:.4g} GB do not fit in the "
            f"{holds.device_b / 1e9:.4g} GB of a {times.device.title} under {times.plan}; more devices (tp, pp), smaller "
            "formats or fewer positions do", field="memory",
        )  # fmt: skip


def plan_of(setting: Mapping[str, Any]) -> ParallelPlan:
    """The plan of a row: without `tp`, the devices that `pp` and `dp` leave split each layer.

    Raises:
        SpecError: the numbers are none of a plan, or `num_gpus` is not what the plan takes.
    """
    sizes = {name: _whole(setting, name) for name in ("tp", "pp", "ep", "dp", "num_gpus")}
    if zero := next((name for name, size in sizes.items() if size == 0), None):
        raise SpecError(f"{zero} must be at least 1, got 0; leave it empty where it is not known", field=zero)
    pp, dp, devices = sizes["pp"] or 1, sizes["dp"] or 1, sizes["num_gpus"]
    tp = sizes["tp"] or max(1, (devices or 1) // (pp * dp))
    plan = ParallelPlan(tp=tp, pp=pp, ep=sizes["ep"] or 1, dp=dp)
    if devices and devices % plan.devices:
        near = plan.devices * max(1, devices // plan.devices)
        raise SpecError(
            f"{plan} takes {plan.devices} devices, and num_gpus is {devices}; give {near} or {near + plan.devices}",
            field="num_gpus",
        )
    return plan


def row_formats(facts: ModelFacts, setting: Mapping[str, Any]) -> Formats:
    """The formats of a row: `weight_dtype`, else `precision`, of the matrices; a model with experts in 4 bits keeps them.

    Raises:
        SpecError: a format is unknown, or cannot be where it stands.
    """
    kv = _format(setting["kv_dtype"])
    weights = _format(setting["weight_dtype"]) or _format(setting["precision"])
    own_bits = facts.experts in ("mxfp4", "nvfp4") or facts.weights in ("mxfp4", "nvfp4")
    if weights is None or (own_bits and weights in ("mxfp4", "nvfp4")):
        return formats_of(facts, kv=kv)
    if weights in ACTIVATIONS:
        return formats_of(facts, dtype=weights, kv=kv) if own_bits else Formats.of(weights, kv=kv)
    return formats_of(facts, weights=weights, kv=kv)


def _format(name: Any) -> str | None:
    if name is None or name == "":
        return None
    word = str(name).strip().lower()
    return _NAMES.get(word, word)


def _whole(setting: Mapping[str, Any], name: str) -> int | None:
    value = setting[name]
    if value is None or value != value:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or not 0 <= value < math.inf:
        raise SpecError(f"{name} must be a whole number, got {value!r}", field=name)
    return int(value)


def _step(row: Mapping[str, Any]) -> Step:
    sizes = {name: _whole(row, name) for name in row}
    for requests, tokens in (("prefill_requests", ("prefill_tokens", "prefill_kv_tokens")),
                             ("decode_requests", ("decode_kv_tokens",))):  # fmt: skip
        for name in tokens:
            if sizes[requests] and sizes[name] is None:
                raise SpecError(f"{name} is empty beside {sizes[requests]} {requests}; 0 is none", field=name)
            if sizes[name] and not sizes[requests]:
                raise SpecError(f"{sizes[name]} {name} are given without {requests}", field=requests)
    prompts, new_tokens, cached, decoding, positions = (sizes[name] or 0 for name in (
        "prefill_requests", "prefill_tokens", "prefill_kv_tokens", "decode_requests", "decode_kv_tokens"
    ))  # fmt: skip
    groups = []
    if prompts:
        if new_tokens < prompts:
            raise SpecError(
                f"prefill_tokens {new_tokens} are fewer than the {prompts} prefill_requests", field="prefill_tokens"
            )
        # A chunk of one token would be a decoding sequence; it runs as one of two does.
        groups.append(Sequences(prompts, max(2, -(-new_tokens // prompts)), cached // prompts))
    if decoding:
        groups.append(Sequences(decoding, 1, max(1, positions // decoding - 1)))
    if positions < decoding:
        raise SpecError(
            f"decode_kv_tokens {positions} are fewer than the {decoding} decode_requests, each of which has at least its new "
            "token", field="decode_kv_tokens",
        )  # fmt: skip
    if not groups:
        raise SpecError(
            "the step has no sequences: prefill_requests and decode_requests are empty", field="decode_requests"
        )
    return Step(tuple(groups))
