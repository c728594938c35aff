"""The configurations worth trying of a kernel, as far as the product knows: those of the tuning kind it belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ...features.batch.cases import Floats
from ...features.device import Device
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec, get_family
from ...features.tuning.kind import Candidates, Task, TuningKind, kinds
from ...files import home_dir
from ...models.predict.prediction import Interval
from ...models.pretrained import TUNING
from ...models.tuning.corrections import Memory
from ...models.tuning.flat_model import SUFFIX, read_model


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """An operation whose configurations are ranked.

    Attributes:
        kind: The kind of tuning problem.
        task: The operation.
        spec: The same as a spec, with its compiler as `impl`.
    """

    kind: TuningKind
    task: Task
    spec: KernelSpec


def problem_of(spec: KernelSpec, device: Device) -> TuningProblem | None:
    """The tuning problem that a spec without a configuration is on a device, None where no kind knows it.

    An `impl` left out is any compiler whose kind fits, the first by the kind's name; threads left out are all cores of a CPU.
    """
    if spec.threads is None and device.kind == "cpu":
        spec = replace(spec, threads=int(device.required("compute_units")))
    for kind in kinds().values():
        if spec.impl not in ("", kind.compiler) or spec.cache_state != "hot":
            continue
        known = get_family(spec.family).config
        # Kinds that always have all their knobs tell a task by them, others by none.
        for config in ((), tuple(sorted((name, 1) for name in kind.knobs if name in known))):
            configurations = replace(spec, impl=kind.compiler, config=config)
            if (task := kind.task_of(configurations, device.name)) is not None and _applies(kind, device, spec.dtype):
                return TuningProblem(kind, task[0], replace(configurations, config=()))
    return None


def _applies(kind: TuningKind, device: Device, dtype: str) -> bool:
    try:
        kind.facts_of(device, dtype)
    except SpecError:
        return False
    return True


def known_configs(problem: TuningProblem | None, spec: KernelSpec, device: Device) -> list[dict[str, int]]:
    """The configurations to rank where none are given.

    Raises:
        SpecError: none are known for this kernel; the message says what to send.
    """
    if problem is None:
        compilers = sorted({kind.compiler for kind in kinds().values() if kind.compiler != "any"})
        by = spec.impl or "any compiler"
        knobs = get_family(spec.family).config
        send = f'send "configs", with {listed(knobs)}' if knobs else f"{spec.family} has no knobs to tune"
        raise SpecError(
            f"no configurations are known of this {spec.family} by {by} in {spec.dtype} on {device.name}; {send}. As `impl`, "
            f"some are known of {listed(compilers)}, for hot caches",
            field="configs",
        )
    return configs_of(problem.kind.space(problem.task))


def configs_of(candidates: Candidates) -> list[dict[str, int]]:
    """Configurations as mappings, each once, in their order."""
    unique = {tuple(sorted(config.items())): config for config in map(candidates.config, range(len(candidates)))}
    return list(unique.values())


_QUARTILE = NormalDist().inv_cdf(0.75)
"""Half of a normal distribution lies within this many standard deviations."""


@dataclass(frozen=True, slots=True)
class TuningModel:
    """The model of a tuning kind, with its error on held-out rows.

    Attributes:
        memory: The model, with the measured configurations it remembers.
        kind: The tuning kind.
        error: Median of |predicted / measured - 1| over the held-out rows of one dtype.
    """

    memory: Memory
    kind: str
    error: float

    def seconds(self, task: Task, configs: Sequence[Mapping[str, int]]) -> Floats:
        """Seconds of the configurations `(n,)`: what was measured where it was, else as predicted.

        Raises:
            SpecError: the sizes are too large to give a time.
        """
        model = self.memory.model
        knobs = np.array([[config.get(name, 0) for name in model.knobs] for config in configs], dtype=np.int64)
        key = task.device, task.dtype, tuple(int(task.sizes[name]) for name in model.sizes)
        return self.memory.seconds(key, knobs)

    def interval(self, seconds: float, least_s: float, coverage: float) -> Interval:
        """Seconds with an interval: the logarithm of the held-out error is taken as normal, known by its median size."""
        deviation = math.log1p(self.error) / _QUARTILE
        factor = math.exp(NormalDist().inv_cdf((1.0 + coverage) / 2.0) * deviation)
        return Interval(seconds, min(seconds, max(seconds / factor, least_s)), seconds * factor)


def tuning_model(problem: TuningProblem) -> TuningModel | None:
    """The model that ranks configurations of a problem; None where there is none whose error was measured on its device.

    The user's own model of a kind, under `KERNELCAST_HOME`, comes before the shipped one.

    Raises:
        ModelFileError: the file is damaged.
    """
    task = problem.task
    name = f"{task.kind}{SUFFIX}"
    path = next((path for path in (home_dir() / "tuning" / name, TUNING / name) if path.is_file()), None)
    if path is None:
        return None
    status = path.stat()
    memory = _read(_File(path, task.kind, status.st_mtime_ns, status.st_size))
    model = memory.model
    rows = model.metadata.get("held_out_rows", {}).get(task.dtype, {})
    error_pct = rows.get("median_ape_pct")
    measured = task.device in model.metadata.get("devices_measured", ())
    if not measured or error_pct is None or (task.device, task.dtype) not in model.table:
        return None
    return TuningModel(memory, task.kind, error_pct / 100)


@dataclass(frozen=True, slots=True)
class _File:
    """A model file as it is now; another time or length is another file, which is read again."""

    path: Path
    kind: str
    changed_ns: int
    length_b: int


@lru_cache(maxsize=32)
def _read(file: _File) -> Memory:
    return Memory.of(read_model(file.path, file.kind))
