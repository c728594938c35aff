"""Reading requests about one spec on several devices: `/v1/compare`, `/v1/sweep`, `/v1/roofline` share this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..features.device import Catalogue, Device
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec, get_family
from .model_request import MAX_DEVICES
from .problems import FieldProblem, field_problem
from .requests import (
    MAX_TEXT,
    SPEC_FIELDS,
    invalid,
    kind_of,
    read_bare_spec,
    read_coverage,
    read_object,
    refuse_duplicate_names,
    shown_name,
)  # fmt: skip

BARE_FIELDS = tuple(name for name in SPEC_FIELDS if name != "device")
BARE_NEEDED = ("family", "dtype", "sizes")
MAX_PRICE = 1e9
"""Highest price of an hour that is taken, so that costs stay finite."""


@dataclass(frozen=True, slots=True)
class Across:
    """One spec and the devices it is asked about, by catalogue name."""

    spec: KernelSpec
    devices: list[Device]
    coverage: float


def read_root(body: bytes, wanted: str, *nested: str) -> dict[str, Any]:
    """The JSON object of a body in which no name is given twice; `nested` are fields that may hold objects, beside a spec's.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 for one that is no object, or names something twice.
    """
    root = read_object(body, wanted)
    inner = [root[name] for name in nested if isinstance(root.get(name), dict)]
    refuse_duplicate_names(body, root, [root, *inner])
    return root


def read_across(root: Mapping[str, Any], catalogue: Catalogue, *extra: str, most: int = MAX_DEVICES) -> Across:
    """The spec and its devices; `extra` are the route's own fields, `most` how many devices it takes.

    Raises:
        ProblemError: 422 naming what is wrong.
    """
    try:
        spec = read_bare(root, "devices", "coverage", *extra)
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    return Across(spec, read_devices(root.get("devices"), catalogue, most), read_coverage(root))


def read_bare(item: Mapping[str, Any], *extra: str) -> KernelSpec:
    """The spec of fields that name no device.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec.
    """
    return read_bare_spec(item, extra, BARE_FIELDS, BARE_NEEDED)


def read_devices(names: Any, catalogue: Catalogue, most: int) -> list[Device]:
    """One to `most` devices, each once.

    Raises:
        ProblemError: 422 naming every one that is not known, is no name, or is named twice.
    """
    if not isinstance(names, list) or not 1 <= len(names) <= most:
        given = f"{len(names)} names" if isinstance(names, list) else kind_of(names)
        raise invalid([FieldProblem("devices", f"must be a list of one to {most} device names, not {given}")])
    found: dict[str, Device] = {}
    errors: list[FieldProblem] = []
    for index, name in enumerate(names):
        path = f"devices[{index}]"
        if not isinstance(name, str) or len(name) > MAX_TEXT:
            errors.append(FieldProblem(path, f"must be text of at most {MAX_TEXT} characters"))
            continue
        try:
            device = catalogue.get(name)
        except SpecError as error:
            errors.append(field_problem(error, path))
            continue
        if device.name in found:
            errors.append(FieldProblem(path, f"{device.name} is named twice"))
        found[device.name] = device
    if errors:
        raise invalid(errors)
    return list(found.values())


def check_peaks(asked: Across) -> None:
    """Refuse devices that have no peak for the spec's dtype.

    Raises:
        ProblemError: 422 naming each of them.
    """
    errors = [
        FieldProblem(f"devices[{index}]", reason)
        for index, device in enumerate(asked.devices)
        if (reason := why_not(asked.spec, device)) is not None
    ]
    if errors:
        raise invalid(errors)


def why_not(spec: KernelSpec, device: Device) -> str | None:
    """Why a device cannot be asked about a spec, None where it can."""
    try:
        device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    except SpecError as error:
        return str(error)
    return None


def on_device(spec: KernelSpec, device: Device) -> KernelSpec:
    """The spec as it runs on a device: threads are those of CPUs."""
    return spec if device.kind == "cpu" or spec.threads is None else replace(spec, threads=None)


def read_prices(given: Any, catalogue: Catalogue, devices: list[Device]) -> dict[str, float]:
    """The price of an hour of each device that has one, by catalogue name.

    Raises:
        ProblemError: 422 naming what is no price, or no device that is compared.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise invalid([FieldProblem("price_per_hour", f"must be an object of prices by device, not {kind_of(given)}")])
    compared = [device.name for device in devices]
    prices: dict[str, float] = {}
    for name, price in given.items():
        path = f"price_per_hour.{shown_name(name)}"
        try:
            device = catalogue.get(name[:MAX_TEXT]).name
        except SpecError as error:
            raise invalid([field_problem(error, path)]) from error
        if device not in compared:
            raise invalid([FieldProblem(path, f"{device} is not compared; compared are {listed(compared)}")])
        if device in prices:
            raise invalid([FieldProblem(path, f"{device} has two prices")])
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= MAX_PRICE:
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            shown = shown_name(price) if is_number else kind_of(price)
            raise invalid([FieldProblem(path, f"a price is a number from 0 to {MAX_PRICE:g}, got {shown}")])
        prices[device] = float(price)
    return prices
