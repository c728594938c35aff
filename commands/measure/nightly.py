"""`kernelcast measure nightly` and `kernelcast measure nights`: one night of a plan, and what became of earlier ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError
from .. import console
from .night_setup import NIGHT_RUNNING, SUCCESSFUL, night_setup
from .this_machine import refuse_other_of_night

if TYPE_CHECKING:
    from ...nightly.open_night import NightSetup
    from ...nightly.record.plan import Plan
    from ...nightly.record.record import NightRecord

_SHOWN = 20
_KILLED = "killed"
"""What a night is called in the list whose record says `running` while no night runs."""


def nightly(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN.yaml", help="The plan; one line, `minutes: 20`, is enough.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; measures and writes nothing.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(metavar="NIGHT", help="Continue this night (an id, or: last) and repeat failed stages."),
    ] = None,
    from_stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Repeat this stage of the night and all later ones.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new night even if one is unfinished.")] = False,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure cases that fill the space, calibrate, promote a better model, and report.

    If a night fails, the model that served before keeps serving. A night of the same plan that was stopped or crashed within
    the last day is continued. Exit codes: 0 done, 1 failed or rolled back, 2 the plan is wrong, 3 another night is running,
    130 interrupted.
    """
    if dry_run and (resume or from_stage):
        raise SpecError("--dry-run describes the night that would begin or continue; leave out --resume and --from",
                        field="dry-run")  # fmt: skip
    if new and (resume or from_stage):
        raise SpecError("--new begins a new night; leave out --resume and --from", field="new")
    # Within a night a stage says what a store or campaign cannot do; here none was begun.
    with console.plain_errors("measure nightly", "train"):
        from ...collectors.campaign import terminate_as_interrupt
        from ...nightly.record.plan_file import read_plan

        plan = read_plan(plan_file)
        with terminate_as_interrupt():
            if dry_run:
                _show_outlook(night_setup(plan, device_file, dry_run=True), new, as_json)
                return
            _run(plan, device_file, resume, from_stage, new, as_json)


def nights(
    plan: Annotated[str | None, typer.Option(help="Only nights of the plan of this name.")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Most nights to list, the newest first.")] = _SHOWN,
    as_json: console.Json = False,
) -> None:
    """List the nights on this machine, the newest first."""
    from ...nightly.record.folders import nights_dir, records

    summaries = [_summary(record) for _, record in islice(records(nights_dir(), plan), most)]
    if as_json:
        console.print_json(summaries)
        return
    if not summaries:
        console.note(f"no nights in {nights_dir()}; begin one with `kernelcast measure nightly PLAN.yaml`")
        return
    from ...nightly.record.folders import is_running

    running = is_running(nights_dir())
    rows = []
    for night in summaries:
        outcome = _KILLED if night["outcome"] == "running" and not running else night["outcome"]
        serves = night["champion_after"] or night["champion_before"] or ""
        rows.append((night["id"], outcome, night["device"], str(night["rows"]), f"{night['minutes']:.1f}", serves,
                     str(night["needs_person"] or "")))  # fmt: skip
    console.show_table(("night", "outcome", "device", "rows", "minutes", "serves", "needs a person"), rows)


def _summary(record: NightRecord) -> dict[str, Any]:
    from ...nightly.report_page import rows_measured

    return {
        "id": record.id, "plan": record.plan, "outcome": record.outcome, "device": record.device, "began": record.began,
        "ended": record.ended, "minutes": sum(stage.seconds for stage in record.stages) / 60,
        "rows": int(sum(rows_measured(record).values())), "champion_before": record.champion_before,
        "champion_after": record.champion_after,
        "needs_person": sum(finding.level == "needs-person" for finding in record.findings),
    }  # fmt: skip


def _run(
    plan: Plan, device_files: list[Path] | None, resume: str | None, from_stage: str | None, new: bool, as_json: bool
) -> None:
    from ...nightly.open_night import open_night
    from ...nightly.record.folders import STATE, NightRunningError, night_lock, nights_dir
    from ...nightly.record.record import NightRecord
    from ...nightly.run_night import InterruptedNight, run_night

    try:
        with night_lock(nights_dir(), plan.name), console.progress_bar() as tell:
            night = open_night(night_setup(plan, device_files), tell, resume=resume, from_stage=from_stage, fresh=new)
            refuse_other_of_night(night)
            record = run_night(night)
    except NightRunningError as running:
        console.failed(str(running))
        raise typer.Exit(NIGHT_RUNNING) from running
    except InterruptedNight as stopped:
        if as_json:
            console.print_json(_report_answer(NightRecord.read(nights_dir() / str(stopped) / STATE)))
        console.note(f"what was measured is stored; run the same command to continue night {stopped}")
        raise KeyboardInterrupt from stopped
    _tell(record, as_json)
    if record.outcome not in SUCCESSFUL or record.stage("report").status == "failed":
        raise typer.Exit(1)


def _tell(record: NightRecord, as_json: bool) -> None:
    from ...nightly.report_page import outcome_sentence

    if as_json:
        console.print_json(_report_answer(record))
    for finding in record.findings:
        if finding.level != "info":
            console.note(f"{finding.level}: {finding.message}")
    for stage in record.stages:
        console.note(f"{stage.name:12} {stage.status:11} {stage.seconds:7.1f} s  {stage.summary}")
    console.note(outcome_sentence(record))
    if page := record.stage("report").facts.get("html"):
        console.note(f"the report is {page}")


def _report_answer(record: NightRecord) -> dict[str, Any]:
    return {**_summary(record), "report": record.stage("report").facts}


def _show_outlook(setup: NightSetup, new: bool, as_json: bool) -> None:
    from ...nightly.open_night import outlook

    night = outlook(setup, fresh=new)
    if as_json:
        console.print_json(night)
        return
    lines = {
        "plan": night.plan, "devices": ", ".join(night.devices), "rows go to": night.store,
        "serves now": night.serves or "nothing that can be read",
        "continues": night.resumes or "no unfinished night; a new one begins",
        "minutes": f"{night.budget_s / 60:.1f}: {night.measuring_s / 60:.1f} for measuring, "
                   f"{night.kept_back_s / 60:.1f} reserved for training and what follows",
        "cases": f"{night.cases} of {night.candidates}, about {night.predicted_s:.0f} s",
        "why": _counts(night.why), "families": _counts(night.families), **night.stages,
    }  # fmt: skip
    print("\n".join(f"{name:14}{what}" for name, what in lines.items()))  # noqa: T201 - the answer


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "none"
