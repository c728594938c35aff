"""From plain data to the kernels of a whole model: one reading for the service, the command line and Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import families
from ..models.composition import MAX_LAUNCH_S, Kernel
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import (
    MAX_TEXT,
    SPEC_FIELDS,
    invalid,
    kind_of,
    read_coverage,
    read_object,
    read_spec,
    refuse_duplicate_names,
    shown_name,
)

MODEL_FIELDS = ("devices", "kernels", "coverage", "launch_s", "queued")
KERNEL_FIELDS = (*(name for name in SPEC_FIELDS if name != "device"), "count", "name")
MAX_DEVICES = 100
"""Most devices one model is asked about: more than any catalogue has, so that a body cannot be spent on names."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What was asked of a whole model: its kernels, and the devices by catalogue name."""

    kernels: list[Kernel]
    devices: list[str]
    coverage: float
    launch_s: float
    queued: bool


def read_model_request(body: bytes, catalogue: Catalogue, max_specs: int) -> ModelRequest:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for more than `max_specs` predictions (kernels times devices),
            422 naming what is wrong.
    """
    root = read_object(body, '{"devices": […], "kernels": […]}')
    if unknown := [name for name in root if name not in MODEL_FIELDS]:
        raise invalid([FieldProblem(shown_name(unknown[0]), f"unknown field; a model takes {listed(MODEL_FIELDS)}")])
    items, names = root.get("kernels"), root.get("devices")
    if not isinstance(items, list) or not items:
        raise invalid([FieldProblem("kernels", "must be a list of at least one kernel")])
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_DEVICES:
        raise invalid([FieldProblem("devices", f"must be a list of one to {MAX_DEVICES} device names")])
    if len(items) * len(names) > max_specs:
        asked = f"{len(items)} kernels on {len(names)} devices in one request"
        raise ProblemError(413, f"{asked}; at most {max_specs} predictions are made, send the devices one by one")
    refuse_duplicate_names(body, root, items)
    coverage, launch_s = read_coverage(root), root.get("launch_s", 0.0)
    if not _is_number(launch_s) or not 0 <= launch_s <= MAX_LAUNCH_S:
        raise invalid([FieldProblem("launch_s", f"must be seconds between 0 and {MAX_LAUNCH_S:g}")])
    if not isinstance(queued := root.get("queued", False), bool):
        raise invalid([FieldProblem("queued", "must be true or false")])
    devices = _devices(names, catalogue)
    kernels: list[Kernel] = []
    errors: list[FieldProblem] = []
    for index, item in enumerate(items):
        try:
            kernels.append(read_kernel(item, devices, catalogue))
        except SpecError as error:
            errors.append(field_problem(error, kernel_path(index, error.field), index))
            if len(errors) == MAX_LISTED:
                break
    if errors:
        raise invalid(errors)
    return ModelRequest(kernels, devices, coverage, float(launch_s), queued)


def read_kernel(item: Any, devices: Sequence[str], catalogue: Catalogue) -> Kernel:
    """The kernel a plain mapping describes: a spec as `/v1/predict` takes it, without a device, with `count` and `name`.

    Raises:
        SpecError: what is wrong, or that one of the devices cannot run it; `field` is the path within the kernel (`sizes.m`).
    """
    if not isinstance(item, Mapping):
        raise SpecError(f"a kernel is a JSON object, not {kind_of(item)}")
    for word in item:
        if word not in KERNEL_FIELDS:
            hint = "; devices are named once, for the whole model" if word == "device" else ""
            raise SpecError(f"unknown field {shown_name(word)!r}; a kernel takes {listed(KERNEL_FIELDS)}{hint}",
                            field=shown_name(word))  # fmt: skip
    name = "" if item.get("name") is None else item["name"]
    if not isinstance(name, str) or len(name) > MAX_TEXT:
        raise SpecError(f"name must be text of at most {MAX_TEXT} characters", field="name")
    for missing in ("family", "dtype", "sizes"):
        if missing not in item:
            raise SpecError(f"{missing} is missing; a kernel needs family, dtype, sizes", field=missing)
    count = item.get("count", 1)
    count = int(count) if isinstance(count, float) and count.is_integer() else count
    plain = {word: value for word, value in item.items() if word not in ("count", "name")}
    spec, _ = read_spec(plain | {"device": devices[0]}, catalogue)
    for device in devices[1:]:
        catalogue.get(device).peak_flops_per_s(spec.dtype, families()[spec.family].unit)
    return Kernel(spec, count, name)


def nested(item: Any) -> Any:
    """A kernel whose sizes and knobs stand beside its other fields, as in a table, with them in `sizes` and `config`.

    Anything that is no such mapping is given back as it is, for `read_kernel` to say what is wrong with it.
    """
    family = families().get(item["family"]) if isinstance(item, Mapping) and _names_family(item) else None
    if family is None or "sizes" in item:
        return item
    sizes = {name: value for name, value in item.items() if name in family.dim_names}
    config = {name: value for name, value in item.items() if name in family.config}
    rest = {name: value for name, value in item.items() if name not in sizes and name not in config}
    return rest | {"sizes": sizes} | ({"config": config} if config else {})


def read_kernels(items: Sequence[Any], devices: Sequence[str], catalogue: Catalogue) -> list[Kernel]:
    """The kernels of a list of plain mappings or of kernels, for the command line and Python.

    Raises:
        SpecError: the first that is not acceptable; message and `field` start with its path, such as `kernels[3].m`.
    """
    if not items:
        raise SpecError("a model needs at least one kernel", field="kernels")
    names = [catalogue.get(name).name for name in devices]
    kernels = []
    for index, item in enumerate(items):
        if isinstance(item, Kernel):
            kernels.append(item)
            continue
        try:
            kernels.append(read_kernel(nested(item), names, catalogue))
        except SpecError as error:
            flat = isinstance(item, Mapping) and "sizes" not in item
            field = (error.field or "").removeprefix("sizes.").removeprefix("config.") if flat else error.field
            path = kernel_path(index, field)
            raise SpecError(f"{path}: {error}", field=path) from error
    return kernels


def kernel_path(index: int, field: str | None) -> str:
    """`kernels[3].sizes.m`: where in a model something is wrong."""
    return f"kernels[{index}].{field}" if field else f"kernels[{index}]"


def _devices(names: Sequence[Any], catalogue: Catalogue) -> list[str]:
    errors: list[FieldProblem] = []
    found: list[str] = []
    for index, name in enumerate(names):
        path = f"devices[{index}]"
        if not isinstance(name, str) or len(name) > MAX_TEXT:
            errors.append(FieldProblem(path, f"must be text of at most {MAX_TEXT} characters"))
            continue
        try:
            found.append(catalogue.get(name).name)
        except SpecError as error:
            errors.append(field_problem(error, path))
    if errors:
        raise invalid(errors)
    return found


def _names_family(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("family"), str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
