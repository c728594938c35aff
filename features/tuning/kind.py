"""What can be tuned: one operation to tune, its possible configurations, and the kind of problem it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SpecError, listed
from ..kernel import MAX_DIM, discover
from .formula import Formula, Value, trace

if TYPE_CHECKING:
    from ..device import Device
    from ..kernel import KernelSpec


BOUND = "bound_s"
"""The feature every kind has: seconds on paper, which learned models predict the ratio to.

In most kinds no configuration can beat it. Triton's kinds give what a configuration is expected to take."""

Knobs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Task:
    """One operation to tune on one device.

    Attributes:
        kind: Name of the kind of problem.
        sizes: All sizes of the kind.
        dtype: Canonical name of the number format.
        device: Name of the device.
    """

    kind: str
    sizes: Mapping[str, int]
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """Configurations of one task, in columns. A configuration with every knob 0 is the default of the compiler, where the
    kind allows it.

    Attributes:
        task: The task.
        knobs: Columns `(n,)` by knob; 0 means that the knob is left out, and a knob without a column is left out
            everywhere.
        count: `n`; needed only where there are no columns.

    Raises:
        SpecError: a column is no column of whole numbers from 0 to 2**40, or columns differ in length.
    """

    task: Task
    knobs: Mapping[str, Knobs]
    count: int = -1

    def __post_init__(self) -> None:
        columns = {name: _knob_column(name, column) for name, column in self.knobs.items()}
        lengths = {len(column) for column in columns.values()}
        if self.count >= 0:
            lengths.add(self.count)
        if len(lengths) > 1:
            result = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
            raise SpecError(
                f"columns of knobs differ in length: {result}; give one value per configuration", field="knobs"
            )
        object.__setattr__(self, "knobs", columns)
        object.__setattr__(self, "count", lengths.pop() if lengths else 0)

    @classmethod
    def of(cls, task: Task, configs: Sequence[Mapping[str, int]]) -> Candidates:
        """The configurations given as mappings of knob to value; a knob that one of them lacks is left out there.

        Raises:
            SpecError: a value is no whole number from 0 to 2**40.
        """
        names = dict.fromkeys(name for config in configs for name in config)
        for config in configs:
            for name, value in config.items():
                if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= MAX_DIM:
                    raise SpecError(
                        f"the knob {name} must be a whole number from 0 to {MAX_DIM}, got {value!r}", field=name
                    )
        columns = {name: np.array([config.get(name, 0) for config in configs], dtype=np.int64) for name in names}
        return cls(task, columns, len(configs))

    def __len__(self) -> int:
        return self.count

    def config(self, i: int) -> dict[str, int]:
        """Configuration `i`, 0 ≤ i < n, knobs that are left out not in it."""
        return {name: int(column[i]) for name, column in self.knobs.items() if column[i]}

    def take(self, rows: Any) -> Candidates:
        """The configurations at `rows`, indices or a mask of shape `(n,)`."""
        chosen = np.arange(self.count)[rows]
        return Candidates(self.task, {name: column[chosen] for name, column in self.knobs.items()}, len(chosen))


@dataclass(frozen=True, slots=True)
class TuningKind:
    """One kind of tuning problem; one file in `kinds/` each, with a module constant `KIND`.

    Attributes:
        name: Its name, such as `iree-contraction`.
        compiler: Whose choices these are: `iree`, `triton`, `mlir-opt` …, or `any`.
        sizes: Names of the sizes that describe an operation.
        knobs: Names of what a compiler may choose.
        facts: Names of the facts of a device with a dtype.
        features: Named features of sizes, knobs and facts, with `bound_s`, seconds on paper, greater than 0; traced, so it
            uses only `+ - * /` and the functions of `formula`.
        space: The legal configurations worth trying, the same for the same task, a few hundred at most.
        facts_of: Reads the facts from a device of the catalogue; raises SpecError where the kind does not apply to it.
        task_of: The task and configuration a measured spec on a named device stands for; None where it is not of this kind.
        spec_of: The spec to measure for a configuration of a task; None where there is no such spec, or nothing measures
            configurations of the kind one by one.
    """

    name: str
    compiler: str
    sizes: tuple[str, ...]
    knobs: tuple[str, ...]
    facts: tuple[str, ...]
    features: Callable[[Mapping[str, Value]], Mapping[str, Value]]
    space: Callable[[Task], Candidates]
    facts_of: Callable[[Device, str], Mapping[str, float]]
    task_of: Callable[[KernelSpec, str], tuple[Task, dict[str, int]] | None] = field(default=lambda spec, device: None)
    spec_of: Callable[[Task, Mapping[str, int]], KernelSpec | None] = field(default=lambda task, config: None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Everything features may read: sizes, knobs, facts, in this order."""
        return (*self.sizes, *self.knobs, *self.facts)

    def formula(self) -> Formula:
        """The features as a program.

        Raises:
            ValueError: the features lack `bound_s`, or are no such program.
        """
        formula = trace(self.inputs, self.features)
        if BOUND not in formula.names:
            raise ValueError(f"the features of {self.name} lack {BOUND}, the seconds on paper")
        return formula


def check_sizes(kind: str, names: Sequence[str], raw: Mapping[str, int]) -> None:
    """Refuse sizes that are not exactly `names`, or no whole numbers from 0 to 2**40.

    Raises:
        SpecError: naming the size and those the kind has.
    """
    for name in names:
        if name not in raw:
            raise SpecError(f"{kind} needs the size {name}; sizes: {listed(names)}", field=name)
        value = raw[name]
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= MAX_DIM:
            raise SpecError(f"{name} must be a whole number from 0 to {MAX_DIM}, got {value!r}", field=name)
    if len(raw) != len(names):
        extra = next(name for name in raw if name not in names)
        raise SpecError(f"{kind} has no size {extra!r}; sizes: {listed(names)}", field=str(extra))


@cache
def kinds() -> Mapping[str, TuningKind]:
    """Every kind of tuning problem by name."""
    from . import kinds as package

    return MappingProxyType(discover(package, "KIND"))


def get_kind(name: str) -> TuningKind:
    """The kind called `name`.

    Raises:
        SpecError: there is none; the message lists those there are.
    """
    known = kinds()
    if not isinstance(name, str) or name not in known:
        raise SpecError(f"no kind of tuning problem {name!r}; kinds: {listed(known)}", field="kind")
    return known[name]


def _knob_column(name: str, column: Any) -> Knobs:
    values = np.asarray(column)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise SpecError(
            f"the knob {name} must be a column of whole numbers, one per configuration; it is {values.dtype} of shape "
            f"{values.shape}",
            field=name,
        )
    if len(values) and (values.min() < 0 or values.max() > MAX_DIM):
        raise SpecError(f"the knob {name} must be from 0 to {MAX_DIM} in every configuration", field=name)
    return values.astype(np.int64, copy=False)


def spread(groups: NDArray[np.int64], expected: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Positions of at most `most` configurations, ascending: the best of every group before the second of any.

    Args:
        groups: rows `(n, columns)`; equal rows are one group, such as a register tile: formulas know blocks better than those.
        expected: what a formula expects of each `(n,)`, less being better.
        most: how many are wanted.
    """
    ravel = np.unique(groups, axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((np.arange(len(ravel)), expected, ravel))
    starts = np.searchsorted(ravel[order], np.arange(ravel.max(initial=-1) + 1))
    place = np.empty(len(ravel), dtype=np.int64)
    place[order] = np.arange(len(ravel)) - starts[ravel[order]]
    return np.sort(np.lexsort((expected, place))[:most])


def near(inner: Any, block: Any, size: int) -> Any:
    """The multiple of `inner` nearest below `block`, at least one, no larger than the first that covers `size`.

    Sizes or columns `(n,)` of them.
    """
    return inner * np.minimum(np.maximum(block // inner, 1), -(-size // inner))
