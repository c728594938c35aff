"""A device inside an actor whose cases do what their number of rows says: hang, kill the actor, or work for a moment.

`FLEET_TEST_DIR` is shared by all nodes: every case begun is a line of `measured.log`. Cases of two threads go to a real worker
process (`fake_worker`), the others are "measured" in the actor itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelcast.collectors.collector import Collector
from kernelcast.collectors.cpu.worker import WorkerOptions, WorkerProcess
from kernelcast.collectors.fleet.actor import LocalDevice, NotThatDeviceError, Request
from kernelcast.collectors.host import machine_facts, utc_now
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features.kernel import KernelSpec

HANG, KILLS, KILLS_ONCE, SLOW = 1001, 1002, 1008, 2000
"""Rows of a copy that hangs, kills its actor always or the first time; from SLOW on a case takes 0.1 s."""

FAKE_WORKER = Path(__file__).parents[1] / "cpu" / "fake_worker.py"


def measured(spec: KernelSpec, device: str) -> Measurement:
    return Measurement(spec, device, "ok", block="", latency_s=1.0, latency_q1_s=1.0, latency_q3_s=1.0,
                       latency_min_s=1.0, n_samples=30, converged=True, noisy=False, measured_at=utc_now())  # fmt: skip


class InActor:
    def __init__(self, device: str) -> None:
        self.device = device

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        return [self._row(spec) for spec in specs]

    def facts(self) -> Mapping[str, Any]:
        return {"pid": os.getpid()}

    def close(self) -> None:
        pass

    def _row(self, spec: KernelSpec) -> Measurement:
        shared, rows = Path(os.environ["FLEET_TEST_DIR"]), spec["rows"] if spec.family == "copy" else 1
        with (shared / "measured.log").open("a") as log:
            log.write(f"{os.getpid()} {os.environ['KERNELCAST_HOME']} {spec.case_id}\n")
        once = shared / f"killed-{spec.case_id}"
        if rows == HANG or self.device == "always-hangs":
            time.sleep(600)
        if rows == KILLS or (rows == KILLS_ONCE and not once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1 if rows >= SLOW else 0.002)
        return measured(spec, self.device)


def open_fake(request: Request) -> LocalDevice:
    if request.device == "mislabelled":
        raise NotThatDeviceError("the node is labelled mislabelled, but its processor is another one")

    def collector(impl: str, threads: int) -> Collector:
        if threads != 2:
            return InActor(request.device)
        options = WorkerOptions("fake", 2, request.device, flush_cores=(0,), llc_b=2**16)
        return WorkerProcess(
            options, silence_s=5.0, command=lambda o: [sys.executable, "-P", str(FAKE_WORKER), o.to_json()]
        )

    facts = machine_facts(request.device) | {"home": os.environ["KERNELCAST_HOME"]}
    return LocalDevice(facts, lambda: {"utc": utc_now(), "home": os.environ["KERNELCAST_HOME"]}, collector)
