"""What an actor measures with on its own node: the machine's facts, its state, and the collectors that exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ...datasets.rows.schema import to_row
from ...datasets.store.store import Store, StoreError
from ...features.device import (
    Catalogue,
    Device,
    known_by,
    known_machine,
    machine_id,
    machine_name,
    parse_device,
)
from ...features.errors import SpecError
from ...features.spec_io.rows import spec_from_row
from ...files import home_dir
from ...process import ChildStartError
from ..campaign import CampaignError
from ..collector import Collector, WorkerLostError
from ..cpu.worker import local_workers
from ..gpu.kernels.compile_ahead import cache_environment
from ..gpu.measure.worker import GpuCollector, GpuWorkerOptions
from ..host import machine_facts, source_hash, state_facts
from ..meters.find import GpuReader, gpu_facts, gpu_reader, gpu_state
from ..meters.protocol import SensorMissingError


@dataclass(frozen=True, slots=True)
class Request:
    """Which device an actor takes.

    Attributes:
        device: Its name.
        index: Its number among those of the same name on the node.
        lock_s: How long the actor waits for the lock, in seconds.
        device_files: Device files beside the catalogue's own.
        maker: Import path, `package.module:function`, of what turns this request into a `LocalDevice`.
    """

    device: str
    index: int = 0
    lock_s: float = 10.0
    device_files: tuple[str, ...] = ()
    maker: str = "kernelcast.collectors.fleet.actor:open_local"


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device of this machine, ready to be measured.

    Attributes:
        facts: What stays the same over a campaign: `host.machine_facts` and more; plain JSON.
        state: Reads what changes from block to block; plain JSON.
        collector: Makes the collector of an impl and thread count.
    """

    facts: Mapping[str, Any]
    state: Callable[[], Mapping[str, Any]]
    collector: Callable[[str, int], Collector]


class NotThatDeviceError(Exception):
    """The machine has another device than its label says; the message is one sentence."""


def maker_at(path: str) -> Callable[[Request], LocalDevice]:
    """The function at `package.module:function`."""
    module, _, name = path.partition(":")
    maker: Callable[[Request], LocalDevice] = getattr(import_module(module), name)
    return maker


def open_local(request: Request) -> LocalDevice:
    """The device of this machine that `request` names, checked to be that one.

    Raises:
        NotThatDeviceError: it is another one.
        CampaignError: the GPU's worker does not start, or sees another one.
        SpecError: the device is in no catalogue here.
    """
    known = Catalogue(
        extra=tuple(parse_device(text, origin="the driver's --device-file") for text in request.device_files)
    )
    device = known.get(request.device)
    if device.kind == "cpu":
        check_cpu(device, known)
        return LocalDevice(machine_facts(device.name), state_facts, local_workers(device.name))
    return _open_gpu(device, request.index, known)


def _open_gpu(device: Device, index: int, known: Catalogue) -> LocalDevice:
    reader = check_gpu(device, index, known)
    options = GpuWorkerOptions(device.name, index, l3_b=device.fact("l3_b") or 0.0)
    collector = GpuCollector(options, env=cache_environment(home_dir() / "compiled"))
    collector.start(device)
    return LocalDevice(machine_facts(device.name) | {"gpu": gpu_facts(reader)}, partial(gpu_state, reader), collector)


def check_cpu(device: Device, known: Catalogue) -> None:
    """That this machine's processor is `device`.

    Raises:
        NotThatDeviceError: it is another one, or in no device file.
    """
    _check_same(device, known_machine(known), f"its processor ({machine_name()}, {machine_id()})")


def check_gpu(device: Device, index: int, known: Catalogue) -> GpuReader:
    """That GPU `index` of this machine is `device`; what reads its board.

    Raises:
        NotThatDeviceError: it is another one, in no device file, or the driver does not say.
    """
    try:
        reader = gpu_reader(index)
    except SensorMissingError as missing:
        raise NotThatDeviceError(f"the node is labelled {device.name}, but {missing}") from missing
    name = reader.name()
    actual = None if name is None else known_by(name, known)
    _check_same(device, actual, f"GPU {index} calls itself {name!r}, which")
    return reader


def _check_same(device: Device, actual: Device | None, what: str) -> None:
    if actual is None or actual.name != device.name:
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but {what} is {'in no device file' if actual is None else actual.name}; "
            "start it with the line that `kernelcast measure fleet start` prints there"
        )


class DeviceActor:
    """One device of this node. Its methods run one at a time, on the process's main thread.

    That matters: a child asks the kernel to be killed when the thread that started it ends (`process.py`), so with the
    actor end its children, however it ends.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = Request(**{**request, "device_files": tuple(request["device_files"])})
        self._locks = ExitStack()
        self._collectors: dict[tuple[str, int], Collector] = {}
        self._local: LocalDevice | None = None

    def open(self) -> dict[str, Any]:
        """Take the lock and check the device: `{"facts", "source_hash"}`, or `{"refused": why}`."""
        request = self._request
        try:
            # The lock that `kernelcast measure cpu` takes on this machine; a killed actor's may be held a moment longer.
            name = request.device if request.index == 0 else f"{request.device}.{request.index}"
            self._locks.enter_context(Store().lock(name, request.lock_s))
            self._local = maker_at(request.maker)(request)
        except (StoreError, NotThatDeviceError, CampaignError, SpecError, ImportError) as error:
            self._locks.close()
            return {"refused": str(error)}
        return {"facts": dict(self._local.facts), "source_hash": source_hash()}

    def state(self) -> dict[str, Any]:
        """The machine's state now."""
        return dict(self._opened().state())

    def measure(self, key: tuple[str, int], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Rows of a chunk, `{"rows", "facts"}`, with `{"lost": {...}}` or `{"not_started": why}` where its worker failed."""
        key = (key[0], key[1])
        if key not in self._collectors:
            self._collectors[key] = self._opened().collector(*key)
        collector = self._collectors[key]
        reply: dict[str, Any] = {"rows": []}
        try:
            reply["rows"] = [to_row(row) for row in collector.collect([spec_from_row(row) for row in rows])]
        except WorkerLostError as lost:
            reply["lost"] = {"status": lost.status, "case_id": lost.case_id, "message": str(lost)}
        except ChildStartError as error:
            reply |= {"rows": [to_row(row) for row in error.rows], "not_started": str(error)}
        return reply | {"facts": dict(collector.facts())}

    def close(self) -> None:
        """Kill the children and let go of the device."""
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()
        self._locks.close()

    def _opened(self) -> LocalDevice:
        if self._local is None:
            raise RuntimeError("the actor measures only after it has taken its device")
        return self._local
