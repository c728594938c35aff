"""`kernelcast predict`: one kernel from the command line, MLIR text, or a whole table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError, listed
from .. import console, names
from .predict_mlir import is_mlir, predict_mlir

if TYPE_CHECKING:
    from ...features.device import Device
    from ...features.kernel import KernelSpec
    from ...models.predict.prediction import Prediction

_TABLE = "predict --table FILE --out OUT"
_LIST, _STEP = "predict model FILE, or estimate FILE for a model's config.json", "estimate FILE"
_OTHER_FILES = {
    ".csv": _TABLE, ".parquet": _TABLE, ".json": _LIST, ".yaml": "predict model FILE", ".yml": "predict model FILE",
    ".onnx": _STEP, ".py": "estimate FILE.py:FUNCTION", ".ttir": "predict code FILE",
}  # fmt: skip
"""Commands for files that people give to this one, by suffix."""


def predict(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="FAMILY | FILE.mlir | -",
            help="Kernel family, such as gemm; or MLIR text: a file, - for stdin.",
            autocompletion=names.complete_family,
        ),
    ] = None,
    values: names.Words = None,
    device: names.Devices = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Predict every row of a .parquet or .csv table instead.")
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where the table goes, with the predictions added.")
    ] = None,
    table_family: Annotated[
        str | None, typer.Option("--family", help="Family of the table's rows, where it has no such column.")
    ] = None,
    skip_bad_rows: Annotated[
        bool,
        typer.Option(
            "--skip-bad-rows",
            help="Write rows that cannot be predicted with the reason in place of a prediction, instead of stopping.",
        ),
    ] = False,
    function: Annotated[str | None, typer.Option(help="MLIR: the function; default: the public one.")] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="MLIR: a dynamic size, such as dim0=128; again for more."),
    ] = None,
    compiler: Annotated[str, typer.Option(help="MLIR: the compiler, iree or xla.")] = "",
    threads: Annotated[int | None, typer.Option(help="MLIR: threads of the CPUs; default: all cores.")] = None,
    flame: Annotated[
        Path | None, typer.Option(metavar="FILE", help="MLIR: also draw where time goes, as .html or .svg.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="MLIR: list every kernel.")] = False,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KERNEL",
            help="A kernel that runs at the same time, in quotes: 'copy 4kx4k fp32 threads=1'; again for more.",
        ),
    ] = None,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Predict what a kernel or a program costs: latency, power and energy, each with an interval.

    One kernel: kernelcast predict gemm m=4096 n=4096 k=4096 dtype=bf16 --device h100-sxm, or matmul 4kx4kx4k bf16

    MLIR: kernelcast predict model.mlir --device h100-sxm --device amd-epyc-9005-vm-2c --flame flame.html

    A table: kernelcast predict --model DIR --table IN.parquet --out OUT.parquet

    Beside another kernel: kernelcast predict copy 2kx2k fp32 threads=1 --device DEVICE --beside 'gemm 16x2kx2k fp32 threads=1'

    Under a power limit or a locked clock: kernelcast predict gemm 4kx4kx4k bf16 --device h100-sxm --power-limit-w 400
    """
    known = console.read_catalogue(device_file)
    only_text = {"--function": function, "--bind": bind, "--compiler": compiler or None, "--threads": threads,
                 "--flame": flame, "--all": show_all or None}  # fmt: skip
    if what is not None and (advice := _OTHER_FILES.get(Path(what).suffix.lower())):
        raise SpecError(f"{what} is neither a kernel family nor MLIR; for such a file: kernelcast {advice}")
    electricity = console.read_electricity(grid, electricity_price, pue)
    if electricity is not None and (table is not None or (what is not None and is_mlir(what))):
        raise SpecError("--grid and --electricity-price go with one kernel; scale energy_j of tables and MLIR yourself")
    is_set = power_limit_w is not None or clock_hz is not None
    if is_set and (table is not None or (what is not None and is_mlir(what))):
        raise SpecError(
            "--power-limit-w and --clock-hz go with one kernel; rows of --table have columns power_limit_w and clock_hz, and "
            "programs in MLIR are predicted for boards as they come"
        )
    if beside and (table is not None or what is None or is_mlir(what) or is_set or electricity is not None):
        raise SpecError("--beside goes with one kernel on a device as it comes; leave it or the other options out")
    if table is None and what is not None and is_mlir(what):
        if values:
            raise SpecError(f"{values[0]!r} goes with a kernel family; sizes of MLIR are given with --bind NAME=SIZE")
        if out_file is not None or table_family is not None or skip_bad_rows:
            raise SpecError("--out, --family and --skip-bad-rows are options of --table, not of MLIR; leave them out")
        predict_mlir(
            what, device or (), known, function=function, bind=bind or (), compiler=compiler, threads=threads, flame=flame,
            show_all=show_all, model=model, coverage=coverage, as_json=as_json,
        )  # fmt: skip
        return
    if mlir_options := [name for name, value in only_text.items() if value is not None]:
        raise SpecError(
            f"{listed(mlir_options)} go{'es' if len(mlir_options) == 1 else ''} with MLIR: kernelcast predict FILE.mlir …"
        )
    if table is not None:
        if what is not None:
            raise SpecError("give either one kernel or --table, not both (--family names a table's family)")
        if device:
            raise SpecError("the rows of --table name their devices in its column `device`; leave --device out")
        if out_file is None:
            raise SpecError("--table needs --out, the file that gets the rows with their predictions")
        from .predict_table import predict_table

        written = predict_table(
            table,
            out_file,
            console.model_dir(model),
            known,
            coverage=coverage,
            family=table_family,
            skip_bad_rows=skip_bad_rows,
        )
        if as_json:
            console.print_json(written)
        return
    if what is None:
        raise SpecError(
            "name a kernel, such as: kernelcast predict gemm m=512 n=512 k=512 dtype=fp32 --device h100-sxm"
        )
    if out_file is not None or table_family is not None or skip_bad_rows:
        raise SpecError("--out, --family and --skip-bad-rows need --table FILE; add it, or leave them out")
    request = names.kernel(what, values or [])
    if not device:
        raise SpecError("name a device with --device; `kernelcast devices` lists them")
    if len(device) > 1:
        raise SpecError(f"a kernel is predicted on one device; for {len(device)} run: kernelcast compare {what} …")
    place = names.device(device[0], known)
    if beside:
        from .predict_beside import predict_beside

        predict_beside(request, beside, place, known, model, coverage, as_json=as_json)
        return
    from ...features.spec_io.reading import read_spec
    from ...models.predict.named_impl import check_specs
    from ...models.predict.power_cap import prediction_under
    from ...models.predict.power_law import checked_setting
    from ...models.predict.predictor import load_predictor

    spec, name = read_spec(request | {"device": place.name}, known)
    predictor = load_predictor(console.model_dir(model), known)
    setting = checked_setting(power_limit_w, clock_hz, place)
    check_specs(predictor, [spec])
    prediction = predictor.predict([spec], [name], coverage=coverage)[0]
    prediction = prediction_under(prediction, place, setting)
    if as_json:
        from ...workloads.answers import prediction_answer

        console.print_json(prediction_answer(spec, name, prediction, electricity))
    else:
        _show(spec, place, prediction)
        console.show_footprint(electricity, [("one run", prediction.energy_j, 1.0)])


def _show(spec: KernelSpec, device: Device, prediction: Prediction) -> None:
    from rich.table import Table
    from rich.text import Text

    from ...features.kernel import View, get_family

    screen = console.out()
    screen.print(Text.assemble((str(spec), "bold"), f" on {device.title} ({device.name})"), soft_wrap=True)
    flops = float(get_family(spec.family).flops(View.of(spec)))
    rate = console.flops_per_s(flops / prediction.latency_s.value) if flops else ""
    unknown = "too few rows of this family with power were measured on devices like this"
    screen.print(console.targets_table(prediction, rate, unknown))
    console.show_fact("interval", f"{prediction.coverage * 100:g} % of cases fall inside")
    console.show_fact("bound", f"{prediction.bound}; each limit alone would take")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    longest = max(prediction.breakdown.values(), default=0.0) or 1.0
    for name, value in prediction.breakdown.items():
        table.add_row("         ", name, console.bar(value / longest), console.seconds(value))
    screen.print(table)
    inside = "inside" if prediction.in_domain else "outside"
    screen.print(
        Text.assemble(
            ("method".ljust(10), "dim"), f"{prediction.method} — ",
            console.domain_text(f"{inside} what was measured", prediction.in_domain),
        ), soft_wrap=True,
    )  # fmt: skip
    for remark in prediction.notes:
        console.show_fact("note", remark)
