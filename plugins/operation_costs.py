"""What single operations cost on one device, asked of the small models of kernel families (`op-*.kcm`), all in one go.

The models are flat files: nothing heavier than numpy is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..features.mlir.kernels.grouping import group
from ..features.mlir.parse.generic_form import read_generic
from ..features.mlir.parse.text_limits import no_collection
from ..features.mlir.program import FREE, Node
from ..features.mlir.types.graph import Function, Module, Op, Region
from ..features.mlir.walk.walk import Walk
from ..features.tuning.family_kinds import BOUND_NAMES, HAS_POWER, LOG_LOWER, LOG_UPPER, THREADS, task_of
from ..features.tuning.kind import Task
from ..models.tuning.flat_model import SUFFIX, FlatModel
from .cost_model import CostModel, ModelFileError


@dataclass(frozen=True, slots=True)
class OperationCost:
    """What one run of an operation costs.

    Attributes:
        latency_s: Seconds.
        lower_s: Lower end of the interval, None where it is not known.
        upper_s: Upper end, likewise.
        energy_j: Joules, None where they are not known.
        bound: The limit that binds on paper: `compute`, `dram`, `cache` or `launch`.
    """

    latency_s: float
    lower_s: float | None
    upper_s: float | None
    energy_j: float | None
    bound: str


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
                for cost, item in zip(
                    _answers(loaded.model, loaded.device, list(places)), places.values(), strict=True
                ):
                    for i in item:
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
    raw = dict(zip(model.sizes, sizes, strict=True)) | dict(zip(model.facts, np.array(facts).T, strict=True))
    features = model.features(raw)
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


NO_KERNEL = "no kernel is known for what it does"
UNKNOWN_SIZES = "its sizes are not known at compile time"


@dataclass(frozen=True, slots=True)
class ModuleOperation:
    """One operation that does work.

    Attributes:
        place: Its position among the operations of its module, in order of the text.
        runs: How often it runs when its function does.
        spec: Its kernel, None where there is none.
        stand_in: How the kernel differs from what the operation does, empty where it is the same.
        why: Why there is no spec; empty otherwise.
    """

    place: int
    runs: float
    spec: KernelSpec | None
    stand_in: str
    why: str


@dataclass(frozen=True, slots=True)
class ModuleFunction:
    """The operations of a function that do work, those of functions it calls included.

    Attributes:
        name: Name of the function.
        first: Place of its first operation.
        names: Names of all operations inside it, in order of the text.
        operations: Those that do work.
    """

    name: str
    first: int
    names: tuple[str, ...]
    operations: tuple[ModuleOperation, ...]

    def by_place(self) -> dict[int, ModuleOperation]:
        """Those that stand in it, by their place; one that is walked several times is there once."""
        places = range(self.first, self.first + len(self.names))
        return {operation.place: operation for operation in reversed(self.operations) if operation.place in places}


def functions_in(generic: str) -> list[ModuleFunction]:
    """The functions with a body in a text in generic form, in order.

    Raises:
        NotGenericForm: the text is something else.
        SpecError: it has, or comes to, too many operations.
    """
    with no_collection():
        module = read_generic(generic, "the compiler's own")
        numbered: list[tuple[Function, int, tuple[str, ...]]] = []
        place = 0
        for function in module.functions:
            if function.body is None or not function.name:
                continue
            ops = list(_in_order(function.body))
            for number, op in enumerate(ops, start=place):
                # Nodes keep the line of the operation they were made from, and nothing else that tells it.
                op.line = number
            numbered.append((function, place, tuple(op.name for op in ops)))
            place += len(ops)
        return [
            ModuleFunction(function.name, first, names, _operations(module, function))
            for function, first, names in numbered
        ]


def _operations(module: Module, function: Function) -> tuple[ModuleOperation, ...]:
    walk = Walk(module, frozenset(), False)
    returned = walk.function(function, {}, 1.0)
    free = {value: node for node in walk.nodes if node.kind in FREE for value in node.results}
    initial = _initial_values(walk.nodes, returned)
    return tuple(
        _operation(node, free, walk)
        for node in walk.nodes
        if node.kind not in FREE and node.line is not None and initial.isdisjoint(node.results)
    )


_ACCUMULATING = frozenset({"contraction", "convolution", "reduction"})


def _initial_values(nodes: Sequence[Node], returned: Sequence[int]) -> set[int]:
    """Arrays of one number that products and reductions of linalg alone read, as the values their sums start from: compilers
    write that number in the kernel of the sum, and no kernel fills the array.
    """
    result = {
        value
        for node in nodes
        if node.op.startswith("linalg.") and node.detail.get("operator") == "broadcast" and not node.bytes_in
        for value in node.results
    }
    result.difference_update(returned)
    for node in nodes if result else ():
        read = node.operands
        if node.kind in _ACCUMULATING and node.op.startswith("linalg."):
            read = read[: -len(node.results)]
        elif isinstance(unread := node.detail.get("unread"), int) and unread:
            read = read[:-unread]
        result.difference_update(read)
    return result


def _operation(node: Node, free: Mapping[int, Node], walk: Walk) -> ModuleOperation:
    """A node as a kernel of its own; `free` are nodes that cost nothing, by what they make."""
    place = node.line or 0
    kinds = [walk.values.types[value] for value in (*node.operands, *node.results)]
    if any(kind.is_array and not kind.is_static for kind in kinds):
        return ModuleOperation(place, node.runs, None, "", UNKNOWN_SIZES)
    if not node.understood:
        return ModuleOperation(place, node.runs, None, "", node.note or NO_KERNEL)
    # With the constants and empty arrays it is given: adding a number is another kernel than adding an array. An operation on
    # nothing else is one that compilers are expected to do beforehand; as it stands, it is a kernel.
    raw = list({id(free[value]): free[value] for value in node.operands if value in free}.values())
    groups = group((*raw, node), walk.values.types, node.results) or group((node,), walk.values.types, node.results)
    if not groups or groups[-1].spec is None:
        return ModuleOperation(place, node.runs, None, "", NO_KERNEL)
    return ModuleOperation(place, node.runs, groups[-1].spec, groups[-1].stand_in, "")


def _in_order(region: Region) -> Iterator[Op]:
    """Every operation of a region, each before those in its own regions."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _in_order(inner)
