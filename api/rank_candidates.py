"""The configurations worth trying of a kernel, as far as the product knows: those of the tuning kind it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..features.device import Device
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec, get_family
from ..features.tuning.kind import Candidates, Task, TuningKind, kinds


@dataclass(frozen=True, slots=True)
class Problem:
    """A tuning problem: its kind, the operation to tune, and the spec that stands for it, with its compiler as `impl`."""

    kind: TuningKind
    task: Task
    spec: KernelSpec


def problem_of(spec: KernelSpec, device: Device) -> Problem | None:
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
            asked = replace(spec, impl=kind.compiler, config=config)
            if (found := kind.task_of(asked, device.name)) is not None and _applies(kind, device, spec.dtype):
                return Problem(kind, found[0], replace(asked, config=()))
    return None


def _applies(kind: TuningKind, device: Device, dtype: str) -> bool:
    try:
        kind.facts_of(device, dtype)
    except SpecError:
        return False
    return True


def known_configs(problem: Problem | None, spec: KernelSpec, device: Device) -> list[dict[str, int]]:
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
    found = {tuple(sorted(config.items())): config for config in map(candidates.config, range(len(candidates)))}
    return list(found.values())
