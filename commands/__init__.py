"""The commands of `kernelcast`, one module each; what they need is imported when they run, so that start-up is fast."""

from __future__ import annotations

from collections.abc import Callable

import typer

from ..version import __version__
from . import calibrate, catalogue, data, evaluate, llm, models, nightly, serve, train
from .measure import adapt, characterize, collect, fleet, gpu_records, measure, tune
from .predict import estimate, predict, predict_mlir, predict_model

app = typer.Typer(
    name="kernelcast",
    help="Predict what a kernel costs on a device (latency, power, energy, each with an interval) without running it.",
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


COMMANDS: dict[str, Callable[..., None]] = {
    "predict": predict.predict,
    "predict-model": predict_model.predict_model,
    "predict-code": predict_mlir.predict_code,
    "estimate": estimate.estimate,
    "devices": catalogue.devices,
    "kernels": catalogue.kernels,
    "serve": serve.serve,
    "collect": collect.collect,
    "collect-gpu": collect.collect_gpu,
    "collect-mlir": collect.collect_mlir,
    "compile-labels": gpu_records.compile_labels,
    "compile-triton-programs": gpu_records.compile_triton_programs,
    "characterize": characterize.characterize,
    "trace-launches": gpu_records.trace_launches,
    "count-traffic": gpu_records.count_traffic,
    "import": data.import_,
    "train": train.train,
    "train-mlir": train.train_mlir,
    "train-triton": train.train_triton,
    "train-tuning": train.train_tuning,
    "tune": tune.tune,
    "export-ops": train.export_ops,
    "calibrate": calibrate.calibrate,
    "suggest": calibrate.suggest,
    "measure": measure.measure,
    "adapt": adapt.adapt,
    "nightly": nightly.nightly,
    "nights": nightly.nights,
    "evaluate": evaluate.evaluate,
    "learning-curve": evaluate.learning_curve,
}
GROUPS = {"fleet": fleet.app, "keys": serve.keys, "llm": llm.app, "models": models.app, "data": data.app}

for name, command in COMMANDS.items():
    app.command(name)(command)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)
