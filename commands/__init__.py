"""The commands of `kernelcast`, one module each; what they need is imported when they run, so that start-up is fast."""

from __future__ import annotations

import typer

from .. import __version__
from . import (
    calibrate,
    catalogue,
    characterize,
    collect,
    collect_gpu,
    collect_mlir,
    compile_labels,
    compile_triton_programs,
    count_traffic,
    data,
    evaluate,
    export_ops,
    fleet,
    importing,
    keys,
    learning_curve,
    models,
    nightly,
    predict,
    predict_code,
    predict_model,
    serve,
    suggest,
    trace_launches,
    train,
    train_mlir,
    train_triton,
    train_tuning,
    tune,
)

app = typer.Typer(
    name="kernelcast",
    help="What a kernel costs on a device: latency, power and energy, with an interval, without running it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


app.command("predict")(predict.predict)
app.command("predict-model")(predict_model.predict_model)
app.command("predict-code")(predict_code.predict_code)
app.command("devices")(catalogue.devices)
app.command("kernels")(catalogue.kernels)
app.command("serve")(serve.serve)
app.command("collect")(collect.collect)
app.command("collect-gpu")(collect_gpu.collect_gpu)
app.command("collect-mlir")(collect_mlir.collect_mlir)
app.command("compile-labels")(compile_labels.compile_labels)
app.command("compile-triton-programs")(compile_triton_programs.compile_triton_programs)
app.command("characterize")(characterize.characterize)
app.command("trace-launches")(trace_launches.trace_launches)
app.command("count-traffic")(count_traffic.count_traffic)
app.command("import")(importing.import_)
app.command("train")(train.train)
app.command("train-mlir")(train_mlir.train_mlir)
app.command("train-triton")(train_triton.train_triton)
app.command("train-tuning")(train_tuning.train_tuning)
app.command("tune")(tune.tune)
app.command("export-ops")(export_ops.export_ops)
app.command("calibrate")(calibrate.calibrate)
app.command("suggest")(suggest.suggest)
app.command("nightly")(nightly.nightly)
app.command("nights")(nightly.nights)
app.command("evaluate")(evaluate.evaluate)
app.command("learning-curve")(learning_curve.learning_curve)
app.add_typer(fleet.app, name="fleet")
app.add_typer(keys.app, name="keys")
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
