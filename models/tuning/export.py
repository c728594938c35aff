"""Writes a small model for each family that a trained predictor can teach, and judges it by measured rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...features.device import Device
from ...features.errors import SpecError
from ..predict.predictor import ArtifactPredictor
from ..regressor import Progress, no_progress
from ..training.labelled_cases import joined, labelled_table
from .distillation import Errors, TrainingConfig, distil, errors_on_rows
from .flat_model import SUFFIX, write_model
from .rows import read_tables


@dataclass(frozen=True, slots=True)
class Exported:
    """One family's file.

    Attributes:
        kind: Name of the kind.
        file: Where it lies.
        size_b: Its bytes.
        n_rows: Rows it was fitted to.
        asking_s: Seconds that asking the teacher took.
        fitting_s: Seconds that fitting took.
        against_teacher: Errors against fresh answers of the predictor.
        against_rows: Errors against measured rows.
    """

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
    """What was exported.

    Attributes:
        exported: The files made.
        left_out: One sentence for each family that has none.
    """

    exported: tuple[Exported, ...]
    left_out: tuple[str, ...]


def export_files(
    predictor: ArtifactPredictor,
    families: Sequence[str],
    devices: Sequence[Device],
    out: Path,
    *,
    config: TrainingConfig | None = None,
    progress: Progress = no_progress,
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
            distilled = distil(predictor, family, devices, config, progress)
        except SpecError as error:
            left_out.append(f"{family}: {error}")
            continue
        file = out / f"{distilled.model.kind}{SUFFIX}"
        write_model(distilled.model, file)
        progress(f"judging {family}", 0, 0)
        family_rows = [labelled_table(table, family, predictor.devices) for table in tables.get(family, [])]
        rows = errors_on_rows(distilled.model, joined(family_rows), predictor) if family_rows else ()
        exported.append(
            Exported(distilled.model.kind, file, file.stat().st_size, distilled.n_rows, distilled.asking_s, distilled.fitting_s,
                     distilled.errors, rows)
        )  # fmt: skip
    if not exported:
        raise SpecError(f"nothing to export: {'; '.join(left_out)}", field="device")
    return ExportReport(tuple(exported), tuple(left_out))
