"""POST /v1/rank: which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ..features.cases import Cases, Floats
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..features.work import work
from ..models.intervals import check_coverage
from ..models.prediction import Interval, Predictions
from ..models.tuning.container import ModelFileError
from .compare_describe import NAME, bare_schemas, request_schema
from .openapi_parts import Refusal, post_operation
from .problems import ProblemError
from .rank_candidates import Problem
from .rank_request import DEFAULT_TOP, MAX_TOP, RankRequest, read_rank
from .rank_tuning import TuningModel, tuning_model
from .thread_route import Call, refused
from .wire import IntervalAnswer, interval_answer

PATH = "/v1/rank"
_log = logging.getLogger("kernelcast.api")
_UNKNOWN_SIZES = "the tuning model does not say which sizes it was measured with"


class RankedConfig(msgspec.Struct, frozen=True):
    """One configuration with what it is predicted to cost."""

    config: Annotated[dict[str, int], Meta(description="Knobs that are set; empty: the compiler's own choice")]
    latency_s: Annotated[IntervalAnswer, Meta(description="Time of one run in seconds")]
    power_w: Annotated[IntervalAnswer | None, Meta(description="Mean power in watts; null where it is unknown")]
    energy_j: Annotated[
        IntervalAnswer | None, Meta(description="Energy of one run in joules; null where it is unknown")
    ]
    slower_than_best: Annotated[float, Meta(description="Its time over that of the best, minus 1")]
    bound: Annotated[str, Meta(description="The limit that binds on paper: compute, dram, cache, launch")]
    in_domain: Annotated[
        bool | None,
        Meta(description="Whether the model was trained on cases like this one; null where that is not known"),
    ]
    notes: Annotated[list[str], Meta(description="Why a case is out of domain, and other cautions")]


class RankAnswer(msgspec.Struct, frozen=True):
    """The fastest configurations, the best first; of equals, the one given first."""

    device: Annotated[str, Meta(description="Catalogue name")]
    family: str
    impl: Annotated[str, Meta(description="Whose configurations these are")]
    considered: Annotated[int, Meta(description="How many configurations were ranked")]
    ranked: list[RankedConfig]
    method: Annotated[str, Meta(description="What ranked them")]
    tied: Annotated[
        int,
        Meta(description="How many leading ones cannot be told from the best by what is known of the ranking's error"),
    ]


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_rank(body, call.loaded.catalogue, call.settings.max_specs)
    try:
        coverage = check_coverage(request.coverage)
        model = None if request.problem is None else _tuning_model(request.problem)
        found = _by_prediction(call, request, coverage) if model is None else _by_tuning(call, request, model, coverage)
    except SpecError as error:
        raise refused(error, "family") from error
    # What a tuning model ranked is no prediction that is inside or outside a domain.
    call.metrics.predictions(
        (found.family, found.device, one.in_domain) for one in found.ranked if one.in_domain is not None
    )
    call.metrics.asked(request.specs, [found.device] * len(request.specs))
    return msgspec.json.encode(found)


def _tuning_model(problem: Problem) -> TuningModel | None:
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


def _by_prediction(call: Call, request: RankRequest, coverage: float) -> RankAnswer:
    """Ranked by the served model; tied are those whose interval reaches down to the best one's value."""
    found = _predicted(call, request, request.specs, coverage)
    latency = found.targets["latency_s"]
    order = np.argsort(latency.value, kind="stable")
    best = latency.value[order[0]]
    apart = np.flatnonzero(latency.lower[order] > best)
    rows = [found.row(int(i)) for i in order[: request.top]]
    ranked = [
        RankedConfig(
            dict(request.specs[int(i)].config), interval_answer(row.latency_s), _optional(row.power_w), _optional(row.energy_j),
            float(row.latency_s.value / best - 1.0), row.bound, row.in_domain, list(row.notes),
        )
        for i, row in zip(order[: request.top], rows, strict=True)
    ]  # fmt: skip
    return _answer(request, ranked, f"served model ({rows[0].method})", int(apart[0]) if len(apart) else len(order))


def _by_tuning(call: Call, request: RankRequest, model: TuningModel, coverage: float) -> RankAnswer:
    """Ranked by the kind's tuning model; tied are those no further from the best than its median held-out error.

    Power is the served model's, where it has any; energy then is the product of both, and of their ends. Of the domain, too,
    only that model can tell; where it was never shown the like, it may still be the tuning model's.
    """
    assert request.problem is not None  # noqa: S101 - there is a tuning model only of a problem
    seconds = model.seconds(request.problem.task, [dict(spec.config) for spec in request.specs])
    order = np.argsort(seconds, kind="stable")
    top = order[: request.top]
    specs = [request.specs[int(i)] for i in top]
    cases = Cases.of(specs, [request.device.name] * len(specs))
    paper = work(cases.with_core_counts(call.loaded.catalogue), call.loaded.catalogue)
    bound, least_s = paper.binding(), paper.lower_bound_s
    served = _served(call, request, specs, coverage)
    best = float(seconds[order[0]])
    ranked = []
    for place, (i, spec) in enumerate(zip(top, specs, strict=True)):
        latency = model.interval(float(seconds[i]), float(least_s[place]), coverage)
        watts = None if served is None else served.targets["power_w"].at(place)
        known = served is not None and bool(served.in_domain[place])
        ranked.append(
            RankedConfig(
                dict(spec.config), interval_answer(latency), _optional(watts),
                None if watts is None else interval_answer(_product(latency, watts)),
                float(seconds[i]) / best - 1.0, str(bound[place]), known or None, [] if known else [_UNKNOWN_SIZES],
            )
        )  # fmt: skip
    tied = _leading(seconds[order] / best - 1.0, model.error)
    method = f"tuning model {model.kind}, median error {100 * model.error:.1f} % on rows held out"
    return _answer(request, ranked, method, tied)


def _leading(slower: Floats, error: float) -> int:
    """How many leading ones are no more than `error` slower than the best; `slower` rises."""
    return int(np.searchsorted(slower, error, side="right"))


def _predicted(call: Call, request: RankRequest, specs: list[KernelSpec], coverage: float) -> Predictions:
    cases = Cases.of(specs, [request.device.name] * len(specs))
    return call.loaded.predictor.predict_cases(cases, coverage=coverage)


def _served(call: Call, request: RankRequest, specs: list[KernelSpec], coverage: float) -> Predictions | None:
    """What the served model says of the specs, None where it does not know the family."""
    try:
        return _predicted(call, request, specs, coverage)
    except SpecError:
        return None


def _product(one: Interval, other: Interval) -> Interval:
    return Interval(one.value * other.value, one.lower * other.lower, one.upper * other.upper)


def _optional(found: Interval | None) -> IntervalAnswer | None:
    return None if found is None else interval_answer(found)


def _answer(request: RankRequest, ranked: list[RankedConfig], method: str, tied: int) -> RankAnswer:
    spec = request.specs[0]
    return RankAnswer(request.device.name, spec.family, spec.impl, len(request.specs), ranked, method, tied)


def rank_schemas() -> dict[str, Any]:
    """Schemas of the request for the OpenAPI document."""
    knobs = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
    described = "Configurations to rank; left out: those known of this family, `impl` and device"
    schemas = bare_schemas()
    return schemas | {
        "RankRequest": request_schema(
            "A spec without a configuration, and the configurations to rank; an `impl` left out is a compiler that is known",
            ("family", "device", "dtype", "sizes"), device=NAME,
            configs={"type": ["array", "null"], "minItems": 1, "items": knobs, "description": described},
            top={"type": "integer", "minimum": 1, "maximum": MAX_TOP, "default": DEFAULT_TOP,
                 "description": "How many of the best are answered"},
        ) | {"not": {"required": ["config"]}}
    }  # fmt: skip


_DEVICE = "amd-epyc-9005-vm-2c"


def rank_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    knobs = {"tile_m": 32, "tile_n": 64, "inner_m": 8, "inner_n": 16, "inner_k": 4}
    ranked = {
        "config": knobs, "latency_s": {"value": 2.1e-3, "lower": 1.6e-3, "upper": 2.9e-3}, "power_w": None, "energy_j": None,
        "slower_than_best": 0.0, "bound": "compute", "in_domain": True, "notes": [],
    }  # fmt: skip
    request = {
        "family": "gemm", "device": _DEVICE, "dtype": "fp32", "sizes": {"m": 384, "n": 768, "k": 768}, "impl": "iree",
        "threads": 1, "top": 5,
    }  # fmt: skip
    return post_operation(
        "Which configurations of one kernel are fastest", "rank", ("RankRequest", request),
        ("The best first", "RankAnswer",
         {"device": _DEVICE, "family": "gemm", "impl": "iree", "considered": 1, "ranked": [ranked],
          "method": "tuning model iree-contraction, median error 13.6 % on rows held out", "tied": 1}),
        refusal,
    )  # fmt: skip
