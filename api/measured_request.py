"""From a query string or a body to a checked question about measured rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec, get_family
from .measured_wire import FILTERS, SETS, LikeDevice, LikeQuestion, RowsQuestion
from .problems import FieldProblem, ProblemError, field_problem
from .query import parameters
from .requests import (
    SPEC_FIELDS,
    invalid,
    kind_of,
    read_object,
    read_spec,
    refuse_duplicate_names,
    shown_name,
)

MAX_LIMIT = 200
"""Most rows of one page."""
DEFAULT_LIMIT = 50
MAX_DEVICES = 8
"""Most devices of one question, as in a sweep."""

PARAMETERS = (*FILTERS, "sort", "descending", "offset", "limit")
_MAX_OFFSET = 10**9
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def read_rows_question(query: bytes, catalogue: Catalogue) -> RowsQuestion:
    """The question in a query string. A filter given more than once takes any of its values, an empty one says nothing.

    Raises:
        ProblemError: 422 naming the parameter.
    """
    given = parameters(query, PARAMETERS)
    for name in PARAMETERS[len(FILTERS) :]:
        if len(given.get(name, ())) > 1:
            raise _wrong(name, "is given more than once")
    filters = {name: given[name] for name in FILTERS if name in given}
    for value in filters.get("set", ()):
        if value not in SETS:
            raise _wrong("set", f"no set {value!r}; the sets are: {listed(SETS)}")
    for value in filters.get("family", ()):
        try:
            get_family(value)
        except SpecError as error:
            raise invalid([field_problem(error, "family")]) from error
    if "device" in filters:
        filters["device"] = [_canonical(name, catalogue) for name in filters["device"]]
    descending = given.get("descending", ["false"])[0].lower()
    if descending not in _FLAGS:
        raise _wrong("descending", f"must be true or false, got {descending!r}")
    return RowsQuestion(
        filters,
        given.get("sort", [None])[0],
        _FLAGS[descending],
        _whole(given, "offset", 0, 0, _MAX_OFFSET),
        _whole(given, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
    )


def read_like_question(body: bytes, catalogue: Catalogue) -> LikeQuestion:
    """The question in a JSON body: a spec without `device`, `devices`, and `dim`, a size or a knob of the family.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    root = read_object(body, '{"family": …, "dtype": …, "sizes": {…}, "devices": […], "dim": …}')
    refuse_duplicate_names(body, root, [root])
    known = [name for name in SPEC_FIELDS if name != "device"] + ["devices", "dim"]
    for name in root:
        if name not in known:
            raise _wrong(shown_name(name), f"unknown field; possible are: {listed(known)}")
    devices = _devices(root.get("devices"))
    specs = [_spec(root, place, device, catalogue) for place, device in enumerate(devices)]
    spec, dim = specs[0][0], _dim(root.get("dim"), specs[0][0])
    return LikeQuestion(
        spec.family, spec.dtype, spec.kv_dtype, spec.variant, spec.impl,
        {name: size for name, size in spec.dims if name != dim},
        {name: knob for name, knob in spec.config if name != dim},
        spec.threads, spec.cache_state, dim,
        [_like_device(name, catalogue) for name in dict.fromkeys(device for _, device in specs)],
    )  # fmt: skip


def _devices(given: Any) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise _wrong("devices", f"must be a list of 1 to {MAX_DEVICES} device names")
    if len(given) > MAX_DEVICES:
        raise _wrong("devices", f"has {len(given)} names; at most {MAX_DEVICES} are taken")
    return given


def _spec(root: Mapping[str, Any], place: int, device: Any, catalogue: Catalogue) -> tuple[KernelSpec, str]:
    item = {name: value for name, value in root.items() if name in SPEC_FIELDS} | {"device": device}
    try:
        return read_spec(item, catalogue)
    except SpecError as error:
        field = f"devices[{place}]" if error.field == "device" else error.field or ""
        raise invalid([field_problem(error, field)]) from error


def _dim(given: Any, spec: KernelSpec) -> str:
    family = get_family(spec.family)
    possible = (*family.dim_names, *family.config)
    if not isinstance(given, str) or given not in possible:
        got = f"{shown_name(given)!r}" if isinstance(given, str) else "nothing" if given is None else kind_of(given)
        raise _wrong("dim", f"must be a size or a knob of {family.name}, got {got}; possible are: {listed(possible)}")
    return given


def _like_device(name: str, catalogue: Catalogue) -> LikeDevice:
    device = catalogue.get(name)
    cores = int(device.required("compute_units")) if device.kind == "cpu" else None
    return LikeDevice(device.name, [device.name, *device.aliases], cores)


def _canonical(name: str, catalogue: Catalogue) -> str:
    """A device by the catalogue's name; rows may be of devices the catalogue does not know, which stay as they are."""
    try:
        return catalogue.get(name).name
    except SpecError:
        return name


def _whole(given: Mapping[str, list[str]], name: str, default: int, low: int, high: int) -> int:
    text = given.get(name, [str(default)])[0]
    if not text.isascii() or not text.isdigit() or not low <= int(text[:20]) <= high:
        raise _wrong(name, f"must be a whole number between {low} and {high}, got {text!r}")
    return int(text)


def _wrong(field: str, detail: str) -> ProblemError:
    return invalid([FieldProblem(field, detail)])
