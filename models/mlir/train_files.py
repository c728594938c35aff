"""From stored measurements of programs to an artifact on disk: what `kernelcast train-mlir` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...datasets.modules import ModuleRun
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...features.mlir.reading import read
from ...features.mlir.understanding import understand
from .artifact import ProgramModel, save_models
from .measured import measured_programs, read_modules
from .training import Recipe, train_programs

Progress = Callable[[str, int, int], None]
"""Told what is done, and how much of how much."""

LEAST_PROGRAMS = 20
"""Fewer programs of one device are not enough to hold some out."""


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """What training gave: by device the errors of every member and of their blend for programs held out, by slice."""

    n_programs: dict[str, int]
    n_rows: dict[str, int]
    settings: dict[str, list[str]]
    weights: dict[str, dict[str, list[float]]]
    errors: dict[str, dict[str, dict[str, dict[str, float]]]]
    left_out: tuple[str, ...]


def train_modules(
    paths: Sequence[Path],
    out: Path,
    *,
    recipe: Recipe | None = None,
    devices: Catalogue | None = None,
    progress: Progress = lambda what, done, of: None,
) -> ProgramReport:
    """Train a model of programs on every device of the stores and packed tables at `paths`, and write it to `out`.

    Raises:
        SpecError: a path holds no measured programs, too few of them, or `out` is something else's.
    """
    texts, runs = read_modules(paths)
    known = devices or catalogue()
    models: dict[str, ProgramModel] = {}
    left_out: list[str] = []
    for name in sorted({run.device for run in runs if run.status == "ok"}):
        measured, refusals = measured_programs(
            texts, runs, known.get(name), lambda text: understand(read(text)),
            lambda done, of: progress("reading programs", done, of),
        )  # fmt: skip
        left_out += refusals
        if len(set(measured.names)) < LEAST_PROGRAMS:
            left_out.append(f"{name}: {len(set(measured.names))} programs; a model takes {LEAST_PROGRAMS}")
            continue
        models[name] = train_programs(measured, recipe, progress)
    if not models:
        raise SpecError(f"no device has {LEAST_PROGRAMS} measured programs, the least to learn from", field="data")
    save_models(models, facts_of(runs), out)
    return _report(models, left_out)


def facts_of(runs: Sequence[ModuleRun]) -> dict[str, Any]:
    """What is known of a model's making."""
    dates = sorted(run.measured_at for run in runs if run.measured_at)
    return {"trained_with": __version__, "rows": len(runs), "measured": [dates[0], dates[-1]] if dates else []}


def _report(models: dict[str, ProgramModel], left_out: Sequence[str]) -> ProgramReport:
    return ProgramReport(
        n_programs={name: model.n_programs for name, model in models.items()},
        n_rows={name: model.n_rows for name, model in models.items()},
        settings={
            name: [f"{compiler}, {threads} threads" for compiler, threads in model.settings]
            for name, model in models.items()
        },
        weights={
            name: {member: own.tolist() for member, own in model.weights.items()} for name, model in models.items()
        },
        errors={name: dict(model.metrics) for name, model in models.items()},
        left_out=tuple(left_out),
    )
