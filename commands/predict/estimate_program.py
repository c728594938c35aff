"""`kernelcast estimate FILE.py:FUNCTION`: what a PyTorch program costs, from the program itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import console

if TYPE_CHECKING:
    from ...features.device import Catalogue

PROGRAM = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")
"""A file and the function in it that runs one step."""


def estimate_program(
    program: re.Match[str], devices: Sequence[str], threads: int | None, batch: int | None, out: Path | None, model: Path,
    known: Catalogue, coverage: float, as_json: bool,
) -> None:  # fmt: skip
    """Print what a PyTorch program costs.

    `program` is a match of `PROGRAM`, the others are options of `kernelcast estimate`.
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.torch_program import estimate_script
    from ...workloads.torch_program.report import as_data

    # The program may change the directory.
    out = None if out is None else out.resolve()
    run = estimate_script(
        Path(program["path"]), program["function"], devices, threads=threads, batch=batch,
        model=load_predictor(model, known), coverage=coverage,
    )  # fmt: skip
    if out is not None:
        run.save(out)
    if as_json:
        console.print_json(as_data(run.answers))
    else:
        console.out().print(str(run), soft_wrap=True)
