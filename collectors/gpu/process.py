"""The parent's side of the GPU worker: hands it cases, and when it is lost makes a row of that and goes on with the rest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...datasets.schema import Measurement, Status, from_row
from ...features.kernel import KernelSpec
from ..environment import utc_now
from ..pipe import ChildProcess, WorkerStartError
from ..process import spec_row
from .worker import GpuWorkerOptions


def gpu_worker_command(options: GpuWorkerOptions) -> list[str]:
    """The command line of a GPU worker; -P keeps the working directory's folders from shadowing packages."""
    return [sys.executable, "-P", "-m", "kernelcast.collectors.gpu.worker", options.to_json()]


class GpuCollector:
    """A collector over one GPU worker process; serves every impl.

    The worker measures one case at a time and sends each row at once, so a loss has exactly one guilty case: it gets the
    status of the loss, and the rest is measured by a new worker. `energy` maps the ids of cases that get energy to their
    number of windows. `silence_s` is the deadline for one case, `energy_silence_s` for one with energy. After `until`, a time
    of `time.monotonic()`, a loss ends the request: its cases not begun by then have no row.
    """

    def __init__(
        self, options: GpuWorkerOptions, *, energy: Mapping[str, int] | None = None, env: Mapping[str, str] | None = None,
        silence_s: float = 40.0, energy_silence_s: float = 90.0, until: float | None = None,
        command: Callable[[GpuWorkerOptions], list[str]] = gpu_worker_command,
    ) -> None:  # fmt: skip
        self._device, self._energy = options.device, dict(energy or {})
        self._silence_s, self._energy_silence_s, self._until = silence_s, energy_silence_s, until
        self._child = ChildProcess("GPU", command(options), dict(env or {}))
        self.lost = 0

    def __call__(self, impl: str, threads: int) -> GpuCollector:  # noqa: ARG002  one process serves every impl
        """Itself, as `run_campaign`'s `collector_for`."""
        return self

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started, and how many were lost so far."""
        return {**self._child.ready, "workers_lost": self.lost} if self._child.ready else {}

    def start(self) -> Mapping[str, Any]:
        """Start the worker now rather than at the first case; what it says of itself.

        Raises:
            WorkerStartError: it does not start.
        """
        self._child.start()
        return self._child.ready

    def close(self) -> None:
        """Kill the worker."""
        self._child.close()

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order; fewer where a worker was lost and the time is over.

        Raises:
            WorkerStartError: a worker does not start; it carries the rows measured before.
        """
        rows: dict[str, Measurement] = {}
        left = list(specs)
        while left:
            try:
                self._collect_until_lost(left, rows)
            except WorkerStartError as error:
                raise WorkerStartError(str(error), list(rows.values())) from error
            left = [spec for spec in specs if spec.case_id not in rows]
            if self._until is not None and time.monotonic() >= self._until:
                break
        return [rows[spec.case_id] for spec in specs if spec.case_id in rows]

    def _collect_until_lost(self, specs: Sequence[KernelSpec], rows: dict[str, Measurement]) -> None:
        """Fill `rows`; when the worker is lost on the way, with a row for the guilty case too."""
        self._child.start()
        at = specs[0]
        by_id = {spec.case_id: spec for spec in specs}
        wanted = {case: windows for case, windows in self._energy.items() if case in by_id}
        deadline_s = self._energy_silence_s if wanted else self._silence_s
        status: Status
        try:
            self._child.write({"specs": [spec_row(spec) for spec in specs], "energy": wanted})
            while "rows" not in (message := self._child.read(deadline_s)):
                if "at" in message:
                    at = by_id[message["at"]]
                else:
                    row = from_row(message["row"])
                    rows[row.case_id] = row
            return
        except TimeoutError:
            self._child.close()
            status, words = "timeout", f"no sign of life for {deadline_s:g} s"
        except (EOFError, BrokenPipeError):
            status, words = "crashed", self._child.last_words()
        self.lost += 1
        # A worker that saw its context break sent the guilty row itself, and then ended.
        if at.case_id not in rows:
            rows[at.case_id] = Measurement(
                spec=at, device=self._device, status=status, block="", message=words, measured_at=utc_now()
            )
