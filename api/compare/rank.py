"""POST /v1/rank: which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import SPEC_FIELDS, kind_of, read_spec, shown_name
from ...models.tuning.model_file import ModelFileError
from ...workloads.compare.rank import DEFAULT_TOP, RankedKernel, RankRequest, rank
from ..predict.thread_endpoint import Call, refusal_problem
from ..transport.bodies import read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import (
    MAX_LISTED,
    FieldProblem,
    ProblemError,
    field_problem,
    invalid,
    invalid_field,
    naming_field,
)

_log = logging.getLogger("kernelcast.api")
MAX_TOP = 1000
FIELDS = (*(name for name in SPEC_FIELDS if name != "config"), "configs", "top", "coverage")
_WANTED = '{"family": …, "device": …, "dtype": …, "sizes": {…}, "impl": …}'


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable; 503 where the tuning model's file is damaged: what is wrong with it is for
            the log, as it names a place of the server.
    """
    request, coverage = read_rank(body, call.loaded.catalogue, call.settings.max_specs)
    try:
        ranking = rank(call.loaded.predictor, call.loaded.catalogue, request, coverage=coverage)
    except ModelFileError as error:
        kind = "" if request.problem is None else request.problem.kind.name
        _log.exception("the tuning model of %s cannot be used", kind)
        raise ProblemError(503, f"the tuning model of {kind} is damaged; the server's log says more") from error
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    # What a tuning model ranked is no prediction that is inside or outside a domain.
    call.metrics.count_predictions(
        (ranking.family, ranking.device, config.in_domain) for config in ranking.ranked if config.in_domain is not None
    )
    call.metrics.count_usage(request.specs, [ranking.device] * len(request.specs))
    return msgspec.json.encode(ranking)


def read_rank(body: bytes, catalogue: Catalogue, max_specs: int) -> tuple[RankRequest, float]:
    """The request in a JSON body, and the coverage of its intervals.

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
    kernel = naming_field(lambda: RankedKernel.read(plain, catalogue))
    if configs is None:
        return naming_field(lambda: kernel.with_known_configs(top)), coverage
    specs = _read_configs(plain | {"timing": kernel.spec.timing}, configs, catalogue)
    return kernel.with_specs(specs, top), coverage


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
