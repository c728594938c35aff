"""Which device of the catalogue this machine's GPU is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..features.errors import SpecError
from .this_machine import named

if TYPE_CHECKING:
    from ..collectors.gpu.nvml import NvmlReader
    from ..features.device import Catalogue, Device


def this_gpu(given: str | None, index: int, known: Catalogue) -> tuple[Device, NvmlReader | None]:
    """The GPU and what reads its board; no reader where there is no NVML and `given` says what the GPU is.

    Raises:
        SpecError: there is no such GPU in the catalogue, `given` is another one than this machine's, or nothing says which
            it is.
    """
    from ..collectors.gpu.nvml import NvmlMissingError, nvml_reader

    wanted = None if given is None else named(given, "gpu", known)
    try:
        reader = nvml_reader(index)
    except NvmlMissingError as missing:
        if wanted is None:
            raise SpecError(f"{missing}; or name the GPU with --device", field="device") from missing
        return wanted, None
    name = reader.name()
    if name is None:
        if wanted is None:
            raise SpecError(f"the driver does not say what GPU {index} is; name it with --device", field="device")
        return wanted, reader
    try:
        found = named(name, "gpu", known)
    except SpecError as error:
        # Also where --device names one: a board that calls itself otherwise has other clocks, limits or units.
        raise SpecError(
            f"GPU {index} calls itself {name!r}, which is in no device file; make one with "
            "`kernelcast characterize --out my-gpu.yaml` and give it with --device-file",
            field="device",
        ) from error
    if wanted is not None and wanted.name != found.name:
        raise SpecError(f"--device is {wanted.name}, but GPU {index} is {found.name} ({name})", field="device")
    return found, reader
