"""`kernelcast predict-code kernel.ttir`: what a Triton function compiles to, without compiling it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import Json, between, num_bytes, out, print_json, show_fact, totals_table
from .predict_mlir import STDIN, safe

if TYPE_CHECKING:
    from ...workloads.mlir.triton.predictor import CodePrediction


def predict_code(
    text: Annotated[str, typer.Argument(metavar="FILE", help="Triton IR (.ttir), or - for standard input.")],
    target: Annotated[list[str], typer.Option("--target", help="sm_80 or sm_90; may be given again.")],
    num_warps: Annotated[int, typer.Option("--num-warps", help="Warps of a block.")] = 4,
    num_stages: Annotated[int, typer.Option("--num-stages", help="Stages that loops keep in flight.")] = 3,
    function: Annotated[str | None, typer.Option(help="Which function; default: the only public one.")] = None,
    coverage: Annotated[float, typer.Option(help="Share of functions the intervals are to contain.")] = 0.9,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model directory; default: the shipped model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict registers, spills, shared memory, instructions and occupancy: kernelcast predict-code kernel.ttir
    --target sm_90.
    """
    from ...features.mlir.parse.parser_process import NativeReader
    from ...features.mlir.understanding import read
    from ...workloads.mlir.program_text import read_file
    from ...workloads.mlir.triton.predictor import load_code_predictor

    predictor = load_code_predictor(model)
    # A text made to bring a native parser down must not take the command with it.
    with NativeReader() as native:
        module = read(read_file(None if text == STDIN else Path(text)), native=native)
    predictions = [
        predictor.predict(module, function, name, num_warps=num_warps, num_stages=num_stages, coverage=coverage)
        for name in target
    ]
    if as_json:
        print_json({"predictions": predictions})
        return
    for prediction in predictions:
        _show("stdin" if text == STDIN else Path(text).name, prediction)


def _show(title: str, prediction: CodePrediction) -> None:
    from rich.text import Text

    screen = out()
    options = f"{prediction.target}, {prediction.num_warps} warps, {prediction.num_stages} stages"
    screen.print(Text.assemble((safe(title), "bold"), f": {safe(prediction.function)} for {options}"), soft_wrap=True)
    table = totals_table(13)
    spills = f"{100 * prediction.spill_probability:.0f} %"
    limits = prediction.limits
    for name, value, interval, remark in (
        ("registers", f"{prediction.registers.value:.0f}", between(prediction.registers, "{:.0f}".format),
        f"per thread, of {limits['registers']}"),
        ("spilling", spills, "",
        f"about {num_bytes(prediction.spill_b)} of stack per thread" if prediction.spill_b else "probability"),
        ("shared memory", num_bytes(prediction.shared_b.value), between(prediction.shared_b, num_bytes),
         f"per block, of {num_bytes(limits['shared_b'])}"),
        ("instructions", f"{prediction.instructions.value:.0f}", between(prediction.instructions, "{:.0f}".format),
        "each once, however often it runs"),
        ("occupancy", _percent(prediction.occupancy.value), between(prediction.occupancy, _percent),
        f"{prediction.blocks_per_sm} blocks at once"),
    ):  # fmt: skip
        table.add_row(name, Text(value, "bold"), interval, remark)
    screen.print(table)
    show_fact("interval", f"{prediction.coverage * 100:g} % of functions fall inside", cells=14)
    show_fact("read by", safe(prediction.reader), cells=14)
    for remark in prediction.notes:
        show_fact("note", safe(remark), cells=14)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
