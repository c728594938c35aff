"""`kernelcast llm steps`: times of an engine's steps, for a table of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError
from .. import console

if TYPE_CHECKING:
    import pyarrow as pa

    from ...workloads.serving.step_rows import RowTimes

TEXT_COLUMNS = frozenset({"model", "device", "engine", "engine_version", "precision", "weight_dtype", "kv_dtype"})


def steps(
    table: Annotated[
        Path, typer.Option(metavar="FILE", help="Steps (.parquet, .csv): model, device, engine, tokens of each kind.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the table with its answers goes.")],
    profile: Annotated[
        Path | None, typer.Option(metavar="YAML", help="What the engine adds, from `kernelcast llm calibrate`.")
    ] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Predict the time of every step of a table: kernelcast llm steps --table steps.parquet --out predicted.parquet

    Rows and columns stay; pred_step_s, pred_step_lo_s and pred_step_hi_s (the 90 % interval) and refused (why a row has none)
    are added. Labels are not read.
    """
    from ...datasets.rows.table_columns import read_table
    from ...models.predict.predictor import load_predictor
    from ...workloads.serving.engine.profile import read_profile
    from ...workloads.serving.step_rows import NEEDED, OPTIONAL, predict_rows
    from ..predict.predict_table import check_table, write_table

    check_table(out)
    if out.exists() and table.exists() and out.samefile(table):
        raise SpecError(f"--out {out} is the table that is read; give another file", field="out")
    question = read_table(table, TEXT_COLUMNS)
    engine = None if profile is None else read_profile(profile)
    predictor = load_predictor(console.model_dir(model), console.read_catalogue(device_file))
    columns = {name: question[name].to_pylist() for name in (*NEEDED, *OPTIONAL) if name in question.column_names}
    times = predict_rows(predictor, columns, engine)
    write_table(_joined(question, times), out)
    console.note_refused(times.refused)
    refused = sum(bool(reason) for reason in times.refused)
    done = question.num_rows - refused
    console.note(f"{done} steps predicted, {refused} refused, written to {out}")
    if as_json:
        console.print_json({"out": str(out), "rows": question.num_rows, "predicted": done, "refused": refused})


def _joined(table: pa.Table, times: RowTimes) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    ends = {"pred_step_s": times.value_s, "pred_step_lo_s": times.lower_s, "pred_step_hi_s": times.upper_s}
    added = {name: pa.array(column, mask=np.isnan(column)) for name, column in ends.items()}
    added["refused"] = pa.array(times.refused, pa.string())
    if replaced := [name for name in added if name in table.column_names]:
        console.note(f"columns of {', '.join(replaced)} in the table are replaced")
        table = table.drop_columns(replaced)
    for name, column in added.items():
        table = table.append_column(name, column)
    return table
