"""Stage 3: which cases are worth tonight's minutes.

What ties new software to old, what fills the space, what the service is asked for, what the model knows least of, and a few
measured before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...datasets.usage import read_usage_log
from ...features.kernel import KernelSpec
from ...home import home_dir
from ...models.artifact import CHAMPION_POINTER, ArtifactError
from ...models.choosing import Chosen
from ...models.choosing import choose as choose_cases
from ...models.measuring_cost import PROTOCOLS
from ...models.predictor import ArtifactPredictor
from ..context import ChosenCase, Did, Night
from ..measured import measured_before
from ..outcome import serving_predictor
from ..record import Finding
from ..regimes import bridging

_MORE = 1.15
"""More is chosen than is thought to fit, the most useful first: what measuring takes is only predicted, and time ends it."""

_CANDIDATES_PER_CASE = 4
_FEWEST, _MOST = 200, 6000


def choose(night: Night) -> Did:
    """Choose tonight's cases and keep them in the night's folder.

    Raises:
        SpecError: a device the catalogue does not know.
        StoreError: the store cannot be reached.
        OSError: the night's folder is full or not writable.
    """
    seconds = night.budget.measuring_s - 60.0 * night.plan.energy_minutes
    if seconds <= 0:
        said = f"No time is left for measuring: {night.budget.reserved_s:.0f} s are kept back for training. Give more minutes."
        return Did(said, findings=(Finding("budget", "warning", night.record.device, said),), status="skipped")
    chosen, candidates, findings = cases_for(night, seconds)
    night.write_chosen(chosen)
    why = Counter(case.why for case in chosen)
    predicted = sum(case.measuring_s for case in chosen)
    facts = {
        "cases": len(chosen), "candidates": candidates, "predicted_seconds": round(predicted, 3), "why": dict(why),
        "families": dict(Counter(case.spec.family for case in chosen)), "seconds": round(seconds, 3),
    }  # fmt: skip
    if not chosen:
        said = "There is nothing left to measure: every case the plan allows was measured before."
        return Did(said, facts, (*findings, Finding("rows", "warning", night.record.device, said)))
    shares = ", ".join(f"{count} {name}" for name, count in why.most_common())
    return Did(
        f"{len(chosen)} of {candidates} cases were chosen for {seconds:.0f} s: {shares}.", facts, tuple(findings)
    )


def cases_for(night: Night, seconds: float) -> tuple[list[ChosenCase], int, list[Finding]]:
    """Cases for so many seconds on each device, out of how many, and what there is to say; nothing is written.

    Raises:
        SpecError: a device the catalogue does not know.
        StoreError: the store cannot be reached.
    """
    model, findings = _model(night)
    usage, told = _usage(night)
    chosen: list[ChosenCase] = []
    candidates = 0
    for device in night.measurer.devices:
        # A fleet's devices measure side by side: each has all the time.
        own, looked = _for_device(night, device, seconds, model, usage.get(device, {}))
        chosen, candidates = [*chosen, *own], candidates + looked
    return chosen, candidates, [*findings, *told]


def _model(night: Night) -> tuple[ArtifactPredictor | None, list[Finding]]:
    """The model in use; None where it cannot be loaded, and what to say then."""
    try:
        return serving_predictor(night.devices), []
    except ArtifactError as error:
        problem = str(error)
    said = (
        f"The model that should serve cannot be loaded: {problem}. Tonight's cases fill the space, and nothing is trained "
        "against it or promoted. Bring another back with `kernelcast models rollback` or `kernelcast models promote`."
    )
    return None, [Finding("registry", "needs-person", str(home_dir() / CHAMPION_POINTER), said)]


def _usage(night: Night) -> tuple[Mapping[str, Mapping[KernelSpec, float]], list[Finding]]:
    """What the service was asked for, by device."""
    log = read_usage_log(night.usage_folder)
    findings = []
    if log.damaged or log.refused:
        why = f"; {log.refused[0]}" if log.refused else ""
        said = (f"{log.damaged} lines and {len(log.refused)} files of the usage log could not be read and were passed over"
                f"{why}. What could be read was used.")  # fmt: skip
        findings.append(Finding("usage", "warning", str(night.usage_folder), said,
                                {"lines": log.damaged, "files": len(log.refused)}))  # fmt: skip
    # Which device a kernel was asked about says where it matters, but what is asked for matters everywhere.
    return {device: log.by_device.get(device) or log.asked for device in night.measurer.devices}, findings


def _for_device(
    night: Night, device: str, seconds: float, model: ArtifactPredictor | None, usage: Mapping[KernelSpec, float]
) -> tuple[list[ChosenCase], int]:
    """Cases for one device, and how many there were to choose from."""
    plan = night.plan.choose
    before = measured_before(night.store, device, shipped=not night.rehearsal)
    kind = night.devices.get(device).kind
    protocol = PROTOCOLS.get(kind, PROTOCOLS["gpu"])
    wanted = round(_CANDIDATES_PER_CASE * seconds / (protocol.overhead_s + protocol.first_call_s + protocol.warm_up_s))
    drawn = night.measurer.candidates(device, min(max(wanted, _FEWEST), _MOST), night.seed, before.specs)
    asked = [spec for spec in usage if night.measurer.can(device, spec)]
    candidates = [spec for spec in dict.fromkeys((*asked, *drawn)) if spec.case_id not in before.ids]
    bridge = bridging(night, device, seconds * plan.bridge)
    left = _MORE * (seconds - sum(one.measuring_s for one in bridge))
    parts: list[Sequence[ChosenCase]] = [bridge]
    taken: list[KernelSpec] = []
    # Only what the store has, and the plan still measures, can be held against what it was.
    own = [spec for spec in before.own if night.measurer.can(device, spec)]
    again = choose_cases(None, device, [], seconds=left * plan.repeats, measured=own, devices=night.devices,
                         repeats=1.0, seed=night.seed) if own and plan.repeats else []  # fmt: skip
    parts.append([ChosenCase(device, one.spec, one.why, one.measuring_s) for one in again])
    for share, use_model, wants in ((plan.space_filling, None, {}), (plan.usage if usage else 0.0, model, usage)):
        parts.append(_picked(night, device, candidates, left * share, use_model, wants, before.specs, taken))
    used = sum(one.measuring_s for part in parts[1:] for one in part)
    parts.append(_picked(night, device, candidates, left - used, model, {}, before.specs, taken))
    return _interleaved(parts), len(candidates) + len(again) + len(bridge)


def _picked(
    night: Night, device: str, candidates: Sequence[KernelSpec], seconds: float, model: ArtifactPredictor | None,
    usage: Mapping[KernelSpec, float], measured: Sequence[KernelSpec], taken: list[KernelSpec],
) -> list[ChosenCase]:  # fmt: skip
    """Cases for a share of the seconds; they are added to `taken`, so that no other share takes them."""
    if seconds <= 0:
        return []
    gone = set(taken)
    found: list[Chosen] = choose_cases(
        model, device, [spec for spec in candidates if spec not in gone], seconds=seconds, measured=[*measured, *taken],
        usage=usage, devices=night.devices, repeats=0.0, seed=night.seed,
    )  # fmt: skip
    taken += [one.spec for one in found]
    return [ChosenCase(device, one.spec, one.why, one.measuring_s) for one in found]


def _interleaved(parts: Sequence[Sequence[ChosenCase]]) -> list[ChosenCase]:
    """The parts mixed evenly, each in its order, so that a night cut short has measured some of everything."""
    placed: list[tuple[float, int, Any]] = []
    for number, part in enumerate(parts):
        placed += [((i + 0.5) / len(part), number, case) for i, case in enumerate(part)]
    seen: dict[KernelSpec, ChosenCase] = {}
    for _, _, case in sorted(placed, key=lambda one: one[:2]):
        seen.setdefault(case.spec, case)
    return list(seen.values())
