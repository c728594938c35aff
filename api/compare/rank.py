"""POST /v1/rank: which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import SPEC_FIELDS, kind_of, read_spec, shown_name
from ...models.family_model.intervals import check_coverage
from ...models.predict.prediction import Interval, Predictions
from ...models.tuning.model_file import ModelFileError
from ...workloads.answers import interval_answer, known_interval
from ..predict.thread_endpoint import Call, refusal_problem
from ..transport.bodies import read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import MAX_LISTED, FieldProblem, ProblemError, field_problem, invalid, invalid_field
from .known_configs import TuningModel, TuningProblem, known_configs, problem_of, tuning_model
from .request import with_timing

_log = logging.getLogger("kernelcast.api")
_UNKNOWN_SIZES = "the tuning model does not say which sizes it was measured with"


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_rank(body, call.loaded.catalogue, call.settings.max_specs)
    try:
        coverage = check_coverage(request.coverage)
        # Tuning models know kernels alone; on a CPU a call is no other.
        is_alone = request.specs[0].timing == "device" or request.device.kind == "cpu"
        model = _tuning_model(request.problem) if request.problem is not None and is_alone else None
        ranking = (
            _by_prediction(call, request, coverage) if model is None else _by_tuning(call, request, model, coverage)
        )
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    # What a tuning model ranked is no prediction that is inside or outside a domain.
    call.metrics.count_predictions(
        (ranking.family, ranking.device, config.in_domain) for config in ranking.ranked if config.in_domain is not None
    )
    call.metrics.count_usage(request.specs, [ranking.device] * len(request.specs))
    return msgspec.json.encode(ranking)


def _tuning_model(problem: TuningProblem) -> TuningModel | None:
    """The model that ranks a problem's configurations.

    Raises:
        ProblemError: 503 where its file is damaged; what is wrong with it is for the log, as it names a place of the server.
    """
    try:
        return tuning_model(problem)
    except ModelFileError as error:
        _log.exception("the tuning model of %s cannot be used", problem.kind.name)
        raise ProblemError(
            503, f"the tuning model of {problem.kind.name} is damaged; the server's log says more"
        ) from error


def _by_prediction(call: Call, request: RankRequest, coverage: float) -> answers.Ranking:
    """Ranked by the served model; tied are those whose interval reaches down to the best one's value."""
    predictions = _predicted(call, request, request.specs, coverage)
    latency = predictions.targets["latency_s"]
    order = np.argsort(latency.value, kind="stable")
    best = latency.value[order[0]]
    apart = np.flatnonzero(latency.lower[order] > best)
    rows = [predictions.row(int(i)) for i in order[: request.top]]
    ranked = [
        answers.Ranked(
            dict(request.specs[int(i)].config), interval_answer(row.latency_s), known_interval(row.power_w),
            known_interval(row.energy_j),
            float(row.latency_s.value / best - 1.0), row.bound, row.in_domain, list(row.notes),
        )
        for i, row in zip(order[: request.top], rows, strict=True)
    ]  # fmt: skip
    return _answer(request, ranked, f"served model ({rows[0].method})", int(apart[0]) if len(apart) else len(order))


def _by_tuning(call: Call, request: RankRequest, model: TuningModel, coverage: float) -> answers.Ranking:
    """Ranked by the kind's tuning model; tied are those no further from the best than its median held-out error.

    Power is the served model's, where it has any; energy then is the product of both, and of their ends. Of the domain, too,
    only that model can tell; where it was never shown the like, it may still be the tuning model's.
    """
    assert request.problem is not None  # noqa: S101 - there is a tuning model only of a problem
    seconds = model.seconds(request.problem.task, [dict(spec.config) for spec in request.specs])
    order = np.argsort(seconds, kind="stable")
    top = order[: request.top]
    specs = [request.specs[int(i)] for i in top]
    cases = Cases.from_specs(specs, [request.device.name] * len(specs))
    needed = work(cases.with_core_counts(call.loaded.catalogue), call.loaded.catalogue)
    bound, least_s = needed.binding(), needed.lower_bound_s
    try:
        served: Predictions | None = _predicted(call, request, specs, coverage)
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
    return _answer(request, ranked, method, tied)


def _predicted(call: Call, request: RankRequest, specs: list[KernelSpec], coverage: float) -> Predictions:
    cases = Cases.from_specs(specs, [request.device.name] * len(specs))
    return call.loaded.predictor.predict_cases(cases, coverage=coverage)


def _answer(request: RankRequest, ranked: list[answers.Ranked], method: str, tied: int) -> answers.Ranking:
    spec = request.specs[0]
    return answers.Ranking(
        request.device.name, spec.family, spec.impl, spec.timing, len(request.specs), ranked, method, tied
    )


MAX_TOP = 1000
DEFAULT_TOP = 20
FIELDS = (*(name for name in SPEC_FIELDS if name != "config"), "configs", "top", "coverage")
_WANTED = '{"family": …, "device": …, "dtype": …, "sizes": {…}, "impl": …}'


@dataclass(frozen=True, slots=True)
class RankRequest:
    """A request to rank configurations.

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


def read_rank(body: bytes, catalogue: Catalogue, max_specs: int) -> RankRequest:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for too many configurations, 422 naming what is wrong.
    """
    root = read_object(body, _WANTED)
    for name in root:
        if name not in FIELDS:
            hint = (
                "; a ranking takes several, in `configs`" if name == "config" else f"; a ranking takes {listed(FIELDS)}"
            )
            raise invalid_field(shown_name(name), f"unknown field{hint}")
    configs = root.get("configs")
    if configs is not None and (not isinstance(configs, list) or not configs):
        raise invalid_field(
            "configs", "must be a list of at least one configuration; leave it out to rank the known ones"
        )
    if configs is not None and len(configs) > max_specs:
        raise ProblemError(413, f"{len(configs)} configurations in one request; at most {max_specs} are allowed")
    refuse_duplicate_names(body, root, [root, *(configs or ())])
    coverage, top = read_coverage(root), root.get("top", DEFAULT_TOP)
    if type(top) is not int or not 1 <= top <= MAX_TOP:
        raise invalid_field("top", f"must be a whole number between 1 and {MAX_TOP}")
    plain = {name: value for name, value in root.items() if name in SPEC_FIELDS}
    try:
        spec, name = read_spec(plain, catalogue)
        spec, device = with_timing(spec), catalogue.get(name)
        problem = problem_of(spec, device)
        known = known_configs(problem, spec, device) if configs is None else None
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    if known is not None and problem is not None:
        specs = [replace(problem.spec, config=tuple(sorted(config.items()))) for config in known]
        return RankRequest(specs, device, top, coverage, problem)
    specs = _read_configs(plain | {"timing": spec.timing}, configs or [], catalogue)
    return RankRequest(specs, device, top, coverage, _shared(specs, device, problem))


def _read_configs(plain: Mapping[str, Any], configs: list[Any], catalogue: Catalogue) -> list[KernelSpec]:
    specs: list[KernelSpec] = []
    errors: list[FieldProblem] = []
    for index, config in enumerate(configs):
        path = f"configs[{index}]"
        if not isinstance(config, dict):
            errors.append(FieldProblem(path, f"must be an object of whole numbers, not {kind_of(config)}"))
        else:
            try:
                specs.append(read_spec({**plain, "config": config}, catalogue)[0])
            except SpecError as error:
                field = (error.field or "").removeprefix("config").removeprefix(".")
                errors.append(field_problem(error, f"{path}.{field}" if field else path))
        if len(errors) == MAX_LISTED:
            break
    if errors:
        raise invalid(errors)
    return specs


def _shared(specs: list[KernelSpec], device: Device, problem: TuningProblem | None) -> TuningProblem | None:
    """The problem that all these specs are configurations of, None where one of them is not."""
    if problem is None or not specs[0].impl:
        return None
    tasks = (problem.kind.task_of(replace(spec, threads=problem.spec.threads), device.name) for spec in specs)
    return problem if all(task is not None and task[0] == problem.task for task in tasks) else None
