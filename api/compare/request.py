"""Reading requests about one spec on several devices: `/v1/compare`, `/v1/sweep`, `/v1/roofline` share this.

What stands side by side has one timing: where the spec gives none, all of it is the kernel alone, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import kind_of
from ...workloads.compare import spec_on_devices
from ...workloads.compare.spec_on_devices import read_bare, why_refused
from ..transport.bodies import MAX_DEVICES, named_devices, read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import FieldProblem, field_problem, invalid, invalid_field, naming_field


@dataclass(frozen=True, slots=True)
class AcrossDevices:
    """One spec and the devices to predict it on.

    Attributes:
        spec: The spec, with its timing.
        devices: The devices, each once.
        coverage: Coverage of the intervals.
    """

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


def read_across(root: Mapping[str, Any], catalogue: Catalogue, *extra: str, most: int = MAX_DEVICES) -> AcrossDevices:
    """The spec and its devices; `extra` are the route's own fields, `most` how many devices it takes.

    Raises:
        ProblemError: 422 naming what is wrong.
    """
    try:
        spec = read_bare(root, "devices", "coverage", *extra)
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    return AcrossDevices(spec, read_devices(root.get("devices"), catalogue, most), read_coverage(root))


def read_devices(names: Any, catalogue: Catalogue, most: int) -> list[Device]:
    """One to `most` devices, each once.

    Raises:
        ProblemError: 422 naming every one that is not known, is no name, or is named twice.
    """
    if not isinstance(names, list) or not 1 <= len(names) <= most:
        got = f"{len(names)} names" if isinstance(names, list) else kind_of(names)
        raise invalid_field("devices", f"must be a list of one to {most} device names, not {got}")
    devices = named_devices(names, catalogue)
    unique = {device.name: index for index, device in reversed(list(enumerate(devices)))}
    if errors := [
        FieldProblem(f"devices[{index}]", f"{device.name} is named twice")
        for index, device in enumerate(devices)
        if unique[device.name] != index
    ]:
        raise invalid(errors)
    return devices


def check_peaks(spec: KernelSpec, devices: Sequence[Device]) -> None:
    """Refuse devices that have no peak for the spec's dtype.

    Raises:
        ProblemError: 422 naming each of them.
    """
    errors = [
        FieldProblem(f"devices[{index}]", reason)
        for index, device in enumerate(devices)
        if (reason := why_refused(spec, device)) is not None
    ]
    if errors:
        raise invalid(errors)


def read_prices(raw: Any, catalogue: Catalogue, devices: Sequence[Device]) -> dict[str, float]:
    """The price of an hour of each device that has one, by catalogue name.

    Raises:
        ProblemError: 422 naming what is no price, or no device that is compared.
    """
    return naming_field(lambda: spec_on_devices.read_prices(raw, catalogue, devices))
