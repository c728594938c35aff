"""An adaptation: a night of a few minutes that calibrates the serving model to this machine and judges it on shapes left out.

    choose ─► collect, repeat some ─► check ─► train on four fifths of the shapes ─► gate on the others ─► promote ─► report

The shapes that judge are fixed by their hashes: no adaptation learns from them, however often it is repeated. Stages, files and
resuming are those of a night.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..collectors.campaign import CampaignError
from ..collectors.kernel_campaign import store_sink
from ..datasets.rows.schema import Measurement, Provenance
from ..datasets.rows.splits import held_out_shapes
from ..datasets.shipped import read_shipped, shipped_families
from ..datasets.store.store import StoreError
from ..features.kernel import KernelSpec
from ..models.evaluation.scoring import Scored, pooled, score
from ..models.family_model.artifact import default_model_dir
from ..models.predict.predictor import ArtifactPredictor, load_predictor
from ..models.training.device_calibration import calibrated, is_calibrated_by
from ..models.training.labelled_cases import LabelledCases, labelled_table
from ..process import ChildStartError
from .challenger_process import ADAPTED, read_challenger, write_challenger
from .checks.device_check import earlier_nights, recorded_tonight
from .checks.device_drift import DeviceNight
from .context import Night, StageResult
from .gate.challengers import Challenger, adapted
from .gate.evidence import COVERAGE, MOST_PCT, ShapeScore, new_shapes, scores
from .gate.judge import Verdict
from .gate.model_ledger import serving_model, serving_version
from .record.folders import CHALLENGERS, note_block
from .record.plan import Characterise, Choose, Collecting, Plan, Replay, Train
from .record.record import Finding
from .rows import TrainingRows, in_blocks, night_tables, short_rows
from .run_night import RUN, Stage
from .stages.choose import choose
from .stages.collect import collect
from .stages.gate import gate

NAME = "adapt"
"""The name of the plan, by which the folders of adaptations are called."""

HOLD_OUT = 0.2
"""Share of the shapes that judge."""

REPEATS = 0.06
"""Share of the measuring time in which cases are measured again, to know by how much a measurement differs from itself."""

_MORE = 1.6
"""So many times the cases that are predicted to fit are chosen: hot cases on a quiet machine take less, and time ends it."""

_LEAST_REPEAT_S = 5.0
"""Cases under way may have used the time of the repeats up; without them nothing says how far rows can be trusted."""

_AFTER_SHARE, _AFTER_LEAST_S, _AFTER_MOST_S = 0.1, 10.0, 60.0
"""What calibrating and judging are given: about 30 s for 1,500 rows of nine families on a core of 2025."""

_HALF = 0.5

_DRIFT = 1.0
"""A block is measured again only where a sentinel doubled. By a night's rule half of the minutes on a busy machine go into rows
that are measured twice; here repeats say how far rows can be trusted."""

_FEWEST_REPEATS, _CHANGED_PCT = 5, 15.0
"""From so many repeats on, a bias beyond this is told: more than the 12 % by which repeats on the Xeon of docs/adapt.md
differ in the median without their signs."""

_SENTINEL_CHANGE = 1.3
"""A sentinel's median over a run's blocks that moved by this factor is told."""

_ALPHA, _FLIPS = 0.05, 4999


def adaptation_plan(
    device: str, minutes: float, collector: Collecting, *, families: Sequence[str] = (), threads: Sequence[int] = (),
    cache_states: Sequence[str] = ("hot",), store: str | None = None, seed: int = 0, rows: str = "",
) -> Plan:  # fmt: skip
    """The plan of an adaptation; `rows` are recorded rows to replay. See `Plan` for the rest."""
    return Plan(
        name=NAME, minutes=minutes, device=device, collector=collector, store=store, families=tuple(families),
        threads=tuple(threads), cache_states=tuple(cache_states), seed=seed, characterise=Characterise(every_days=0.0),
        drift=_DRIFT, choose=Choose(usage=0.0, repeats=0.0), train=Train(challengers=(ADAPTED,)), replay=Replay(rows=rows),
    )  # fmt: skip


def adaptation_stages(*, promote: bool) -> Mapping[str, Stage]:
    """The stages of an adaptation; without `promote` the model that serves stays."""
    stages: dict[str, Stage] = {
        **RUN,
        "sentinels": _no_sentinels,
        "choose": partial(choose, more=_MORE, to_calibrate=True),
        "collect": collect_and_repeat,
        "train": train,
        "gate": judge,
    }
    return stages if promote else {**stages, "promote": _no_promotion}


def reserve_minutes(night: Night) -> None:
    """Reserve of the night's minutes what an adaptation needs after measuring: a full night needs more."""
    seconds = _AFTER_SHARE * night.budget.total_s
    night.budget.reserved_s = min(max(seconds, _AFTER_LEAST_S), _AFTER_MOST_S, _HALF * night.budget.total_s)


def _no_sentinels(_: Night) -> StageResult:
    return StageResult("An adaptation reads no anchor cases: its minutes go into other cases.", status="skipped")


def _no_promotion(_: Night) -> StageResult:
    return StageResult("Nothing was promoted: --no-promote.", {"version": None}, status="skipped")


def collect_and_repeat(night: Night) -> StageResult:
    """Measure what was chosen, and in the last of the time some of it again.

    Raises:
        KeyboardInterrupt: someone stopped it; what was measured is stored.
        SpecError: what was chosen cannot be read.
        StoreError: the device is being measured by something else.
    """
    repeat_s = REPEATS * night.budget.measuring_s
    night.budget.reserved_s += repeat_s
    try:
        result = collect(night)
    finally:
        night.budget.reserved_s -= repeat_s
    if result.status != "done":
        return result
    findings = list(result.findings)
    try:
        interrupted = _repeat(night)
    except (CampaignError, StoreError, ChildStartError) as error:
        message = f"Cases could not be measured again: {error}"
        findings.append(Finding("device", "warning", night.record.device, message))
        interrupted = False
    if interrupted:
        raise KeyboardInterrupt
    differences = noise(night)
    findings += [*change_within(night.record.device, differences), *_change_since(night)]
    return replace(result, facts={**result.facts, "noise": differences}, findings=tuple(findings))


def change_within(device: str, differences: Mapping[str, float]) -> list[Finding]:
    """A finding where cases measured again at the end were slower, or faster, on the whole: the device changed meanwhile."""
    bias = differences.get("bias_pct", 0.0)
    if differences["n"] < _FEWEST_REPEATS or abs(bias) <= _CHANGED_PCT:
        return []
    message = (
        f"Cases measured again at the end took {abs(bias):.0f} % {'longer' if bias > 0 else 'less'} than before: the clock of "
        f"{device}, its power limit or its load changed meanwhile, and rows of both speeds calibrate. Find out which, and "
        "adapt again with another --store once the speed holds."
    )
    return [Finding("device", "warning", device, message, dict(differences))]


def _change_since(night: Night) -> list[Finding]:
    """Findings where the sentinels of a device moved since earlier runs under the same software."""
    findings: list[Finding] = []
    for device in night.measurer.devices:
        tonight = recorded_tonight(night, device)
        if tonight is not None:
            findings += change_since(device, earlier_nights(night, device, tonight.software), tonight.readings)
    return findings


def change_since(device: str, earlier: Sequence[DeviceNight], readings: Mapping[str, float | None]) -> list[Finding]:
    """A finding where a sentinel takes another time than in earlier runs; the drift of a night needs ten of them."""
    moved = {}
    for name, now in readings.items():
        before = [time for past in earlier if (time := past.readings.get(name))]
        if now and before:
            moved[name] = now / float(np.median(before))
    worst = max(moved, key=lambda name: abs(np.log(moved[name])), default=None)
    if worst is None or 1 / _SENTINEL_CHANGE <= moved[worst] <= _SENTINEL_CHANGE:
        return []
    message = (
        f"{worst} takes {moved[worst]:.2f} times its median of earlier runs (runs: {len(earlier)}) on {device} under the "
        "same software: its clock, its power limit or its load is another, and earlier rows calibrate beside those of now. If "
        "this is to stay, adapt with another --store."
    )
    return [Finding("device", "warning", device, message, moved)]


def _repeat(night: Night) -> bool:
    """Measure cases of this night again until the time is over, some in any case; whether someone stopped it."""
    good = {row["case_id"] for row in short_rows(night_tables(night)) if row["status"] == "ok"}
    chosen = {case.spec.case_id: case for case in night.chosen() if case.spec.case_id in good}
    # By their hashes: a fair sample, and the same one for a night that is resumed.
    by_device: dict[str, list[KernelSpec]] = {}
    for name in sorted(chosen):
        by_device.setdefault(chosen[name].device, []).append(chosen[name].spec)
    sink = store_sink(night.store)

    def store(rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement]:
        note_block(night.folder, provenance.block)
        return list(sink(rows, provenance) or rows)

    with night.lock():
        end = night.measurer.collect(
            by_device, sink=store, until=max(night.budget.measuring_until, time.monotonic() + _LEAST_REPEAT_S),
            note={"night": night.record.id, "repeats": True},
            progress=lambda done, total: night.progress("measuring again", done, total),
        )  # fmt: skip
    return end.interrupted


def noise(night: Night) -> dict[str, float]:
    """By how much cases that this night measured twice differ from their first time, in percent; the bias is signed."""
    times: dict[str, list[float]] = {}
    # As they were noted: names of blocks of one second are in no order.
    order = {block: place for place, block in enumerate(night.blocks())}
    for row in sorted(short_rows(night_tables(night)), key=lambda row: order[row["block"]]):
        if row["status"] == "ok":
            times.setdefault(row["case_id"], []).append(float(row["latency_s"]))
    ratios = np.array([later[1] / later[0] for later in times.values() if len(later) > 1])
    if not len(ratios):
        return {"n": 0}
    changes = 100.0 * np.abs(ratios - 1.0)
    # Clipped, so that no single case decides.
    bias = float(np.clip(np.log(ratios), -1.0, 1.0).mean())
    return {
        "n": len(changes),
        "median_pct": round(float(np.median(changes)), 2),
        "mean_pct": round(float(changes.mean()), 2),
        "bias_pct": round(100.0 * math.expm1(bias), 2),
    }


def train(night: Night) -> StageResult:
    """Calibrate the serving model by the shapes that do not judge, and score both on those that do.

    Raises:
        ArtifactError: the serving model cannot be read, or the night's folder cannot be written.
        SpecError: rows cannot be used.
        StoreError: the store cannot be read.
    """
    champion, problem = serving_model()
    if problem is not None:
        return StageResult(f"Nothing was calibrated: the serving model cannot be loaded ({problem}).", status="failed")
    training, test = split_rows(night)
    counts = {"training_rows": sum(map(len, training)), "test_rows": sum(map(len, test))}
    if not all(counts.values()):
        message = (f"There are {counts['training_rows']} rows to learn from and {counts['test_rows']} to judge by; both are "
                   "needed. Give more --minutes, or run the same command again.")  # fmt: skip
        return StageResult(message, counts, (Finding("budget", "warning", night.record.device, message),), "skipped")
    night.progress("calibrating", 0, counts["training_rows"])
    began = time.monotonic()
    facts = {"night": night.record.id, "plan": night.plan.name}
    challenger = adapted(champion, training, night.folder / CHALLENGERS / ADAPTED, name=ADAPTED, facts=facts,
                         devices=night.devices, seed=night.plan.seed)  # fmt: skip
    night.progress("judging", 0, counts["test_rows"])
    before, after = load_predictor(champion, night.devices), load_predictor(challenger.path, night.devices)
    challenger = replace(challenger, scores=tuple(scores(before, after, test)))
    write_challenger(night.folder, ADAPTED, challenger)
    summary = f"Calibrated by {counts['training_rows']} rows; {counts['test_rows']} rows of other shapes judge."
    return StageResult(summary, {
        **counts, "champion": serving_version(), "challengers": [{**challenger.facts(), "left": dict(challenger.left)}],
        "seconds": {ADAPTED: round(time.monotonic() - began, 3)},
    })  # fmt: skip


def split_rows(night: Night) -> tuple[list[LabelledCases], list[LabelledCases]]:
    """The rows to learn from, of all nights, and those that judge: of this night, of shapes that nothing learned from.

    Raises:
        SpecError: a device the catalogue does not know.
        StoreError: the store cannot be read.
    """
    rows, blocks, devices = TrainingRows.of_night(night), night.blocks(), night.measurer.devices
    earlier, tonight = rows.read(devices, ~in_blocks(blocks)), rows.read(devices, in_blocks(blocks))
    training = [table.take(np.flatnonzero(~_left_out(table, night))) for table in (*earlier, *tonight)]
    known = [
        *earlier,
        *(labelled_table(read_shipped(name, list(devices)), name, night.devices) for name in shipped_families()),
    ]
    test = [table.take(np.flatnonzero(_left_out(table, night) & new_shapes(table, known))) for table in tonight]
    return [table for table in training if len(table)], [table for table in test if len(table)]


def _left_out(rows: LabelledCases, night: Night) -> Any:
    return held_out_shapes(rows.cases, HOLD_OUT, night.plan.seed)


def judge(night: Night) -> StageResult:
    """The gate of a night, one look at the shapes left out, and the errors before and after by family.

    A night's bets hold however often one looks, and so take hundreds of shapes to be sure. The shapes of an adaptation are
    looked at once: where nothing else speaks against the model, a paired test of them decides.

    Raises:
        ArtifactError: the serving model cannot be loaded.
        SpecError: the rows that judge cannot be read.
        StoreError: the store cannot be read.
    """
    challenger = read_challenger(night.folder, ADAPTED)
    by_shape = challenger.scores if isinstance(challenger, Challenger) else ()
    chance = chance_of_gain(by_shape, night.plan.seed)
    result = gate(night, partial(with_second_test, chance=chance, shapes=len(by_shape)))
    # Where families stay the champion's, the gate has composed another.
    challenger = read_challenger(night.folder, ADAPTED)
    if not isinstance(challenger, Challenger) or not result.facts.get("verdicts"):
        return result
    training, test = split_rows(night)
    champion = load_predictor(default_model_dir(), night.devices)
    models = {
        "before": champion,
        "median ratio": calibrated(champion, calibrating(champion, training), method="median")[0],
        "after": load_predictor(challenger.path, night.devices),
    }  # fmt: skip
    errors = error_table(models, calibrating(champion, test))
    facts = {**result.facts, "errors": errors, "model": str(challenger.path), "chance": round(chance, 5)}
    return replace(result, facts=facts)


def with_second_test(verdict: Verdict, *, chance: float, shapes: int) -> Verdict:
    """The gate's verdict; better too where nothing speaks against the model and the second test is significant.

    Args:
        verdict: by the bets.
        chance: p-value of the second test, see `chance_of_gain`.
        shapes: number of shapes that it looked at.
    """
    if verdict.better or not verdict.passed or verdict.keep or chance > _ALPHA:
        return verdict
    summary = (f"Passed: better on {shapes} shapes left out, which chance alone would show with p = {chance:.2g} "
               f"(needed {_ALPHA:g}).")  # fmt: skip
    return replace(verdict, better=True, summary=summary)


def chance_of_gain(judged: Sequence[ShapeScore], seed: int) -> float:
    """The probability of so large a mean gain if the models erred alike: a sign-flip test of the gains by shape.

    Errors beyond `MOST_PCT` count as that, as for the gate. (Fisher's randomisation test, "The Design of Experiments", 1935.)
    """
    errors = np.array([(score.champion_pct, score.challenger_pct) for score in judged]).reshape(-1, 2)
    before, after = np.minimum(errors, MOST_PCT).T
    gains = before - after
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (_FLIPS, len(gains)))
    return float((1 + np.sum(signs @ gains >= gains.sum())) / (1 + _FLIPS))


def calibrating(model: ArtifactPredictor, tables: Sequence[LabelledCases]) -> list[LabelledCases]:
    """The tables that can calibrate a model, as rows of no source; all rows of a table are of one device."""
    return [
        replace(table, source=None) for table in tables
        if is_calibrated_by(model, table.cases.family.name, str(table.cases.device[0]))
    ]  # fmt: skip


def error_table(models: Mapping[str, ArtifactPredictor], tables: Sequence[LabelledCases]) -> list[dict[str, Any]]:
    """Metrics of latency of each model by family and, last, of all rows; plain JSON."""
    parts: dict[str, list[Scored]] = {
        name: [score(model, rows, coverage=COVERAGE)[0] for rows in tables] for name, model in models.items()
    }
    lines = [
        {"family": rows.cases.family.name, **{name: asdict(parts[name][i].metrics()) for name in models}}
        for i, rows in enumerate(tables)
    ]
    together = {
        name: asdict(pooled(scored, family="", labels=()).metrics()) for name, scored in parts.items() if scored
    }
    return [*lines, {"family": "all", **together}] if tables else []


def calibrated_model(night: Night) -> Path | None:
    """The directory of the model that was judged; None where there was none."""
    path = night.facts("gate").get("model")
    return None if path is None else Path(path)
