"""The driver of a fleet: one thread and one actor per device, one store.

    cases by device name -> portions -> run_campaign, a thread per device -> chunks -> actor -> rows -> blocks -> store

Each thread runs the very campaign of one machine (`collectors.kernel_campaign`), with the actor in the place of its workers:
blocks, sentinels, second tries and cases that lose a worker are handled alike.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...datasets.rows.schema import Measurement, Provenance
from ...datasets.store.store import Store, StoreError
from ...features.device import Catalogue, catalogue
from ...features.kernel import KernelSpec
from ...process import ChildStartError
from ..campaign import CampaignError, terminate_as_interrupt, why_not_stored
from ..collector import PACE, Pace
from ..gpu.campaign import LATENCY_PACE
from ..gpu.campaign import SENTINELS as GPU_SENTINELS
from ..kernel_campaign import SENTINEL_CASES, run_campaign, store_sink
from .actor import Request
from .actor_proxy import PATIENCE, DeviceGoneError, Patience, RefusedError, RemoteCollector, RemoteDevice
from .case_pool import Pool, gathered
from .cluster import FleetError, Instance, Watch, address_of, connect, disconnect, instances

FleetProgress = Callable[[str, int, int], None]
"""Called with a device name, its cases finished and in all."""

TIME_OVER = "the time is over"
"""Why cases were left where nothing went wrong (`FleetSummary.why_left`)."""

_POLL_S = 0.1
_LAST_S = 30.0
"""How long the devices of a lost cluster may take to hand over what they have; Ray ends the process after 60 s without it."""


@dataclass(frozen=True, slots=True)
class Method:
    """How devices of one kind are measured.

    Attributes:
        pace: Sizes of chunks and blocks.
        sentinels: Cases read between blocks.
    """

    pace: Pace
    sentinels: tuple[KernelSpec, ...]


METHODS: Mapping[str, Method] = {"cpu": Method(PACE, SENTINEL_CASES), "gpu": Method(LATENCY_PACE, GPU_SENTINELS)}


def run_fleet(
    cases: Mapping[str, Sequence[KernelSpec]], *, store: Store, address: str | None, until: float | None = None,
    known: Catalogue | None = None, device_files: Sequence[str] = (), maker: str | None = None,
    methods: Mapping[str, Method] = METHODS, patience: Patience = PATIENCE, progress: FleetProgress | None = None,
    note: Mapping[str, Any] | None = None,
) -> FleetSummary:  # fmt: skip
    """Measure on every device of the cluster that `cases` names, and store every row.

    Args:
        cases: device name to what is measured on it, in order; what the store has is skipped.
        store: where rows go; only this process writes to it.
        address: the cluster, `HOST:PORT`; this machine is one of its nodes. None: what the variable RAY_ADDRESS says.
        until: a time of `time.monotonic()` after which no further chunk is begun.
        known: the catalogue; default: the shipped one.
        device_files: texts of device files that the nodes need beside their own catalogue.
        maker: import path of what opens a device on its node, see `local.Request`; default: the real ones.
        methods: by kind of device.
        patience: deadlines.
        progress: told after every chunk.
        note: facts added to every block's provenance.

    Returns:
        What was done. Ctrl-C and SIGTERM also end here: what is measured is stored, the actors are ended.

    Raises:
        FleetError: no cluster, no device of it is named by `cases`, or none of them could be taken.
        CampaignError: nothing can be stored, or the cluster's first node is gone; rows stored before stay.
        SpecError: a device is in no catalogue.
        ImportError: Ray is not installed.
    """
    catalogue_used = known or catalogue()
    methods_of = {device: methods[catalogue_used.get(device).kind] for device in cases}
    ray = connect(address)
    instances_used = [instance for instance in instances(ray) if instance.device in cases]
    if not instances_used:
        labels = ", ".join(sorted({instance.device for instance in instances(ray)})) or "none"
        raise FleetError(f"the cluster has no {' or '.join(sorted(cases))}; devices of its nodes: {labels}")
    fleet = _Fleet(ray, store, Watch(address_of(address), patience.cluster_s), until, progress, dict(note or {}))
    base = Request("", device_files=tuple(device_files), lock_s=patience.lock_s)
    base = base if maker is None else replace(base, maker=maker)
    began = time.monotonic()
    for device, specs in cases.items():
        count = sum(instance.device == device for instance in instances_used)
        fleet.add(device, specs, methods_of[device], count)
    device_threads = [
        _DeviceThread(fleet, instance, methods_of[instance.device],
              replace(base, device=instance.device, index=instance.index), patience)
        for instance in instances_used
    ]  # fmt: skip
    with terminate_as_interrupt(), fleet.watch:
        fleet.work(device_threads)
    if device_threads and all(device_thread.refused for device_thread in device_threads):
        raise FleetError("; ".join(str(device_thread.ended) for device_thread in device_threads))
    return fleet.summary(device_threads, time.monotonic() - began)


@dataclass(slots=True)
class _Fleet:
    """What the device_threads share: the store, the pools, the wish to stop."""

    ray: Any
    store: Store
    watch: Watch
    until: float | None
    progress: FleetProgress | None
    note: Mapping[str, Any]
    pools: dict[str, Pool] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    stored: dict[str, Counter[str]] = field(default_factory=dict)
    unstored: dict[Instance, int] = field(default_factory=dict)
    interrupted: bool = False
    failure: CampaignError | None = None
    refusal: OSError | StoreError | None = None
    refused_rows: int = 0
    writing: threading.Lock = field(default_factory=threading.Lock)

    def add(self, device: str, specs: Sequence[KernelSpec], method: Method, devices: int) -> None:
        """Take on the cases of a device name, each once, those stored already left out."""
        there = self.store.case_ids(device)
        unique = {spec.case_id: spec for spec in specs}
        left = [spec for case, spec in unique.items() if case not in there]
        todo = gathered(left, method.pace.block_cases)
        self.pools[device] = Pool(todo, method.pace.block_cases, devices)
        self.totals[device], self.skipped[device] = len(todo), len(unique) - len(todo)
        self.stored[device] = Counter()

    def stopped(self) -> bool:
        """Whether nothing new is to be begun."""
        return self.interrupted or self.failure is not None or self.watch.lost

    def work(self, device_threads: Sequence[_DeviceThread]) -> None:
        """Run all device_threads to their end; a first Ctrl-C has them store what they hold, a second ends at once."""
        for device_thread in device_threads:
            threading.Thread(target=device_thread.run, name=str(device_thread.instance), daemon=True).start()
        try:
            self._wait(device_threads)
        except KeyboardInterrupt:
            self.interrupted = True
            self._wait(device_threads)
        for device_thread in device_threads:
            if device_thread.fault is not None:
                raise device_thread.fault
        if any(device_thread.ended for device_thread in device_threads) and not self.watch.answers():
            self.watch.lost = True
            disconnect(self.ray)
        if self.watch.lost or self.failure is not None:
            raise CampaignError(self._why_stopped(), "device" if self.refusal is None else "storage") from self.failure

    def _wait(self, device_threads: Sequence[_DeviceThread]) -> None:
        """Until all have finished. `Thread.join` is no good here: one that Ctrl-C interrupts takes the thread for ended."""
        last: float | None = None
        while not all(device_thread.finished for device_thread in device_threads):
            time.sleep(_POLL_S)
            if self.watch.lost:
                last = last or time.monotonic() + _LAST_S
                if time.monotonic() > last:
                    break

    def _why_stopped(self) -> str:
        rows = sum(count for stored in self.stored.values() for count in stored.values())
        stays = f"{rows} rows are stored and stay"
        again = "run the same command again to go on where this stopped."
        if self.refusal is not None:
            lost = f"the last {self.refused_rows} that were measured are not"
            return f"{why_not_stored(self.refusal)}; {stays}, {lost}. Mend that and {again}"
        if self.watch.lost:
            return f"the cluster at {self.watch.address} does not answer any more; {stays}. Start its nodes again and {again}"
        return str(self.failure)

    def tell(self, instance: Instance, unstored: int) -> None:
        """Draw: a device of this name has so many rows that are not stored yet."""
        with self.writing:
            self.unstored[instance] = unstored
            if self.progress is not None:
                waiting = sum(count for other, count in self.unstored.items() if other.device == instance.device)
                done = sum(self.stored[instance.device].values()) + waiting
                self.progress(instance.device, done, self.totals[instance.device])

    def summary(self, device_threads: Sequence[_DeviceThread], seconds: float) -> FleetSummary:
        """What was done."""
        left = {device: len(pool.left()) for device, pool in self.pools.items()}
        return FleetSummary(
            stored={device: dict(rows) for device, rows in self.stored.items()}, skipped=dict(self.skipped), left=left,
            why_left={device: self._why_left(device, device_threads) for device, count in left.items() if count},
            instances=tuple(each.summary() for each in device_threads), interrupted=self.interrupted, seconds=seconds,
        )  # fmt: skip

    def _why_left(self, device: str, device_threads: Sequence[_DeviceThread]) -> str:
        mine = [each for each in device_threads if each.instance.device == device]
        if not mine:
            return "no node of the cluster has this device"
        if self.interrupted:
            return "it was interrupted"
        if all(device_thread.ended is not None for device_thread in mine):
            return "no device of this name is left"
        if self.until is not None and time.monotonic() >= self.until:
            return TIME_OVER
        return f"{len(self.pools[device].given_up)} were in hand whenever a device was lost"


@dataclass(slots=True)
class _DeviceThread:
    """One device's thread: portions from the pool, each a campaign over the actor."""

    fleet: _Fleet
    instance: Instance
    method: Method
    request: Request
    patience: Patience
    rows: set[str] = field(default_factory=set)
    blocks: int = 0
    losses: int = 0
    ended: str | None = None
    refused: bool = False
    fault: BaseException | None = None
    finished: bool = False

    def run(self) -> None:
        """Work until the pool is empty, the device is gone, or someone stops it; never raises."""
        pool = self.fleet.pools[self.instance.device]
        remote = RemoteDevice(self.fleet.ray, self.instance, self.request, self.patience, self.fleet.stopped,
                              self.fleet.watch.answers)  # fmt: skip
        try:
            if self.fleet.totals[self.instance.device]:
                remote.start()
                while portion := pool.take(self._over):
                    self._measure(pool, portion, remote)
        except DeviceGoneError as gone:
            self.ended, self.refused = str(gone), isinstance(gone, RefusedError) and not self.rows
        except CampaignError as error:
            self.ended = str(error)
            # Where it is the store that fails, it fails for all.
            if not isinstance(error.__cause__, ChildStartError):
                self.fleet.failure = error
        except KeyboardInterrupt:
            self.ended = "interrupted"
        except BaseException as fault:  # noqa: BLE001  raised again in the driver's main thread
            self.fault = fault
            self.fleet.failure = self.fleet.failure or CampaignError(f"{self.instance}: {fault}")
        finally:
            self.losses = remote.losses
            pool.leave()
            remote.close()
            self.finished = True

    def _measure(self, pool: Pool, portion: Sequence[KernelSpec], remote: RemoteDevice) -> None:
        cores, lost = remote.facts.get("cores"), True
        facts = {**remote.facts, **self.fleet.note, "fleet": {
            "node": self.instance.host, "node_id": self.instance.node_id, "index": self.instance.index,
            "ray": self.fleet.ray.__version__,
        }}  # fmt: skip
        try:
            done = run_campaign(
                portion, device=self.instance.device, sink=self._sink, pace=self.method.pace,
                sentinels=self.method.sentinels, collector_for=partial(RemoteCollector, remote), note=facts,
                key_of=partial(_key, int(cores or 1)), state=remote.state, until=self.fleet.until, progress=self._progress(),
            )  # fmt: skip
            lost = False
            if done.interrupted:
                raise KeyboardInterrupt
        finally:
            self.fleet.tell(self.instance, 0)
            left = [spec for spec in portion if spec.case_id not in self.rows]
            pool.give_back(left, device_lost=lost, in_hand=remote.in_hand)

    def _over(self) -> bool:
        until = self.fleet.until
        return self.fleet.stopped() or (until is not None and time.monotonic() >= until)

    def _progress(self) -> Callable[[int, int], None]:
        before = len(self.rows)

        def tell(done: int, total: int) -> None:  # noqa: ARG001  the total here is the portion's
            self.fleet.tell(self.instance, done - (len(self.rows) - before))

        return tell

    def _sink(self, rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement]:
        """Store one block. Files are written beside each other: a slow store must not make other devices wait."""
        try:
            stored_rows = store_sink(self.fleet.store)(rows, provenance) or rows
        except (OSError, StoreError) as error:
            with self.fleet.writing:
                self.fleet.refusal = self.fleet.refusal or error
                self.fleet.refused_rows += len(rows)
            raise
        with self.fleet.writing:
            self.fleet.stored[self.instance.device].update(row.status for row in stored_rows)
            self.fleet.unstored[self.instance] = 0
            self.rows.update(row.case_id for row in stored_rows)
            self.blocks += 1
        return stored_rows

    def summary(self) -> InstanceSummary:
        """What this device did."""
        device, host, index = self.instance.device, self.instance.host, self.instance.index
        return InstanceSummary(device, host, index, len(self.rows), self.blocks, self.losses, self.ended)


def _key(cores: int, spec: KernelSpec) -> tuple[str, int]:
    """What one worker on a machine of so many cores is for."""
    return spec.impl, spec.threads or cores


@dataclass(frozen=True, slots=True)
class InstanceSummary:
    """What one device of one node did.

    Attributes:
        device: Its name.
        node: Host name of the node.
        index: Its number among those of one name there.
        rows: Rows measured.
        blocks: Blocks stored.
        losses: Workers and actors lost.
        ended: Why it stopped early; None where it worked to the end.
    """

    device: str
    node: str
    index: int
    rows: int
    blocks: int
    losses: int
    ended: str | None


@dataclass(frozen=True, slots=True)
class FleetSummary:
    """What a campaign on a fleet did, by device name.

    Attributes:
        stored: Rows stored by status.
        skipped: Cases stored before.
        left: Cases not measured.
        why_left: Why they were not.
        instances: What each device did.
        interrupted: Whether Ctrl-C or SIGTERM ended it.
        seconds: How long it took.
    """

    stored: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]
    left: Mapping[str, int]
    why_left: Mapping[str, str]
    instances: tuple[InstanceSummary, ...]
    interrupted: bool
    seconds: float

    def __str__(self) -> str:
        lines = []
        for device, rows in self.stored.items():
            counts = ", ".join(f"{count} {status}" for status, count in sorted(rows.items())) or "no rows"
            text = f"{device}: {counts}; {self.skipped[device]} skipped as already stored"
            if self.left[device]:
                text += f"; {self.left[device]} cases left ({self.why_left[device]})"
            lines.append(text)
        lines += [f"{part.device} on {part.node}: {part.ended}" for part in self.instances if part.ended is not None]
        end = ", run the same command again for what is left" if any(self.left.values()) else ""
        return "\n".join([*lines, f"{self.seconds:.0f} s on {len(self.instances)} devices{end}"])
