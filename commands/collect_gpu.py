"""`kernelcast collect-gpu`: the standing campaign on this machine's GPU, within a budget of minutes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError
from ..features.kernel import get_family
from .collected import tell
from .console import DeviceFiles, Json, need_extra, note, print_json, progress_bar, read_catalogue
from .store_option import store_errors
from .this_gpu import this_gpu
from .this_machine import named

if TYPE_CHECKING:
    from ..features.device import Device


def collect_gpu(
    minutes: Annotated[float, typer.Option(min=0.5, max=1440, help="Minutes in all.")] = 9.0,
    energy_minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Minutes of those for energy (default: a third).")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR|URL", help="Where rows go; default: KERNELCAST_HOME/measurements."),
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Most cases of latency, and most of energy.")] = None,
    families: Annotated[str, typer.Option(help="Kernel families with commas between; default: all.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds and equal rows so far give equal plans.")] = 0,
    index: Annotated[int, typer.Option(min=0, help="Which GPU, as CUDA counts.")] = 0,
    device: Annotated[str | None, typer.Option(help="Catalogue name of the GPU; default: by its own name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be measured; needs no GPU.")] = False,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Measure the cases worth most on this machine's GPU; short runs add up, each goes on where the rows so far end."""
    energy = minutes / 3 if energy_minutes is None else energy_minutes
    if energy > minutes:
        raise SpecError(f"--energy-minutes is {energy:g}, more than --minutes, {minutes:g}", field="energy_minutes")
    wanted = [word.strip() for word in families.split(",") if word.strip()]
    for name in wanted:
        get_family(name)
    known = read_catalogue(device_file)
    if dry_run:
        if device is None:
            raise SpecError("--dry-run plans for a device of the catalogue; name it with --device", field="device")
        _show_plan(named(device, "gpu", known), out, minutes, seed, rows, wanted, as_json)
        return
    found, reader = this_gpu(device, index, known)
    try:
        from ..collectors.campaign import CampaignError
        from ..collectors.gpu.campaign import GpuBudget, run_gpu_campaign
        from ..datasets.checks import catalogue_bounds
        from ..datasets.store import Store, StoreError

        measured = Store(out, lower_bounds=partial(catalogue_bounds, known=known))
        with measured.lock(found.name):
            done = run_gpu_campaign(
                measured, found, reader, GpuBudget(60 * minutes, 60 * energy, rows), seed=seed, index=index, families=wanted,
                progress=lambda phase: _phase_bar(f"{phase} on {found.name}"),
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("collect-gpu", "gpu", error) from error
    except (CampaignError, StoreError) as error:
        raise SpecError(str(error)) from error
    tell(done, measured.root_name, as_json)


@contextmanager
def _phase_bar(phase: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is seldom drawn, since what is drawn disturbs what is measured; one line where stderr is no terminal."""
    if sys.stderr.isatty():
        from ..collectors.progress import progress_bar as seldom_drawn

        with seldom_drawn(phase) as advance:
            yield advance
        return
    with progress_bar() as show:
        yield partial(show, phase)


def _show_plan(
    device: Device, out: str | None, minutes: float, seed: int, rows: int | None, families: list[str], as_json: bool
) -> None:
    from ..collectors.gpu.campaign import latency_plan, measured_specs
    from ..datasets.store import Store

    with store_errors():
        known = measured_specs(Store(out), device.name)
    planned = latency_plan(60 * minutes, seed, known.all, device, families)[:rows]
    counts = Counter((spec.family, spec.impl, spec.dtype) for spec in planned)
    if as_json:
        print_json([{"family": f, "impl": i, "dtype": d, "cases": n} for (f, i, d), n in sorted(counts.items())])
        return
    for (family, impl, dtype), count in sorted(counts.items()):
        print(f"{family:12} {impl:16} {dtype:6} {count:6}")  # noqa: T201 - the answer
    note(f"{len(planned)} cases planned, {len(known.all)} of {device.name} are measured already")
