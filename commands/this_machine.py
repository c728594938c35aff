"""Which device of the catalogue this machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..collectors.processor import known_machine, machine_id, machine_name
from ..features.errors import SpecError

if TYPE_CHECKING:
    from ..features.device import Catalogue, Device

__all__ = ["known_machine", "machine_id", "machine_name", "named", "this_device"]


def named(given: str, kind: str, known: Catalogue) -> Device:
    """The device of `kind` (`cpu`, `gpu`) that a user says this machine has.

    Raises:
        SpecError: there is no such device, or it is of another kind.
    """
    device = known.get(given)
    if device.kind != kind:
        raise SpecError(f"a {kind.upper()} is what is measured, and {device.name} is a {device.kind}", field="device")
    return device


def this_device(given: str | None, known: Catalogue) -> str:
    """The catalogue name of the machine that measures.

    Raises:
        SpecError: `given` is unknown or no CPU, or none was given and no device file is of this machine.
    """
    if given is not None:
        return named(given, "cpu", known).name
    found = known_machine(known)
    if found is None:
        raise SpecError(
            f"this machine ({machine_name()}, {machine_id()}) is in no device file; make one with "
            "`kernelcast characterize --out my.yaml` and give it with --device-file, or name a device with --device",
            field="device",
        )
    return found.name
