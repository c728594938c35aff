"""Pairs of kernels on two streams of one GPU: which ones, and their rows. The worker process alone touches the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ....datasets.records.kernel_pairs import PairRow
from ....features.device import Device
from ....features.kernel import KernelSpec, get_family
from ....features.spec_io.rows import spec_row
from ....process import ChildLostError, JsonChild, python_command
from ...cpu.pairs.campaign import rounds, row_of_slots
from ...host import utc_now
from ..plan.strata import Limits, estimates
from ..plan.sweeps import SWEEPS, get_sweep
from .pair_worker import LONGEST_CALL_S
from .worker import GpuWorkerOptions

LIMITS = Limits(memory_b=2e9, call_s=LONGEST_CALL_S)
"""What a kernel of a pair may need."""

KERNELS = MappingProxyType({"launch": 12, "cache": 20, "memory": 24, "compute": 24})
"""Kernels of each kind: too small to fill the device; limited by memory, in the last-level cache or beyond; by arithmetic."""

LONG_CALL_S = 20e-6
"""Two of three pairs are of two kernels that take this long, as guessed."""

_CANDIDATES = 400
"""Kernels drawn of each family, over all of its settings."""

_SILENCE_S = 60.0

_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Streams that share one of the device's queues would wait for each other: as many queues as there may be."""


def gpu_pool(device: Device, families: Sequence[str] = tuple(SWEEPS), seed: int = 0) -> list[KernelSpec]:
    """Kernels by torch with hot caches: so many of every kind, within a kind the families in turn."""
    rng = np.random.default_rng(seed)
    candidates: dict[KernelSpec, None] = {}
    for sweep in map(get_sweep, families):
        unit = get_family(sweep.family).unit
        settings = [it for it in sweep.settings if it.impl == "torch" and device.runs(it.dtype, unit)]
        for setting in settings:
            for spec, _ in sweep.candidates(setting, -(-_CANDIDATES // len(settings)), rng):
                if spec.cache_state == "hot":
                    candidates[spec] = None
    specs = [list(candidates)[i] for i in rng.permutation(len(candidates)).tolist()]
    estimated = estimates(specs, device)
    queues: dict[str, dict[str, list[KernelSpec]]] = {}
    for spec, stratum, allowed, memory_b in zip(
        specs, estimated.strata, estimated.within(LIMITS).tolist(), estimated.memory_b.tolist(), strict=True
    ):
        is_cached = stratum.regime == "memory" and memory_b <= device.last_level_cache_b
        if allowed:
            by_family = queues.setdefault("cache" if is_cached else stratum.regime, {})
            by_family.setdefault(spec.family, []).append(spec)
    chosen: list[KernelSpec] = []
    for kind, count in KERNELS.items():
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*queues.get(kind, {}).values()))
        chosen += itertools.islice((spec for spec in in_turn if spec is not None), count)
    return chosen


def gpu_pairs(kernels: Sequence[KernelSpec], device: Device, seed: int = 0) -> Iterator[tuple[KernelSpec, KernelSpec]]:
    """Pairs of kernels without end, each once; two of three have two kernels of long calls."""
    call_s = estimates(kernels, device).call_s.tolist()
    long = [spec for spec, seconds in zip(kernels, call_s, strict=True) if seconds >= LONG_CALL_S]
    return rounds(kernels, long, seed)


def pair_worker_command(options: GpuWorkerOptions) -> list[str]:
    """The command line of the worker."""
    return python_command("kernelcast.collectors.gpu.measure.pair_worker", options.to_json())


class GpuPairBench:
    """One worker process that measures pairs on a GPU; a context manager, at whose end it is killed."""

    def __init__(
        self, device: Device, index: int = 0, *, command: Callable[[GpuWorkerOptions], list[str]] = pair_worker_command
    ) -> None:
        self.device = device.name
        options = GpuWorkerOptions(device.name, index, l3_b=device.fact("l3_b") or 0.0)
        self._child = JsonChild("GPU", command(options), _QUEUES)

    def __enter__(self) -> GpuPairBench:
        self._child.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def facts(self) -> dict[str, Any]:
        """What the worker said of itself when it started."""
        return {"worker": dict(self._child.ready)}

    def measure(self, a: KernelSpec, b: KernelSpec) -> PairRow:
        """The row of a pair, whatever happens to it.

        Raises:
            ChildStartError: a worker that was lost over an earlier pair does not start again.
        """
        self._child.start()
        try:
            self._child.write({"pair": [spec_row(a), spec_row(b)]})
            answer = self._child.read(_SILENCE_S)
        except ChildLostError as lost:
            return PairRow(a, b, self.device, lost.kind, f"the worker {lost}", measured_at=utc_now())
        if "slots" in answer:
            return row_of_slots(a, b, self.device, [np.array(rows, dtype=np.float64) for rows in answer["slots"]])
        if answer["is_broken"]:
            # Another process is rid of the broken context.
            self._child.close()
        return PairRow(a, b, self.device, answer["status"], answer["message"], measured_at=utc_now())
