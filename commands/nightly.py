"""`kernelcast nightly` and `kernelcast nights`: one night of a plan, and what became of earlier ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, failed, need_extra, note, out, print_json, progress_bar, read_catalogue

if TYPE_CHECKING:
    from ..nightly.begin import Setting
    from ..nightly.plan import Plan
    from ..nightly.record import NightRecord

NIGHT_RUNNING = 3
"""Exit code where another night is running on this machine."""

_DONE = ("promoted", "kept")
_SHOWN = 20
_KILLED = "killed"
"""What a night is called in the list whose record says `running` while no night runs."""


def nightly(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN.yaml", help="What to do; one line, `minutes: 20`, will do.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; measures and writes nothing.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="NIGHT", help="Go on with this night (an id, or: last), failed stages again.")
    ] = None,
    from_stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Do this stage of the night and all after it again.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Begin a new night, whatever is unfinished.")] = False,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Measure where it matters, retrain, promote what is better, and report; what served before serves if anything fails.

    A night of the same plan that was stopped or crashed within the last day is gone on with. Exit codes: 0 done, 1 failed or
    rolled back, 2 the plan is wrong, 3 another night is running, 130 interrupted.
    """
    if dry_run and (resume or from_stage):
        raise SpecError("--dry-run tells of a night that is begun or gone on with by itself; leave --resume and --from out",
                        field="dry-run")  # fmt: skip
    if new and (resume or from_stage):
        raise SpecError("--new begins a new night; leave --resume and --from out", field="new")
    try:
        from ..collectors.campaign import CampaignError
        from ..collectors.interrupts import terminate_as_interrupt
        from ..collectors.pipe import WorkerStartError
        from ..datasets.store import StoreError
        from ..nightly.plan_file import read_plan

    except ImportError as error:
        raise need_extra("nightly", "train", error) from error
    try:
        plan = read_plan(plan_file)
        with terminate_as_interrupt():
            setting = _setting(plan, device_file)
            if dry_run:
                _show_outlook(setting, new, as_json)
                return
            _run(setting, resume, from_stage, new, as_json)
    except ImportError as error:
        raise need_extra("nightly", "train", error) from error
    except (CampaignError, StoreError, WorkerStartError) as error:
        # Within a night a stage would say so; here none was begun.
        failed(str(error))
        raise typer.Exit(2) from error


def nights(
    plan: Annotated[str | None, typer.Option(help="Only nights of the plan of this name.")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="At most so many, the newest.")] = _SHOWN,
    as_json: Json = False,
) -> None:
    """List the nights on this machine, the newest first."""
    from ..nightly.folders import nights_dir, records

    found = [record for _, record in islice(records(nights_dir(), plan), most)]
    if as_json:
        print_json([_summary(record) for record in found])
        return
    if not found:
        note(f"no nights in {nights_dir()}; begin one with `kernelcast nightly PLAN.yaml`")
        return
    from rich.table import Table

    from ..nightly.lock import is_held

    gone = not is_held(nights_dir())
    table = Table(box=None, pad_edge=False)
    for title in ("night", "outcome", "device", "rows", "minutes", "serves", "needs a person"):
        table.add_column(title, overflow="fold")
    for one in map(_summary, found):
        outcome = _KILLED if gone and one["outcome"] == "running" else one["outcome"]
        table.add_row(one["id"], outcome, one["device"], str(one["rows"]), f"{one['minutes']:.1f}",
                      one["champion_after"] or one["champion_before"] or "", str(one["needs_person"] or ""))  # fmt: skip
    out().print(table)


def _summary(record: NightRecord) -> dict[str, Any]:
    from ..nightly.report_facts import rows_measured

    return {
        "id": record.id, "plan": record.plan, "outcome": record.outcome, "device": record.device, "began": record.began,
        "ended": record.ended, "minutes": sum(stage.seconds for stage in record.stages) / 60,
        "rows": int(sum(rows_measured(record).values())), "champion_before": record.champion_before,
        "champion_after": record.champion_after,
        "needs_person": sum(one.level == "needs-person" for one in record.findings),
    }  # fmt: skip


def _setting(plan: Plan, device_files: list[Path] | None) -> Setting:
    """The plan with what measures it.

    Raises:
        SpecError: the device is unknown, or is not what this machine has.
    """
    from ..nightly.begin import Setting
    from ..nightly.measuring.cpu import CpuMeasurer
    from ..nightly.measuring.protocol import Measurer
    from .this_gpu import this_gpu
    from .this_machine import this_device

    known = read_catalogue(device_files)
    measurer: Measurer
    if plan.collector == "cpu":
        measurer = CpuMeasurer(plan, this_device(plan.device, known))
    elif plan.collector == "gpu":
        from ..nightly.measuring.gpu import GpuMeasurer

        device, reader = this_gpu(plan.device, 0, known)
        measurer = GpuMeasurer(plan, device, reader)
    elif plan.collector == "replay":
        from ..nightly.measuring.replay import ReplayMeasurer, recorded_rows

        wanted = None if plan.device is None else known.get(plan.device).name
        measurer = ReplayMeasurer(plan, recorded_rows(Path(plan.replay.rows).expanduser(), wanted), known)
    else:
        from ..nightly.measuring.fleet import FleetMeasurer

        measurer = FleetMeasurer(plan, known, [path.read_text(encoding="utf-8") for path in device_files or ()])
    return Setting(plan, measurer, known, tuple(device_files or ()))


def _run(setting: Setting, resume: str | None, from_stage: str | None, new: bool, as_json: bool) -> None:
    from ..nightly.begin import open_night
    from ..nightly.folders import STATE, nights_dir
    from ..nightly.lock import NightRunningError, night_lock
    from ..nightly.night import InterruptedNight, run_night
    from ..nightly.record import NightRecord

    try:
        with night_lock(nights_dir(), setting.plan.name), progress_bar() as tell:
            night = open_night(setting, tell, resume=resume, from_stage=from_stage, fresh=new)
            record = run_night(night)
    except NightRunningError as running:
        failed(str(running))
        raise typer.Exit(NIGHT_RUNNING) from running
    except InterruptedNight as stopped:
        if as_json:
            print_json(_told(NightRecord.read(nights_dir() / str(stopped) / STATE)))
        note(f"what was measured is stored; the same command goes on with night {stopped}")
        raise KeyboardInterrupt from stopped
    _tell(record, as_json)
    if record.outcome not in _DONE or record.stage("report").status == "failed":
        raise typer.Exit(1)


def _tell(record: NightRecord, as_json: bool) -> None:
    from ..nightly.report_page import outcome_sentence

    if as_json:
        print_json(_told(record))
    for finding in record.findings:
        if finding.level != "info":
            note(f"{finding.level}: {finding.said}")
    for stage in record.stages:
        note(f"{stage.name:12} {stage.status:11} {stage.seconds:7.1f} s  {stage.said}")
    note(outcome_sentence(record))
    if page := record.stage("report").facts.get("html"):
        note(f"the report is {page}")


def _told(record: NightRecord) -> dict[str, Any]:
    return {**_summary(record), "report": record.stage("report").facts}


def _show_outlook(setting: Setting, new: bool, as_json: bool) -> None:
    from ..nightly.dry_run import outlook

    found = outlook(setting, fresh=new)
    if as_json:
        print_json(found)
        return
    lines = [f"{'plan':14}{found.plan}", f"{'devices':14}{', '.join(found.devices)}", f"{'rows go to':14}{found.store}",
             f"{'serves now':14}{found.serves or 'nothing that can be read'}",
             f"{'goes on with':14}{found.resumes or 'no unfinished night; a new one begins'}",
             f"{'minutes':14}{found.budget_s / 60:.1f}: {found.measuring_s / 60:.1f} for measuring, "
             f"{found.kept_back_s / 60:.1f} kept back for training and what follows",
             f"{'cases':14}{found.cases} of {found.candidates}, about {found.predicted_s:.0f} s",
             f"{'why':14}{_counts(found.why)}", f"{'families':14}{_counts(found.families)}"]  # fmt: skip
    lines += [f"{name:14}{said}" for name, said in found.stages.items()]
    print("\n".join(lines))  # noqa: T201 - the answer


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1])) or "none"
