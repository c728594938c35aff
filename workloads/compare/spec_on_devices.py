"""One spec on several devices: read from plain mappings, fitted to each device, with what an hour of a device costs.

What stands side by side has one timing: where the spec gives none, all of it is the kernel alone, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec, get_family
from ...features.spec_io.reading import SPEC_FIELDS, kind_of, read_bare_spec, shown_name
from ..units import checked_price

BARE_FIELDS = tuple(name for name in SPEC_FIELDS if name != "device")
BARE_NEEDED = ("family", "dtype", "sizes")


def read_bare(item: Mapping[str, Any], *extra: str) -> KernelSpec:
    """The spec of fields that name no device, see `with_timing`; `extra` names fields to pass over.

    Raises:
        SpecError: what is wrong; `field` is the path within the spec.
    """
    return with_timing(read_bare_spec(item, extra, BARE_FIELDS, BARE_NEEDED))


def with_timing(spec: KernelSpec) -> KernelSpec:
    """The spec with a timing, that of the kernel alone where none is given: as measured, one device's may be a call's."""
    return spec if spec.timing else replace(spec, timing="device")


def on_device(spec: KernelSpec, device: Device) -> KernelSpec:
    """The spec as it runs on a device: threads are those of CPUs."""
    return spec if device.kind == "cpu" or spec.threads is None else replace(spec, threads=None)


def why_refused(spec: KernelSpec, device: Device) -> str | None:
    """Why a device cannot be asked about a spec, None where it can."""
    try:
        device.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    except SpecError as error:
        return str(error)
    return None


def check_peaks(spec: KernelSpec, devices: Sequence[Device]) -> None:
    """Refuse devices that have no peak for the spec's dtype.

    Raises:
        SpecError: of the first of them.
    """
    for index, device in enumerate(devices):
        if (reason := why_refused(spec, device)) is not None:
            raise SpecError(reason, field=f"devices[{index}]")


def distinct_devices(names: Sequence[str], catalogue: Catalogue) -> list[Device]:
    """The devices of names or aliases.

    Raises:
        SpecError: there are none, one is not known, or is named twice.
    """
    if not names:
        raise SpecError("name at least one device", field="devices")
    devices: list[Device] = []
    for index, name in enumerate(names):
        device = catalogue.get(name)
        if device in devices:
            raise SpecError(f"{device.name} is named twice", field=f"devices[{index}]")
        devices.append(device)
    return devices


def read_prices(raw: Any, catalogue: Catalogue, devices: Sequence[Device]) -> dict[str, float]:
    """The price of an hour of each device that has one, by catalogue name.

    Raises:
        SpecError: what is no price, or no device that is compared.
    """
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise SpecError(f"prices must be an object of prices by device, not {kind_of(raw)}", field="price_per_hour")
    compared = [device.name for device in devices]
    prices: dict[str, float] = {}
    for name, price in raw.items():
        path = f"price_per_hour.{shown_name(name)}"
        try:
            device = catalogue.get(shown_name(name)).name
        except SpecError as error:
            raise SpecError(str(error), field=path) from error
        if device not in compared:
            raise SpecError(f"{device} is not among the compared devices: {listed(compared)}", field=path)
        if device in prices:
            raise SpecError(f"{device} has two prices", field=path)
        prices[device] = checked_price(price, path)
    return prices
