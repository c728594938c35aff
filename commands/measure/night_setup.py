"""What a night or an adaptation measures with, on a machine that may be new."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...features.device import Catalogue, known_machine, machine_id
from .. import console
from .characterize import new_cpu, new_gpu

if TYPE_CHECKING:
    from ...nightly.open_night import NightSetup
    from ...nightly.record.plan import Plan

NIGHT_RUNNING = 3
"""Exit code where another night is running on this machine."""

SUCCESSFUL = ("promoted", "kept")
"""Outcomes of a night, or an adaptation, that did what it is for."""


def night_setup(plan: Plan, device_files: list[Path] | None, *, dry_run: bool = False) -> NightSetup:
    """The plan with what measures it. A CPU without a device file is characterised first; a dry run takes it for a known one.

    Raises:
        SpecError: the device is unknown, or is not what this machine has.
    """
    from ...nightly.measuring.cpu import CpuMeasurer
    from ...nightly.measuring.protocol import Measurer
    from ...nightly.open_night import NightSetup, ready_store
    from .this_machine import this_device, this_gpu

    known, began = console.read_catalogue(device_files), time.monotonic()
    measurer: Measurer
    if plan.collector == "cpu":
        if plan.device is None and known_machine(known) is None:
            stand_in = _with_stand_in(known)
            # A plan that cannot run is refused before the machine is measured for half a minute.
            ready_store(NightSetup(plan, CpuMeasurer(plan, this_device(None, stand_in)), stand_in))
            if dry_run:
                known = stand_in
            else:
                characterise_cpu()
        measurer = CpuMeasurer(plan, this_device(plan.device, known))
    elif plan.collector == "gpu":
        from ...nightly.measuring.gpu import GpuMeasurer

        device, reader = this_gpu(plan.device, 0, known)
        measurer = GpuMeasurer(plan, device, reader)
    elif plan.collector == "replay":
        from ...nightly.measuring.replay import ReplayMeasurer, recorded_rows

        wanted = None if plan.device is None else known.get(plan.device).name
        measurer = ReplayMeasurer(plan, recorded_rows(Path(plan.replay.rows).expanduser(), wanted), known)
    else:
        from ...nightly.measuring.fleet import FleetMeasurer

        measurer = FleetMeasurer(plan, known, [path.read_text(encoding="utf-8") for path in device_files or ()])
    return NightSetup(plan, measurer, known, tuple(device_files or ()), time.monotonic() - began)


def _with_stand_in(known: Catalogue) -> Catalogue:
    """The catalogue with a measured CPU in place of this machine's, which no device file is of."""
    console.note(
        f"no device file is of this CPU ({machine_id()}); the night first characterises it, half a minute or more"
    )
    like = next(device for device in known if device.kind == "cpu" and device.measured)
    return Catalogue((replace(like, name=machine_id(), aliases=(), measured={}),))


def characterise_cpu() -> None:
    """Write the device file of this machine's CPU, which no device file is of, and its descriptor for nights to come.

    Raises:
        SpecError: too little could be measured to say what the machine can do, or the file cannot be written.
    """
    from ...nightly.stages.device import write_descriptor

    path, measured = new_cpu()
    write_descriptor(machine_id(), measured)
    _note_device_file(path)


def characterise_gpu(known: Catalogue) -> None:
    """Write the device file of this machine's GPU, which no device file is of.

    Raises:
        SpecError: too little could be measured to say what the GPU can do, or the file cannot be written.
    """
    _note_device_file(new_gpu(known))


def _note_device_file(path: Path) -> None:
    console.note(f"its device file is {path}; every command knows it from now on")
