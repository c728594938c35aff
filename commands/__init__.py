"""The commands of `kernelcast`, imported when they run, so that start-up is fast; here is the tree of their names."""

from __future__ import annotations

from typing import Any

import typer

from ..version import __version__
from .lazy_group import Entry, LazyGroup

_ASK, _IMPROVE, _RUN = "Ask", "Improve", "Run"

MODELS = Entry("models:app", "List models and choose the one that serves.")
KEYS = Entry("serve:keys", "Make, list and revoke API keys.")
FLEET = Entry("measure.fleet:app", "Measure on many machines at once, on Ray.")

PREDICT = {
    "model": Entry("predict.predict_model:predict_model", "A whole model, from a file that lists its kernels."),
    "code": Entry("predict.predict_mlir:predict_code", "Registers, spills and occupancy of compiled Triton code."),
}
COMPARE = {
    "sweep": Entry("compare.sweep:sweep", "Along one size or knob, drawn as a plot."),
    "rank": Entry("compare.compare:rank", "Configurations of a kernel, the fastest first."),
    "roofline": Entry("compare.compare:roofline", "Where the kernel lies under the roofline of each device."),
    "best-cap": Entry("compare.best_cap:best_cap", "The power limit or clock at which work takes least energy."),
}
MEASURE = {
    "cpu": Entry("measure.collect:collect", "Kernels on this machine's CPU."),
    "gpu": Entry("measure.collect:collect_gpu", "Kernels on this machine's GPU."),
    "mlir": Entry("measure.collect:collect_mlir", "MLIR modules, compiled by IREE and XLA."),
    "pairs": Entry("measure.pairs:measure_pairs", "Kernels beside each other on two cores of this machine's CPU."),
    "machine": Entry("measure.characterize:characterize", "The machine itself: peaks, bandwidths, launches, power."),
    "suggest": Entry("train.calibrate:suggest", "Choose the cases worth measuring on a device."),
    "launches": Entry("measure.gpu_records:trace_launches", "How long kernels of a GPU take to launch."),
    "traffic": Entry("measure.gpu_records:count_traffic", "Memory traffic of kernels, by Nsight Compute."),
    "labels": Entry("measure.gpu_records:compile_labels", "Registers and spills of tiled kernels, without a GPU."),
    "triton": Entry("measure.gpu_records:compile_triton_programs", "The same of Triton programs, without a GPU."),
    "nightly": Entry("measure.nightly:nightly", "A night: measure, calibrate, promote what is better, report."),
    "nights": Entry("measure.nightly:nights", "List the nights on this machine."),
    "fleet": FLEET,
}
TRAIN = {
    "mlir": Entry("train.train:train_mlir", "A model of whole MLIR programs."),
    "triton": Entry("train.train:train_triton", "A model of compiled Triton code."),
    "tuning": Entry("train.train:train_tuning", "Models that rank a compiler's choices."),
    "calibrate": Entry("train.calibrate:calibrate", "Adapt a model to a device with 8 to 1,000 of its rows."),
    "export-ops": Entry("train.train:export_ops", "Small models of operations, for compiler passes."),
}
EVALUATE = {"curve": Entry("train.evaluate:learning_curve", "How errors fall as more is measured.")}
SERVE = {"keys": KEYS, "models": MODELS}
DEVICES = {"kernels": Entry("catalogue:kernels", "Kernel families: their sizes, implementations and dtypes.")}

COMMANDS = {
    "predict": Entry(
        "predict.predict:predict", "What a kernel, an MLIR program or a table of kernels costs.", _ASK, PREDICT
    ),
    "estimate": Entry(
        "predict.estimate:estimate", "What a step of a model or a PyTorch program costs, and whether it fits.", _ASK
    ),
    "llm": Entry("llm:app", "What a service of a language model costs, and which plan meets a target.", _ASK),
    "compare": Entry(
        "compare.compare:compare", "A kernel on devices side by side, along a size, by configuration.", _ASK, COMPARE
    ),
    "tune": Entry("measure.tune:tune", "Tile sizes for a module's kernels, as the compiler takes them.", _ASK),
    "adapt": Entry("measure.adapt:adapt", "Fit the serving model to this machine within a time budget.", _IMPROVE),
    "measure": Entry("measure.measure:measure", "Measure kernels, programs or the machine itself.", _IMPROVE, MEASURE),
    "train": Entry("train.train:train", "Train a model on measured rows.", _IMPROVE, TRAIN),
    "evaluate": Entry("train.evaluate:evaluate", "Errors of predictions on measured rows.", _IMPROVE, EVALUATE),
    "serve": Entry("serve:serve", "Serve predictions over REST; keys and models of the service.", _RUN, SERVE),
    "data": Entry("data:app", "List, verify, query, import and export measured rows.", _RUN),
    "devices": Entry("catalogue:devices", "Known devices and kernels, and what was measured of them.", _RUN, DEVICES),
}


def _hidden(entry: Entry) -> Entry:
    return Entry(entry.target, is_hidden=True)


ALIASES = {
    "predict-model": _hidden(PREDICT["model"]),
    "predict-code": _hidden(PREDICT["code"]),
    "best-cap": _hidden(COMPARE["best-cap"]),
    "kernels": _hidden(DEVICES["kernels"]),
    "collect": _hidden(MEASURE["cpu"]),
    "collect-gpu": _hidden(MEASURE["gpu"]),
    "collect-mlir": _hidden(MEASURE["mlir"]),
    "compile-labels": _hidden(MEASURE["labels"]),
    "compile-triton-programs": _hidden(MEASURE["triton"]),
    "characterize": _hidden(MEASURE["machine"]),
    "trace-launches": _hidden(MEASURE["launches"]),
    "count-traffic": _hidden(MEASURE["traffic"]),
    "import": Entry("data:import_", is_hidden=True),
    "train-mlir": _hidden(TRAIN["mlir"]),
    "train-triton": _hidden(TRAIN["triton"]),
    "train-tuning": _hidden(TRAIN["tuning"]),
    "export-ops": _hidden(TRAIN["export-ops"]),
    "calibrate": _hidden(TRAIN["calibrate"]),
    "suggest": _hidden(MEASURE["suggest"]),
    "nightly": _hidden(MEASURE["nightly"]),
    "nights": _hidden(MEASURE["nights"]),
    "learning-curve": _hidden(EVALUATE["curve"]),
    "fleet": _hidden(FLEET),
    "keys": _hidden(KEYS),
    "models": _hidden(MODELS),
}
"""Older names of commands, which work as before and which no help lists."""


class _Root(LazyGroup):
    """All commands."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(entries=COMMANDS | ALIASES, **attrs)


app = typer.Typer(
    name="kernelcast",
    cls=_Root,
    help="Predict what a kernel costs on a device (latency, power, energy, each with an interval) without running it.",
    no_args_is_help=True,
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
