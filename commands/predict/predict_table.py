"""A table in, the same table with predictions out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...datasets.form.export import row_file
from ...datasets.form.form import FormRows, FormTable, read_form
from ...datasets.rows.table_columns import SUFFIXES
from ...datasets.store.errors import StoreError
from ...features.device import Catalogue
from ...features.errors import SpecError
from ...models.predict.named_impl import check_impl
from ...models.predict.power_cap import under_settings
from ...models.predict.power_law import Board, PowerSetting
from ...models.predict.prediction import Predictions
from ...models.predict.predictor import load_predictor
from ..console import check_file, note, progress_bar

if TYPE_CHECKING:
    from ...features.batch.cases import Indices
    from ...models.predict.prediction import Predictor

_TARGETS = {"latency_s": ("latency", "s"), "power_w": ("power", "w"), "energy_j": ("energy", "j")}
_BATCH_ROWS = 20_000
_SHOWN = 10


def predict_table(
    path: Path, out: Path, model: Path, devices: Catalogue, *, coverage: float, family: str | None, skip_bad_rows: bool
) -> dict[str, Any]:
    """Write `path` with predictions added to `out`; returns what was written, as plain data.

    Rows keep their order and all their columns. No label is read: labels are copied with the other columns.

    Raises:
        SpecError: the table or some of its rows cannot be predicted (unless `skip_bad_rows`), or `out` cannot be written.
        ArtifactError: the model cannot be used.
    """
    check_table(out)
    if out.exists() and path.exists() and out.samefile(path):
        raise SpecError(f"--out {out} is the table that is read; give another file", field="out")
    predictor = load_predictor(model, devices)
    form = read_form(path, family=family, skip_bad_rows=skip_bad_rows, need_labels=False,
                     known_devices=lambda name: devices.get(name).name)  # fmt: skip
    refused = {row.row: f"{row.column}: {row.reason}" for row in form.refused}
    columns = _Columns(form.table.num_rows)
    with progress_bar() as progress:
        done = 0
        for name, rows in form.parts.items():
            for part in _predictable(rows, predictor, refused):
                progress(f"predicting {name}", done, form.table.num_rows)
                if predicted := _predicted(predictor, part, coverage, refused):
                    columns.put(*predicted)
                done += len(part)
    if refused and not skip_bad_rows:
        raise SpecError(_complaint(path, refused, form.table.num_rows))
    write_table(_joined(form, columns, refused, with_reasons=skip_bad_rows), out)
    note(f"{form.table.num_rows - len(refused)} rows predicted, {len(refused)} refused, written to {out}")
    return {"out": str(out), "rows": form.table.num_rows, "predicted": form.table.num_rows - len(refused),
            "refused": len(refused)}  # fmt: skip


class _Columns:
    """The columns to add, filled part by part; NaN and None where nothing is predicted."""

    def __init__(self, n: int) -> None:
        self.numbers = {
            f"pred_{word}{end}_{unit}": np.full(n, np.nan)
            for word, unit in _TARGETS.values()
            for end in ("", "_lo", "_hi")
        }
        self.texts: dict[str, npt.NDArray[Any]] = {
            name: np.full(n, None, dtype=object) for name in ("in_domain", "bound", "method")
        }

    def put(self, rows: Any, predictions: Predictions) -> None:
        """Take the predictions of `rows`."""
        for target, (word, unit) in _TARGETS.items():
            columns = predictions.targets[target]
            for end, column in (("", columns.value), ("_lo", columns.lower), ("_hi", columns.upper)):
                self.numbers[f"pred_{word}{end}_{unit}"][rows] = column
        self.texts["in_domain"][rows] = predictions.in_domain.tolist()
        self.texts["bound"][rows] = list(predictions.bound)
        self.texts["method"][rows] = list(predictions.method)

    def arrow(self) -> Mapping[str, pa.Array]:
        """All columns; what is unknown is null."""
        kinds = {"in_domain": pa.bool_(), "bound": pa.string(), "method": pa.string()}
        return {name: pa.array(column, mask=np.isnan(column)) for name, column in self.numbers.items()} | {
            name: pa.array(column.tolist(), kinds[name]) for name, column in self.texts.items()
        }


def _predictable(rows: FormRows, predictor: Predictor, refused: dict[int, str]) -> list[FormRows]:
    """The rows whose device can run their dtype and be set as they say, and whose implementation was measured, in batches that
    bound memory. The others are refused.
    """
    good = np.ones(len(rows), dtype=np.bool_)
    for index, (device, dtype, impl) in rows.cases.groups("device", "dtype", "impl"):
        try:
            predictor.devices.get(device).peak_flops_per_s(dtype, rows.cases.family.unit)
            check_impl(predictor, rows.cases.family.name, impl)
        except SpecError as error:
            good[index] = False
            refused.update(dict.fromkeys(rows.rows[index].tolist(), f"{error.field}: {error}"))
    for setting, index in _by_setting(rows).items():
        for where, (name,) in rows.cases.take(index).groups("device"):
            board_device = predictor.devices.get(name)
            try:
                Board.of(board_device).check(setting, board_device.name)
            except SpecError as error:
                good[index[where]] = False
                refused.update(dict.fromkeys(rows.rows[index[where]].tolist(), f"{error.field}: {error}"))
    positions = np.flatnonzero(good)
    return [rows.take(positions[start : start + _BATCH_ROWS]) for start in range(0, len(positions), _BATCH_ROWS)]


def _by_setting(rows: FormRows) -> dict[PowerSetting, Indices]:
    """Positions of the rows that have a power limit or a locked clock, by these."""
    # NaN equals nothing, itself included.
    pairs = np.nan_to_num(np.stack([rows.power_limit_w, rows.clock_hz], axis=1))
    distinct, code = np.unique(pairs, axis=0, return_inverse=True)
    settings = [PowerSetting(*(number or None for number in pair)) for pair in distinct.tolist()]
    return {
        setting: np.flatnonzero(code.reshape(-1) == i)
        for i, setting in enumerate(settings)
        if setting != PowerSetting()
    }


def _predicted(
    predictor: Predictor, part: FormRows, coverage: float, refused: dict[int, str]
) -> tuple[Indices, Predictions] | None:
    """Positions in the table of the rows that can be predicted, and their predictions; the others are refused."""
    try:
        predictions = predictor.predict_cases(part.cases, coverage=coverage)
    except SpecError as error:
        if error.field != "family":
            raise
        refused.update(dict.fromkeys(part.rows.tolist(), f"family: {error}"))
        return None
    settings: list[PowerSetting | None] = [None] * len(part)
    for setting, index in _by_setting(part).items():
        for i in index.tolist():
            settings[i] = setting
    good = np.ones(len(part), dtype=np.bool_)
    # Where power is unknown, what a limit does is too: tried alone, as a batch may have several such devices.
    for i in np.flatnonzero(np.isnan(predictions.targets["power_w"].value) & ~np.isnan(part.power_limit_w)).tolist():
        try:
            under_settings(part.cases.take([i]), predictions.take([i]), predictor.devices, [settings[i]])
        except SpecError as error:
            good[i] = False
            refused[int(part.rows[i])] = f"{error.field}: {error}"
    rows = np.flatnonzero(good)
    if not len(rows):
        return None
    if len(rows) < len(part):
        part, predictions = part.take(rows), predictions.take(rows)
    chosen = [settings[i] for i in rows.tolist()]
    return part.rows, under_settings(part.cases, predictions, predictor.devices, chosen)


def _complaint(path: Path, refused: dict[int, str], n: int) -> str:
    shown = "\n".join(f"  row {row + 1}: {reason}" for row, reason in sorted(refused.items())[:_SHOWN])
    more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return (f"{path}: {len(refused)} of {n} rows cannot be predicted (rows count from 1, below the header):\n{shown}{more}\n"
            "Correct them, or add --skip-bad-rows to write them without a prediction.")  # fmt: skip


def _joined(form: FormTable, columns: _Columns, refused: dict[int, str], *, with_reasons: bool) -> pa.Table:
    added = dict(columns.arrow())
    if with_reasons:
        added["refused"] = pa.array([refused.get(row) for row in range(form.table.num_rows)], pa.string())
    table = form.table
    if replaced := [name for name in added if name in table.column_names]:
        note(f"columns of {', '.join(replaced)} in the table are replaced")
        table = table.drop_columns(replaced)
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


def check_table(out: Path) -> None:
    """That a table can be written to the file `out`, .csv or .parquet.

    Raises:
        SpecError: why it cannot.
    """
    if out.suffix.lower() not in SUFFIXES:
        raise SpecError(f"--out {out} must end in {' or '.join(SUFFIXES)}", field="out")
    check_file(out)


def write_table(table: pa.Table, out: Path) -> None:
    """Write a table to a .csv or .parquet file, whole or not at all.

    Raises:
        SpecError: it cannot be written.
    """
    try:
        with row_file(out, table.schema, table.schema.metadata) as file:
            file.write_table(table)
    except StoreError as error:
        raise SpecError(str(error), field="out") from error
    except pa.ArrowException as error:
        raise SpecError(f"cannot write {out}: {str(error).splitlines()[0]}", field="out") from error
