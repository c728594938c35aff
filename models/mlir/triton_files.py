"""From stored labels of Triton programs to an artifact on disk: what `kernelcast train-triton` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ...features.mlir.reading import read
from .triton_artifact import save_code_model
from .triton_labels import compiled_rows, read_labels
from .triton_training import Progress, Recipe, train_code


@dataclass(frozen=True, slots=True)
class CodeReport:
    """What training gave: errors for programs held out by slice, and why rows were left out."""

    n_programs: int
    n_rows: int
    errors: dict[str, dict[str, float]]
    left_out: tuple[str, ...]


def train_labels(
    paths: Sequence[Path], out: Path, recipe: Recipe | None = None, progress: Progress = lambda what, done, of: None
) -> CodeReport:
    """Train a model on the tables and stores at `paths`, the shipped table for none, and write it to `out`.

    Raises:
        SpecError: a path holds no compiled programs, too few of them, or `out` is something else's.
    """
    modules = read_labels(paths)
    rows, refusals = compiled_rows(modules, read, lambda done, of: progress("reading programs", done, of))
    model = train_code(rows, recipe, progress)
    compilers = sorted({module.compiler for module in modules if module.compiler})
    save_code_model(model, {"trained_with": __version__, "compilers": compilers, "rows": len(rows)}, out)
    return CodeReport(model.n_programs, model.n_rows, model.metrics["out of fold"], tuple(refusals))
