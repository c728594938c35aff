"""A night: its stages one after the other, each written down as it ends, so that a crash costs one stage and no row.

    characterise | sentinels | choose | collect | check | train | gate | promote | report

A stage that fails is recorded as such, and those after it do what can still be done. No stage before `promote` changes what
serves.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from ..collectors.campaign import CampaignError, terminate_as_interrupt
from ..datasets.store.store import StoreError
from ..features.errors import SpecError
from ..process import ChildStartError
from .context import Night, StageResult, kind_of_error
from .gate.model_ledger import serving_model, serving_version
from .record.folders import ERRORS, STATE
from .record.record import STAGES, Finding, FindingKind, NightRecord, Outcome, StageRecord
from .stages.check import check
from .stages.choose import choose
from .stages.collect import collect
from .stages.device import characterise, sentinels
from .stages.gate import gate
from .stages.promote import promote
from .stages.report import release_report_space, report, write_reports
from .stages.train import train

Stage = Callable[[Night], StageResult]

RUN: Mapping[str, Stage] = MappingProxyType({
    "characterise": characterise, "sentinels": sentinels, "choose": choose, "collect": collect, "check": check,
    "train": train, "gate": gate, "promote": promote, "report": report,
})  # fmt: skip

_EXPECTED = (SpecError, StoreError, CampaignError, ChildStartError, OSError)
"""Errors that are no fault of kernelcast; the message is enough to act on."""

_KIND: Mapping[str, FindingKind] = {
    **dict.fromkeys(("characterise", "sentinels", "collect"), "device"), "gate": "gate", "promote": "registry",
}  # fmt: skip
"""What a failure of a stage is about, where it is not the stage itself."""


_DECIDING = ("choose", "collect", "check", "train", "gate", "promote")
"""Stages without which a night has not done what it is for."""


class InterruptedNight(Exception):  # noqa: N818 - it names what happened
    """A person stopped the night; what was measured is stored and what was done is recorded."""


def run_night(night: Night, stages: Mapping[str, Stage] = RUN) -> NightRecord:
    """Run the stages that are not done yet; the record as it was written last.

    Raises:
        InterruptedNight: Ctrl-C or SIGTERM.
    """
    night.record = replace(night.record, outcome="running", ended=None)
    _write_state(night)
    try:
        with terminate_as_interrupt():
            for name in STAGES:
                if name == STAGES[-1]:
                    # The report is of the night as it ended.
                    _end(night, _outcome(night.record))
                if night.record.stage(name).status not in ("done", "skipped"):
                    _run_stage(night, name, stages[name])
    except KeyboardInterrupt:
        _end(night, "interrupted")
        release_report_space(night.folder)
        with contextlib.suppress(OSError):
            write_reports(night.folder, night.record)
        raise InterruptedNight(night.record.id) from None
    return night.record


def _run_stage(night: Night, name: str, stage: Stage) -> None:
    began, clock = datetime.now(UTC), time.monotonic()
    night.progress(name, STAGES.index(name), len(STAGES))
    stage_record = StageRecord(name, began=began.isoformat(timespec="seconds"))
    try:
        result = stage(night)
    except KeyboardInterrupt:
        took, summary = time.monotonic() - clock, "The stage was interrupted."
        night.record = night.record.with_stage(replace(stage_record, seconds=took, summary=summary))
        raise
    except _EXPECTED as error:
        result = _failed(night, name, _sentence(error), kind_of_error(error, _KIND.get(name, "stage")))
    except Exception as error:  # noqa: BLE001  a fault of ours in one stage must not cost the night its report
        with contextlib.suppress(OSError), (night.folder / ERRORS).open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
        message = (
            f"A fault of kernelcast itself: {type(error).__name__}: {error}. The trace is in {night.folder / ERRORS}"
        )
        result = _failed(night, name, message, _KIND.get(name, "stage"))
    findings = (*night.opening, *result.findings)
    night.opening = ()
    night.record = night.record.with_stage(
        replace(stage_record, status=result.status, seconds=round(time.monotonic() - clock, 3), summary=result.summary,
                facts=dict(result.facts), findings=findings)
    )  # fmt: skip
    _write_state(night)


def _failed(night: Night, name: str, reason: str, kind: FindingKind) -> StageResult:
    finding = Finding(kind, "needs-person", night.record.device, f"The stage {name} failed: {reason}")
    return StageResult(reason, findings=(finding,), status="failed")


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, SpecError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
    message = str(error) or type(error).__name__
    return message if message.endswith(".") else f"{message}."


def _outcome(record: NightRecord) -> Outcome:
    """The outcome of a night whose stages up to `promote` have run."""
    promote = record.stage("promote")
    if promote.status == "done" and promote.facts.get("version"):
        return "promoted"
    if promote.facts.get("rolled_back") or record.stage("check").facts.get("rolled_back"):
        return "rolled-back"
    # A model that cannot be loaded answers nothing after the next restart, so the night failed whatever else went well.
    failed = any(record.stage(name).status == "failed" for name in _DECIDING) or serving_model()[1] is not None
    return "failed" if failed else "kept"


def _end(night: Night, outcome: Outcome) -> None:
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    night.record = replace(night.record, outcome=outcome, ended=ended, champion_after=serving_version())
    _write_state(night)


def _write_state(night: Night) -> None:
    """Write the record down; a disk that is full costs the ability to go on after a crash, not the night."""
    try:
        night.record.write(night.folder / STATE)
    except OSError as error:
        night.progress(f"cannot write {night.folder / STATE}: {error.strerror or error}", 0, 0)
