"""Which device of the catalogue this machine's processor is."""

from __future__ import annotations

import os

from ..features.device import Catalogue, Device
from ..features.errors import SpecError
from .environment import cpu_info


def machine_id() -> str:
    """What the processor says it is, as a device alias: `cpuid-authenticamd-26-2-2c` (vendor, family, model, cores)."""
    info = cpu_info()
    words = [info.get(name, "unknown") for name in ("vendor_id", "cpu family", "model")]
    return "-".join(["cpuid", *words, f"{os.cpu_count()}c"]).lower().replace(" ", "_")


def machine_name() -> str:
    """The processor's marketing name, as the operating system shows it."""
    return cpu_info().get("model name", "unknown CPU")


def known_machine(known: Catalogue) -> Device | None:
    """The device file of this machine, None where there is none."""
    return known_by(machine_id(), known) or known_by(machine_name(), known)


def known_by(name: str, known: Catalogue) -> Device | None:
    """The device of a name or alias, None where there is none."""
    try:
        return known.get(name)
    except SpecError:
        return None
