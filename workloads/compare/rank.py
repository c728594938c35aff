"""Which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import DEFAULT_COVERAGE, read_spec
from ...models.family_model.intervals import check_coverage
from ...models.predict.prediction import Interval, Predictions, Predictor
from ..answers import interval_answer, known_interval
from .known_configs import TuningModel, TuningProblem, known_configs, problem_of, tuning_model
from .side_by_side import with_timing

_UNKNOWN_SIZES = "the tuning model does not say which sizes it was measured with"
DEFAULT_TOP = 20


@dataclass(frozen=True, slots=True)
class RankRequest:
    """Configurations to rank.

    Attributes:
        specs: a spec per configuration, all of one timing.
        device: where they run.
        problem: the tuning problem that all of them solve, None where they are not of one.
        top: how many of the best are wanted.
    """

    specs: list[KernelSpec]
    device: Device
    problem: TuningProblem | None
    top: int = DEFAULT_TOP


@dataclass(frozen=True, slots=True)
class RankedKernel:
    """A kernel whose configurations are to be ranked.

    Attributes:
        spec: The kernel without a configuration, with its timing.
        device: Where it runs.
        problem: The tuning problem it is there, None where no kind knows it.
    """

    spec: KernelSpec
    device: Device
    problem: TuningProblem | None

    @classmethod
    def read(cls, plain: Mapping[str, Any], catalogue: Catalogue) -> RankedKernel:
        """The kernel of a spec's plain fields.

        Raises:
            SpecError: what is wrong with them.
        """
        spec, name = read_spec(plain, catalogue)
        spec, device = with_timing(spec), catalogue.get(name)
        return cls(spec, device, problem_of(spec, device))

    def with_known_configs(self, top: int = DEFAULT_TOP) -> RankRequest:
        """All configurations that are known of it.

        Raises:
            SpecError: none are.
        """
        known = known_configs(self.problem, self.spec, self.device)
        assert self.problem is not None  # noqa: S101 - configurations are known of problems alone
        base = self.problem.spec
        specs = [replace(base, config=tuple(sorted(config.items()))) for config in known]
        return RankRequest(specs, self.device, self.problem, top)

    def with_specs(self, specs: list[KernelSpec], top: int = DEFAULT_TOP) -> RankRequest:
        """The configurations of these specs, which are it with one each."""
        return RankRequest(specs, self.device, _shared(specs, self.device, self.problem), top)


def rank(
    predictor: Predictor, known: Catalogue, request: RankRequest, *, coverage: float = DEFAULT_COVERAGE
) -> answers.Ranking:
    """The fastest configurations, by the tuning model of their kind where one was measured on the device, else as predicted.

    Raises:
        ModelFileError: the tuning model is damaged.
        SpecError: the model does not know the family or the coverage.
    """
    coverage = check_coverage(coverage)
    # Tuning models know kernels alone; on a CPU a call is no other.
    is_alone = request.specs[0].timing == "device" or request.device.kind == "cpu"
    model = tuning_model(request.problem) if request.problem is not None and is_alone else None
    if model is None:
        return _by_prediction(predictor, request, coverage)
    return _by_tuning(predictor, known, request, model, coverage)


def _by_prediction(predictor: Predictor, request: RankRequest, coverage: float) -> answers.Ranking:
    """Ranked by the served model; tied are those whose interval reaches down to the best one's value."""
    predictions = _predicted(predictor, request, request.specs, coverage)
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


def _by_tuning(
    predictor: Predictor, known: Catalogue, request: RankRequest, model: TuningModel, coverage: float
) -> answers.Ranking:
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
    needed = work(cases.with_core_counts(known), known)
    bound, least_s = needed.binding(), needed.lower_bound_s
    try:
        served: Predictions | None = _predicted(predictor, request, specs, coverage)
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


def _predicted(predictor: Predictor, request: RankRequest, specs: list[KernelSpec], coverage: float) -> Predictions:
    cases = Cases.from_specs(specs, [request.device.name] * len(specs))
    return predictor.predict_cases(cases, coverage=coverage)


def _answer(request: RankRequest, ranked: list[answers.Ranked], method: str, tied: int) -> answers.Ranking:
    spec = request.specs[0]
    return answers.Ranking(
        request.device.name, spec.family, spec.impl, spec.timing, len(request.specs), ranked, method, tied
    )


def _shared(specs: list[KernelSpec], device: Device, problem: TuningProblem | None) -> TuningProblem | None:
    """The problem that all these specs are configurations of, None where one of them is not."""
    if problem is None or not specs[0].impl:
        return None
    tasks = (problem.kind.task_of(replace(spec, threads=problem.spec.threads), device.name) for spec in specs)
    return problem if all(task is not None and task[0] == problem.task for task in tasks) else None
