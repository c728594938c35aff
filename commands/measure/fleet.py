"""`kernelcast measure fleet …`: the measuring campaign on the machines of a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.device import known_machine
from ...features.errors import SpecError
from .. import console
from .collect import cpu_plan, tell
from .this_machine import this_gpu

if TYPE_CHECKING:
    from ...datasets.store.store import Store
    from ...features.device import Catalogue, Device
    from ...features.kernel import KernelSpec

app = typer.Typer(help="Measure on many machines at once, on Ray.", no_args_is_help=True, add_completion=False)

Address = Annotated[
    str, typer.Option(envvar="RAY_ADDRESS", metavar="HOST:PORT", help="The cluster; this machine is one of its nodes.")
]


@app.command()
def start(
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The cluster's first node; default: this is the first.")
    ] = None,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="Where the first node listens.")] = 6379,
    device: Annotated[
        list[str] | None, typer.Option(help="Device of this machine; may be given again. Default: by its own name.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many GPUs of this machine take part.")] = 1,
    device_file: console.DeviceFiles = None,
) -> None:
    """Print the `ray start` line that adds this machine, with the devices it has, to a cluster."""
    from ...collectors.fleet.cluster import start_line

    known = console.read_catalogue(device_file)
    if device:
        own_devices = {known.get(name).name: gpus if known.get(name).kind == "gpu" else 1 for name in device}
    else:
        own_devices = _own_devices(known, gpus)
    print(start_line(own_devices, address, port))  # noqa: T201 - the answer


@app.command()
def devices(address: Address = "", as_json: console.Json = False) -> None:
    """List the devices of a cluster's nodes."""
    with console.plain_errors("measure fleet", "fleet"):
        from ...collectors.fleet.cluster import connect, instances

        devices = instances(connect(_checked_address(address)))
    if as_json:
        console.print_json(devices)
        return
    for instance in devices:
        print(f"{instance.device:40} {instance.host:30} {instance.index}")  # noqa: T201 - the answer
    console.note(f"{len(devices)} devices")


@app.command()
def run(
    address: Address = "",
    device: Annotated[
        list[str] | None, typer.Option(help="Measure on devices of this name; may be given again. Default: on all.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Cases of each device name.")] = 2000,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Begin nothing new after this many minutes.")] = None,
    families: console.Families = "",
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal plans.")] = 0,
    store: console.RowsTo = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure on every device of the cluster and store every row here; run again to resume."""
    known = console.read_catalogue(device_file)
    wanted = [known.get(name).name for name in device or ()]
    with console.plain_errors("measure fleet", "fleet"):
        from ...collectors.fleet.cluster import connect, instances
        from ...collectors.fleet.driver import run_fleet
        from ...datasets.rows.checks import catalogue_bounds
        from ...datasets.store.store import Store

        measured = Store(store, lower_bounds=partial(catalogue_bounds, known=known))
        names = wanted or sorted({instance.device for instance in instances(connect(_checked_address(address)))})
        cases = {name: _plan(known.get(name), measured, rows, minutes, seed, families) for name in names}
        with _bars() as progress:
            done = run_fleet(
                cases, store=measured, address=address, known=known, progress=progress, note={"campaign_seed": seed},
                until=None if minutes is None else time.monotonic() + 60 * minutes,
                device_files=[path.read_text() for path in device_file or ()],
            )  # fmt: skip
    tell(done, measured.location.name, as_json)


def _checked_address(address: str) -> str:
    if not address:
        raise SpecError(
            "name the cluster with --address HOST:PORT; `kernelcast measure fleet start` prints how to start one"
        )
    return address


def _own_devices(known: Catalogue, gpus: int) -> dict[str, int]:
    """The devices of this machine that the catalogue knows, the GPU before the CPU.

    Raises:
        SpecError: there is none.
    """
    devices: dict[str, int] = {}
    try:
        devices[this_gpu(None, 0, known)[0].name] = gpus
    except SpecError as error:
        console.note(f"no GPU: {error}")
    cpu = known_machine(known)
    # A node measures one thing at a time: its GPU's host must be quiet.
    if cpu is not None and not devices:
        devices[cpu.name] = 1
    if not devices:
        raise SpecError(
            "neither this machine's GPU nor its CPU is in a device file; make one with `kernelcast measure machine --out "
            "my.yaml` and give it with --device-file",
            field="device",
        )
    return devices


def _plan(
    device: Device, store: Store, rows: int, minutes: float | None, seed: int, families: str
) -> Sequence[KernelSpec]:
    """What `measure cpu` or `measure gpu` would measure on this device."""
    if device.kind == "gpu":
        from ...collectors.gpu.campaign import SECONDS_PER_CASE, latency_plan, measured_specs

        known = measured_specs(store, device.name)
        budget_s = 60 * minutes if minutes is not None else rows * SECONDS_PER_CASE
        return latency_plan(budget_s, seed, known.all, device, console.words(families))[:rows]
    return cpu_plan(families, rows, seed, sorted({1, int(device.required("compute_units"))}))


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each device name, redrawn once a second; a line at every tenth where stderr is no terminal."""
    if not sys.stderr.isatty():
        tenths: dict[str, int] = {}

        def line(device: str, done: int, total: int) -> None:
            tenth = 10 * done // max(total, 1)
            if tenths.get(device) != tenth:
                tenths[device] = tenth
                console.note(f"{device}: {done}/{total}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as bar:
        tasks = {}

        def draw(device: str, done: int, total: int) -> None:
            if device not in tasks:
                tasks[device] = bar.add_task(device, total=total)
            bar.update(tasks[device], completed=done, total=total)

        yield draw
