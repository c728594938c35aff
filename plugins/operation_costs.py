"""What single operations cost on one device, asked of the small models of kernel families (`op-*.kcm`), all in one go.

The models are flat files: nothing heavier than numpy is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..features.tuning.family_kinds import BOUND_NAMES, HAS_POWER, LOG_LOWER, LOG_UPPER, THREADS, task_of
from ..features.tuning.kind import Task
from ..models.tuning.flat import SUFFIX, FlatModel
from .cost_model import CostModel, ModelFileError


@dataclass(frozen=True, slots=True)
class OperationCost:
    """What one run of an operation costs. Energy and the ends of the interval are None where they are not known."""

    latency_s: float
    lower_s: float | None
    upper_s: float | None
    energy_j: float | None
    bound: str
    """The limit that binds on paper: `compute`, `dram`, `cache` or `launch`."""


class OperationCosts:
    """Costs of operations on a device. A family's model is read when it is first asked for."""

    def __init__(self, device: str, threads: int = 0, models: Path | str | None = None) -> None:
        self.device = device
        self.threads = threads
        self.models = None if models is None else Path(models)
        self._loaded: dict[str, CostModel | ModelFileError] = {}

    def of(self, specs: Sequence[KernelSpec]) -> list[OperationCost | str]:
        """The cost of each spec, or one sentence why there is none; one evaluation per family,
        or one per spec where the family's model has no answer for one of them.

        Tuning knobs, implementation and cache state of a spec are left out of account.

        Raises:
            ModelFileError: no model at all can be used; the sentence is that of the first that was asked for.
        """
        answers: list[OperationCost | str] = [""] * len(specs)
        rows: dict[str, dict[tuple[str, tuple[int, ...]], list[int]]] = {}
        problems: list[ModelFileError] = []
        for i, spec in enumerate(specs):
            task = task_of(spec, self.device)
            if task is None:
                answers[i] = f"there is no model of {spec.family}"
                continue
            loaded = self._load(task.kind)
            if isinstance(loaded, ModelFileError):
                problems.append(loaded)
                answers[i] = str(loaded)
            elif (loaded.device, task.dtype) not in loaded.model.table:
                answers[i] = f"the model of {task.kind} does not know {task.dtype} on {loaded.device}"
            else:
                rows.setdefault(task.kind, {}).setdefault(self._key(loaded, task), []).append(i)
        if problems and not rows:
            raise problems[0]
        for kind, places in rows.items():
            loaded = self._load(kind)
            if isinstance(loaded, CostModel):
                for cost, own in zip(_answers(loaded.model, loaded.device, list(places)), places.values(), strict=True):
                    for i in own:
                        answers[i] = cost
        return answers

    def problems(self) -> list[str]:
        """One sentence for each model that was asked for and could not be used."""
        return [str(loaded) for loaded in self._loaded.values() if isinstance(loaded, ModelFileError)]

    def _key(self, loaded: CostModel, task: Task) -> tuple[str, tuple[int, ...]]:
        is_cpu = loaded.model.facts_for(loaded.device, task.dtype)["is_cpu"]
        sizes = {**task.sizes, THREADS: self.threads if is_cpu else 0}
        return task.dtype, tuple(sizes[name] for name in loaded.model.sizes)

    def _load(self, kind: str) -> CostModel | ModelFileError:
        if kind not in self._loaded:
            path = None if self.models is None else self.models / f"{kind}{SUFFIX}"
            try:
                self._loaded[kind] = CostModel.load(kind, self.device, path)
            except ModelFileError as error:
                self._loaded[kind] = error
        return self._loaded[kind]


def _answers(
    model: FlatModel, device: str, tasks: Sequence[tuple[str, tuple[int, ...]]]
) -> Sequence[OperationCost | str]:
    """The costs of tasks; where there is none for one of them, the sentence that says why, for that one alone."""
    try:
        return _costs(model, device, tasks)
    except SpecError as error:
        if len(tasks) == 1:
            return [str(error)]
        return [answer for task in tasks for answer in _answers(model, device, [task])]


def _costs(model: FlatModel, device: str, tasks: Sequence[tuple[str, tuple[int, ...]]]) -> list[OperationCost]:
    """The costs of tasks, each a dtype and the model's sizes.

    Raises:
        SpecError: one of them is too large to give a time or an energy that is finite and greater than 0.
    """
    facts = [model.table[device, dtype] for dtype, _ in tasks]
    sizes = np.array([sizes for _, sizes in tasks], dtype=np.float64).T
    given = dict(zip(model.sizes, sizes, strict=True)) | dict(zip(model.facts, np.array(facts).T, strict=True))
    features = model.features(given)
    n = len(tasks)
    named = {name: np.broadcast_to(value, n) for name, value in zip(model.formula.names, features, strict=True)}
    seconds = model.seconds(features, n)
    joules = np.full(n, np.nan) if model.energy is None else model.joules(features, seconds)
    limits = [name for name in BOUND_NAMES if name in named]
    binding = np.argmax([named[name] for name in limits], axis=0)
    return [
        OperationCost(
            latency_s=float(seconds[i]),
            lower_s=_scaled(seconds[i], -named[LOG_LOWER][i]),
            upper_s=_scaled(seconds[i], named[LOG_UPPER][i]),
            energy_j=float(joules[i]) if named[HAS_POWER][i] else None,
            bound=BOUND_NAMES[limits[binding[i]]],
        )
        for i in range(n)
    ]


def _scaled(seconds: float, log_width: float) -> float | None:
    return float(seconds * np.exp(log_width)) if log_width else None
