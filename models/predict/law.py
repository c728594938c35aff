"""Answers for families of which a model was trained on no row on such a device: launches, bytes and operations.

Only families that say so (`KernelFamily.launches`) are answered like this; the interval is wide, and no case is in the domain.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.cost.bounds import Work, work
from ...features.device import Catalogue, Device
from ..family_model.intervals import TargetColumns
from ..family_model.utilisation import LOG_POWER_ERROR, POWERED_KIND, UtilisationModel, power_limits_of
from .prediction import TARGETS, Predictions, Predictor

METHOD = "law of bytes and operations"


@dataclass(frozen=True, slots=True)
class _Law:
    """How long kernels take on a kind of device.

    Attributes:
        launch_s: What each launch takes, whatever it does.
        share: Share of its peaks that a kernel reaches beyond that.
        lower: Where the interval of 90 % begins, as a share of the answer.
        upper: Where it ends, likewise.
    """

    launch_s: float
    share: float
    lower: float
    upper: float


_LAWS: Mapping[str, _Law] = MappingProxyType({"gpu": _Law(3e-6, 0.4, 0.35, 10.0), "cpu": _Law(2e-6, 0.08, 0.2, 8.0)})
"""By kind of device, from shipped rows of families that move data (elementwise, layernorm, softmax, reduction, copy): on an
H200 5 % of 1,064 rows are below 0.4 of what this gives and 5 % above 6.4 times, strided copies among them; on three virtual
machines of Xeons and EPYCs, with one and two threads, 0.2 and 8. In aiconfigurator's rows of engines on six GPUs these are 0.33
and 3.0 for quantisation, 0.56 and 2.7 for latent attention, 0.64 and 8.5 for linear attention, 0.62 and 16 for convolutions."""

_SHARE_OF_90 = NormalDist().inv_cdf(0.95)


def cases_by_law(cases: Cases, devices: Catalogue, kinds: Collection[str]) -> Indices:
    """The cases on devices of other kinds than those on which rows of their family were measured."""
    categories = cases.categories
    foreign = [devices.get(category.device).kind not in kinds for category in categories.distinct]
    return np.flatnonzero(np.array(foreign)[categories.code])


def with_law(
    cases: Cases, by_law: Indices, predictor: Predictor, coverage: float, utilisation: UtilisationModel | None
) -> Predictions:
    """Predictions of all cases: those at `by_law` from counts alone, the others by the predictor."""
    answers = law_predictions(cases.take(by_law), predictor.devices, coverage, utilisation)
    if len(by_law) == len(cases):
        return answers
    rest = np.setdiff1d(np.arange(len(cases)), by_law)
    learned = predictor.predict_cases(cases.take(rest), coverage=coverage)
    return Predictions.joined([answers, learned]).take(np.argsort(np.concatenate([by_law, rest])))


def law_predictions(
    cases: Cases, devices: Catalogue, coverage: float, utilisation: UtilisationModel | None
) -> Predictions:
    """Predictions of cases of one family from counts alone.

    Args:
        cases: the cases.
        devices: the devices known.
        coverage: share of cases the intervals are built to contain.
        utilisation: what other families' power says of how busy a GPU is; None leaves power out.

    Raises:
        SpecError: unknown device, or a dtype it has no peak for.
    """
    n, paper = len(cases), work(cases, devices)
    on = [devices.get(name) for name in cases.categories.labels(lambda category: category.device).words]
    code = cases.categories.labels(lambda category: category.device).code
    laws = [_LAWS[device.kind] for device in on]
    launch_s, share, lower, upper = np.array([[law.launch_s, law.share, law.lower, law.upper] for law in laws])[code].T
    body_s = np.max([paper.bounds_s[name] for name in ("compute", "dram", "cache")], axis=0)
    latency_s = np.maximum(launch_s * _launches(cases) + body_s / share, paper.lower_bound_s)
    width = NormalDist().inv_cdf((1 + coverage) / 2) / _SHARE_OF_90
    latency = TargetColumns(
        latency_s, np.maximum(latency_s * lower**width, paper.lower_bound_s), latency_s * upper**width
    )
    power, energy = _power(latency, paper, on, code, utilisation, width)
    kinds = [f"the model was trained on no row of {cases.family.name} on a {device.kind.upper()}" for device in on]
    every = [(f"{kind}: estimated by launches, bytes and operations",) for kind in kinds]
    memory_b = np.array([device.fact("memory_b") or np.inf for device in on])[code]
    notes: list[tuple[str, ...]] = [every[i] for i in code.tolist()]
    for i in np.flatnonzero(paper.footprint_b > memory_b).tolist():
        notes[i] = (_too_large(float(paper.footprint_b[i]), on[code[i]]), *notes[i])
    return Predictions(
        targets=dict(zip(TARGETS, (latency, power, energy), strict=True)), coverage=coverage, method=[METHOD] * n,
        in_domain=np.zeros(n, dtype=np.bool_), notes=notes, bound=paper.binding(), breakdown=paper.bounds_s,
        regimes=["unseen_kind"] * n, timings=["device"] * n,
    )  # fmt: skip


def _launches(cases: Cases) -> Floats:
    assert cases.family.launches is not None, "only asked of families with a law"  # noqa: S101
    launches = np.ones(len(cases))
    for index, view in cases.views():
        launches[index] = cases.family.launches(view)
    return launches


def _too_large(footprint_b: float, device: Device) -> str:
    memory_b = device.required("memory_b")
    return f"operands of {footprint_b / 1e9:.3g} GB do not fit into {device.name}'s {memory_b / 1e9:.3g} GB of memory"


def _power(
    latency: TargetColumns, paper: Work, on: list[Device], code: Indices, utilisation: UtilisationModel | None, width: float
) -> tuple[TargetColumns, TargetColumns]:  # fmt: skip
    """Power by how busy the device is, and energy; NaN where nothing says how much that is."""
    limits = np.array([power_limits_of(device) if device.kind == POWERED_KIND else (np.nan, np.nan) for device in on])
    limit_w, idle_w = limits[code].T
    if utilisation is None:
        nothing = TargetColumns(*np.full((3, len(code)), np.nan))
        return nothing, nothing
    log_share = utilisation.log_share(latency.value, paper.bounds_s["compute"], paper.dram_all_s)
    power_w, factor = np.maximum(limit_w * np.exp(log_share), idle_w), np.exp(LOG_POWER_ERROR * width)
    power = TargetColumns(power_w, np.maximum(power_w / factor, idle_w), np.minimum(power_w * factor, limit_w))
    energy = TargetColumns(power_w * latency.value, power.lower * latency.lower, power.upper * latency.upper)
    return power, energy
