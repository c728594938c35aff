"""Whether a node really is the device its label says."""

from __future__ import annotations

from ...features.device import Catalogue, Device
from ..gpu.nvml import NvmlMissingError, NvmlReader, nvml_reader
from ..processor import known_by, known_machine, machine_id, machine_name


class NotThatDeviceError(Exception):
    """The machine has another device than its label says; the message is one sentence."""


def check_cpu(device: Device, known: Catalogue) -> None:
    """That this machine's processor is `device`.

    Raises:
        NotThatDeviceError: it is another one, or in no device file.
    """
    found = known_machine(known)
    if found is None or found.name != device.name:
        what = "in no device file" if found is None else found.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but its processor ({machine_name()}, {machine_id()}) is {what}; "
            "start it with the line that `kernelcast fleet start` prints there"
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
    found = None if name is None else known_by(name, known)
    if found is None or found.name != device.name:
        what = "in no device file" if found is None else found.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but GPU {index} calls itself {name!r}, which is {what}; start it with the "
            "line that `kernelcast fleet start` prints there"
        )
    return reader
