"""What the answers for a device rest on: rows of its own, another edition of its chip, other devices, or nothing.

Every kernel that the model saw on a device of the kind (implementation, dtype, variant, caches, knobs) is looked up as a
prediction looks it up; kernels that rest on the like are told together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...features.batch.category import CaseCategory, category_of, kv_pair, measured_label
from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import families
from ..family_model.artifact import FamilyModel
from ..family_model.device_transfer import source_weight
from ..family_model.family_regressor import distance
from ..family_model.utilisation import POWERED_KIND, power_limits_of
from .in_domain import CategoryRecord
from .predictor import ArtifactPredictor

MEASURED, CALIBRATED, ITSELF, EDITION, CARRIED, BUSY, SCALED, LAW, NOTHING = BASES = (
    "measured", "calibrated", "itself", "edition", "carried over", "utilisation", "scaled bound", "law", "not answered",
)  # fmt: skip
"""From the surest to none. measured: rows of this very kernel on the device; calibrated: the model was calibrated on the device
after training; itself: rows of the device, of another implementation, dtype, variant, cache state, timing or other knobs;
edition: mostly another edition of the same chip; carried over: other devices, and laws that hold for all; utilisation: how
busy the kernel keeps the device; scaled bound: the lower bound times the family's median ratio; law: bytes and operations
alone, of a family that the model was trained on no row of."""

ERRORS: Mapping[str, str] = {
    MEASURED: "held_out", ITSELF: "device_left_out", EDITION: "device_left_out", CARRIED: "device_left_out",
}  # fmt: skip
"""Which errors of a manifest's `metrics` say how far answers of a basis are off. No part of them is of editions alone."""

_TARGETS = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}

_MOSTLY = 0.5
"""Weight from which another edition's answer is more than half of the transferred one's own weight."""


@dataclass(frozen=True, slots=True)
class SourceWeight:
    """A device from which answers are carried over.

    Attributes:
        device: Its name.
        distance: How far it is, in doublings of datasheet facts; see `family_regressor.distance`.
        weight: Share of the answer, the mean over the kernels of a group.
    """

    device: str
    distance: float
    weight: float


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one implementation and dtype.

    Attributes:
        impl: Their implementation; empty where rows have none.
        dtype: Their dtype, `bf16/fp8` where an attention's cache has another.
        rows: Training rows of them on the device; None where the model did not count them.
        is_whole: Whether all variants, cache states and knobs seen on any device rest on this; else only some.
    """

    impl: str
    dtype: str
    rows: int | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Basis:
    """What the answers for some kernels of a family rest on.

    Attributes:
        family: Kernel family.
        target: `latency_s`, `power_w` or `energy_j`.
        basis: One of `BASES`.
        rows: Training rows on the device; None where they are not counted. Of `calibrated` those it was calibrated by.
        kernels: The kernels; empty for all of the family.
        sources: Devices that the answers are carried over from, the heaviest first.
        general_weight: Share of the answer that comes from laws for all devices: the analytic model, scale-free features.
        error: Held-out errors of this kind of answer, all devices together: `of`, `n`, `mean_ape_pct`, `median_ape_pct`,
            `within_10_pct`; None where the model has none.
    """

    family: str
    target: str
    basis: str
    rows: int | None = 0
    kernels: tuple[KernelGroup, ...] = ()
    sources: tuple[SourceWeight, ...] = ()
    general_weight: float = 0.0
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one category's answer of one target rests on; `weights` by source."""

    basis: str
    rows: int | None = 0
    weights: tuple[tuple[str, float], ...] = ()


def device_basis(predictor: ArtifactPredictor, device: Device) -> list[Basis]:
    """What the answers for a device rest on, by family, target and basis, the surest first.

    Raises:
        ArtifactError: a family of the model is damaged.
    """
    every: list[Basis] = []
    for family, known in families().items():
        kinds = predictor.manifest["families"].get(family, {}).get("kinds", ())
        # Where no device of the kind was measured, a law answers for the families that have one.
        if family in predictor.families and (device.kind in kinds or not known.launches):
            every += _of_family(predictor, family, device)
        else:
            has_power = predictor.utilisation is not None and device.kind == POWERED_KIND
            bases = (LAW, BUSY, LAW) if has_power else (LAW, NOTHING, NOTHING)
            every += map(partial(Basis, family), _TARGETS.values(), bases if known.launches else (NOTHING,) * 3)
    return every


def _of_family(predictor: ArtifactPredictor, family: str, device: Device) -> Iterable[Basis]:
    model = predictor.family(family).model
    answers = _answers(predictor, family, device)
    metrics = predictor.manifest["families"][family].get("metrics", {})
    bases = {key: {answer.basis for answer in of_kernel} for key, of_kernel in answers.items()}
    for target, name in _TARGETS.items():
        groups: dict[tuple[str, str], dict[tuple[str, str], list[_Answer]]] = {}
        for (of, kernel), of_kernel in answers.items():
            for answer in of_kernel if of == target else ():
                nearest = answer.weights[0][0] if answer.weights else ""
                groups.setdefault((answer.basis, nearest), {}).setdefault(kernel, []).append(answer)
        if not groups:
            learned = target == "latency" and device.kind not in model.kinds
            yield Basis(family, name, SCALED if learned else NOTHING)
        for (basis, _), kernels in sorted(groups.items(), key=lambda item: (BASES.index(item[0][0]), item[0][1])):
            members = [answer for of_kernel in kernels.values() for answer in of_kernel]
            sources = _mean_weights(predictor, device, members)
            rows = _total(answer.rows for answer in members)
            yield Basis(
                family, name, basis,
                _calibrated_rows(predictor, family, device) if basis == CALIBRATED else rows,
                tuple(KernelGroup(*kernel, _total(answer.rows for answer in of_kernel), len(bases[target, kernel]) == 1)
                      for kernel, of_kernel in sorted(kernels.items())),
                sources,
                round(1.0 - sum(source.weight for source in sources), 3) if sources else 0.0,
                _error(metrics, target, basis),
            )  # fmt: skip


def _answers(
    predictor: ArtifactPredictor, family: str, device: Device
) -> dict[tuple[str, tuple[str, str]], list[_Answer]]:
    """By target and kernel (implementation and dtype), what each category that was seen on a device of its kind rests on."""
    model = predictor.family(family).model
    every: dict[tuple[str, tuple[str, str]], list[_Answer]] = {}
    for label in sorted({label.partition(" ")[2] for label in model.measured["latency"]}):
        if label.partition(" ")[0] != device.kind:
            continue
        category = category_of(f"{device.name} {label}", threads=device.required("compute_units"))
        pair = category.dtype if category.kv_dtype == category.dtype else kv_pair(category)
        try:
            record = predictor.family(family).records[category]
        except SpecError:
            # The device has no peak for the dtype, nor for what it could run as.
            by_target = dict.fromkeys(_TARGETS, _Answer(NOTHING))
        else:
            by_target = _of_category(model, category, record, f"{device.name} {label}")
        for target, answer in by_target.items():
            every.setdefault((target, (category.impl, pair)), []).append(answer)
    return every


def _of_category(model: FamilyModel, category: CaseCategory, record: CategoryRecord, label: str) -> dict[str, _Answer]:
    """By target what the answer for a category rests on; `label` is its `measured_label`."""
    support, read = record.support, record.inputs.features.read
    is_same = measured_label(read, read.impl) == measured_label(category._replace(timing=read.timing), category.impl)
    answers: dict[str, _Answer] = {}
    for target in ("latency", "power"):
        rows = model.measured.get(target, {}).get(label, 0)
        regime = support.answer_regime.get(target)
        if target == "power" and (regime is None or np.isnan(power_limits_of(record.inputs.features.device)[0])):
            answers[target] = _Answer(NOTHING)
        elif regime == "adapted":
            answers[target] = _Answer(CALIBRATED, rows)
        elif regime == "unseen_kind":
            answers[target] = _Answer(SCALED if target == "latency" else NOTHING)
        elif target == "power" and model.utilisation is not None:
            answers[target] = _Answer(BUSY)
        elif regime == "seen":
            answers[target] = _Answer(MEASURED, rows) if is_same and rows != 0 else _Answer(ITSELF)
        elif target not in support.transferred:
            answers[target] = _Answer(ITSELF)
        else:
            answers[target] = _carried(model, record, target)
    power = answers["power"]
    energy = max(answers.values(), key=lambda answer: BASES.index(answer.basis))
    # Energy is latency times power: it rests on the less sure of the two, and has rows where power has.
    answers["energy"] = _Answer(energy.basis, power.rows if energy.basis == MEASURED else 0, energy.weights)
    return answers


def _carried(model: FamilyModel, record: CategoryRecord, target: str) -> _Answer:
    source = next((source for source in record.sources if target in source.targets), None)
    if source is None:
        return _Answer(NOTHING if target == "power" else CARRIED)
    n_general = (model.analytic is not None) + (model.free is not None) if target == "latency" else 0
    basis = CARRIED
    if source.weight >= _MOSTLY:
        basis = ITSELF if source.device == record.inputs.features.device.name else EDITION
    return _Answer(basis, 0, ((source.device, source_weight(source, n_general)),))


def _mean_weights(predictor: ArtifactPredictor, device: Device, answers: Iterable[_Answer]) -> tuple[SourceWeight, ...]:
    weights: dict[str, float] = {}
    members = list(answers)
    for answer in members:
        for name, weight in answer.weights:
            weights[name] = weights.get(name, 0.0) + weight / len(members)
    return tuple(
        SourceWeight(name, round(distance(device, predictor.devices.get(name)), 3), round(weight, 3))
        for name, weight in sorted(weights.items(), key=lambda item: -item[1])
    )


def _total(rows: Iterable[int | None]) -> int | None:
    counts = list(rows)
    return None if None in counts else sum(count for count in counts if count is not None)


def _calibrated_rows(predictor: ArtifactPredictor, family: str, device: Device) -> int | None:
    """Rows by which a family was last calibrated to the device; None where the manifest does not say."""
    entries = [
        entry for entry in predictor.manifest.get("calibrated", ())
        if (entry.get("family"), entry.get("device")) == (family, device.name)
    ]  # fmt: skip
    return int(entries[-1]["rows"]) if entries else None


def _error(metrics: Mapping[str, Any], target: str, basis: str) -> Mapping[str, Any] | None:
    of = ERRORS.get(basis)
    error = metrics.get(of, {}).get(target) if of else None
    return {"of": of, **error} if error and error.get("n") else None
