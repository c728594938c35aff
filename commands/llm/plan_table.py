"""`kernelcast llm plan-table`: the best plan for every row of a table of services and batch jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...features.errors import SpecError, listed
from .. import console


def plan_table(
    table: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Questions (.parquet, .csv): model, devices, gpus, input_tokens, output_tokens"
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the table with its answers goes.")],
    price: console.Prices = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Choose a plan for every row of a table: kernelcast llm plan-table --table jobs.csv --out planned.csv

    A row is a service (rate, concurrency, or neither), a batch job (requests), or questions that are answered several times
    (samples) with the accuracy that you measured. Rows and columns stay; the plan, what it gives and refused are added.
    """
    import pyarrow as pa

    from ...datasets.rows.table_columns import read_table
    from ...models.predict.predictor import load_predictor
    from ...workloads.serving.planning.plan_table import ADDED_TEXTS, NEEDED, NUMBERS, OPTIONS, TEXTS, plan_rows
    from ...workloads.serving.predict import ServingPredictor
    from ..predict.predict_table import check_table, write_table

    electricity = console.read_electricity(grid, electricity_price, pue)
    check_table(out)
    if out.exists() and table.exists() and out.samefile(table):
        raise SpecError(f"--out {out} is the table that is read; give another file", field="out")
    known = console.read_catalogue(device_file)
    of_devices = console.read_prices(price, known.names(), known) if price else None
    questions = read_table(table, frozenset(TEXTS))
    column_names = questions.column_names
    renamed = [
        OPTIONS[name] if name in OPTIONS and OPTIONS[name] not in column_names else name for name in column_names
    ]
    questions = questions.rename_columns(renamed)
    if missing := [name for name in NEEDED if name not in questions.column_names]:
        raise SpecError(f"{table} has no column {missing[0]}; every row needs {', '.join(NEEDED)}", field=missing[0])
    read = [name for name in questions.column_names if name in (*TEXTS, *NUMBERS)]
    rows = questions.select(read).to_pylist()
    if others := [name for name in renamed if name not in (*TEXTS, *NUMBERS)]:
        console.note(f"columns that are not read: {listed(others)}")
    service = ServingPredictor(load_predictor(console.model_dir(model), known))
    with console.progress_bar() as progress:
        columns = plan_rows(
            rows, service, of_devices, lambda done: progress("planning", done, len(rows)), electricity=electricity
        )
    if replaced := [name for name in columns if name in questions.column_names]:
        console.note(f"columns of {', '.join(replaced)} in the table are replaced")
        questions = questions.drop_columns(replaced)
    for name, column in columns.items():
        number = pa.float64() if name.startswith(("pred_", "probability")) else pa.int64()
        kind = pa.string() if name in ADDED_TEXTS else pa.bool_() if name == "best" else number
        questions = questions.append_column(name, pa.array(column, kind))
    back = dict(zip(renamed, column_names, strict=True))
    write_table(questions.rename_columns([back.get(name, name) for name in questions.column_names]), out)
    console.note_refused(columns["refused"])
    refused = sum(reason is not None for reason in columns["refused"])
    console.note(f"{len(rows) - refused} rows planned, {refused} refused, written to {out}")
    if as_json:
        console.print_json({"out": str(out), "rows": len(rows), "planned": len(rows) - refused, "refused": refused})
