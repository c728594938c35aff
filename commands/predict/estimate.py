"""`kernelcast estimate`: what a program costs, from the program itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...features.errors import SpecError
from .. import console

_SCRIPT = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")


def estimate(
    program: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that runs one step.")],
    device: console.Devices = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples of one step, for samples per second.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the answer to a .html, .json or .txt file.")] = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Estimate time, power, energy and memory of a PyTorch program on devices, without a GPU and without weights.

    kernelcast estimate train.py:step --device h100-sxm --device rtx-4090

    The file is loaded and the function called with fake tensors: nothing is computed.
    """
    known = console.read_catalogue(device_file)
    script = _SCRIPT.fullmatch(program)
    if script is None:
        raise SpecError(f"{program!r} names no program; give FILE.py:FUNCTION, such as train.py:step", field="program")
    from ...models.predict.predictor import load_predictor
    from ...workloads.torch_program import estimate_script
    from ...workloads.torch_program.report import as_data

    run = estimate_script(
        Path(script["path"]), script["function"], device or (), threads=threads, batch=batch,
        model=load_predictor(console.model_dir(model), known), coverage=coverage,
    )  # fmt: skip
    if out is not None:
        run.save(out)
    if as_json:
        console.print_json(as_data(run.answers))
    else:
        console.out().print(str(run), soft_wrap=True)
