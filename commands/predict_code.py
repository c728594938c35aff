"""`kernelcast predict-code kernel.ttir`: what a Triton function compiles to, without compiling it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import Json, out, print_json
from .predict_mlir import STDIN, safe

if TYPE_CHECKING:
    from ..models.mlir.triton_prediction import CodePrediction
    from ..models.prediction import Interval


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
    from ..api.mlir_reader import NativeReader
    from ..api.mlir_request import read_file
    from ..features.mlir.reading import read
    from ..models.mlir.triton_predictor import load_code_predictor

    predictor = load_code_predictor(model)
    # A text made to bring a native parser down must not take the command with it.
    with NativeReader() as native:
        module = read(read_file(None if text == STDIN else Path(text)), native=native)
    found = [
        predictor.predict(module, function, one, num_warps=num_warps, num_stages=num_stages, coverage=coverage)
        for one in target
    ]
    if as_json:
        print_json({"predictions": found})
        return
    for one in found:
        _show("stdin" if text == STDIN else Path(text).name, one)


def _show(title: str, found: CodePrediction) -> None:
    from rich.table import Table
    from rich.text import Text

    from .units import num_bytes

    screen = out()
    options = f"{found.target}, {found.num_warps} warps, {found.num_stages} stages"
    screen.print(Text.assemble((safe(title), "bold"), f": {safe(found.function)} for {options}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", width=13)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column()
    spills = f"{100 * found.spill_probability:.0f} %"
    limits = found.limits
    for name, value, between, remark in (
        ("registers", f"{found.registers.value:.0f}", _between(found.registers, "{:.0f}".format),
        f"per thread, of {limits['registers']}"),
        ("spilling", spills, "",
        f"about {num_bytes(found.spill_b)} of stack per thread" if found.spill_b else "probability"),
        ("shared memory", num_bytes(found.shared_b.value), _between(found.shared_b, num_bytes),
         f"per block, of {num_bytes(limits['shared_b'])}"),
        ("instructions", f"{found.instructions.value:.0f}", _between(found.instructions, "{:.0f}".format),
        "each once, however often it runs"),
        ("occupancy", _percent(found.occupancy.value), _between(found.occupancy, _percent),
        f"{found.blocks_per_sm} blocks at once"),
    ):  # fmt: skip
        table.add_row(name, Text(value, "bold"), between, remark)
    screen.print(table)
    for name, said in (("interval", f"{found.coverage * 100:g} % of functions fall inside"), ("read by", found.reader)):
        screen.print(Text.assemble((name.ljust(14), "dim"), safe(said)), soft_wrap=True)
    for remark in found.notes:
        screen.print(Text.assemble(("note".ljust(14), "dim"), safe(remark)), soft_wrap=True)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _between(target: Interval, show: Any) -> str:
    return f"[{show(target.lower)} … {show(target.upper)}]"
