"""`kernelcast adapt`: calibrate the serving model to this machine in a time budget; report the error before and after."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.device import Catalogue, known_by, known_machine, machine_id
from ...features.errors import SpecError
from ...features.kernel import get_family
from .. import console
from .characterize import wants_gpu
from .collect import thread_counts
from .night_setup import NIGHT_RUNNING, SUCCESSFUL, characterise_cpu, characterise_gpu, night_setup
from .this_machine import device_of_kind, refuse_other_of_night, this_device, this_gpu

if TYPE_CHECKING:
    from ...nightly.open_night import NightSetup
    from ...nightly.record.record import NightRecord

_BUSY = 0.5
"""Load average from which on the user is told."""

_SHOWN = ("before", "median ratio", "after")

_OF_TWO = 0.7
"""The difference of two measurements has √2 times the deviation of one, which is what a perfect model would err by."""


def adapt(
    minutes: Annotated[float, typer.Option(min=1, max=1440, help="Minutes in all.")] = 10.0,
    families: console.Families = "",
    threads: Annotated[str, typer.Option(help="CPU thread counts separated by commas; default: 1 and all cores.")] = "",
    cold: Annotated[
        bool, typer.Option("--cold", help="Measure cold caches too; half of the cases are then cold.")
    ] = False,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Which to measure; default: the GPU where its board can be read.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine's device; default: by what it calls itself.")
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="MODEL_DIR", help="Also write the calibrated model here.")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote/--no-promote", help="Serve the calibrated model if it is better.")
    ] = True,
    new: Annotated[bool, typer.Option("--new", help="Begin anew even if an adaptation is unfinished.")] = False,
    store: console.RowsTo = None,
    seed: console.Seed = 0,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Calibrate the serving model to this machine within a time budget; report the error before and after.

    A CPU or GPU that no device file is of is characterised first. A fifth of the shapes judges and is never learned from. The
    model is promoted if it is better beyond noise; `kernelcast serve models rollback` goes back. Run the same command again to
    resume a stopped adaptation, or later to measure more. Exit codes: those of `kernelcast measure nightly`.
    """
    wanted = [get_family(name).name for name in console.words(families)]
    counts = thread_counts(threads) if threads else []
    if out_dir is not None:
        _check_out(out_dir)
    began = time.monotonic()
    known = console.read_catalogue(device_file)
    on_gpu = _on_gpu(gpu, device, known)
    if on_gpu and counts:
        raise SpecError("--threads is for a CPU; leave it out, or add --cpu", field="threads")
    with console.plain_errors("adapt", "gpu,calibrate" if on_gpu else "collect,calibrate"):
        from ...collectors.campaign import terminate_as_interrupt
        from ...nightly.adaptation import adaptation_plan
        from ...nightly.record.folders import NightRunningError, night_lock, nights_dir

        with terminate_as_interrupt():
            if not new:
                _refuse_unfinished_elsewhere(known, on_gpu, same_kind=gpu is not None)
            name = _this_gpu_name(device, known) if on_gpu else _this_cpu_name(device, known)
            plan = adaptation_plan(
                name, minutes, "gpu" if on_gpu else "cpu", families=wanted, threads=counts,
                cache_states=("hot", "cold") if cold else ("hot",), store=store, seed=seed,
            )  # fmt: skip
            if not on_gpu and (load := os.getloadavg()[0]) > _BUSY and len(counts) != 1:
                console.note(f"other programs keep {load:.1f} cores busy: cases on all cores may give no time. End them, or "
                             "measure one core with --threads 1")  # fmt: skip
            setup = replace(night_setup(plan, device_file), spent_s=time.monotonic() - began)
            try:
                with night_lock(nights_dir(), plan.name):
                    record, model = run_adaptation(setup, promote=promote, fresh=new)
            except NightRunningError as running:
                console.failed(str(running))
                raise typer.Exit(NIGHT_RUNNING) from running
    if out_dir is not None and model is not None:
        _copy(model, out_dir)
    tell(record, model, out_dir, as_json)


def run_adaptation(setup: NightSetup, *, promote: bool, fresh: bool = False) -> tuple[NightRecord, Path | None]:
    """Run, or resume, an adaptation; its record, and the directory of the model that was judged.

    Raises:
        KeyboardInterrupt: someone stopped it; what was measured is stored.
        SpecError: another machine was measured under the device's name.
    """
    from ...nightly.adaptation import adaptation_stages, calibrated_model, reserve_minutes
    from ...nightly.open_night import open_night
    from ...nightly.run_night import InterruptedNight, run_night

    with console.progress_bar() as show:
        night = open_night(setup, show, fresh=fresh)
        refuse_other_of_night(night)
        stored = len(night.blocks())
        if stored:
            console.note(f"resuming adaptation {night.record.id}: {stored} blocks of rows are stored")
        reserve_minutes(night)
        try:
            record = run_night(night, adaptation_stages(promote=promote))
        except InterruptedNight as stopped:
            console.note(f"what was measured is stored; run the same command again to resume adaptation {stopped}")
            raise KeyboardInterrupt from stopped
    return record, calibrated_model(night)


def _on_gpu(gpu: bool | None, device: str | None, known: Catalogue) -> bool:
    if gpu is None and device is not None:
        return known.get(device).kind == "gpu"
    return wants_gpu(gpu, 0)


def _this_cpu_name(device: str | None, known: Catalogue) -> str:
    """The catalogue name of this machine's CPU, which is characterised where no device file is of it.

    Raises:
        SpecError: `device` is no CPU, or not this machine's.
    """
    machine = known_machine(known)
    if device is not None:
        wanted = device_of_kind(device, "cpu", known)
        if machine is not None and machine.name != wanted.name:
            raise SpecError(f"--device is {wanted.name}, but this machine's CPU is {machine.name} ({machine_id()}); leave "
                            "--device out, or run this on that machine", field="device")  # fmt: skip
        return wanted.name
    if machine is None:
        console.note(
            f"no device file is of this CPU ({machine_id()}): it is characterised first, half a minute or more"
        )
        characterise_cpu()
    return this_device(None, known)


def _this_gpu_name(device: str | None, known: Catalogue) -> str:
    """The catalogue name of this machine's GPU, which is characterised where no device file is of it.

    Raises:
        SpecError: there is no GPU, or `device` is not it.
    """
    name = _board_name()
    if device is None and name is not None and known_by(name, known) is None:
        console.note(f"no device file is of this GPU ({name}): it is characterised first, one to two minutes")
        characterise_gpu(known)
    return this_gpu(device, 0, known)[0].name


def _refuse_unfinished_elsewhere(known: Catalogue, on_gpu: bool, *, same_kind: bool) -> None:
    """Refuse to begin while an adaptation of the last day is unfinished that measured another device than this machine's.

    Args:
        known: the catalogue.
        on_gpu: whether this machine's GPU is what is measured now.
        same_kind: whether only an adaptation of that kind of device counts, since the user said which kind is meant.

    Raises:
        SpecError: there is one.
    """
    from ...nightly.adaptation import NAME
    from ...nightly.record.folders import PLAN_JSON, nights_dir, unfinished

    folder = unfinished(nights_dir(), NAME, datetime.now(UTC))
    if folder is None:
        return
    try:
        plan = json.loads((folder / PLAN_JSON).read_text(encoding="utf-8"))["plan"]
        before, of_gpu = str(plan["device"]), plan["collector"] == "gpu"
    except (OSError, ValueError, KeyError, TypeError):
        return
    if same_kind and of_gpu != on_gpu:
        return
    calls_itself = _board_name() if on_gpu else machine_id()
    machine = known_by(calls_itself or "", known) if on_gpu else known_machine(known)
    now = calls_itself if machine is None else machine.name
    if now is not None and now != before:
        resume = "" if of_gpu == on_gpu else f" with {'--gpu' if of_gpu else '--cpu'}"
        raise SpecError(
            f"adaptation {folder.name} is unfinished and measured {before}; this machine has {now}. Its rows are stored. "
            f"Resume it on that machine{resume}, or begin one for this machine with --new",
            field="device",
        )


def _board_name() -> str | None:
    """What this machine's GPU calls itself; None where nothing reads its board."""
    from ...collectors.meters.find import open_gpu_reader

    reader = open_gpu_reader()
    return None if reader is None else reader.name()


def _check_out(out: Path) -> None:
    console.check_folder(out)
    if out.is_dir() and any(out.iterdir()):
        raise SpecError(f"--out {out} is not empty; give a new folder", field="out")


def _copy(model: Path, out: Path) -> None:
    """Copy a model's directory to `out`, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix=".", dir=out.absolute().parent) as folder:
        staged = Path(shutil.copytree(model, Path(folder) / "model"))
        if out.is_dir():
            out.rmdir()
        staged.rename(out)


def answer(record: NightRecord) -> dict[str, Any]:
    """What an adaptation did, as plain data."""
    facts = {name: record.stage(name).facts for name in ("collect", "train", "gate", "promote", "report")}
    verdict: dict[str, Any] = next(iter(facts["gate"].get("verdicts", ())), {})
    return {
        "id": record.id, "device": record.device, "outcome": record.outcome, "rows": facts["collect"].get("rows", {}),
        "noise": facts["collect"].get("noise", {"n": 0}), "training_rows": facts["train"].get("training_rows", 0),
        "test_rows": facts["train"].get("test_rows", 0), "errors": facts["gate"].get("errors", []),
        "verdict": verdict.get("summary"), "refused": list(verdict.get("reasons", ())),
        "kept_families": verdict.get("keep", []),
        "version": facts["promote"].get("version"), "seconds": round(sum(stage.seconds for stage in record.stages), 1),
        "model": facts["gate"].get("model"), "report": facts["report"].get("html"),
    }  # fmt: skip


def tell(record: NightRecord, model: Path | None, out: Path | None, as_json: bool) -> None:
    """Print what an adaptation did.

    Raises:
        typer.Exit: a stage failed.
    """
    done = answer(record)
    if as_json:
        console.print_json(done)
    elif done["errors"]:
        _show_errors(done)
    for finding in record.findings:
        # How far the model before is off is what the table says.
        if finding.level != "info" and finding.kind != "model-drift":
            console.note(f"{finding.level}: {finding.message}")
    rows = ", ".join(f"{count} {status}" for status, count in sorted(done["rows"].items())) or "none"
    console.note(
        f"rows: {rows}; {done['training_rows']} calibrate, {done['test_rows']} judge ({done['seconds']:.0f} s)"
    )
    if done["noise"]["n"]:
        noise = done["noise"]
        console.note(f"noise: {noise['n']} cases measured twice differ by {noise['median_pct']:.1f} % in the median, "
                     f"{noise['mean_pct']:.1f} % in the mean; a perfect model would err by about "
                     f"{_OF_TWO * noise['median_pct']:.1f} % in the median")  # fmt: skip
    for stage in record.stages:
        if stage.status == "failed" or (stage.name in ("train", "gate", "promote") and stage.summary):
            console.note(f"{stage.name}: {stage.summary}")
    if done["refused"]:
        console.note(f"verdict: {done['verdict']}")
    if model is not None:
        console.note(f"the calibrated model is in {out or model}")
    if done["version"]:
        console.note("`kernelcast serve models rollback` brings the model before back")
    if record.outcome not in SUCCESSFUL:
        raise typer.Exit(1)


def _show_errors(done: dict[str, Any]) -> None:
    """The errors by family, within 80 columns."""
    heads = ("family", "rows", *_SHOWN, "≤10 %", "inside 90 %")
    lines = []
    for line in done["errors"]:
        cells = [f"{line[name]['mean_ape_pct']:.1f} / {line[name]['median_ape_pct']:.1f}" for name in _SHOWN]
        shares = [
            f"{line['before'][share]:.0f} → {line['after'][share]:.0f}" for share in ("within_10_pct", "coverage_pct")
        ]
        lines.append((line["family"], str(line["after"]["n"]), *cells, *shares))
    console.show_table(
        heads, lines, numbers=heads[1:], title=f"{done['device']}: mean / median error in % on shapes left out"
    )
