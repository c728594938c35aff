"""POST /v1/predict/columns: many specs of one family in columns, for tables and searches over them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.errors import SpecError
from ...models.predict.named_impl import check_impls
from ...models.predict.power_cap import under_settings
from ...models.predict.power_law import read_setting
from ...models.predict.prediction import Predictions
from ...workloads.answers import interval_columns, known_columns, text_column
from ..transport.problems import ProblemError, field_problem
from .columns_request import COLUMNS, read_columns
from .thread_endpoint import Call


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    cases, coverage, setting_fields = read_columns(body, call.loaded.catalogue, call.settings.max_columns_rows)
    try:
        setting = read_setting(*setting_fields)
        check_impls(call.loaded.predictor, cases)
        predictions = call.loaded.predictor.predict_cases(cases, coverage=coverage)
        predictions = under_settings(cases, predictions, call.loaded.catalogue, [setting] * len(cases))
    except SpecError as error:
        field = error.field or "columns"
        path = f"columns.{field}" if field in COLUMNS else field
        raise ProblemError(422, str(error), [field_problem(error, path)]) from error
    call.metrics.count_predictions(prediction_counts(cases, predictions))
    call.metrics.count_usage_cases(cases)
    return msgspec.json.encode(columns_answer(cases.family.name, predictions))


def prediction_counts(cases: Cases, predictions: Predictions) -> dict[tuple[str, str, bool], int]:
    """Predictions of cases by family, device and whether they are in domain."""
    devices = cases.coded("device")
    counts = np.bincount(2 * devices.code + predictions.in_domain).tolist()
    return {(cases.family.name, devices.words[i // 2], bool(i % 2)): count for i, count in enumerate(counts) if count}


def columns_answer(family: str, predictions: Predictions) -> answers.Columns:
    """Predictions of one family as they are sent in columns."""
    return answers.Columns(
        family=family,
        n=len(predictions),
        coverage=predictions.coverage,
        latency_s=interval_columns(predictions.targets["latency_s"]),
        power_w=known_columns(predictions.targets["power_w"]),
        energy_j=known_columns(predictions.targets["energy_j"]),
        bound=text_column(predictions.bound),
        method=text_column(predictions.method),
        timing=text_column(predictions.timings),
        in_domain=predictions.in_domain.tolist(),
        notes=_group_notes(predictions.notes),
    )


def _group_notes(notes: Sequence[tuple[str, ...]]) -> list[answers.RowNotes]:
    rows: dict[tuple[str, ...], list[int]] = {}
    for i, row_notes in enumerate(notes):
        if row_notes:
            rows.setdefault(row_notes, []).append(i)
    return [answers.RowNotes(positions, list(row_notes)) for row_notes, positions in rows.items()]
