"""Which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import kind_of, read_spec
from ...models.family_model.intervals import check_coverage
from ...models.predict.named_impl import check_specs
from ...models.predict.prediction import Interval, Predictions, Predictor
from ..answers import interval_answer, known_interval
from .known_configs import TuningModel, TuningProblem, known_configs, problem_of, tuning_model
from .spec_on_devices import with_timing

MAX_TOP = 1000
DEFAULT_TOP = 20
_UNKNOWN_SIZES = "the tuning model does not say which sizes it was measured with"


@dataclass(frozen=True, slots=True)
class RankQuestion:
    """Configurations of one kernel to rank.

    Attributes:
        specs: a spec per configuration, all of one timing.
        device: where they run.
        top: how many of the best are wanted.
        coverage: share of cases that intervals are to contain.
        problem: the tuning problem that all of them solve, None where they are not of one.
    """

    specs: list[KernelSpec]
    device: Device
    top: int
    coverage: float
    problem: TuningProblem | None


def rank_question(
    plain: Mapping[str, Any], catalogue: Catalogue, configs: Sequence[Any] | None = None, *, top: int = DEFAULT_TOP,
    coverage: float = 0.9,
) -> RankQuestion:  # fmt: skip
    """The question of a spec's configurations, the known ones where none are given.

    Args:
        plain: the fields of a spec with its device, without a configuration.
        catalogue: the devices.
        configs: configurations, as mappings of knobs to whole numbers.
        top: how many of the best are wanted, 1 to `MAX_TOP`.
        coverage: share of cases that intervals are to contain.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec, or such as `configs[3].tile_m`.
    """
    if type(top) is not int or not 1 <= top <= MAX_TOP:
        raise SpecError(f"top must be a whole number between 1 and {MAX_TOP}, got {top!r}", field="top")
    spec, name = read_spec(plain, catalogue)
    spec, device = with_timing(spec), catalogue.get(name)
    problem = problem_of(spec, device)
    if configs is None:
        known = known_configs(problem, spec, device)
        assert problem is not None  # noqa: S101 - without a problem, no configurations are known, which is an error
        specs = [replace(problem.spec, config=tuple(sorted(config.items()))) for config in known]
        return RankQuestion(specs, device, top, coverage, problem)
    if not configs:
        message = "configs must be a list of at least one configuration; leave it out to rank the known ones"
        raise SpecError(message, field="configs")
    specs = [read_config({**plain, "timing": spec.timing}, i, config, catalogue) for i, config in enumerate(configs)]
    return RankQuestion(specs, device, top, coverage, _shared(specs, device, problem))


def read_config(plain: Mapping[str, Any], index: int, config: Any, catalogue: Catalogue) -> KernelSpec:
    """The spec in the configuration that is given at a position of a list.

    Raises:
        SpecError: it is none; `field` is its path, such as `configs[3].tile_m`.
    """
    path = f"configs[{index}]"
    if not isinstance(config, Mapping):
        raise SpecError(f"a configuration must be an object of whole numbers, not {kind_of(config)}", field=path)
    try:
        return read_spec({**plain, "config": config}, catalogue)[0]
    except SpecError as error:
        field = (error.field or "").removeprefix("config").removeprefix(".")
        raise SpecError(str(error), field=f"{path}.{field}" if field else path) from error


def _shared(specs: Sequence[KernelSpec], device: Device, problem: TuningProblem | None) -> TuningProblem | None:
    """The problem that all these specs are configurations of, None where one of them is not."""
    if problem is None or not specs[0].impl:
        return None
    tasks = (problem.kind.task_of(replace(spec, threads=problem.spec.threads), device.name) for spec in specs)
    return problem if all(task is not None and task[0] == problem.task for task in tasks) else None


def rank(predictor: Predictor, question: RankQuestion) -> answers.Ranking:
    """The configurations, the fastest first: by the tuning model of their problem where one was measured, else as predicted.

    Raises:
        ModelFileError: the file of the tuning model is damaged.
        SpecError: the model does not know the family, the implementation or the coverage.
    """
    coverage = check_coverage(question.coverage)
    # Tuning models know kernels alone; on a CPU a call is no other.
    is_alone = question.specs[0].timing == "device" or question.device.kind == "cpu"
    model = tuning_model(question.problem) if question.problem is not None and is_alone else None
    if model is None:
        return _by_prediction(predictor, question, coverage)
    return _by_tuning(predictor, question, model, coverage)


def _by_prediction(predictor: Predictor, question: RankQuestion, coverage: float) -> answers.Ranking:
    """Ranked by the served model; tied are those whose interval reaches down to the best one's value."""
    check_specs(predictor, question.specs[:1])
    predictions = _predicted(predictor, question, question.specs, coverage)
    latency = predictions.targets["latency_s"]
    order = np.argsort(latency.value, kind="stable")
    best = latency.value[order[0]]
    apart = np.flatnonzero(latency.lower[order] > best)
    rows = [predictions.row(int(i)) for i in order[: question.top]]
    ranked = [
        answers.Ranked(
            dict(question.specs[int(i)].config), interval_answer(row.latency_s), known_interval(row.power_w),
            known_interval(row.energy_j),
            float(row.latency_s.value / best - 1.0), row.bound, row.in_domain, list(row.notes),
        )
        for i, row in zip(order[: question.top], rows, strict=True)
    ]  # fmt: skip
    return _answer(question, ranked, f"served model ({rows[0].method})", int(apart[0]) if len(apart) else len(order))


def _by_tuning(predictor: Predictor, question: RankQuestion, model: TuningModel, coverage: float) -> answers.Ranking:
    """Ranked by the kind's tuning model; tied are those no further from the best than its median held-out error.

    Power is the served model's, where it has any; energy then is the product of both, and of their ends. Of the domain, too,
    only that model can tell; where it was never shown the like, it may still be the tuning model's.
    """
    assert question.problem is not None  # noqa: S101 - there is a tuning model only of a problem
    seconds = model.seconds(question.problem.task, [dict(spec.config) for spec in question.specs])
    order = np.argsort(seconds, kind="stable")
    top = order[: question.top]
    specs = [question.specs[int(i)] for i in top]
    cases = Cases.from_specs(specs, [question.device.name] * len(specs))
    needed = work(cases.with_core_counts(predictor.devices), predictor.devices)
    bound, least_s = needed.binding(), needed.lower_bound_s
    try:
        served: Predictions | None = _predicted(predictor, question, specs, coverage)
    except SpecError:
        served = None  # it does not know the family
    best = float(seconds[order[0]])
    ranked = []
    for place, (i, spec) in enumerate(zip(top, specs, strict=True)):
        latency = model.interval(float(seconds[i]), float(least_s[place]), coverage)
        power = None if served is None else served.targets["power_w"].at(place)
        energy = (
            None
            if power is None
            else Interval(latency.value * power.value, latency.lower * power.lower, latency.upper * power.upper)
        )
        in_domain = served is not None and bool(served.in_domain[place])
        ranked.append(
            answers.Ranked(
                dict(spec.config), interval_answer(latency), known_interval(power), known_interval(energy),
                float(seconds[i]) / best - 1.0, str(bound[place]), in_domain or None, [] if in_domain else [_UNKNOWN_SIZES],
            )
        )  # fmt: skip
    tied = int(np.searchsorted(seconds[order] / best - 1.0, model.error, side="right"))
    method = f"tuning model {model.kind}, median error {100 * model.error:.1f} % on rows held out"
    return _answer(question, ranked, method, tied)


def _predicted(predictor: Predictor, question: RankQuestion, specs: list[KernelSpec], coverage: float) -> Predictions:
    cases = Cases.from_specs(specs, [question.device.name] * len(specs))
    return predictor.predict_cases(cases, coverage=coverage)


def _answer(question: RankQuestion, ranked: list[answers.Ranked], method: str, tied: int) -> answers.Ranking:
    spec = question.specs[0]
    return answers.Ranking(
        question.device.name, spec.family, spec.impl, spec.timing, len(question.specs), ranked, method, tied
    )
