"""What the store holds of the cases of a table, and the table with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from ...datasets.form.form import FormTable
    from ...datasets.store.store import Store
    from ...features.device import Device
    from ...features.kernel import KernelSpec

NOT_MEASURED = "not measured"
"""The status of a row whose case could be measured and was not."""

_MEASURED = ("latency_s", "power_w", "energy_j")


@dataclass(frozen=True, slots=True)
class Case:
    """A row that this machine can measure.

    Attributes:
        spec: The kernel, with what runs it and on how many threads.
        device: This machine's device of that kind.
    """

    spec: KernelSpec
    device: Device


def stored_cases(store: Store, device: Device, specs: Sequence[KernelSpec], *, energy: bool) -> set[str]:
    """Cases of the device that need not be measured again; with `energy`, a GPU's hot case with a time must have energy too."""
    done = store.case_ids(device.name)
    if not energy or device.kind != "gpu":
        return done
    hot = {spec.case_id for spec in specs if spec.cache_state == "hot"}
    with_energy: set[str] = set()
    without_energy: set[str] = set()
    for family in {spec.family for spec in specs}:
        for row in store.read(family, [device.name], ["case_id", "status", "energy_j"]).to_pylist():
            if row["status"] == "ok":
                (without_energy if row["energy_j"] is None else with_energy).add(row["case_id"])
    return done - (hot & (without_energy - with_energy))


def stored_results(store: Store, cases: Mapping[int, Case]) -> dict[str, dict[str, Any]]:
    """By case, its newest stored row, one with a time and energy if there is any."""
    columns = ["case_id", "status", "message", "block", *_MEASURED]
    wanted = {case.spec.case_id for case in cases.values()}
    results: dict[str, dict[str, Any]] = {}
    for family, device in dict.fromkeys((case.spec.family, case.device.name) for case in cases.values()):
        for row in store.read(family, [device], columns).to_pylist():
            best = results.get(row["case_id"])
            if row["case_id"] in wanted and (best is None or _rank(row) > _rank(best)):
                results[row["case_id"]] = row
    return results


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, str]:
    return row["status"] == "ok", row["energy_j"] is not None, row["block"] or ""


def with_results(
    form: FormTable, cases: Mapping[int, Case], results: Mapping[str, Mapping[str, Any]], refused: Mapping[int, str]
) -> pa.Table:
    """The table with what was measured; a row without a result keeps its cells, as do other columns."""
    import pyarrow as pa

    n = form.table.num_rows
    rows = [results.get(cases[i].spec.case_id) if i in cases else None for i in range(n)]
    cells: dict[str, list[Any]] = {
        name: form.table[name].to_pylist() if name in form.table.column_names else [None] * n
        for name in (*_MEASURED, "status", "message", "impl", "threads")
    }
    for i, row in enumerate(rows):
        if row is not None:
            for name in (*_MEASURED, "status", "message"):
                cells[name][i] = row[name]
        # Otherwise a time, or a reason for none, is of another run or machine.
        elif cells["status"][i] in (None, "", NOT_MEASURED) and cells["latency_s"][i] in (None, ""):
            cells["status"][i] = "unsupported" if i in refused else NOT_MEASURED
            cells["message"][i] = refused.get(i, cells["message"][i])
        if i in cases:
            cells["impl"][i], cells["threads"][i] = cases[i].spec.impl, cases[i].spec.threads
    if all(count is None for count in cells["threads"]):
        del cells["threads"]
    types = {**dict.fromkeys(_MEASURED, pa.float64()), "threads": pa.int64()}
    table = form.table
    for name, column in cells.items():
        values = _array(column, types.get(name, pa.string()))
        at = table.column_names.index(name) if name in table.column_names else None
        table = table.append_column(name, values) if at is None else table.set_column(at, name, values)
    return table


def _array(cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Cells as an array of a type; as text where a row without a result holds anything else."""
    import pyarrow as pa

    try:
        return pa.array(cells, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())
