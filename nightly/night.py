"""A night: its stages one after the other, each written down as it ends, so that a crash costs one stage and no row.

    characterise | sentinels | choose | collect | check | train | gate | promote | report

A stage that fails is written down as such, and those after it do what can still be done. Until `promote` nothing that serves
is touched.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

from ..collectors.campaign import CampaignError
from ..collectors.interrupts import terminate_as_interrupt
from ..collectors.pipe import WorkerStartError
from ..datasets.store import StoreError
from ..features.errors import SpecError
from .context import Did, Night
from .folders import ERRORS, STATE
from .outcome import outcome_of, serving_model, serving_version
from .record import STAGES, Finding, NightRecord, Outcome, StageRecord
from .report import drop_ballast, report, write_reports
from .stages.characterise import characterise
from .stages.check import check
from .stages.choose import choose
from .stages.collect import collect
from .stages.gate import gate
from .stages.promote import promote
from .stages.sentinels import sentinels
from .stages.train import train

Stage = Callable[[Night], Did]

RUN: Mapping[str, Stage] = MappingProxyType({
    "characterise": characterise, "sentinels": sentinels, "choose": choose, "collect": collect, "check": check,
    "train": train, "gate": gate, "promote": promote, "report": report,
})  # fmt: skip

_EXPECTED = (SpecError, StoreError, CampaignError, WorkerStartError, OSError)
"""What can go wrong without a fault of ours; the message says all there is to say."""

_KIND = {"characterise": "device", "sentinels": "device", "collect": "device", "gate": "gate", "promote": "registry"}
"""What a failure of a stage is about, where it is not the stage itself."""


class InterruptedNight(Exception):  # noqa: N818 - it names what happened
    """Someone stopped the night; what was measured is stored and what was done is written down."""


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
                    _end(night, _outcome(night))
                if night.record.stage(name).status not in ("done", "skipped"):
                    _run_stage(night, name, stages[name])
    except KeyboardInterrupt:
        _end(night, "interrupted")
        drop_ballast(night.folder)
        with contextlib.suppress(OSError):
            write_reports(night.folder, night.record)
        raise InterruptedNight(night.record.id) from None
    return night.record


def _run_stage(night: Night, name: str, stage: Stage) -> None:
    began, clock = datetime.now(UTC), time.monotonic()
    night.tell(name, STAGES.index(name), len(STAGES))
    written = StageRecord(name, began=began.isoformat(timespec="seconds"))
    try:
        did = stage(night)
    except KeyboardInterrupt:
        took = time.monotonic() - clock
        night.record = night.record.with_stage(replace(written, seconds=took, said="It was stopped on the way."))
        raise
    except _EXPECTED as error:
        did = _failed(night, name, _sentence(error))
    except Exception as error:  # noqa: BLE001  a fault of ours in one stage must not cost the night its report
        with contextlib.suppress(OSError), (night.folder / ERRORS).open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
        said = f"A fault of kernelcast itself: {type(error).__name__}: {error}. The trace is in {night.folder / ERRORS}"
        did = _failed(night, name, said)
    findings = (*night.opening, *did.findings)
    night.opening = ()
    night.record = night.record.with_stage(
        replace(written, status=did.status, seconds=round(time.monotonic() - clock, 3), said=did.said,
                facts=dict(did.facts), findings=findings)
    )  # fmt: skip
    _write_state(night)


def _failed(night: Night, name: str, said: str) -> Did:
    finding = Finding(_kind(name, said), "needs-person", night.record.device, f"The stage {name} failed: {said}")
    return Did(said, findings=(finding,), status="failed")


def _kind(name: str, said: str) -> str:
    if "space left" in said or "disk is full" in said:
        return "storage"
    return "lock" if "is being measured by" in said else _KIND.get(name, "stage")


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, SpecError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
    words = str(error) or type(error).__name__
    return words if words.endswith(".") else f"{words}."


def _outcome(night: Night) -> Outcome:
    found = outcome_of(night.record)
    # A model that cannot be loaded answers nobody after the next restart, whatever else went well: not a good night.
    return "failed" if found == "kept" and serving_model()[1] is not None else found


def _end(night: Night, outcome: Outcome) -> None:
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    night.record = replace(night.record, outcome=outcome, ended=ended, champion_after=serving_version())
    _write_state(night)


def _write_state(night: Night) -> None:
    """Write the record down; a disk that is full costs the ability to go on after a crash, not the night."""
    try:
        night.record.write(night.folder / STATE)
    except OSError as error:
        night.tell(f"cannot write {night.folder / STATE}: {error.strerror or error}", 0, 0)
