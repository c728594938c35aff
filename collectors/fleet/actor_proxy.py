"""The driver's side of one actor: start it, hand it chunks with a deadline, and replace it when it is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from ...datasets.rows.schema import Measurement, from_row
from ...features.kernel import KernelSpec
from ...features.spec_io.rows import spec_row
from ...process import ChildStartError
from ..collector import WorkerLostError
from ..host import source_hash
from .actor import DeviceActor, Request
from .cluster import Instance, is_alive, is_held, label

_POLL_S = 0.5
_FREE_POLL_S = 0.1
_STATE_S = 10.0
_BROKEN = ("timeout", "crashed")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the driver waits, in seconds. Workers notice a case that hangs by themselves after 30 s (CPU) or 40 s (GPU),
    so a chunk's limit catches an actor or a machine that hangs.

    Attributes:
        start_s: For an actor to start and take its device.
        busy_s: For a device that another campaign on this cluster holds.
        lock_s: For a device that is locked on its node.
        cluster_s: Without a sign of the cluster's first node, until the campaign ends: Ray would end its process after 60
            s.
        chunk_s: For a chunk,
        case_s: and for each of its cases in addition.
        losses: Losses in a row after which a device is given up.
    """

    start_s: float = 240.0
    busy_s: float = 60.0
    lock_s: float = 10.0
    cluster_s: float = 15.0
    chunk_s: float = 120.0
    case_s: float = 15.0
    losses: int = 5

    def chunk(self, cases: int) -> float:
        """The deadline of a chunk."""
        return self.chunk_s + self.case_s * cases


PATIENCE = Patience()


class DeviceGoneError(Exception):
    """The device is of no more use to this campaign; the message says why."""


class RefusedError(DeviceGoneError):
    """The device cannot be taken at all: another campaign holds it, or it is not what its label says."""


@dataclass(slots=True)
class RemoteDevice:
    """One device of the fleet, used by one thread of the driver.

    Attributes:
        ray: The module, connected to the cluster.
        instance: Which device of which node.
        request: What the actor is asked to open.
        patience: How long to wait for what.
        stopped: Whether waiting is to be given up.
        answers: Whether the cluster can be asked something now.
        facts: What the actor says of the device and its node.
        in_hand: Cases that are being measured.
        losses: Losses so far.
        in_a_row: Losses since the last chunk that was measured.
    """

    ray: Any
    instance: Instance
    request: Request
    patience: Patience
    stopped: Callable[[], bool]
    answers: Callable[[], bool]
    facts: Mapping[str, Any] = field(default_factory=dict)
    in_hand: Sequence[KernelSpec] = ()
    losses: int = 0
    in_a_row: int = 0
    _actor: Any = None
    _busy: bool = False
    _last_state: Mapping[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Start an actor on the device's node, and have it take the device.

        Raises:
            RefusedError: the device is held, or is another one.
            DeviceGoneError: its node is dead, or the actor does not start.
            KeyboardInterrupt: the campaign is being stopped.
        """
        self._wait_for_device()
        affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.instance.node_id, soft=False)
        self._actor = self.ray.remote(DeviceActor).options(
            resources={label(self.instance.device): 1}, num_cpus=0, max_restarts=0, scheduling_strategy=affinity,
        ).remote(asdict(self.request))  # fmt: skip
        try:
            opened = self._waited(self._actor.open.remote())
        except BaseException:
            self._kill()
            raise
        if "refused" in opened:
            self._kill()
            raise RefusedError(f"{self.instance}: {opened['refused']}")
        if opened["source_hash"] != source_hash():
            self._kill()
            raise RefusedError(
                f"{self.instance}: its kernelcast measures by other code than the driver's; install the same one"
            )
        self.facts = opened["facts"]

    def _wait_for_device(self) -> None:
        """Until some device of this name is free: Ray would keep an actor for one that is held waiting for ever."""
        began = time.monotonic()
        self._check_going_on()
        while is_held(self.ray, self.instance.device):
            if time.monotonic() - began > self.patience.busy_s:
                raise RefusedError(
                    f"{self.instance}: another campaign on this cluster holds it; wait for it or stop it"
                )
            time.sleep(_FREE_POLL_S)
            self._check_going_on()

    def _check_going_on(self) -> None:
        if self.stopped():
            raise KeyboardInterrupt
        self._check_alive("is dead")

    def _check_alive(self, words: str) -> None:
        if not self.answers():
            raise DeviceGoneError("the cluster does not answer any more")
        if not is_alive(self.ray, self.instance.node_id):
            raise DeviceGoneError(f"the node {self.instance.host} {words}")

    def _waited(self, ref: Any) -> Any:
        """The answer of an actor that is starting."""
        began, longest_s = time.monotonic(), self.patience.start_s
        while not self.ray.wait([ref], timeout=_POLL_S)[0]:
            self._check_going_on()
            if time.monotonic() - began > longest_s:
                raise DeviceGoneError(f"no actor starts on {self.instance.host} within {longest_s:g} s")
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self._check_alive("is dead")
            raise DeviceGoneError(f"the node {self.instance.host} starts no actor: {_words(error)}") from error

    def measure(self, key: tuple[str, int], specs: Sequence[KernelSpec]) -> tuple[list[Measurement], Mapping[str, Any]]:
        """Rows of a chunk, and what its collector says of itself.

        Raises:
            WorkerLostError: the worker or the whole actor was lost; another one is ready.
            ChildStartError: the worker cannot start there.
            DeviceGoneError: the node is dead, or too many losses came in a row.
            KeyboardInterrupt: the campaign is being stopped.
        """
        if self.stopped():
            raise KeyboardInterrupt
        self.in_hand = specs
        reply = self._reply(key, specs)
        rows = [from_row(row) for row in reply["rows"]]
        self._check(rows, specs)
        if "lost" in reply:
            lost = reply["lost"]
            self._count_losses(1, lost["message"])
            raise WorkerLostError(lost["status"], lost["case_id"], lost["message"])
        if "not_started" in reply:
            raise ChildStartError(f"{self.instance}: {reply['not_started']}", rows)
        broken = [row for row in rows if row.status in _BROKEN]
        if len(broken) < len(rows):
            self.in_a_row = 0
        else:
            self._count_losses(len(broken), (broken[-1].message or "") if broken else "no rows")
        self.in_hand = ()
        return rows, reply["facts"]

    def state(self) -> Mapping[str, Any]:
        """The machine's state now; the last one known, marked as such, where it does not answer."""
        # An actor answers one call after the other: one that still measures, or hangs, would keep us waiting.
        if self._actor is None or self._busy:
            return {**self._last_state, "stale": True}
        try:
            self._last_state = self.ray.get(self._actor.state.remote(), timeout=_STATE_S)
        except self.ray.exceptions.RayError:
            return {**self._last_state, "stale": True}
        return self._last_state

    def close(self) -> None:
        """End the actor and its workers."""
        if self._actor is not None and not self._busy:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.get(self._actor.close.remote(), timeout=_STATE_S)
        self._kill()

    def _reply(self, key: tuple[str, int], specs: Sequence[KernelSpec]) -> Mapping[str, Any]:
        deadline_s = self.patience.chunk(len(specs))
        until = time.monotonic() + deadline_s
        self._busy = True
        try:
            ref = self._actor.measure.remote(key, [spec_row(spec) for spec in specs])
            while not self.ray.wait([ref], timeout=max(0.0, min(_POLL_S, until - time.monotonic())))[0]:
                if self.stopped():
                    raise KeyboardInterrupt
                if time.monotonic() >= until:
                    self._replace("timeout", f"the actor gave no answer for {deadline_s:g} s and was killed")
            reply: Mapping[str, Any] = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self._replace("crashed", _words(error))
        self._busy = False
        return reply

    def _replace(self, status: Any, words: str) -> NoReturn:
        """Kill what is left of the actor, start another, and say what was lost."""
        self._kill()
        self._check_alive("died")
        self._count_losses(1, words)
        self.start()
        raise WorkerLostError(status, None, words)

    def _count_losses(self, count: int, words: str) -> None:
        self.losses += count
        self.in_a_row += count
        if self.in_a_row >= self.patience.losses:
            raise DeviceGoneError(f"quarantined after {self.in_a_row} losses in a row, the last: {words}")

    def _check(self, rows: Sequence[Measurement], specs: Sequence[KernelSpec]) -> None:
        wanted = {spec.case_id for spec in specs}
        for row in rows:
            if row.device != self.instance.device or row.case_id not in wanted:
                raise DeviceGoneError(
                    f"quarantined: it answered with a row of {row.device}, case {row.case_id}, that was not asked of it"
                )

    def _kill(self) -> None:
        # Nodes that lose their cluster end their actors by themselves.
        if self._actor is not None and self.answers():
            self.ray.kill(self._actor, no_restart=True)
        self._actor, self._busy = None, False


def _words(error: BaseException) -> str:
    """The telling line of one of Ray's messages, which run over many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


class RemoteCollector:
    """The collector of one worker of a remote device, for `run_campaign`."""

    def __init__(self, remote: RemoteDevice, impl: str, threads: int) -> None:
        self._remote, self._key = remote, (impl, threads)
        self._facts: Mapping[str, Any] = {}

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order."""
        rows, self._facts = self._remote.measure(self._key, specs)
        return rows

    def facts(self) -> Mapping[str, Any]:
        """What the remote collector says of itself."""
        return self._facts

    def close(self) -> None:
        """The actor ends with its device, not with a portion."""
