"""What there is to choose from on a device: candidates with what a model and the protocol say of them, and what people want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.cost.bounds import work
from ...features.device import Catalogue, Device
from ...features.kernel import KernelSpec
from ..predict.predictor import ArtifactPredictor, load_predictor
from ..training.labelled_cases import LabelledCases
from .candidates import runnable
from .case_space import Space
from .suggest import LONGEST_S, measuring_seconds

_COVERAGE = 0.9
"""Of the intervals whose width says how uncertain a case is."""

_SLOWER, _LEAST_S = 3.0, 5e-6
"""A latency nobody knows is guessed as so many times the lower bound, and as this at least, in seconds."""

_MOST_ASKED = 300
"""Kernels of a family that usage is known by, the most asked for: the rest says little more."""

_TINY = float(np.finfo(np.float64).tiny)

_USAGE_SETTINGS = ("dtype", "kv_dtype", "variant")
"""What usage says beside sizes. Who asks what a kernel costs often names no implementation, and no cache state."""


@dataclass(frozen=True, slots=True)
class Offer:
    """`n` cases of one family on one device; every column has shape `(n,)`.

    Attributes:
        specs: The cases as specs.
        cases: The same as columns.
        latency_s: Predicted, or guessed where no model knows.
        seconds: What measuring each costs.
        size: The deviation of ln(latency) that the model claims, NaN where none does or it is no number.
    """

    specs: Sequence[KernelSpec]
    cases: Cases
    latency_s: Floats
    seconds: Floats
    size: Floats

    def __len__(self) -> int:
        return len(self.specs)


@dataclass(frozen=True, slots=True)
class DeviceEstimates:
    """What is known of kernels on one device: by a model, where there is one, else by the lower bound.

    Attributes:
        predictor: The model; None for none.
        device: The device.
        devices: The catalogue.
        first_call_s: Seconds a first call takes, by family and impl.
    """

    predictor: ArtifactPredictor | None
    device: Device
    devices: Catalogue
    first_call_s: Mapping[tuple[str, str], float]

    @classmethod
    def of(
        cls, model: Path | ArtifactPredictor | None, device: str, devices: Catalogue,
        first_call_s: Mapping[tuple[str, str], float],
    ) -> DeviceEstimates:  # fmt: skip
        """What the artifact `model`, or one that was read already, knows of `device`; None for no artifact.

        Raises:
            SpecError: a device the catalogue does not know.
            ArtifactError: the model cannot be used.
        """
        predictor = load_predictor(model, devices) if isinstance(model, Path) else model
        return cls(predictor, devices.get(device), devices, first_call_s)

    def with_core_count(self, spec: KernelSpec) -> KernelSpec:
        """The spec with all cores of a CPU said as a number, so that equal cases are equal."""
        if spec.threads is not None or self.device.kind != "cpu":
            return spec
        return replace(spec, threads=int(self.device.required("compute_units")))

    def by_family(self, specs: Iterable[KernelSpec]) -> dict[str, dict[KernelSpec, None]]:
        """The specs that the device can run, as `with_core_count`, by family, each once."""
        drawn: dict[str, dict[KernelSpec, None]] = {}
        for spec in specs:
            drawn.setdefault(spec.family, {})[self.with_core_count(spec)] = None
        for name, family_specs in drawn.items():
            able = runnable(self.cases(list(family_specs)), self.device).tolist()
            drawn[name] = {spec: None for spec, good in zip(family_specs, able, strict=True) if good}
        return {name: family_specs for name, family_specs in drawn.items() if family_specs}

    def cases(self, specs: Sequence[KernelSpec]) -> Cases:
        """Cases of specs of one family, at least one."""
        return Cases.from_specs(specs, [self.device.name] * len(specs))

    def offer(self, specs: Sequence[KernelSpec]) -> Offer:
        """What is said of specs of one family, at least one; those too long to be measured are left out."""
        cases = self.cases(specs)
        latency_s, size = self.answers(cases)
        short = np.flatnonzero(latency_s <= LONGEST_S)
        cases, latency_s = cases.take(short), latency_s[short]
        first, no_power = np.full(len(short), np.nan), np.full(len(short), np.nan)
        for rows, (impl,) in cases.groups("impl"):
            first[rows] = self.first_call_s.get((cases.family.name, impl), np.nan)
        seconds = measuring_seconds(LabelledCases(cases, latency_s, no_power), self.devices, first)
        return Offer([specs[i] for i in short.tolist()], cases, latency_s, seconds, size[short])

    def answers(self, cases: Cases) -> tuple[Floats, Floats]:
        """Predicted latency in seconds, guessed where no model knows, and the deviation claimed of its logarithm, NaN there."""
        guessed = np.maximum(_SLOWER * work(cases, self.devices).lower_bound_s, _LEAST_S)
        if self.predictor is None or cases.family.name not in self.predictor.families:
            return guessed, np.full(len(cases), np.nan)
        predictions = self.predictor.predict_cases(cases, coverage=_COVERAGE)
        latency = predictions.targets["latency_s"]
        known = np.isin(predictions.regimes, ("seen", "adapted"))
        with np.errstate(all="ignore"):
            width = np.log(latency.upper) - np.log(latency.lower)
        size = width / (2.0 * NormalDist().inv_cdf((1.0 + _COVERAGE) / 2.0))
        good = np.isfinite(latency.value) & (latency.value > 0)
        return np.where(good, latency.value, guessed), np.where(known & np.isfinite(size) & (size > 0), size, np.nan)


def usage_weights(
    offers: Mapping[str, Offer], usage: Mapping[KernelSpec, float], estimates: DeviceEstimates, share: float
) -> dict[str, Floats]:
    """How much each candidate matters, by family, shape `(n,)` each: a family's add up to 1 where nothing is asked for.

    `share` of all weight goes by usage: each kernel people ask for gives its count to the candidates near it, by how near
    they are.
    """
    counts: Counter[KernelSpec] = Counter()
    for spec, count in usage.items():
        counts[estimates.with_core_count(spec)] += count  # type: ignore[assignment]
    wanted = {name: family_specs for name, family_specs in estimates.by_family(counts).items() if name in offers}
    total = sum(counts[spec] for family_specs in wanted.values() for spec in family_specs)
    weights: dict[str, Floats] = {}
    for name, offer in offers.items():
        even = np.full(len(offer), 1.0 / len(offer))
        if not total:
            weights[name] = even
            continue
        density = np.zeros(len(offer))
        most = sorted(wanted.get(name, {}), key=lambda spec: (-counts[spec], str(spec)))[:_MOST_ASKED]
        if most:
            n = len(offer)
            space = Space.of(estimates.cases([*offer.specs, *most]), estimates.devices, np.arange(n))
            for i, spec in enumerate(most):
                near = space.correlation(n + i, _USAGE_SETTINGS)[:n]
                density += counts[spec] * near / max(float(near.sum()), _TINY)
        weights[name] = (1.0 - share) * even + share * len(offers) * density / total
    return weights
