"""Stage 3: which cases are worth tonight's minutes.

Cases that fill the space, cases the service is asked for, cases the model knows least of, and a few measured before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...datasets.records.usage_log import read_usage_log
from ...features.kernel import KernelSpec
from ...files import home_dir
from ...models.family_model.artifact import CHAMPION_POINTER
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.predictor import ArtifactPredictor
from ...models.selection.select_cases import choose as choose_cases
from ...models.selection.suggest import PROTOCOLS
from ..context import ChosenCase, Night, StageResult
from ..gate.model_ledger import serving_predictor
from ..record.record import Finding
from ..rows import measured_cases

_MORE = 1.15
"""More is chosen than is thought to fit, the most useful first: what measuring takes is only predicted, and time ends it."""

_CANDIDATES_PER_CASE = 4
_FEWEST, _MOST = 200, 6000


def choose(night: Night) -> StageResult:
    """Choose tonight's cases and keep them in the night's folder.

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
    chosen, candidates, findings = cases_for(night, seconds)
    night.write_chosen(chosen)
    why = Counter(case.why for case in chosen)
    predicted = sum(case.measuring_s for case in chosen)
    facts = {
        "cases": len(chosen), "candidates": candidates, "predicted_seconds": round(predicted, 3), "why": dict(why),
        "families": dict(Counter(case.spec.family for case in chosen)), "seconds": round(seconds, 3),
    }  # fmt: skip
    if not chosen:
        message = "There is nothing to measure: every case the plan allows was measured before."
        return StageResult(message, facts, (*findings, Finding("rows", "warning", night.record.device, message)))
    shares = ", ".join(f"{count} {name}" for name, count in why.most_common())
    summary = f"{len(chosen)} of {candidates} cases were chosen for {seconds:.0f} s: {shares}."
    return StageResult(summary, facts, tuple(findings))


def cases_for(night: Night, seconds: float) -> tuple[list[ChosenCase], int, list[Finding]]:
    """Cases for so many seconds on each device, out of how many, and what there is to say; nothing is written.

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
        device_cases, count = _for_device(night, device, seconds, model, usage.get(device, {}))
        chosen, candidates = [*chosen, *device_cases], candidates + count
    return chosen, candidates, [*findings, *usage_findings]


def _model(night: Night) -> tuple[ArtifactPredictor | None, list[Finding]]:
    """The model in use; None where it cannot be loaded, and what to say then."""
    try:
        return serving_predictor(night.devices), []
    except ArtifactError as error:
        message = (
            f"The model that should serve cannot be loaded: {error}. Tonight's cases fill the space, and nothing is trained "
            "against it or promoted. Bring another back with `kernelcast models rollback` or `kernelcast models promote`."
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
    night: Night, device: str, seconds: float, model: ArtifactPredictor | None, usage: Mapping[KernelSpec, float]
) -> tuple[list[ChosenCase], int]:
    """Cases for one device, and how many there were to choose from."""
    plan = night.plan.choose
    before = measured_cases(night.store, device, shipped=not night.plan.rehearsal)
    kind = night.devices.get(device).kind
    protocol = PROTOCOLS.get(kind, PROTOCOLS["gpu"])
    wanted = round(_CANDIDATES_PER_CASE * seconds / (protocol.overhead_s + protocol.first_call_s + protocol.warm_up_s))
    drawn = night.measurer.candidates(device, min(max(wanted, _FEWEST), _MOST), night.seed, before.specs)
    wanted_specs = [spec for spec in usage if night.measurer.can(device, spec)]
    candidates = [spec for spec in dict.fromkeys((*wanted_specs, *drawn)) if spec.case_id not in before.ids]
    left = _MORE * seconds
    taken: list[KernelSpec] = []
    # Only what the store has, and the plan still measures, can be held against what it was.
    repeatable = [spec for spec in before.stored if night.measurer.can(device, spec)]
    again = _picked(
        night, device, [], left * plan.repeats if repeatable else 0.0, None, {}, repeatable, [], repeats=1.0
    )
    parts: list[Sequence[ChosenCase]] = [again]
    for share, use_model, wants in ((plan.space_filling, None, {}), (plan.usage if usage else 0.0, model, usage)):
        parts.append(_picked(night, device, candidates, left * share, use_model, wants, before.specs, taken))
    used = sum(case.measuring_s for part in parts for case in part)
    parts.append(_picked(night, device, candidates, left - used, model, {}, before.specs, taken))
    return _interleaved(parts), len(candidates) + len(again)


def _picked(
    night: Night, device: str, candidates: Sequence[KernelSpec], seconds: float, model: ArtifactPredictor | None,
    usage: Mapping[KernelSpec, float], measured: Sequence[KernelSpec], taken: list[KernelSpec], repeats: float = 0.0,
) -> list[ChosenCase]:  # fmt: skip
    """Cases for a share of the seconds; they are added to `taken`, so that no other share takes them."""
    if seconds <= 0:
        return []
    taken_set = set(taken)
    chosen = choose_cases(
        model, device, [spec for spec in candidates if spec not in taken_set], seconds=seconds, measured=[*measured, *taken],
        usage=usage, devices=night.devices, repeats=repeats, seed=night.seed,
    )  # fmt: skip
    taken += [case.spec for case in chosen]
    return [ChosenCase(device, case.spec, case.why, case.measuring_s) for case in chosen]


def _interleaved(parts: Sequence[Sequence[ChosenCase]]) -> list[ChosenCase]:
    """The parts mixed evenly, each in its order, so that a night cut short has measured some of everything."""
    placed = [((i + 0.5) / len(part), case) for part in parts for i, case in enumerate(part)]
    seen: dict[KernelSpec, ChosenCase] = {}
    for _, case in sorted(placed, key=lambda entry: entry[0]):
        seen.setdefault(case.spec, case)
    return list(seen.values())
