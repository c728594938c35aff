"""POST /v1/rank: which configurations of a kernel are fastest on a device, before any of them is compiled or run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.spec_io.reading import SPEC_FIELDS, read_spec, shown_name
from ...models.tuning.model_file import ModelFileError
from ...workloads.compare.rank import DEFAULT_TOP, RankQuestion, rank, rank_question, read_config
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


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable; 503 where the file of a tuning model is damaged.
    """
    question = read_rank(body, call.loaded.catalogue, call.settings.max_specs)
    try:
        ranking = rank(call.loaded.predictor, question)
    except ModelFileError as error:
        # What is wrong with the file is for the log, as it names a place of the server.
        kind = question.problem.kind.name if question.problem is not None else "this kernel"
        _log.exception("the tuning model of %s cannot be used", kind)
        raise ProblemError(503, f"the tuning model of {kind} is damaged; the server's log says more") from error
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    # What a tuning model ranked is no prediction that is inside or outside a domain.
    call.metrics.count_predictions(
        (ranking.family, ranking.device, config.in_domain) for config in ranking.ranked if config.in_domain is not None
    )
    call.metrics.count_usage(question.specs, [ranking.device] * len(question.specs))
    return msgspec.json.encode(ranking)


FIELDS = (*(name for name in SPEC_FIELDS if name != "config"), "configs", "top", "coverage")
_WANTED = '{"family": …, "device": …, "dtype": …, "sizes": {…}, "impl": …}'


def read_rank(body: bytes, catalogue: Catalogue, max_specs: int) -> RankQuestion:
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
    plain = {name: value for name, value in root.items() if name in SPEC_FIELDS}
    if configs is not None:
        _check_configs(plain, configs, catalogue)
    return naming_field(lambda: rank_question(plain, catalogue, configs, top=top, coverage=coverage))


def _check_configs(plain: Mapping[str, Any], configs: list[Any], catalogue: Catalogue) -> None:
    """Refuse configurations that are none, where their spec is one.

    Raises:
        ProblemError: 422 naming every one, at most `MAX_LISTED`.
    """
    naming_field(lambda: read_spec(plain, catalogue))
    errors: list[FieldProblem] = []
    for index, config in enumerate(configs):
        try:
            read_config(plain, index, config, catalogue)
        except SpecError as error:
            errors.append(field_problem(error, error.field or ""))
        if len(errors) == MAX_LISTED:
            break
    if errors:
        raise invalid(errors)
