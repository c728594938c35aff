"""The model that serves beside its predecessor, on rows neither has seen: a promotion that turns out worse is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ..models.artifact import ArtifactError
from .context import Night
from .gate.hold_out import unseen
from .gate.judging import Rules
from .gate.promotion import has_predecessor, review
from .record import Finding
from .regimes import ledgers
from .rows import Rows, tonight


def review_champion(night: Night, fresh: Mapping[str, pa.Table]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """What the review found, and what was rolled back.

    Raises:
        StoreError: the store cannot be read.
        SpecError: the ledger of models cannot be read or written.
    """
    devices = night.measurer.devices
    reader = Rows.of(night.store, night.plan, night.devices, ledgers(devices))
    regime = str(night.facts("sentinels").get("regime") or "")
    try:
        if not has_predecessor():
            # Nothing to hold it against: reading all rows of earlier nights would be for nothing.
            return {}, ()
        evidence = unseen(reader.read(devices, ~tonight(night.blocks())), reader.labelled(fresh), regime=regime,
                          share=night.plan.gate.hold_out)  # fmt: skip
        verdict, back = review(evidence, rules=rules_of(night), devices=night.devices)
    except ArtifactError as error:
        return {}, (Finding("registry", "needs-person", "champion", f"The serving model cannot be reviewed: {error}"),)
    facts: dict[str, Any] = {} if verdict is None else {"review": {"passed": verdict.passed, "said": verdict.said}}
    if back is None or back.version is None:
        return facts, ()
    return {**facts, "rolled_back": {"from": back.previous, "to": back.version}}, back.findings


def rules_of(night: Night) -> Rules:
    """What the plan asks of the gate."""
    gate = night.plan.gate
    return Rules(alpha=1.0 - gate.confidence, may_forget=gate.may_forget, seed=night.plan.seed)
