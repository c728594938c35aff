"""From the columns of an infer request to cases: every value checked at once, a bad row explained as a single spec would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ....features.batch.cases import Cases, Floats
from ....features.batch.categorical import Categorical
from ....features.device import Catalogue
from ....features.dtypes import parse_dtype
from ....features.errors import SpecError
from ....features.kernel import CACHE_STATES, MAX_DIM, MAX_THREADS, KernelFamily, get_family
from ....features.spec_io.reading import IMPL, read_spec
from ...transport.problems import MAX_LISTED, FieldProblem, ProblemError, field_problem, invalid, invalid_field
from ..columns_request import Mask, implied_variants
from ..spec import MAX_IMPLS, too_many_impls
from .models import NOT_SET, TEXT_INPUTS
from .request import InferRequest

_EMPTY = Categorical(("",), np.zeros(1, dtype=np.intp))
_UNSET = np.array([NOT_SET], dtype=np.int64)


def read_cases(request: InferRequest, name: str, catalogue: Catalogue) -> Cases:
    """The cases of a request, one of each row, devices by their catalogue names.

    Raises:
        ProblemError: 422, naming the values that cannot be predicted.
    """
    family, n = get_family(name), request.rows
    text: dict[str, Categorical] = {}
    bad: Mask = np.zeros(n, dtype=np.bool_)
    for key, read in _readers(catalogue, family).items():
        text[key], unfit = _read_words(_text(request, key), n, read)
        bad |= unfit
    sizes, unfit = _sizes(request, family)
    bad |= unfit
    threads, unfit = _optional(request, "threads", 1, MAX_THREADS)
    bad |= unfit
    config: dict[str, Floats] = {}
    for knob in family.config:
        config[knob], unfit = _optional(request, knob, 0, MAX_DIM)
        bad |= unfit
    # What follows from sizes is asked of sizes in range only.
    whole = {size: np.where(bad, 1.0, column) for size, column in sizes.items()} if bad.any() else sizes
    text["variant"], unfit = implied_variants(family, whole, text["variant"])
    bad |= unfit | ~text["variant"].among(family.variants)
    text["kv_dtype"] = Categorical.joined([text["kv_dtype"], text["dtype"]], lambda kv_dtype, dtype: kv_dtype or dtype)
    bad |= _without_peak(text, catalogue, family)
    if (named := len(text["impl"].words)) > MAX_IMPLS:
        raise invalid_field(f"inputs[{request.positions['impl']}]", too_many_impls(named))
    if bad.any():
        raise _explained(request, family, catalogue, bad)
    return Cases.from_columns(family, text, threads, sizes, config)


def refusal(error: SpecError, request: InferRequest) -> ProblemError:
    """What the predictor refuses of a whole request, as a problem."""
    where = "parameters.coverage" if error.field == "coverage" else _position(request, error.field, 0)
    return invalid([field_problem(error, where)])


def _readers(catalogue: Catalogue, family: KernelFamily) -> Mapping[str, Callable[[str], str]]:
    """How a word of each text input is read; each raises SpecError for a word that it does not take."""
    return {
        "device": lambda word: catalogue.get(word).name,
        "dtype": parse_dtype,
        "kv_dtype": lambda word: parse_dtype(word) if word else "",
        "variant": lambda word: _one_of(word, ("", *family.variants)),
        "impl": lambda word: word if not word or IMPL.fullmatch(word) else _refuse(word),
        "cache_state": lambda word: _one_of(word or CACHE_STATES[0], CACHE_STATES),
    }


def _one_of(word: str, known: tuple[str, ...]) -> str:
    return word if word in known else _refuse(word)


def _refuse(word: str) -> str:
    # In which words does not matter: the row is read again to be explained.
    raise SpecError(word)


def _text(request: InferRequest, key: str) -> Categorical:
    column = request.columns.get(key, _EMPTY)
    assert isinstance(column, Categorical)  # noqa: S101 - BYTES inputs are read as words; for the type checker
    return column


def _read_words(column: Categorical, n: int, read: Callable[[str], str]) -> tuple[Categorical, Mask]:
    """The words as `read` gives them, of shape `(n,)`, and which rows have one that it refuses."""
    number: dict[str, int] = {}
    place: list[int] = []
    unfit: list[int] = []
    for position, word in enumerate(column.words):
        try:
            # After so many refusals the request is refused anyway, and looking for a similar name takes time.
            known = read(word) if len(unfit) < MAX_LISTED else ""
        except SpecError:
            unfit.append(position)
            known = ""
        place.append(number.setdefault(known, len(number)))
    code = column.code if len(column.code) == n else np.repeat(column.code, n)
    bad = np.isin(code, unfit) if unfit else np.zeros(n, dtype=np.bool_)
    return Categorical(tuple(number), np.array(place, dtype=np.intp)[code]), bad


def _numbers(request: InferRequest, name: str, absent: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    column = request.columns.get(name, absent)
    assert not isinstance(column, Categorical)  # noqa: S101 - INT64 inputs are read as numbers; for the type checker
    return column if len(column) == request.rows else np.repeat(column, request.rows)


def _sizes(request: InferRequest, family: KernelFamily) -> tuple[dict[str, Floats], Mask]:
    sizes: dict[str, Floats] = {}
    bad: Mask = np.zeros(request.rows, dtype=np.bool_)
    for dim in family.dims:
        # A required one is there: the request was checked.
        numbers = _numbers(request, dim.name, np.array([dim.default or 0], dtype=np.int64))
        bad |= (numbers < dim.minimum) | (numbers > MAX_DIM)
        sizes[dim.name] = numbers.astype(np.float64)
    return sizes, bad


def _optional(request: InferRequest, name: str, low: int, high: int) -> tuple[Floats, Mask]:
    """Numbers of shape `(n,)`, NaN where they are not set, and which rows are neither that nor in range."""
    numbers = _numbers(request, name, _UNSET)
    unset = numbers == NOT_SET
    bad: Mask = ~unset & ((numbers < low) | (numbers > high))
    return np.where(unset, np.nan, numbers.astype(np.float64)), bad


def _without_peak(text: Mapping[str, Categorical], catalogue: Catalogue, family: KernelFamily) -> Mask:
    """Which rows ask for a number format that their device's peak is not known of."""

    def state(device: str, dtype: str) -> str:
        if not device or not dtype:
            # Refused already.
            return "known"
        try:
            catalogue.get(device).peak_flops_per_s(dtype, family.unit)
        except SpecError:
            return "unknown"
        return "known"

    return Categorical.joined([text["device"], text["dtype"]], state).is_word("unknown")


def _explained(request: InferRequest, family: KernelFamily, catalogue: Catalogue, bad: Mask) -> ProblemError:
    """Why rows are refused: each is read as a single spec, which says it in words."""
    errors: dict[tuple[str, str], FieldProblem] = {}
    for row in np.flatnonzero(bad)[:MAX_LISTED].tolist():
        try:
            read_spec(_spec(request, family, row), catalogue)
        except SpecError as error:
            problem = field_problem(error, _position(request, error.field, row))
            errors[problem.field, problem.detail] = problem
    if not errors:
        raise RuntimeError(f"columns of {family.name} were refused that single specs of them are not")
    return invalid(list(errors.values()))


def _spec(request: InferRequest, family: KernelFamily, row: int) -> dict[str, Any]:
    """A row as the mapping that a single spec is sent as."""
    values: dict[str, Any] = {}
    for name, column in request.columns.items():
        at = 0 if len(column) == 1 else row
        values[name] = column.at(at) if isinstance(column, Categorical) else int(column[at])
    texts = {name: values[name] for name in TEXT_INPUTS if values.get(name)}
    numbers = {name: value for name, value in values.items() if name not in TEXT_INPUTS}
    set_ = {name: value for name, value in numbers.items() if value != NOT_SET}
    return {
        "family": family.name,
        # Empty where they are given empty, as both are required.
        "device": "",
        "dtype": "",
        **texts,
        "sizes": {name: numbers[name] for name in family.dim_names if name in numbers},
        "config": {name: set_[name] for name in family.config if name in set_},
        "threads": set_.get("threads"),
    }


def _position(request: InferRequest, field: str | None, row: int) -> str:
    """Where in the request a field of a row is."""
    name = (field or "").rpartition(".")[2]
    if name not in request.positions:
        return "inputs"
    at = 0 if len(request.columns[name]) == 1 else row
    return f"inputs[{request.positions[name]}].data[{at}]"
