"""Models that might serve tomorrow: the champion adapted, a model trained again, a model kept from an earlier night.

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
from ...models.family_model.artifact import Artifact, load_family, manifest_sha256, read_manifest, save_artifact
from ...models.family_model.artifact_files import write_manifest
from ...models.predict.predictor import load_predictor
from ...models.training.device_calibration import calibrate_to_devices
from ...models.training.fitting import MIN_ROWS
from ...models.training.labelled_cases import LabelledCases, joined_by_family
from ...models.training.training import DEFAULT_REGRESSOR, train

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
    """

    name: str
    kind: Kind
    path: Path
    rows: int
    seconds: float
    regressor: str
    families: tuple[str, ...]
    left: Mapping[str, str]

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
    manifest = read_manifest(champion)
    left: dict[str, str] = {}
    usable: list[LabelledCases] = []
    for family, rows in _by_family(tables, known).items():
        kinds = manifest["families"].get(family, {}).get("kinds")
        if kinds is None:
            left[family] = "the champion does not know it"
            continue
        of_kind = np.array([known.get(device).kind in kinds for device in rows.cases.device.tolist()], dtype=np.bool_)
        if of_kind.any():
            usable.append(rows.take(np.flatnonzero(of_kind)))
        else:
            left[family] = "the champion knows it on no device of this kind"
    if not usable:
        raise SpecError("no new row is of a family and kind of device that the champion knows: nothing to adapt it with",
                        field="data")  # fmt: skip
    done = calibrate_to_devices(champion, usable, out, devices=known, seed=seed)
    provenance = {"kind": "adapted", "from": _version(champion), **dict(facts or {})}
    write_manifest(out, {**read_manifest(out), "challenger": provenance})
    families = tuple(sorted({adaptation.family for adaptation in done}))
    left = {family: "no new rows" for family in manifest["families"] if family not in families} | left
    return _loaded(
        Challenger(name, "adapted", out, sum(adaptation.rows for adaptation in done), time.monotonic() - began,
                   str(manifest["regressor"]), families, left), known,
    )  # fmt: skip


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
        tables: all rows to learn from (store, shipped tables, files), without the frozen hold-out.
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
        families = dict(sorted((over | families).items()))
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
