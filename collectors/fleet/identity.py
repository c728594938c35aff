"""Whether a node really is the device its label says."""

from __future__ import annotations

import os

from ...features.device import Catalogue, Device
from ...features.errors import SpecError
from ..environment import cpu_info
from ..gpu.nvml import NvmlMissingError, NvmlReader, nvml_reader


class NotThatDeviceError(Exception):
    """The machine has another device than its label says; the message is one sentence."""


def check_cpu(device: Device, known: Catalogue) -> None:
    """That this machine's processor is `device`.

    Raises:
        NotThatDeviceError: it is another one, or in no device file.
    """
    info = cpu_info()
    words = [info.get(name, "unknown") for name in ("vendor_id", "cpu family", "model")]
    title = info.get("model name", "unknown CPU")
    own = "-".join(["cpuid", *words, f"{os.cpu_count()}c"]).lower().replace(" ", "_")
    found = _known(own, known) or _known(title, known)
    if found is None or found.name != device.name:
        what = "in no device file" if found is None else found.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but its processor ({title}, {own}) is {what}; start it with the line that "
            "`kernelcast fleet start` prints there"
        )


def check_gpu(device: Device, index: int, known: Catalogue) -> NvmlReader:
    """That GPU `index` of this machine is `device`; what reads its board.

    Raises:
        NotThatDeviceError: it is another one, in no device file, or the driver does not say.
    """
    try:
        reader = nvml_reader(index)
    except NvmlMissingError as missing:
        raise NotThatDeviceError(f"the node is labelled {device.name}, but {missing}") from missing
    name = reader.name()
    found = None if name is None else _known(name, known)
    if found is None or found.name != device.name:
        what = "in no device file" if found is None else found.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but GPU {index} calls itself {name!r}, which is {what}; start it with the "
            "line that `kernelcast fleet start` prints there"
        )
    return reader


def _known(name: str, known: Catalogue) -> Device | None:
    try:
        return known.get(name)
    except SpecError:
        return None
