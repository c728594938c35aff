"""From the bytes of a request to the configurations of a kernel that are to be ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..features.device import Catalogue, Device
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .rank_candidates import Problem, known_configs, problem_of
from .requests import (
    SPEC_FIELDS,
    invalid,
    kind_of,
    read_coverage,
    read_object,
    read_spec,
    refuse_duplicate_names,
    shown_name,
)  # fmt: skip

MAX_TOP = 1000
DEFAULT_TOP = 20
FIELDS = (*(name for name in SPEC_FIELDS if name != "config"), "configs", "top", "coverage")
_WANTED = '{"family": …, "device": …, "dtype": …, "sizes": {…}, "impl": …}'


@dataclass(frozen=True, slots=True)
class RankRequest:
    """What was asked: a spec per configuration, how many of the best are wanted, and the tuning problem, where it is one."""

    specs: list[KernelSpec]
    device: Device
    top: int
    coverage: float
    problem: Problem | None


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
            raise _wrong(shown_name(name), f"unknown field{hint}")
    given = root.get("configs")
    if given is not None and (not isinstance(given, list) or not given):
        raise _wrong("configs", "must be a list of at least one configuration; left out: those that are known")
    if given is not None and len(given) > max_specs:
        raise ProblemError(413, f"{len(given)} configurations in one request; at most {max_specs} are taken")
    refuse_duplicate_names(body, root, [root, *(given or ())])
    coverage, top = read_coverage(root), root.get("top", DEFAULT_TOP)
    if type(top) is not int or not 1 <= top <= MAX_TOP:
        raise _wrong("top", f"must be a whole number between 1 and {MAX_TOP}")
    plain = {name: value for name, value in root.items() if name in SPEC_FIELDS}
    try:
        spec, name = read_spec(plain, catalogue)
        device = catalogue.get(name)
        problem = problem_of(spec, device)
        configs = known_configs(problem, spec, device) if given is None else None
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    if configs is not None and problem is not None:
        specs = [replace(problem.spec, config=tuple(sorted(config.items()))) for config in configs]
        return RankRequest(specs, device, top, coverage, problem)
    specs = _given(plain, given or [], catalogue)
    return RankRequest(specs, device, top, coverage, _shared(specs, device, problem))


def _given(plain: Mapping[str, Any], configs: list[Any], catalogue: Catalogue) -> list[KernelSpec]:
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


def _shared(specs: list[KernelSpec], device: Device, problem: Problem | None) -> Problem | None:
    """The problem that all these specs are configurations of, None where one of them is not."""
    if problem is None or not specs[0].impl:
        return None
    asked = [replace(spec, threads=problem.spec.threads) for spec in specs]
    tasks = (problem.kind.task_of(spec, device.name) for spec in asked)
    return problem if all(task is not None and task[0] == problem.task for task in tasks) else None


def _wrong(field: str, detail: str) -> ProblemError:
    return invalid([FieldProblem(field, detail)])
