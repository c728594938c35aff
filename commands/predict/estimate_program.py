"""`kernelcast estimate` of a program: a function of a Python file, a captured program, or an ONNX file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...features.errors import SpecError
from .. import console

if TYPE_CHECKING:
    from ...features.device import Catalogue
    from ...models.predict.carbon import Electricity
    from ...models.predict.predictor import ArtifactPredictor
    from ...workloads.torch_program.answers import Answers
    from ...workloads.torch_program.captured import Program

_SCRIPT = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")
"""A file and the function in it that runs one step."""
_ONNX = ".onnx"


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Options of `kernelcast estimate` that programs take.

    Attributes:
        devices: Names of devices.
        threads: Threads of the CPUs among them.
        batch: Samples of one run.
        bind: Sizes of dynamic dimensions, as NAME=SIZE.
        out: File for the answer.
        flame: File for the picture of the time.
        capture: File for the program itself.
        model: Model directory.
        coverage: Coverage of the intervals.
        prices: Price of an hour by catalogue name.
        power_limit_w: Power limit of the GPUs; None: their own.
        clock_hz: Clock that they are locked to; None: none.
        electricity: Where electricity is from, and what it costs; None: nobody asks.
        steps: Steps of a whole run; None: nobody asks.
        as_json: Whether JSON is printed.
    """

    devices: Sequence[str]
    threads: int | None
    batch: int | None
    bind: Sequence[str]
    out: Path | None
    flame: Path | None
    capture: Path | None
    model: Path
    coverage: float
    prices: Mapping[str, float]
    power_limit_w: float | None
    clock_hz: float | None
    electricity: Electricity | None
    steps: int | None
    as_json: bool


def is_program(what: str) -> bool:
    """Whether an argument names a program: FILE.py:FUNCTION, a captured one, or an ONNX file."""
    return bool(_SCRIPT.fullmatch(what)) or what.endswith(_ONNX) or _captured(what) is not None


def _captured(what: str) -> Any:
    """The data of a captured program, None where the file is none."""
    from ...workloads.torch_program.captured import is_program as is_captured

    path = Path(what)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # What it is instead, and what is wrong with it, the reader of configurations says.
        return None
    return values if is_captured(values) else None


def estimate_program(what: str, options: ProgramOptions, known: Catalogue) -> None:
    """Print what a program costs, and write the files that are asked for.

    Raises:
        SpecError: the program, an option or a device cannot be used; the message says what is possible.
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.torch_program.report import as_data, as_text, pictures_of, save

    if not options.devices:
        raise SpecError("name a device with --device; `kernelcast devices` lists them", field="device")
    # The program may change the directory.
    out, flame, capture = (
        None if path is None else path.resolve() for path in (options.out, options.flame, options.capture)
    )
    if flame is not None:
        from ...workloads.flame import check_path

        check_path(flame, len(options.devices))
    predictor = load_predictor(options.model, known)
    if (script := _SCRIPT.fullmatch(what)) is not None:
        if options.bind:
            raise SpecError("--bind goes with an ONNX file; a program makes its inputs itself", field="bind")
        answers, program = _of_script(script, predictor, options)
    else:
        answers, program = _of_file(what, predictor, options)
    if out is not None:
        save(answers, out)
    if flame is not None:
        from ...workloads.flame import write

        write(flame, Path(what).name, {"operators": answers.operators}, pictures_of(answers))
    if capture is not None:
        _write(capture, program)
    runs = {} if options.steps is None else {
        name: console.step_run(options.steps, total.latency_s, total.energy_j, options.prices.get(name), options.electricity)
        for name, total in answers.totals.items()
    }  # fmt: skip
    if options.as_json:
        data = as_data(answers)
        if options.electricity is not None:
            for name, total in answers.totals.items():
                data["totals"][name]["footprint"] = options.electricity.footprint(total.energy_j)
        for name, run in runs.items():
            data["totals"][name]["run"] = run
        console.print_json(data)
    else:
        console.out().print(as_text(answers), soft_wrap=True)
        energies = [(f"a run on {name}", total.energy_j, 1.0) for name, total in answers.totals.items()]
        console.show_footprint(options.electricity, energies)
        for name, run in runs.items():
            console.show_step_run(run, answers.totals[name].title)


def _of_script(script: re.Match[str], predictor: ArtifactPredictor, options: ProgramOptions) -> tuple[Answers, Program]:
    from ...python.torch_programs import estimate_script

    run = estimate_script(
        Path(script["path"]), script["function"], options.devices, threads=options.threads, batch=options.batch,
        model=predictor, coverage=options.coverage, price_per_hour=options.prices,
        power_limit_w=options.power_limit_w, clock_hz=options.clock_hz,
    )  # fmt: skip
    return run.answers, run.program


def _of_file(what: str, predictor: ArtifactPredictor, options: ProgramOptions) -> tuple[Answers, Program]:
    from ...models.predict.power_law import checked_setting
    from ...workloads.torch_program.answers import answer

    read: Callable[[], Program] = (
        (lambda: _onnx(what, options)) if what.endswith(_ONNX) else (lambda: _json(what, options))
    )
    program = read()
    if options.batch is not None:
        program = replace(program, batch=options.batch)
    devices = [predictor.devices.get(name) for name in options.devices]
    answers = answer(
        predictor, program, devices, threads=options.threads, coverage=options.coverage, prices=options.prices,
        setting=checked_setting(options.power_limit_w, options.clock_hz, *devices),
    )  # fmt: skip
    return answers, program


def _onnx(what: str, options: ProgramOptions) -> Program:
    from ...workloads.mlir.program_text import read_bind
    from ...workloads.torch_program.onnx_file import read_onnx

    return read_onnx(Path(what), read_bind(options.bind))


def _json(what: str, options: ProgramOptions) -> Program:
    from ...workloads.torch_program.captured import read_program

    if options.bind:
        raise SpecError("--bind goes with an ONNX file; a captured program says its sizes", field="bind")
    return read_program(_captured(what))


def _write(path: Path, program: Program) -> None:
    from ...workloads.torch_program.captured import save_program

    save_program(program, path)
