"""What an actor measures with on its own node: the machine's facts, its state, and the collectors that exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from ...features.device import Catalogue, Device, parse_device
from ...home import home_dir
from ..environment import machine_facts, state_facts
from ..gpu.ahead import cache_environment
from ..gpu.nvml import gpu_facts, gpu_state
from ..gpu.process import GpuCollector
from ..gpu.worker import GpuWorkerOptions
from ..pipe import WorkerStartError
from ..process import Collector, local_workers
from .identity import NotThatDeviceError, check_cpu, check_gpu


@dataclass(frozen=True, slots=True)
class Request:
    """Which device an actor is to hold, how long it waits for the lock, and device files beside the catalogue's own.

    `maker` is the import path, `package.module:function`, of what turns this request into a `LocalDevice`.
    """

    device: str
    index: int = 0
    lock_s: float = 10.0
    device_files: tuple[str, ...] = ()
    maker: str = "kernelcast.collectors.fleet.local:open_local"


class LocalDevice(Protocol):
    """A device of this machine, ready to be measured."""

    def facts(self) -> Mapping[str, Any]:
        """What stays the same over a campaign: `environment.machine_facts` and more; plain JSON."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What changes from block to block; plain JSON."""
        ...

    def collector(self, impl: str, threads: int) -> Collector:
        """A new collector for this impl and thread count."""
        ...


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A `LocalDevice` of three functions and its facts."""

    known_facts: Mapping[str, Any]
    read_state: Callable[[], Mapping[str, Any]]
    make: Callable[[str, int], Collector]

    def facts(self) -> Mapping[str, Any]:
        """See `LocalDevice`."""
        return self.known_facts

    def state(self) -> Mapping[str, Any]:
        """See `LocalDevice`."""
        return self.read_state()

    def collector(self, impl: str, threads: int) -> Collector:
        """See `LocalDevice`."""
        return self.make(impl, threads)


def maker_at(path: str) -> Callable[[Request], LocalDevice]:
    """The function at `package.module:function`."""
    module, _, name = path.partition(":")
    maker: Callable[[Request], LocalDevice] = getattr(import_module(module), name)
    return maker


def open_local(request: Request) -> LocalDevice:
    """The device of this machine that `request` names, checked to be that one.

    Raises:
        NotThatDeviceError: it is another one.
        WorkerStartError: the GPU's worker does not start.
        SpecError: the device is in no catalogue here.
    """
    known = Catalogue(
        extra=tuple(parse_device(text, origin="the driver's --device-file") for text in request.device_files)
    )
    device = known.get(request.device)
    if device.kind == "cpu":
        check_cpu(device, known)
        return OpenDevice(machine_facts(device.name), state_facts, local_workers(device.name))
    return _open_gpu(device, request.index, known)


def _open_gpu(device: Device, index: int, known: Catalogue) -> LocalDevice:
    reader = check_gpu(device, index, known)
    collector = GpuCollector(GpuWorkerOptions(device.name, index), env=cache_environment(home_dir() / "compiled"))
    try:
        ready = collector.start()
    except WorkerStartError:
        collector.close()
        raise
    units, wanted = ready.get("compute_units"), device.required("compute_units")
    if units is not None and units != wanted:
        collector.close()
        raise NotThatDeviceError(
            f"the GPU has {units} compute units, and {device.name} has {wanted:g}: it is another device"
        )
    return OpenDevice(machine_facts(device.name) | {"gpu": gpu_facts(reader)}, partial(gpu_state, reader), collector)
