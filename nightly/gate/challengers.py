"""Models that might serve tomorrow: the champion calibrated, a model trained again, a model kept from an earlier night.

Each ends as a directory that is loaded once as a server would load it: what is judged is what would serve.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...models.evaluation.scoring import canonical
from ...models.family_model.artifact import (
    Artifact,
    load_family,
    manifest_sha256,
    read_manifest,
    save_artifact,
    with_power_of,
)
from ...models.family_model.nearby_rows import Method
from ...models.predict.predictor import ArtifactPredictor, load_predictor
from ...models.training.device_calibration import calibrated, is_calibrated_by, save_calibrated
from ...models.training.fitting import MIN_ROWS
from ...models.training.labelled_cases import LabelledCases, joined_by_family
from ...models.training.training import DEFAULT_REGRESSOR, train
from .evidence import ShapeScore, fold_count, folds, new_shapes, scores

Kind = Literal["adapted", "retrained", "past"]


@dataclass(frozen=True, slots=True)
class Challenger:
    """A model on disk that may replace the champion.

    Attributes:
        name: Its name in this night.
        kind: How it was made.
        path: Its directory.
        rows: Rows it learned from beyond those of the model it was made of.
        seconds: Seconds it took to make.
        regressor: What was trained.
        families: Families that differ from the champion's.
        left: Why each other family was taken over or left out.
        scores: Its errors and the champion's on tonight's shapes, each before it learned from them.
    """

    name: str
    kind: Kind
    path: Path
    rows: int
    seconds: float
    regressor: str
    families: tuple[str, ...]
    left: Mapping[str, str]
    scores: tuple[ShapeScore, ...] = ()

    def facts(self) -> dict[str, Any]:
        """What a night's record says of it."""
        return {"name": self.name, "kind": self.kind, "rows": self.rows, "seconds": round(self.seconds, 3),
                "regressor": self.regressor, "families": list(self.families)}  # fmt: skip


def adapted(
    champion: Path,
    tables: Sequence[LabelledCases],
    out: Path,
    *,
    name: str = "adapted",
    method: Method = "process",
    facts: Mapping[str, Any] | None = None,
    devices: Catalogue | None = None,
    seed: int = 0,
) -> Challenger:
    """The champion with what `tables` teach of their devices.

    Raises:
        SpecError: none of the rows is of a family and kind of device that the champion knows.
        ArtifactError: the champion cannot be read or `out` cannot be written.
    """
    began, known = time.monotonic(), devices or catalogue()
    model = load_predictor(champion, known)
    usable, left = _usable(model, tables)
    calibration, reports = calibrated(model, usable, seed=seed, method=method)
    learned = sum(report.rows for report in reports)
    provenance = {"kind": "adapted", "method": method, "rows": learned, "from": _version(champion), **dict(facts or {})}
    save_calibrated(calibration, reports, out, facts={"challenger": provenance})
    families = tuple(sorted({report.family for report in reports}))
    left = {family: "no new rows" for family in model.families if family not in families} | left
    return _loaded(
        Challenger(name, "adapted", out, learned, time.monotonic() - began,
                   str(model.manifest["regressor"]), families, left), known,
    )  # fmt: skip


def _usable(model: ArtifactPredictor, tables: Sequence[LabelledCases]) -> tuple[list[LabelledCases], dict[str, str]]:
    """The rows that the model can be adapted with, and why those of other families are left."""
    left: dict[str, str] = {}
    usable: list[LabelledCases] = []
    for family, rows in _by_family(tables, model.devices).items():
        if family not in model.families:
            left[family] = "the champion does not know it"
            continue
        of_kind = [is_calibrated_by(model, family, device) for device in rows.cases.device.tolist()]
        if any(of_kind):
            usable.append(rows.take(np.flatnonzero(of_kind)))
        else:
            left[family] = "the champion knows it on no device of this kind"
    if not usable:
        raise SpecError("no new row is of a family and kind of device that the champion knows: nothing to adapt it with",
                        field="data")  # fmt: skip
    return usable, left


def fold_scores(
    champion: ArtifactPredictor, earlier: Sequence[LabelledCases], tonight: Sequence[LabelledCases], night: str,
    method: Method, seed: int,
) -> list[ShapeScore]:  # fmt: skip
    """Scores of adapting the champion on tonight's new shapes; each fold is judged before it is learned from.

    Raises:
        SpecError: see `adapted`.
    """
    new = [new_shapes(rows, earlier) for rows in tonight]
    fresh = [rows.take(np.flatnonzero(mask)) for rows, mask in zip(tonight, new, strict=True)]
    learn = [*earlier, *(rows.take(np.flatnonzero(~mask)) for rows, mask in zip(tonight, new, strict=True))]
    count = fold_count(sum(map(len, earlier)), sum(map(len, tonight)))
    results: list[ShapeScore] = []
    for fold in range(count):
        part = [rows.take(np.flatnonzero(folds(rows, night, count) == fold)) for rows in fresh]
        if any(map(len, learn)) and any(map(len, part)):
            calibration, _ = calibrated(champion, _usable(champion, learn)[0], seed=seed, method=method)
            results += scores(champion, calibration, part)
        learn += part
    return results


def refit_growth(champion: Path, challenger: Path) -> float:
    """How many times the champion's rows a challenger made by the champion's own rule learned from; 0 for another rule."""
    old, new = (read_manifest(path).get("challenger", {}) for path in (champion, challenger))
    same = old.get("method") is not None and old.get("method") == new.get("method")
    return float(new["rows"]) / max(float(old["rows"]), 1.0) if same else 0.0


def night_scores(
    champion: Path, challenger: Path, earlier: Sequence[LabelledCases], tonight: Sequence[LabelledCases], devices: Catalogue
) -> list[ShapeScore]:  # fmt: skip
    """Scores of a model that has not learned from tonight's rows, on tonight's new shapes.

    Raises:
        ArtifactError: one of the two cannot be loaded.
    """
    fresh = [rows.take(np.flatnonzero(new_shapes(rows, earlier))) for rows in tonight]
    return scores(load_predictor(champion, devices), load_predictor(challenger, devices), fresh)


def with_champions_families(
    challenger: Path, champion: Path, keep: Sequence[str], out: Path, devices: Catalogue
) -> None:
    """Write to `out` the challenger with the families `keep` as the champion has them.

    Raises:
        ArtifactError: one of the two cannot be read, or `out` cannot be written.
    """
    manifest, other = read_manifest(challenger), read_manifest(champion)
    families = {name: load_family(challenger, manifest, name) for name in manifest["families"]}
    families |= {name: load_family(champion, other, name) for name in keep if name in other["families"]}
    facts: dict[str, Any] = {name: manifest[name] for name in ("calibrated", "challenger", "data") if name in manifest}
    save_artifact(Artifact(str(manifest["regressor"]), families, facts), out)
    load_predictor(out, devices).load_all()


def retrained(
    champion: Path | None,
    tables: Sequence[LabelledCases],
    out: Path,
    *,
    name: str = "retrained",
    regressor: str = DEFAULT_REGRESSOR,
    fresh: AbstractSet[str] | None = None,
    may_forget: bool = False,
    facts: Mapping[str, Any] | None = None,
    devices: Catalogue | None = None,
    seed: int = 0,
) -> Challenger:
    """A model trained on `tables`, family by family; where they do not suffice, the champion's family as it is.

    Args:
        champion: what families are taken over from; None: families with too few rows are left out.
        tables: all rows to learn from (store, shipped tables, files), of earlier nights and other devices.
        out: where the model goes.
        name: of the challenger.
        regressor: what is trained.
        fresh: families with new rows; others are taken over. Default: all of them have.
        may_forget: train a family again even where the champion knows devices of it that the rows do not.
        facts: remembered in the model beside what it was made of.
        devices: the catalogue; default: the shipped one.
        seed: of the training.

    Raises:
        SpecError: no family has enough rows, or see `models.training.training.train`.
        ArtifactError: the champion cannot be read or `out` cannot be written.
    """
    began, known = time.monotonic(), devices or catalogue()
    manifest = read_manifest(champion) if champion is not None else {"families": {}}
    by_family = _by_family(tables, known)
    chosen: list[LabelledCases] = []
    left = {family: "no rows" for family in manifest["families"] if family not in by_family}
    for family, rows in by_family.items():
        why = _too_little(family, rows, manifest["families"].get(family, {}), fresh, may_forget)
        if why is None:
            chosen.append(rows)
        else:
            left[family] = why
    if not chosen:
        reasons = "; ".join(f"{family}: {why}" for family, why in sorted(left.items())) or "no rows"
        raise SpecError(f"no family can be trained again ({reasons})", field="data")
    trained = train(chosen, regressor=regressor, seed=seed, devices=known)
    families, taken = dict(trained.families), {}
    if champion is not None:
        over = {family: load_family(champion, manifest, family) for family in manifest["families"] if family in left}
        # What these rows alone say of power may be nothing.
        powered = {
            family: with_power_of(load_family(champion, manifest, family), model)
            for family, model in families.items() if manifest["families"].get(family, {}).get("utilisation")
        }  # fmt: skip
        families = dict(sorted((over | families | powered).items()))
        taken = dict.fromkeys(over, _version(champion))
    provenance = {"kind": "retrained", "taken_over": taken, **dict(facts or {})}
    save_artifact(Artifact(regressor, families, {**trained.facts, "challenger": provenance}), out)
    return _loaded(
        Challenger(name, "retrained", out, sum(map(len, chosen)), time.monotonic() - began, regressor,
                   tuple(sorted(trained.families)), left), known,
    )  # fmt: skip


def past(path: Path, name: str, *, devices: Catalogue | None = None) -> Challenger:
    """A model kept from an earlier night, as it stands.

    Raises:
        ArtifactError: it cannot be loaded any more, such as when features changed since.
    """
    manifest = read_manifest(path)
    return _loaded(
        Challenger(name, "past", path, 0, 0.0, str(manifest["regressor"]), tuple(manifest["families"]), {}),
        devices or catalogue(),
    )


def _too_little(
    family: str, rows: LabelledCases, entry: Mapping[str, Any], fresh: AbstractSet[str] | None, may_forget: bool
) -> str | None:
    """Why a family cannot or need not be trained again, None where it can."""
    if len(rows) < MIN_ROWS:
        return f"{len(rows)} rows are too few"
    if fresh is not None and family not in fresh and entry:
        return "no new rows"
    lost = sorted(known_devices(entry) - set(rows.cases.device.tolist()))
    if lost and not may_forget:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        return f"it would forget {', '.join(lost[:3])}{more}"
    return None


def known_devices(entry: Mapping[str, Any]) -> set[str]:
    """Devices that a family of a manifest was trained on or adapted to."""
    return {*entry.get("devices", ()), *entry.get("adaptations", ())}


def _by_family(tables: Sequence[LabelledCases], devices: Catalogue) -> dict[str, LabelledCases]:
    plain = (replace(canonical(rows, devices), source=None) for rows in tables if len(rows))
    return {rows.cases.family.name: rows for rows in joined_by_family(plain)}


def _version(directory: Path) -> str:
    return manifest_sha256(directory)[:12]


def _loaded(challenger: Challenger, devices: Catalogue) -> Challenger:
    """The challenger, once everything of it has been read back from disk and set up to serve."""
    load_predictor(challenger.path, devices).load_all()
    return challenger
