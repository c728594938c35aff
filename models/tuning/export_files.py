"""From a trained predictor to files of small models of single operations: what `kernelcast export-ops` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...features.device import Device
from ...features.errors import SpecError
from ..predictor import ArtifactPredictor
from ..tables import joined, labelled_table
from .distilling import Errors, Progress, Recipe, distil, judged
from .flat import SUFFIX, write_model
from .rows import read_tables


@dataclass(frozen=True, slots=True)
class Exported:
    """One family's file, what making it took, and its errors: against fresh answers of the predictor, and measured rows."""

    kind: str
    file: Path
    size_b: int
    n_rows: int
    asking_s: float
    fitting_s: float
    against_teacher: tuple[Errors, ...]
    against_rows: tuple[Errors, ...]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The files made, and one sentence for each family that has none."""

    exported: tuple[Exported, ...]
    left_out: tuple[str, ...]


def export_files(
    predictor: ArtifactPredictor,
    families: Sequence[str],
    devices: Sequence[Device],
    out: Path,
    *,
    recipe: Recipe | None = None,
    progress: Progress = lambda what, done, total: None,
) -> ExportReport:
    """Teach a small model for each family and write it to `out/op-FAMILY.kcm`. Needs the `train` extra.

    Measured rows to judge by are the shipped ones and those of the user's store.

    Raises:
        SpecError: no family can be exported, or a file cannot be written.
    """
    tables = read_tables()
    exported, left_out = [], []
    for family in families:
        try:
            found = distil(predictor, family, devices, recipe, progress)
        except SpecError as error:
            left_out.append(f"{family}: {error}")
            continue
        file = out / f"{found.model.kind}{SUFFIX}"
        write_model(found.model, file)
        progress(f"judging {family}", 0, 0)
        own = [labelled_table(table, family, predictor.devices) for table in tables.get(family, [])]
        rows = judged(found.model, joined(own), predictor) if own else ()
        exported.append(
            Exported(found.model.kind, file, file.stat().st_size, found.n_rows, found.asking_s, found.fitting_s,
                     found.errors, rows)
        )  # fmt: skip
    if not exported:
        raise SpecError(f"nothing to export: {'; '.join(left_out)}", field="device")
    return ExportReport(tuple(exported), tuple(left_out))
