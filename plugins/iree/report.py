"""What was chosen for a module, written down: as plain data, and as the command lines that use it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .hook_text import HOOK_NAME
from .tuning import Choice, TuningResult


def command_line(result: TuningResult, model: Path | str, folder: Path) -> str:
    """The `iree-compile` command that compiles the file `model` as chosen, with the files written into `folder`."""
    return _command(result, model, result.instructions.flags(folder))


def hook_command_line(result: TuningResult, model: Path | str, folder: Path) -> str | None:
    """The same by the external hook, which has to be found on PATH; None where nothing is tiled."""
    if not result.instructions.tiled:
        return None
    # The hook is looked for by name along PATH, so relative folders would depend on where the compiler is run.
    path = f"PATH={shlex.quote(str(folder.resolve()))}:$PATH"
    return f"{path} {_command(result, model, result.instructions.flags(folder, by_hook=True))}"


def _command(result: TuningResult, model: Path | str, flags: Sequence[str]) -> str:
    module = Path(model).with_suffix(".vmfb").name
    return shlex.join(["iree-compile", str(model), *result.target, *flags, "-o", module])


def summary(result: TuningResult, model: Path | str, folder: Path) -> dict[str, Any]:
    """Everything there is to say, as JSON takes it. Times in seconds of one call."""
    return {
        "model": str(model),
        "device": result.device,
        "threads": result.threads,
        "variant": result.variant,
        "command": command_line(result, model, folder),
        "hook_command": hook_command_line(result, model, folder),
        "hook": HOOK_NAME,
        "totals_s": dict(result.totals_s),
        "measured_module_s": dict(result.raced_s),
        "dispatches": result.dispatches,
        "tuned": [_row(choice) for choice in result.choices],
        "left_to_the_compiler": [{"name": one.name, "reason": one.reason} for one in result.left],
        "notes": list(result.notes),
    }


def _row(choice: Choice) -> dict[str, Any]:
    dispatch = choice.dispatch
    return {
        "title": dispatch.title, "names": list(dispatch.names), "kind": dispatch.kind, "sizes": dict(dispatch.sizes),
        "calls": dispatch.calls, "calls_with_constant_weights": dispatch.constant_calls, "config": dict(choice.config),
        "default_s": choice.default_s, "data_tiling_s": choice.data_tiling_s, "chosen_s": choice.chosen_s,
        "measured": choice.measured,
    }  # fmt: skip
