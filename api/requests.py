"""From the bytes of a request to checked specs: one reading for the service and, as plain mappings, the command line.

Every bad spec of a batch is found in one pass and named by index and field. JSON is decoded to plain values rather than
typed structs because a typed decoder stops at the first error and cannot name the size it did not like.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import KernelFamily, KernelSpec, get_family
from ..models.intervals import COVERAGE_RANGE
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem

DEFAULT_COVERAGE = 0.9
COVERAGE_WORDS = (
    f"must be a number between {COVERAGE_RANGE[0]:g} and {COVERAGE_RANGE[1]:g}, such as {DEFAULT_COVERAGE:g}"
)
MAX_TEXT = 128
"""Longest name of anything: matching a device's name against the known ones costs time with its length."""

MAX_IMPLS = 100
"""Most different implementations in one request. What follows from a name is worked out once a name, which takes as long as
hundreds of rows: nothing but new names would keep the server busy for minutes."""

IMPL_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"

SPEC_FIELDS = ("family", "device", "dtype", "sizes", "variant", "impl", "kv_dtype", "config", "threads", "cache_state")
BATCH_FIELDS = ("requests", "coverage")
_REQUIRED = ("family", "device", "dtype", "sizes")
IMPL = re.compile(IMPL_PATTERN)
_EXACT = 2.0**53
_NO_KNOBS: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: specs and the device of each, by catalogue name; `single` when the body was one spec."""

    specs: list[KernelSpec]
    devices: list[str]
    coverage: float
    single: bool


def read_request(body: bytes, catalogue: Catalogue, max_specs: int) -> Request:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for too many specs, 422 naming what is wrong with the specs.
    """
    root = read_object(body)
    single = "requests" not in root
    items = [root] if single else root["requests"]
    if not single and (unknown := [name for name in root if name not in BATCH_FIELDS]):
        raise invalid([FieldProblem(shown_name(unknown[0]), f"unknown field; a batch takes {listed(BATCH_FIELDS)}")])
    if not isinstance(items, list) or not items:
        raise invalid([FieldProblem("requests", "must be a list of at least one spec")])
    if len(items) > max_specs:
        raise ProblemError(413, f"{len(items)} specs in one request; at most {max_specs} are taken, send them in parts")
    refuse_duplicate_names(body, root, items)
    coverage = read_coverage(root)
    specs: list[KernelSpec] = []
    devices: list[str] = []
    errors: list[FieldProblem] = []
    for index, item in enumerate(items):
        try:
            spec, device = read_spec(item, catalogue, extra=("coverage",) if single else ())
        except SpecError as error:
            where = error.field or ""
            if not single:
                where = f"requests[{index}].{where}" if where else f"requests[{index}]"
            errors.append(field_problem(error, where, None if single else index))
            if len(errors) == MAX_LISTED:
                break
        else:
            specs.append(spec)
            devices.append(device)
    if not errors and (named := len({spec.impl for spec in specs})) > MAX_IMPLS:
        errors.append(FieldProblem("requests", too_many_impls(named)))
    if errors:
        raise invalid(errors)
    return Request(specs, devices, coverage, single)


def too_many_impls(named: int) -> str:
    """Why a request that names that many implementations is refused."""
    return f"names {named} different implementations; at most {MAX_IMPLS} are taken in one request, send the others in another"


def read_object(body: bytes, wanted: str = 'one spec, or {"requests": [...]}') -> dict[str, Any]:
    """The JSON object of a body; `wanted` is what an empty body is told to send.

    Raises:
        ProblemError: 400 for a body that is no JSON, 422 for JSON that is no object.
    """
    root = decode(body, wanted)
    if not isinstance(root, dict):
        raise ProblemError(422, f"the body must be a JSON object, not {kind_of(root)}")
    return root


def read_coverage(root: Mapping[str, Any]) -> float:
    """The coverage asked for.

    Raises:
        ProblemError: 422 where it is no number between 0 and 1.
    """
    coverage = root.get("coverage", DEFAULT_COVERAGE)
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise invalid([FieldProblem("coverage", COVERAGE_WORDS)])
    return float(coverage)


def read_spec(item: Any, catalogue: Catalogue, extra: tuple[str, ...] = ()) -> tuple[KernelSpec, str]:
    """The spec a plain mapping describes, and its device's catalogue name; `extra` names fields to pass over.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec (`sizes.m`).
    """
    spec = read_bare_spec(item, extra)
    device = catalogue.get(_text(item, "device"))
    device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    return spec, device.name


def read_bare_spec(
    item: Any, extra: tuple[str, ...] = (), taken: tuple[str, ...] = SPEC_FIELDS, needed: tuple[str, ...] = _REQUIRED
) -> KernelSpec:
    """The spec a plain mapping of the fields `taken` describes, whatever device it names; `extra` names fields to pass over.

    A variant left out is the one the sizes imply, where the family says so.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec (`sizes.m`).
    """
    if not isinstance(item, Mapping):
        raise SpecError(f"a spec is a JSON object, not {kind_of(item)}")
    for name in item:
        if name not in taken and name not in extra:
            raise SpecError(
                f"unknown field {shown_name(name)!r}; possible are {listed((*taken, *extra))}"
                if taken is not SPEC_FIELDS
                else f"unknown field {shown_name(name)!r}; a spec takes {listed(SPEC_FIELDS)}",
                field=shown_name(name),
            )
    for name in needed:
        if name not in item:
            raise SpecError(f"{name} is missing; a spec needs {listed(needed)}", field=name)
    family = get_family(_text(item, "family"))
    dtype = _text(item, "dtype")
    sizes = _whole_numbers(item["sizes"], "sizes", family, family.dim_names)
    config = _whole_numbers(
        _NO_KNOBS if item.get("config") is None else item["config"], "config", family, family.config
    )
    threads = item.get("threads")
    kv_dtype = None if item.get("kv_dtype") is None else _text(item, "kv_dtype")
    variant = _optional_text(item, "variant") or implied_variant(family, sizes)
    impl = _optional_text(item, "impl")
    if impl and not IMPL.fullmatch(impl):
        raise SpecError(f"impl is {impl!r}; it is a name such as torch or vllm-0.24.0", field="impl")
    cache_state = _text(item, "cache_state") if "cache_state" in item else "hot"
    try:
        return KernelSpec.of(
            family.name, dtype, variant=variant, impl=impl, kv_dtype=kv_dtype, config=config,
            threads=_whole(threads), cache_state=cache_state, **sizes,
        )  # fmt: skip
    except SpecError as error:
        raise SpecError(str(error), field=_path(error.field, family)) from error


def implied_variant(family: KernelFamily, sizes: Mapping[str, int]) -> str:
    """The variant used when none is given: what the sizes imply, or the plain one."""
    if family.variant_of is None:
        return ""
    try:
        return family.variant_of(sizes)
    except KeyError:
        # A size is missing; building the spec says which.
        return family.variants[0]


def decode(body: bytes, wanted: str = 'one spec, or {"requests": [...]}') -> Any:
    """The JSON value of a body; `wanted` is what an empty one is told to send.

    Raises:
        ProblemError: the body is empty or no JSON.
    """
    if not body.strip():
        raise ProblemError(400, f"the body is empty; send {wanted}")
    try:
        return msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise ProblemError(400, f"the body is not valid UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise ProblemError(400, "the body is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise ProblemError(400, f"the body is not valid JSON: {error}") from error


def refuse_duplicate_names(body: bytes, root: dict[str, Any], items: list[Any]) -> None:
    """Refuse a name given twice in one object: which of the two was meant cannot be known.

    The decoder keeps the last one silently. Without escapes, a body has at least one colon per name, so a body with as
    many colons as names has none twice; only a body with more is read again, slowly, to find out.
    """
    names = len(root)
    for item in items:
        if isinstance(item, dict):
            if item is not root:
                names += len(item)
            for inner in (item.get("sizes"), item.get("config")):
                if isinstance(inner, dict):
                    names += len(inner)
    if b"\\" not in body and body.count(b":") == names:
        return

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise invalid([FieldProblem(shown_name(twice), "is given twice in one object")])
        return found

    try:
        json.loads(body, object_pairs_hook=unique)
    except RecursionError as error:
        raise ProblemError(400, "the body is nested too deeply") from error


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item[name]
    if not isinstance(value, str):
        raise SpecError(f"{name} must be text, not {kind_of(value)}", field=name)
    if len(value) > MAX_TEXT:
        raise SpecError(f"{name} is {len(value)} characters long; names have at most {MAX_TEXT}", field=name)
    return value


def _optional_text(item: Mapping[str, Any], name: str) -> str:
    """A text field, empty where it is left out or null."""
    return "" if item.get(name) is None else _text(item, name)


def _whole_numbers(given: Any, what: str, family: KernelFamily, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SpecError(f"{what} must be an object of whole numbers, not {kind_of(given)}", field=what)
    for name in given:
        if name not in known:
            raise SpecError(
                f"{family.name} has no {what} {shown_name(name)!r}; it has: {listed(known) or 'none'}",
                field=f"{what}.{shown_name(name)}",
            )
    for name, value in given.items():
        if not isinstance(value, int | float) or abs(value) > _EXACT:
            shown = "a number beyond 2^53" if isinstance(value, int | float) else kind_of(value)
            raise SpecError(f"{name} must be a whole number, got {shown}", field=f"{what}.{name}")
    return {name: _whole(value) for name, value in given.items()}


def _whole(value: Any) -> Any:
    """An integer written as 4096.0, which JSON does not tell apart from 4096, as an integer; anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _path(field: str | None, family: KernelFamily) -> str:
    if field in family.dim_names:
        return f"sizes.{field}"
    return f"config.{field}" if field in family.config else field or ""


def shown_name(name: Any) -> str:
    """A name someone sent, short enough to be shown."""
    return str(name)[:MAX_TEXT]


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null", int: "a number",
             float: "a number"}  # fmt: skip
    # YAML has more kinds than JSON: dates, sets, bytes.
    return names.get(type(value), f"a {type(value).__name__}")


def invalid(errors: list[FieldProblem]) -> ProblemError:
    """The problem that names every field that is wrong."""
    first = errors[0]
    more = "" if len(errors) == 1 else f" (and {len(errors) - 1} more, see errors)"
    return ProblemError(422, f"{first.field}: {first.detail}{more}" if first.field else first.detail + more, errors)
