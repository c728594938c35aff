"""The worker process that measures on a GPU, the only one that touches it: both ends of its pipes.

    parent -> child   {"specs": [...], "energy": {case_id: windows}}
    child  -> parent  {"ready": {...}}  once;  {"at": case_id}, {"row": {...}}  for every case;  {"rows": []}  at the end

A fault on the device (an illegal address, say) leaves a process's context unusable: the case's row is sent, and the
process ends, for the parent to start another.

`GpuCollector` is the parent's side: it makes a row of a lost worker and continues with the rest in another.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from ....datasets.rows.schema import Measurement, from_row, to_row
from ....datasets.store.store import FINAL_STATUSES
from ....features.device import Device
from ....features.kernel import KernelSpec
from ....features.spec_io.rows import spec_from_row, spec_row
from ....process import (
    ChildLostError,
    ChildStartError,
    JsonChild,
    die_with_parent,
    private_stdout,
    python_command,
    send,
)
from ...campaign import CampaignError
from ...collector import JsonOptions
from ...meters.board import EnergyRule
from ...meters.protocol import EnergyMeter, NoMeter
from ...runner import GpuRunner, UnsupportedCaseError, row_without_result
from .bench import GpuBench
from .torch_gpu import CUDA, TorchGpu, architecture_of, enter_inference, need_gpu

POISONED = 70
"""Exit status of a worker whose device context is lost (EX_SOFTWARE of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class GpuWorkerOptions(JsonOptions):
    """How a GPU worker runs.

    Attributes:
        device: The name rows carry.
        index: Which GPU.
        energy: Whether it will be asked for energy.
        settle_s: Seconds that energy measurements settle.
        window_s: Seconds of an energy window.
        l3_b: Bytes of a cache behind the L2, of which torch does not know; 0 for none.
    """

    device: str
    index: int = 0
    energy: bool = False
    settle_s: float = 2.0
    window_s: float = 3.0
    l3_b: float = 0.0


def main(argv: list[str]) -> None:
    """Serve the GPU that the options in `argv[1]` name, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    bench, facts, broken = open_bench(GpuWorkerOptions.from_json(argv[1]))
    serve(bench, facts, broken, sys.stdin, replies)


def serve(
    bench: GpuBench, facts: Mapping[str, Any], broken: Callable[[], str | None], requests: IO[str], replies: IO[bytes]
) -> None:
    """Measure what `requests` asks for, a row as soon as it is known.

    `broken` says why the device context can no longer be used, None while it can; it is asked after every row that is
    not ok.
    """
    send(replies, {"ready": dict(facts)})
    for line in requests:
        request = json.loads(line)
        for raw in request["specs"]:
            spec = spec_from_row(raw)
            send(replies, {"at": spec.case_id})
            row = bench.measure(spec, int(request.get("energy", {}).get(spec.case_id, 0)))
            reason = None if row.status == "ok" else broken()
            if reason is not None:
                # What cannot run stays so; anything else may have been the broken context's doing, and is tried again.
                status = row.status if row.status in FINAL_STATUSES else "crashed"
                row = replace(row, status=status, message=row.message or reason)
            send(replies, {"row": to_row(row)})
            if reason is not None:
                # Tearing down a broken context may hang; nothing here is worth waiting for.
                replies.flush()
                os._exit(POISONED)
        send(replies, {"rows": []})


def open_bench(options: GpuWorkerOptions) -> tuple[GpuBench, dict[str, Any], Callable[[], str | None]]:
    """The bench on a real GPU, what to record about it, and what tells whether its context is broken."""
    import torch

    from ...meters.find import find_gpu_meter, gpu_state, open_gpu_reader
    from ...runner import runners_on

    accelerator = need_gpu(torch)
    enter_inference(torch)
    gpu = TorchGpu(torch, options.index, accelerator, options.l3_b)
    properties = getattr(torch, accelerator.type).get_device_properties(options.index)
    # NVML counts boards by their place on the bus, CUDA by default by their speed: the name of the very board joins them.
    uuid = f"GPU-{properties.uuid}" if accelerator is CUDA else None
    reader = open_gpu_reader(options.index, uuid=uuid)
    runners = runners_on(accelerator.vendor)
    meter: EnergyMeter
    meter, why = NoMeter(), "energy was not asked for"
    if options.energy:
        meter, why = find_gpu_meter(options.index, rule=EnergyRule(options.settle_s, options.window_s), uuid=uuid)
    facts = {
        "gpu": properties.name, "compute_capability": architecture_of(accelerator, properties),
        "compute_units": getattr(properties, accelerator.units), "l2_b": getattr(properties, accelerator.cache),
        "last_level_cache_b": gpu.cache_b, "library": accelerator.library, "fp8": gpu.formats.get("fp8"),
        # Without graphs calls are enqueued one by one, ahead of the device.
        "graphs": gpu.has_graphs, "versions": _versions(runners.values()),
        "energy_source": meter.name, "energy_source_reason": why,
        # Both as the board showed them before the first case: what it draws doing nothing, how often its counter steps.
        "idle_power_w": getattr(meter, "idle_power_w", None), "sensor_period_s": getattr(meter, "period_s", None),
        "settle_s": options.settle_s, "window_s": options.window_s,
    }  # fmt: skip
    bench = GpuBench(
        options.device, gpu, runners, state=lambda: {} if reader is None else gpu_state(reader), meter=meter
    )
    return bench, facts, gpu.broken


def _versions(runners: Iterable[GpuRunner]) -> dict[str, dict[str, str] | str]:
    """What would run, by runner; a library that is not there says so, and its cases become `unsupported` rows."""
    versions: dict[str, dict[str, str] | str] = {}
    for runner in runners:
        try:
            versions[runner.name] = dict(runner.versions())
        except (ImportError, UnsupportedCaseError) as error:
            versions[runner.name] = f"not available: {error}"
    return versions


def gpu_worker_command(options: GpuWorkerOptions) -> list[str]:
    """The command line of a GPU worker."""
    return python_command("kernelcast.collectors.gpu.measure.worker", options.to_json())


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
        self._child = JsonChild("GPU", command(options), dict(env or {}))
        self.lost = 0

    def __call__(self, impl: str, threads: int) -> GpuCollector:  # noqa: ARG002  one process serves every impl
        """Itself, as `run_campaign`'s `collector_for`."""
        return self

    def facts(self) -> Mapping[str, Any]:
        """What the worker said of itself when it started, and how many were lost so far."""
        return {**self._child.ready, "workers_lost": self.lost} if self._child.ready else {}

    def start(self, device: Device) -> None:
        """Start the worker now rather than at the first case.

        Raises:
            CampaignError: it does not start, or its GPU is not `device`.
        """
        try:
            self._child.start()
        except ChildStartError as error:
            raise CampaignError(
                f"{error}. Nothing was measured with it; fix this and run the same command again."
            ) from error
        units, wanted = self._child.ready.get("compute_units"), device.required("compute_units")
        if units is not None and units != wanted:
            self.close()
            raise CampaignError(
                f"this GPU ({self._child.ready.get('gpu')}) has {units} compute units, {device.name} has {wanted:g}: it is "
                "another device; give its device file with --device-file (`kernelcast measure machine --gpu --out my-gpu.yaml` "
                "makes one of an NVIDIA GPU)"
            )

    def close(self) -> None:
        """Kill the worker."""
        self._child.close()

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        """One row per spec, in order; fewer where a worker was lost and the time is over.

        Raises:
            ChildStartError: a worker does not start; it carries the rows measured before.
        """
        rows: dict[str, Measurement] = {}
        left = list(specs)
        while left:
            try:
                self._collect_until_lost(left, rows)
            except ChildStartError as error:
                raise ChildStartError(str(error), list(rows.values())) from error
            left = [spec for spec in specs if spec.case_id not in rows]
            if self._until is not None and time.monotonic() >= self._until:
                break
        return [rows[spec.case_id] for spec in specs if spec.case_id in rows]

    def _collect_until_lost(self, specs: Sequence[KernelSpec], rows: dict[str, Measurement]) -> None:
        """Fill `rows`; when the worker is lost on the way, with a row for the case that it was measuring too."""
        self._child.start()
        at = specs[0]
        by_id = {spec.case_id: spec for spec in specs}
        wanted = {case: windows for case, windows in self._energy.items() if case in by_id}
        deadline_s = self._energy_silence_s if wanted else self._silence_s
        try:
            self._child.write({"specs": [spec_row(spec) for spec in specs], "energy": wanted})
            while "rows" not in (message := self._child.read(deadline_s)):
                if "at" in message:
                    at = by_id[message["at"]]
                else:
                    row = from_row(message["row"])
                    rows[row.case_id] = row
            return
        except ChildLostError as error:
            lost = error
        self.lost += 1
        # A worker that saw its context break sent the guilty row itself, and then ended.
        if at.case_id not in rows:
            rows[at.case_id] = row_without_result(at, self._device, lost.kind, f"the worker {lost}")


if __name__ == "__main__":
    main(sys.argv)
