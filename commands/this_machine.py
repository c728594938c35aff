"""Which device of the catalogue this machine is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..features.errors import SpecError

if TYPE_CHECKING:
    from ..features.device import Catalogue, Device


def machine_id() -> str:
    """What the processor says it is, as a device alias: `cpuid-authenticamd-26-2-2c` (vendor, family, model, cores)."""
    from ..collectors.environment import cpu_info

    info = cpu_info()
    words = [info.get(name, "unknown") for name in ("vendor_id", "cpu family", "model")]
    return "-".join(["cpuid", *words, f"{os.cpu_count()}c"]).lower().replace(" ", "_")


def machine_name() -> str:
    """The processor's marketing name, as the operating system shows it."""
    from ..collectors.environment import cpu_info

    return cpu_info().get("model name", "unknown CPU")


def known_machine(known: Catalogue) -> Device | None:
    """The device file of this machine, None where there is none."""
    for name in (machine_id(), machine_name()):
        try:
            return known.get(name)
        except SpecError:
            continue
    return None


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
