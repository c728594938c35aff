"""Measured rows as tuning problems: which tasks were measured in which configurations, and how long each took.

A kind's `task_of` says which rows are its own. Rows that could not be run have no latency to learn; they are counted, never
guessed. A configuration measured more than once has the geometric mean of its latencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...datasets.shipped import SHIPPED_DIR, TILES_DIR, read_shipped, shipped_families
from ...datasets.store.errors import StoreError
from ...datasets.store.store import Store
from ...features.device import Catalogue
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, get_family
from ...features.spec_io.rows import spec_from_row
from ...features.tuning.kind import Task, TuningKind

Floats = NDArray[np.float64]

SETTINGS = frozenset({"threads", "a_transposed", "b_transposed", "layout"})
"""Sizes that say how an operation is run or laid out: tasks that differ in nothing else are of one shape."""

_COLUMNS = ("dtype", "kv_dtype", "variant", "impl", "threads", "cache_state", "device", "status", "latency_s", "noisy")


@dataclass(frozen=True, slots=True)
class TuningRows:
    """Rows of one kind.

    Attributes:
        kind: The kind.
        tasks: What was measured.
        of_task: Position in `tasks` of each row, `(n,)`.
        knobs: Columns `(n,)` of every knob of the kind, 0 where it was left out.
        latency_s: Medians of calls, `(n,)`.
        noisy: Rows whose blocks still disagreed when measuring ended, `(n,)`.
        n_failed: Rows that had no latency.
    """

    kind: TuningKind
    tasks: tuple[Task, ...]
    of_task: NDArray[np.int64]
    knobs: Mapping[str, NDArray[np.int64]]
    latency_s: Floats
    noisy: NDArray[np.bool_]
    n_failed: int

    def __len__(self) -> int:
        return len(self.latency_s)

    def input_columns(self, devices: Catalogue) -> dict[str, Floats]:
        """Everything the kind's features read, in columns `(n,)`.

        Raises:
            SpecError: the kind does not apply to a device, or a device is not in the catalogue.
        """
        facts = facts_by_device(self, devices)
        columns = {name: [float(task.sizes[name]) for task in self.tasks] for name in self.kind.sizes}
        columns |= {name: [facts[task.device, task.dtype][name] for task in self.tasks] for name in self.kind.facts}
        repeated = {name: np.array(column)[self.of_task] for name, column in columns.items()}
        return repeated | {name: column.astype(np.float64) for name, column in self.knobs.items()}

    def shapes(self) -> NDArray[np.int64]:
        """A number per row that rows of tasks of one shape share, `(n,)`: see `SETTINGS`."""
        keys = [tuple(task.sizes[name] for name in self.kind.sizes if name not in SETTINGS) for task in self.tasks]
        numbers = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        return np.array([numbers[key] for key in keys], dtype=np.int64)[self.of_task]


def facts_by_device(rows: TuningRows, devices: Catalogue) -> dict[tuple[str, str], Mapping[str, float]]:
    """The kind's facts of every device and dtype that was measured."""
    pairs = dict.fromkeys((task.device, task.dtype) for task in rows.tasks)
    return {pair: rows.kind.facts_of(devices.get(pair[0]), pair[1]) for pair in pairs}


def read_tables(paths: Sequence[Path] | None = None) -> dict[str, list[pa.Table]]:
    """Tables of measured rows by family: the shipped ones and the user's store, or those in the directories given.

    A directory is a store (`family=…/`), or holds tables named after families (`gemm.parquet`).

    Raises:
        SpecError: a directory holds neither, or a table is damaged.
    """
    tables: dict[str, list[pa.Table]] = {}
    try:
        for directory in (SHIPPED_DIR, TILES_DIR) if paths is None else ():
            for family in shipped_families(directory):
                tables.setdefault(family, []).append(read_shipped(family, directory=directory))
        for path in [Store().root] if paths is None else paths:
            for family, table in _read_directory(path, needed=paths is not None).items():
                tables.setdefault(family, []).append(table)
    except StoreError as error:
        raise SpecError(str(error), field="data") from error
    return tables


def _read_directory(path: Path, *, needed: bool) -> dict[str, pa.Table]:
    store = Store(path)
    if store.files():
        return store.read_all()
    if families := shipped_families(path):
        return {family: read_shipped(family, directory=path) for family in families}
    if needed:
        raise SpecError(
            f"{path} holds no measured rows: neither a store (family=…/device=…/*.parquet) nor tables named after families "
            "(gemm.parquet); measure some with `kernelcast measure cpu`",
            field="data",
        )
    return {}


def tuning_rows(
    kinds: Sequence[TuningKind],
    tables: Mapping[str, Sequence[pa.Table]],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, TuningRows]:
    """The rows of `tables` that are of each kind, by the kinds' names; `progress` is told how many tables were read.

    Only rows that the kinds' compilers ran (`impl`) are looked at.
    """
    gathered = {kind.name: _RowCollector(kind) for kind in kinds}
    compilers = pa.array(sorted({kind.compiler for kind in kinds}), pa.string())
    by_compiler = [
        (family, table.filter(pc.is_in(table["impl"], compilers))) for family, each in tables.items() for table in each
    ]
    for done, (family, table) in enumerate(by_compiler):
        progress(done, len(by_compiler))
        for row in _plain_rows(family, table):
            spec = spec_from_row(row)
            for each in gathered.values():
                each.take(spec, row)
    return {name: each.rows() for name, each in gathered.items()}


class _RowCollector:
    """Rows of one kind while they are read."""

    def __init__(self, kind: TuningKind) -> None:
        self._kind = kind
        self._numbers: dict[tuple[object, ...], int] = {}
        self._tasks: list[Task] = []
        self._runs: dict[tuple[int, tuple[int, ...]], list[tuple[float, bool]]] = {}
        self._n_failed = 0

    def take(self, spec: KernelSpec, row: Mapping[str, Any]) -> None:
        """Keep the row if it is of this kind."""
        task_and_config = self._kind.task_of(spec, row["device"])
        if task_and_config is None:
            return
        if row["status"] != "ok" or row["latency_s"] is None:
            self._n_failed += 1
            return
        task, config = task_and_config
        key = (task.device, task.dtype, *(task.sizes[name] for name in self._kind.sizes))
        number = self._numbers.setdefault(key, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(task)
        knobs = tuple(config.get(name, 0) for name in self._kind.knobs)
        self._runs.setdefault((number, knobs), []).append((row["latency_s"], bool(row["noisy"])))

    def rows(self) -> TuningRows:
        """What was kept, one row per task and configuration."""
        configs = np.array([knobs for _, knobs in self._runs], dtype=np.int64).reshape(
            len(self._runs), len(self._kind.knobs)
        )
        runs = list(self._runs.values())
        return TuningRows(
            kind=self._kind,
            tasks=tuple(self._tasks),
            of_task=np.array([number for number, _ in self._runs], dtype=np.int64),
            knobs={name: configs[:, i] for i, name in enumerate(self._kind.knobs)},
            latency_s=np.array([math.exp(float(np.mean([math.log(seconds) for seconds, _ in each]))) for each in runs]),
            noisy=np.array([all(noisy for _, noisy in each) for each in runs], dtype=np.bool_),
            n_failed=self._n_failed,
        )


def _plain_rows(family: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as mappings, with the columns that say what was run and how long it took."""
    known = get_family(family)
    wanted = [name for name in (*_COLUMNS, *known.dim_names, *known.config) if name in table.column_names]
    for batch in table.select(wanted).to_batches():
        for row in batch.to_pylist():
            yield {**row, "family": family}
