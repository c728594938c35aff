"""The actor that holds one device: it keeps the device's lock, measures chunks in child processes, and answers plain JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ...datasets.schema import spec_of, to_row
from ...datasets.store import Store, StoreError
from ...features.errors import SpecError
from ..environment import source_hash
from ..pipe import WorkerStartError
from ..process import Collector, WorkerLostError
from .identity import NotThatDeviceError
from .local import LocalDevice, Request, maker_at

_LOCK_POLL_S = 0.2


class DeviceActor:
    """One device of this node. Its methods run one at a time, on the process's main thread.

    That matters: a child asks the kernel to be killed when the thread that started it ends (`collectors.child`), so with the
    actor end its children, however it ends.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = Request(**{**request, "device_files": tuple(request["device_files"])})
        self._held = ExitStack()
        self._collectors: dict[tuple[str, int], Collector] = {}
        self._local: LocalDevice | None = None

    def open(self) -> dict[str, Any]:
        """Take the lock and check the device: `{"facts", "source_hash"}`, or `{"refused": why}`."""
        request = self._request
        try:
            self._lock()
            self._local = maker_at(request.maker)(request)
        except (StoreError, NotThatDeviceError, WorkerStartError, SpecError, ImportError) as error:
            self._held.close()
            return {"refused": str(error)}
        return {"facts": dict(self._local.facts()), "source_hash": source_hash()}

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
            reply["rows"] = [to_row(row) for row in collector.collect([spec_of(row) for row in rows])]
        except WorkerLostError as lost:
            reply["lost"] = {"status": lost.status, "case_id": lost.case_id, "message": str(lost)}
        except WorkerStartError as error:
            reply |= {"rows": [to_row(row) for row in error.rows], "not_started": str(error)}
        return reply | {"facts": dict(collector.facts())}

    def close(self) -> None:
        """Kill the children and let go of the device."""
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()
        self._held.close()

    def _opened(self) -> LocalDevice:
        if self._local is None:
            raise RuntimeError("the actor measures only after it has taken its device")
        return self._local

    def _lock(self) -> None:
        """Hold the lock that `kernelcast collect` takes on this machine; a killed actor's may be held a moment longer."""
        request, until = self._request, time.monotonic() + self._request.lock_s
        name = request.device if request.index == 0 else f"{request.device}.{request.index}"
        while True:
            try:
                self._held.enter_context(Store().lock(name))
            except StoreError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_LOCK_POLL_S)
            else:
                return
