"""Specs read from plain mappings, such as JSON, YAML or the words of the command line; one reading for all of them.

What is wrong is a `SpecError` whose `field` is the path within the spec (`sizes.m`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..device import Catalogue
from ..dtypes import DTYPES
from ..errors import NAME, SpecError, listed
from ..kernel import KernelFamily, KernelSpec, get_family

DEFAULT_COVERAGE = 0.9
"""Share of cases that intervals contain where a request names none."""

MAX_TEXT = 128
"""Longest name of anything: matching a device's name against the known ones costs time with its length."""


IMPL_PATTERN = NAME

SPEC_FIELDS = (
    "family", "device", "dtype", "sizes", "variant", "impl", "kv_dtype", "config", "threads", "cache_state", "timing"
)  # fmt: skip
SETTING_FIELDS = ("power_limit_w", "clock_hz")
"""How a board is set, beside a spec."""
_REQUIRED = ("family", "device", "dtype", "sizes")
IMPL = re.compile(IMPL_PATTERN)
_EXACT = 2.0**53
_NO_KNOBS: dict[str, Any] = {}


def read_spec(item: Any, catalogue: Catalogue, extra: tuple[str, ...] = ()) -> tuple[KernelSpec, str]:
    """The spec a plain mapping describes, and its device's catalogue name; `extra` names fields to pass over.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec (`sizes.m`).
    """
    spec = read_bare_spec(item, extra)
    device = catalogue.get(_text(item, "device"))
    device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    return spec, device.name


class SpecReader:
    """Reads the specs of one request: of one that differs from the latest in its sizes alone, and whose other fields are text,
    only the sizes are checked.
    """

    def __init__(self, catalogue: Catalogue, extra: tuple[str, ...] = ()) -> None:
        """A reader under a catalogue of devices; `extra` names fields to pass over."""
        self._catalogue, self._extra = catalogue, extra
        self._others: dict[str, Any] | None = None
        self._latest: tuple[KernelSpec, str]

    def read(self, item: Any) -> tuple[KernelSpec, str]:
        """The spec of a plain mapping and its device, see `read_spec`.

        Raises:
            SpecError: likewise.
        """
        others = None
        if type(item) is dict and "sizes" in item:
            others = {name: value for name, value in item.items() if name != "sizes"}
            if others == self._others:
                return self._resized(item["sizes"])
        spec, device = self._latest = read_spec(item, self._catalogue, self._extra)
        # Where sizes imply the variant they decide more than themselves; and of JSON's values only text equals itself alone.
        is_fixed = get_family(spec.family).variant_of is None or bool((others or {}).get("variant"))
        is_text = all(type(value) is str for value in (others or {}).values())
        self._others = others if is_fixed and is_text else None
        return spec, device

    def _resized(self, sizes: Any) -> tuple[KernelSpec, str]:
        spec, device = self._latest
        family = get_family(spec.family)
        numbers = _whole_numbers(sizes, "sizes", family, family.dim_names)
        try:
            return spec.resized(numbers), device
        except SpecError as error:
            raise SpecError(str(error), field=_path(error.field, family)) from error


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
                else f"unknown field {shown_name(name)!r}; a spec takes {listed((*SPEC_FIELDS, *extra))}",
                field=shown_name(name),
            )
    for name in needed:
        if name not in item:
            known = f"; dtype is one of {listed(DTYPES)}" if name == "dtype" else ""
            raise SpecError(f"{name} is missing; a spec needs {listed(needed)}{known}", field=name)
    family = get_family(_text(item, "family"))
    dtype = _text(item, "dtype")
    sizes = _whole_numbers(item["sizes"], "sizes", family, family.dim_names)
    config = _whole_numbers(
        _NO_KNOBS if item.get("config") is None else item["config"], "config", family, family.config
    )
    threads: Any = item.get("threads")
    if isinstance(threads, float):
        threads = _whole(threads)
    kv_dtype = None if item.get("kv_dtype") is None else _text(item, "kv_dtype")
    variant = "" if item.get("variant") is None else _text(item, "variant")
    if not variant and family.variant_of is not None:
        variant = implied_variant(family, sizes)
    impl = "" if item.get("impl") is None else _text(item, "impl")
    if impl and not IMPL.fullmatch(impl):
        raise SpecError(f"impl is {impl!r}; it is a name such as torch or vllm-0.24.0", field="impl")
    cache_state = _text(item, "cache_state") if "cache_state" in item else "hot"
    timing = "" if item.get("timing") is None else _text(item, "timing")
    try:
        return KernelSpec.of(
            family.name, dtype, variant=variant, impl=impl, kv_dtype=kv_dtype, config=config,
            threads=threads, cache_state=cache_state, timing=timing, **sizes,
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


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item[name]
    if not isinstance(value, str):
        raise SpecError(f"{name} must be text, not {kind_of(value)}", field=name)
    if len(value) > MAX_TEXT:
        raise SpecError(f"{name} is {len(value)} characters long; names have at most {MAX_TEXT}", field=name)
    return value


def _whole_numbers(values: Any, what: str, family: KernelFamily, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise SpecError(f"{what} must be an object of whole numbers, not {kind_of(values)}", field=what)
    for name in values:
        if name not in names:
            raise SpecError(
                f"{family.name} has no {what} {shown_name(name)!r}; it has: {listed(names) or 'none'}",
                field=f"{what}.{shown_name(name)}",
            )
    if not values:
        return {}
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        # Booleans pass: building the spec refuses them, by name.
        if not isinstance(value, int | float) or value > _EXACT or value < -_EXACT:
            shown = "a number beyond 2^53" if isinstance(value, int | float) else kind_of(value)
            raise SpecError(f"{name} must be a whole number, got {shown}", field=f"{what}.{name}")
        numbers[name] = _whole(value) if isinstance(value, float) else value
    return numbers


def _whole(value: float) -> Any:
    """A whole number written as 4096.0, which JSON does not tell apart from 4096, as an integer; another unchanged."""
    return int(value) if value.is_integer() else value


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
