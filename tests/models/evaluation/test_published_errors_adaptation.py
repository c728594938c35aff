"""Every measured adaptation is told in the document that it names, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.models.evaluation.published_errors import MeasuredAdaptation, measured_adaptations

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("run", measured_adaptations(), ids=lambda run: f"{run.machine}-{run.rows}")
def test_the_document_says_the_same(run: MeasuredAdaptation) -> None:
    text = (ROOT / run.doc).read_text(encoding="utf-8").replace(" ", "").replace("\n", "")
    for mean, median in (run.before, run.after):
        assert f"{mean:.1f}/{median:.1f}" in text
    assert f"{run.rows:,}" in text


def test_times_are_those_of_adapt_alone() -> None:
    assert {run.doc for run in measured_adaptations() if run.minutes is not None} == {"docs/adapt.md"}
