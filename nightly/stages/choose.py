"""Stage 3: which cases tonight's minutes are spent on: some measured before, those the service is asked for, and the space.

The space is filled evenly: of the collector's candidates, which spread over sizes and settings, the one farthest from all that
was measured comes next (Gonzalez, "Clustering to minimize the maximum intercluster distance", 1985). Choosing by what a model
is unsure of was no better (docs/decisions/014).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...datasets.records.usage_log import read_usage_log
from ...features.batch.cases import Cases, Floats, Indices
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device
from ...features.kernel import KernelSpec
from ...files import home_dir
from ...models.family_model.artifact import CHAMPION_POINTER
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.predictor import ArtifactPredictor
from ...models.selection.candidates import runnable
from ...models.selection.suggest import LONGEST_S, PROTOCOLS, measuring_seconds
from ...models.training.device_calibration import is_calibrated_by
from ...models.training.labelled_cases import LabelledCases
from ..context import ChosenCase, Night, StageResult
from ..gate.model_ledger import serving_predictor
from ..record.record import Finding
from ..rows import measured_cases

_MORE = 1.15
"""More is chosen than is thought to fit, the most useful first: what measuring takes is only predicted, and time ends it."""

_CANDIDATES_PER_CASE = 2
_FEWEST, _MOST = 200, 6000
_MOST_COMPARED = 1500
"""Measured cases of a family that candidates are compared with."""

_SLOWER, _LEAST_S = 3.0, 5e-6
"""A latency nobody knows is guessed as so many times the lower bound, and as this at least, in seconds."""

_APART = 1.0
"""What one other setting (dtype, variant, impl, cache state, threads) adds to a squared distance in standardised log sizes."""


def choose(night: Night, more: float = 1.0, *, to_calibrate: bool = False) -> StageResult:
    """Choose tonight's cases and keep them in the night's folder.

    Args:
        night: The night.
        more: So many times as many are chosen as are predicted to fit.
        to_calibrate: Only cases of families that rows of these devices calibrate the serving model in.

    Raises:
        SpecError: a device the catalogue does not know.
        StoreError: the store cannot be reached.
        OSError: the night's folder is full or not writable.
    """
    seconds = night.budget.measuring_s - 60.0 * night.plan.energy_minutes
    if seconds <= 0:
        message = (f"There is no time to measure: {night.budget.reserved_s:.0f} s are reserved for training. Increase "
                   "`minutes` in the plan.")  # fmt: skip
        finding = Finding("budget", "warning", night.record.device, message)
        return StageResult(message, findings=(finding,), status="skipped")
    chosen, candidates, findings = cases_for(night, more * seconds, to_calibrate=to_calibrate)
    night.write_chosen(chosen)
    why = Counter(case.why for case in chosen)
    predicted = sum(case.measuring_s for case in chosen)
    facts = {
        "cases": len(chosen), "candidates": candidates, "predicted_seconds": round(predicted, 3), "why": dict(why),
        "families": dict(Counter(case.spec.family for case in chosen)), "seconds": round(seconds, 3),
    }  # fmt: skip
    if not chosen:
        message = "There is nothing to measure: every case the plan allows was measured before"
        message += ", or calibrates nothing in the serving model." if to_calibrate else "."
        return StageResult(message, facts, (*findings, Finding("rows", "warning", night.record.device, message)))
    shares = ", ".join(f"{count} {name}" for name, count in why.most_common())
    summary = f"{len(chosen)} of {candidates} cases were chosen for {seconds:.0f} s: {shares}."
    return StageResult(summary, facts, tuple(findings))


def cases_for(
    night: Night, seconds: float, *, to_calibrate: bool = False
) -> tuple[list[ChosenCase], int, list[Finding]]:
    """Cases for so many seconds on each device, out of how many, and what there is to say; nothing is written. See `choose`.

    Raises:
        SpecError: a device the catalogue does not know.
        StoreError: the store cannot be reached.
    """
    model, findings = _model(night)
    usage, usage_findings = _usage(night)
    chosen: list[ChosenCase] = []
    candidates = 0
    for device in night.measurer.devices:
        # A fleet's devices measure side by side: each has all the time.
        device_cases, count = _for_device(night, device, seconds, model, usage.get(device, {}), to_calibrate)
        chosen, candidates = [*chosen, *device_cases], candidates + count
    return chosen, candidates, [*findings, *usage_findings]


def _model(night: Night) -> tuple[ArtifactPredictor | None, list[Finding]]:
    """The model in use; None where it cannot be loaded, and what to say then."""
    try:
        return serving_predictor(night.devices), []
    except ArtifactError as error:
        message = (
            f"The model that should serve cannot be loaded: {error}. Tonight's rows are stored, and nothing is trained against "
            "it or promoted. Bring another back with `kernelcast serve models rollback` or `kernelcast serve models promote`."
        )
        return None, [Finding("registry", "needs-person", str(home_dir() / CHAMPION_POINTER), message)]


def _usage(night: Night) -> tuple[Mapping[str, Mapping[KernelSpec, float]], list[Finding]]:
    """What the service was asked for, by device."""
    log = read_usage_log(night.usage_folder)
    findings = []
    if log.damaged or log.refused:
        why = f"; {log.refused[0]}" if log.refused else ""
        message = (f"{log.damaged} lines and {len(log.refused)} files of the usage log could not be read and were skipped"
                f"{why}. What could be read was used.")  # fmt: skip
        findings.append(Finding("usage", "warning", str(night.usage_folder), message,
                                {"lines": log.damaged, "files": len(log.refused)}))  # fmt: skip
    # Which device a kernel was asked about says where it matters, but what is asked for matters everywhere.
    return {device: log.by_device.get(device) or log.total for device in night.measurer.devices}, findings


def _for_device(
    night: Night, device: str, seconds: float, model: ArtifactPredictor | None, usage: Mapping[KernelSpec, float],
    to_calibrate: bool,
) -> tuple[list[ChosenCase], int]:  # fmt: skip
    """Cases for one device, and how many there were to choose from."""
    plan, known = night.plan.choose, night.devices.get(device)
    before = measured_cases(night.store, device, shipped=not night.plan.rehearsal)
    protocol = PROTOCOLS.get(known.kind, PROTOCOLS["gpu"])
    wanted = round(_CANDIDATES_PER_CASE * seconds / (protocol.overhead_s + protocol.first_call_s + protocol.warm_up_s))
    drawn = night.measurer.candidates(device, min(max(wanted, _FEWEST), _MOST), night.seed, before.specs)
    # Only what the store has, and the plan still measures, can be held against what it was.
    repeatable = [spec for spec in before.stored if night.measurer.can(device, spec)]
    again = [repeatable[i] for i in np.random.default_rng(night.seed).permutation(len(repeatable)).tolist()]
    asked_for = (_as_measured(spec, known) for spec in sorted(usage, key=lambda spec: (-usage[spec], spec.case_id)))
    requested = [spec for spec in asked_for if night.measurer.can(device, spec) and spec.case_id not in before.ids]
    fresh = [spec for spec in drawn if spec.case_id not in before.ids]
    if to_calibrate and model is not None:
        again, requested, fresh = (
            [spec for spec in specs if is_calibrated_by(model, spec.family, device)]
            for specs in (again, requested, fresh)
        )
    cost = measuring_costs(known, {*again, *requested, *fresh}, night.devices, model)
    left = _MORE * seconds
    parts: list[list[ChosenCase]] = []
    taken: set[KernelSpec] = set()
    for why, specs, share in (
        ("repeat", again, plan.repeats),
        ("usage", requested, plan.usage),
        ("space-filling", fresh, 1.0),
    ):
        free = [spec for spec in dict.fromkeys(specs) if spec in cost and spec not in taken]
        if why == "space-filling":
            free = space_filling(free, [*before.specs, *taken])
        part, budget = [], min(share * _MORE * seconds, left)
        for spec in free:
            if budget <= 0:
                break
            part.append(ChosenCase(device, spec, why, cost[spec]))
            budget -= cost[spec]
        parts.append(part)
        left -= sum(case.measuring_s for case in part)
        taken |= {case.spec for case in part}
    return _interleaved(parts), len({*fresh, *requested}) + len(parts[0])


def _as_measured(spec: KernelSpec, device: Device) -> KernelSpec:
    """A kernel that someone asked for: by PyTorch and on all cores, where that was not named."""
    threads = spec.threads or (int(device.required("compute_units")) if device.kind == "cpu" else None)
    return replace(spec, impl=spec.impl or "torch", threads=threads)


def measuring_costs(
    device: Device, specs: Iterable[KernelSpec], devices: Catalogue, model: ArtifactPredictor | None
) -> dict[KernelSpec, float]:
    """Seconds that measuring takes, for the specs that the device can run and that are short enough to be measured."""
    costs: dict[KernelSpec, float] = {}
    for name, of_family in _by_family(specs).items():
        cases = Cases.from_specs(of_family, [device.name] * len(of_family))
        able = np.flatnonzero(runnable(cases, device))
        if not len(able):
            continue
        cases, of_family = cases.take(able), [of_family[i] for i in able.tolist()]
        latency_s = np.maximum(_SLOWER * work(cases, devices).lower_bound_s, _LEAST_S)
        if model is not None and name in model.families:
            latency_s = model.predict_cases(cases).targets["latency_s"].value
        seconds = measuring_seconds(LabelledCases(cases, latency_s, np.full(len(cases), np.nan)), devices)
        costs |= {spec: float(seconds[i]) for i, spec in enumerate(of_family) if latency_s[i] <= LONGEST_S}
    return costs


def space_filling(candidates: Sequence[KernelSpec], measured: Sequence[KernelSpec]) -> list[KernelSpec]:
    """The candidates, each the farthest of its family from all before it and from `measured`; families in turn."""
    known, queues = _by_family(measured), []
    for name, specs in sorted(_by_family(candidates).items()):
        every = [*specs, *known.get(name, [])[:_MOST_COMPARED]]
        sizes = np.log2(1.0 + np.array([[size for _, size in spec.dims] for spec in every], dtype=np.float64))
        place = (sizes - sizes[: len(specs)].mean(axis=0)) / np.maximum(sizes[: len(specs)].std(axis=0), 0.25)
        words = [(spec.dtype, spec.variant, spec.impl, spec.cache_state, spec.threads) for spec in every]
        codes = np.column_stack([np.unique([str(word) for word in column], return_inverse=True)[1]
                                 for column in zip(*words, strict=True)])  # fmt: skip
        n, nearest = len(specs), np.full(len(specs), np.inf)

        def measure(i: int, place: Floats = place, codes: Indices = codes, nearest: Floats = nearest) -> None:
            apart = ((place[: len(nearest)] - place[i]) ** 2).mean(axis=1)
            other = (codes[: len(nearest)] != codes[i]).mean(axis=1)
            np.minimum(nearest, apart + _APART * other, out=nearest)

        for i in range(n, len(every)):
            measure(i)
        queue = []
        for _ in specs:
            i = int(np.argmax(nearest))
            queue.append(specs[i])
            measure(i)
            nearest[i] = -1.0
        queues.append(queue)
    return [spec for turn in itertools.zip_longest(*queues) for spec in turn if spec is not None]


def _by_family(specs: Iterable[KernelSpec]) -> dict[str, list[KernelSpec]]:
    parts: dict[str, list[KernelSpec]] = {}
    for spec in specs:
        parts.setdefault(spec.family, []).append(spec)
    return parts


def _interleaved(parts: Sequence[Sequence[ChosenCase]]) -> list[ChosenCase]:
    """The parts mixed evenly, each in its order, so that a night cut short has measured some of everything."""
    placed = [((i + 0.5) / len(part), case) for part in parts for i, case in enumerate(part)]
    return [case for _, case in sorted(placed, key=lambda entry: entry[0])]
