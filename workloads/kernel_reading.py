"""The kernels of a whole model read from plain mappings, for the service, the command line and Python alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import families
from ..features.spec_io.reading import MAX_TEXT, SPEC_FIELDS, kind_of, read_bare_spec
from .whole_model import Kernel

_FIELDS = tuple(name for name in SPEC_FIELDS if name != "device")


def read_kernel(entry: Any, devices: Sequence[str], catalogue: Catalogue) -> Kernel:
    """The kernel a plain mapping describes: a spec as `/v1/predict` takes it, without a device, with `count` and `name`.

    Raises:
        SpecError: what is wrong, or that one of the devices cannot run it; `field` is the path within the kernel (`sizes.m`).
    """
    if not isinstance(entry, Mapping):
        raise SpecError(f"a kernel is a JSON object, not {kind_of(entry)}")
    if "device" in entry:
        raise SpecError("a kernel has no device; devices are named once, for the whole model", field="device")
    name = "" if entry.get("name") is None else entry["name"]
    if not isinstance(name, str) or len(name) > MAX_TEXT:
        raise SpecError(f"name must be text of at most {MAX_TEXT} characters", field="name")
    count = entry.get("count", 1)
    count = int(count) if isinstance(count, float) and count.is_integer() else count
    spec = read_bare_spec(entry, ("count", "name"), _FIELDS, ("family", "dtype", "sizes"))
    for device in devices:
        catalogue.get(device).peak_flops_per_s(spec.dtype, families()[spec.family].unit)
    return Kernel(spec, count, name)


def nested(entry: Any) -> Any:
    """A kernel whose sizes and knobs stand beside its other fields, as in a table, with them in `sizes` and `config`.

    Anything that is no such mapping is given back as it is, for `read_kernel` to say what is wrong with it.
    """
    names_family = isinstance(entry, Mapping) and isinstance(entry.get("family"), str)
    family = families().get(entry["family"]) if names_family else None
    if family is None or "sizes" in entry:
        return entry
    sizes = {name: value for name, value in entry.items() if name in family.dim_names}
    config = {name: value for name, value in entry.items() if name in family.config}
    rest = {name: value for name, value in entry.items() if name not in sizes and name not in config}
    return rest | {"sizes": sizes} | ({"config": config} if config else {})


def read_kernels(entries: Sequence[Any], devices: Sequence[str], catalogue: Catalogue) -> list[Kernel]:
    """The kernels of a list of plain mappings or of kernels, for the command line and Python.

    Raises:
        SpecError: the first that is not acceptable; message and `field` start with its path, such as `kernels[3].m`.
    """
    if not entries:
        raise SpecError("a model needs at least one kernel", field="kernels")
    names = [catalogue.get(name).name for name in devices]
    kernels = []
    for index, entry in enumerate(entries):
        if isinstance(entry, Kernel):
            kernels.append(entry)
            continue
        try:
            kernels.append(read_kernel(nested(entry), names, catalogue))
        except SpecError as error:
            flat = isinstance(entry, Mapping) and "sizes" not in entry
            field = (error.field or "").removeprefix("sizes.").removeprefix("config.") if flat else error.field
            path = kernel_path(index, field)
            raise SpecError(f"{path}: {error}", field=path) from error
    return kernels


def kernel_path(index: int, field: str | None) -> str:
    """`kernels[3].sizes.m`: where in a model something is wrong."""
    return f"kernels[{index}].{field}" if field else f"kernels[{index}]"
