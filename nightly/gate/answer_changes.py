"""How a promotion would change the answers: champion and challenger on the same cases.

On the night's devices those measured there; on every device that the champion knows, drawn ones that stay the same every night.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Catalogue, Device, catalogue
from ...features.kernel import KernelSpec, View, get_family
from ...models.family_model.artifact import read_manifest
from ...models.predict.predictor import load_predictor
from ..record.record import Finding
from .challengers import known_devices

PROBES_PER_DEVICE = 40
"""Drawn cases of each family on each device."""

LARGE_MEDIAN = 0.10
"""ln ratio: half of a family's answers changing by a tenth is more than a night of rows explains on its own."""

LARGE_CHANGE = 1.0
"""ln ratio: answers that change by a factor of e."""

_SEED = 20261122
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Changes:
    """How predictions change: |ln(after / before)| in percent, so 10 means about a tenth more or less.

    Attributes:
        cases: Number of cases compared.
        median_pct: Median over all of them.
        p95_pct: 95th percentile.
        largest_pct: Largest change.
        by_family: `{"cases", "median_pct", "p95_pct", "largest_pct"}` of each family.
        largest: The ten cases that change most, with both predictions in seconds.
        unknown: Cases that one of the two models does not know.
    """

    cases: int
    median_pct: float
    p95_pct: float
    largest_pct: float
    by_family: Mapping[str, Mapping[str, float]]
    largest: tuple[Mapping[str, Any], ...]
    unknown: int


def probes(
    model: Path, usage: Iterable[KernelSpec] = (), *, devices: Catalogue | None = None, each: int = PROBES_PER_DEVICE
) -> list[Cases]:
    """The cases both models are asked: drawn ones of every family on every device the model knows, and those users asked for.

    Drawn evenly in the logarithm of sizes by a fixed seed, in the dtypes and variants the model was trained on there:
    equal models give equal probes, on every night.
    """
    manifest, known = read_manifest(model), devices or catalogue()
    requested: dict[str, list[KernelSpec]] = {}
    for spec in usage:
        requested.setdefault(spec.family, []).append(spec)
    tables: list[Cases] = []
    for name, entry in sorted(manifest["families"].items()):
        specs, on = _drawn(name, entry, each, known)
        for device in sorted(known_devices(entry)):
            wanted = [
                spec for spec in requested.get(name, ()) if known.get(device).runs(spec.dtype, get_family(name).unit)
            ]
            specs += wanted
            on += [device] * len(wanted)
        if specs:
            tables.append(Cases.from_specs(specs, on).with_catalogue_names(known))
    return tables


def prediction_changes(
    champion: Path, challenger: Path, cases: Sequence[Cases], *, devices: Catalogue | None = None
) -> Changes:
    """How the answers to `cases` change from champion to challenger.

    Raises:
        ArtifactError: one of the two cannot be loaded.
    """
    known = devices or catalogue()
    old, new = load_predictor(champion, known), load_predictor(challenger, known)
    moved: dict[str, Floats] = {}
    moves: list[tuple[float, Mapping[str, Any]]] = []
    unknown = 0
    for case in cases:
        name = case.family.name
        if name not in old.families or name not in new.families:
            unknown += len(case)
            continue
        before, after = (predictor.predict_cases(case).targets["latency_s"].value for predictor in (old, new))
        moved[name] = np.abs(np.log(after / before))
        for i in np.argsort(-moved[name], kind="stable")[:_SHOWN].tolist():
            both = {"before_s": float(before[i]), "after_s": float(after[i])}
            moves.append((float(moved[name][i]), {"case": _words(case, i), "device": str(case.device[i]), **both}))
    every = np.concatenate(list(moved.values())) if moved else np.zeros(0)
    moves.sort(key=lambda pair: -pair[0])
    by_family = {name: _figures(column) for name, column in moved.items()}
    return Changes(
        **_figures(every), by_family=by_family, largest=tuple(move for _, move in moves[:_SHOWN]), unknown=unknown
    )


def unexplained(changes: Changes, explained: Iterable[str] = ()) -> list[Finding]:
    """Findings on families whose answers change much; `explained` are families with rows of tonight."""
    expected = set(explained)
    findings = []
    for name, figures in changes.by_family.items():
        if name in expected:
            continue
        if figures["median_pct"] > 100 * LARGE_MEDIAN or figures["largest_pct"] > 100 * LARGE_CHANGE:
            findings.append(Finding(
                "gate", "needs-person", name,
                f"Predictions for {name} change by {figures['median_pct']:.0f} % in the median and by at most "
                f"{figures['largest_pct']:.0f} % (logarithm of the ratio, {figures['cases']:.0f} cases), and no new row "
                "explains it. Check the largest changes in the report before you rely on them. "
                "`kernelcast serve models rollback` restores the previous model.",
                {"median_pct": figures["median_pct"], "largest_pct": figures["largest_pct"]},
            ))  # fmt: skip
    return findings


def _drawn(family: str, entry: Mapping[str, Any], each: int, known: Catalogue) -> tuple[list[KernelSpec], list[str]]:
    """Specs and devices: `each` cases a device, over the settings that were measured there."""
    from ...collectors.cpu.plans.shapes import additive_recurrence

    fam = get_family(family)
    names = sorted(fam.ranges)
    low, high = (np.log([fam.ranges[name][end] for name in names]) for end in (0, 1))
    specs: list[KernelSpec] = []
    on: list[str] = []
    for device in sorted(known_devices(entry)):
        settings = _settings(entry, known.get(device), fam.unit)
        if not settings:
            continue
        points = additive_recurrence(len(names), np.random.default_rng(_SEED).random(len(names)))
        done = 0
        for turn in range(20 * each):
            values = np.rint(np.exp(low + next(points) * (high - low)))
            sizes = {dim.name: dim.default for dim in fam.dims if dim.default is not None}
            sizes = fam.finish(sizes | {name: int(value) for name, value in zip(names, values, strict=True)})
            variant, dtype, kv_dtype = settings[turn % len(settings)]
            if fam.check(sizes, variant) is not None or not fam.suits(variant, sizes):
                continue
            spec = KernelSpec.of(family, dtype, variant=variant, kv_dtype=kv_dtype, **sizes)  # type: ignore[arg-type]
            if float(fam.footprint_b(View.of(spec))) < 2**34:
                specs.append(spec)
                on.append(device)
                done += 1
            if done == each:
                break
    return specs, on


def _settings(entry: Mapping[str, Any], device: Device, unit: str) -> list[tuple[str, str, str | None]]:
    """(variant, dtype, cache dtype) measured on the device; for one only adapted to, those of its kind that it runs."""
    words = [word.split(" ") for word in entry.get("measured", {}).get("latency", ())]
    here = [word for word in words if word[0] == device.name] or [word for word in words if word[1] == device.kind]
    settings = set()
    for _, _, variant, pair, *_ in here:
        dtype, _, kv_dtype = pair.partition("/")
        if device.runs(dtype, unit):
            settings.add((variant, dtype, kv_dtype if kv_dtype not in ("", dtype) else None))
    return sorted(settings, key=str)


def _figures(column: Floats) -> dict[str, Any]:
    if not len(column):
        return {"cases": 0, "median_pct": 0.0, "p95_pct": 0.0, "largest_pct": 0.0}
    median, p95, largest = (100 * np.quantile(column, [0.5, 0.95, 1.0])).round(3).tolist()
    return {"cases": len(column), "median_pct": median, "p95_pct": p95, "largest_pct": largest}


def _words(cases: Cases, i: int) -> str:
    sizes = ",".join(f"{name}={column[i]:.0f}" for name, column in cases.sizes.items())
    return " ".join(filter(None, (f"{cases.family.name}[{sizes}]", str(cases.variant[i]), str(cases.dtype[i]),
                                  str(cases.impl[i]), str(cases.cache_state[i]))))  # fmt: skip
