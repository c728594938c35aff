"""Promotion with a way back: what serves afterwards is the model that was judged, or the model that served before.

With a registry, a promotion goes through it or does not happen: a pointer moved while the registry is down would leave the
alias at another model, which other machines would serve and the next promotion undo. A rollback does not wait: serving comes
first, and the alias follows when the registry answers again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.device import Catalogue, catalogue
from ...features.errors import SpecError
from ...models.engine.runtime import GraphError
from ...models.family_model.artifact import Pointer, default_model_dir, manifest_sha256, pointer
from ...models.family_model.artifact_files import ArtifactError
from ...models.predict.predictor import load_predictor
from ...models.registry.mlflow_tracking import RegistryError
from ...models.registry.registry import Promoted, point_back, promote, promote_directory
from ..record.record import Finding
from .challengers import Challenger, past
from .model_ledger import SHIPPED, Ledger

_AGREE = 1e-9
"""Relative difference of answers of equal files on one machine: none but rounding."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a promotion or a rollback did.

    Attributes:
        version: The version that serves now; None where nothing changed.
        previous: The version that served before.
        registry: `ok`, `unreachable: ...`, or empty where no registry is used.
        summary: What happened, in a sentence.
        findings: What the report should say.
    """

    version: str | None
    previous: str
    registry: str
    summary: str
    findings: tuple[Finding, ...] = ()

    def facts(self) -> dict[str, object]:
        """What a night's record says of it."""
        return {"version": self.version, "previous": self.previous, "registry": self.registry, "summary": self.summary}


def promote_challenger(
    challenger: Challenger,
    night: str,
    *,
    registry: bool,
    probes: Sequence[Cases],
    software: Mapping[str, str] | None = None,
    measured: tuple[str | None, str | None] = (None, None),
    devices: Catalogue | None = None,
) -> Promotion:
    """Make a judged challenger the champion, look whether it serves as judged, and go back if it does not.

    Args:
        challenger: what the gate passed.
        night: the id of the night.
        registry: go through the model registry; without it only the pointer moves.
        probes: cases whose answers before and after must agree.
        software: by device, what its rows were measured under.
        measured: when its first and last row were measured.
        devices: the catalogue.

    Raises:
        ArtifactError: the challenger cannot be loaded, pinned or pointed at; the model before keeps serving.
        SpecError: the ledger cannot be written; the model before serves.
    """
    known, book = devices or catalogue(), Ledger()
    before = pointer()
    expected, sha256 = _answers(challenger.path, probes, known), manifest_sha256(challenger.path)
    try:
        done: Promoted = promote(challenger.path) if registry else promote_directory(challenger.path)
    except RegistryError as error:
        message = (f"{challenger.name} passed and was not promoted: {error}. {before.version or SHIPPED} still serves; run the "
                "night again, or promote the model by hand, when the registry answers")  # fmt: skip
        finding = Finding("registry", "needs-person", challenger.name, message)
        return Promotion(None, before.version or SHIPPED, f"unreachable: {error}", message, (finding,))
    try:
        wrong = _differs(sha256, expected, probes, known)
        if wrong is None:
            _write_down(before, book, known)
            book.keep(challenger, night, version=done.version, path=done.artifact, registry=registry, software=software,
                      measured=measured)  # fmt: skip
            if done.version != before.version:
                book.promoted(done.version, before.version, _now())
    except SpecError:
        # Without an entry in the ledger there is no way back from this model, so it does not stay.
        point_back(before)
        raise
    if wrong is not None:
        point_back(before)
        state, _ = _alias_to(before, registry)
        message = f"{challenger.name} was promoted as version {done.version} and rolled back at once: {wrong}"
        return Promotion(None, before.version or SHIPPED, state, message,
                         (Finding("rollback", "needs-person", done.version, message),))  # fmt: skip
    message = f"version {done.version} ({challenger.name}) serves in place of {before.version or SHIPPED}"
    return Promotion(done.version, before.version or SHIPPED, "ok" if registry else "", message)


def readable_pointer(otherwise: str | None = None) -> Pointer:
    """What serves; where the pointer is damaged nothing, with the version `otherwise`."""
    try:
        return pointer()
    except ArtifactError:
        return Pointer(None, otherwise)


def record_promotion(done: Promoted, before: Pointer, devices: Catalogue | None = None) -> None:
    """Write down that a model promoted by hand serves in place of `before`, so that `roll_back` goes back from it.

    Raises:
        SpecError: the ledger cannot be written; the model before serves.
    """
    book, known = Ledger(), devices or catalogue()
    try:
        for each in (before, Pointer(done.artifact, done.version)):
            _write_down(each, book, known)
        if done.version != before.version and book.get(done.version) is not None:
            book.promoted(done.version, before.version, _now())
    except SpecError:
        # Without an entry in the ledger there is no way back from this model, so it does not stay.
        point_back(before)
        raise


def roll_back(version: str | None = None, *, why: str) -> Promotion:
    """Have an earlier model serve again: the one of this version, or the one that served before the present one.

    Args:
        version: a kept version, or `shipped`; default: the present model's predecessor.
        why: for the ledger.

    Raises:
        SpecError: no such model is kept, or nothing says what served before.
        ArtifactError: the model cannot be loaded; the model that serves keeps serving.
    """
    book = Ledger()
    # A damaged pointer is what going back to a named version mends.
    now = pointer() if version is None else readable_pointer("an unreadable pointer")
    to = version or _predecessor(book, now)
    if to == (now.version or SHIPPED):
        raise SpecError(f"{to} serves already; see `kernelcast serve models history`", field="version")
    if to == SHIPPED:
        target, in_registry = Pointer(None, None), False
    else:
        entry = book.find(to)
        target = Pointer(Path(entry.path), entry.version, entry.sha256)
        in_registry = entry.registry
    point_back(target)
    state, failed = _alias_to(target, in_registry)
    left = now.version or SHIPPED
    book.rolled_back(left, to, _now(), why)
    message = f"{to} serves again in place of {left}: {why}"
    findings = () if not failed else (Finding(
        "registry", "needs-person", to,
        f"{to} serves here again, and the registry still calls {left} champion ({state}). Run `kernelcast serve models promote "
        f"{to}` when it answers."),)  # fmt: skip
    return Promotion(to, left, state, message, findings)


def restore_loadable(devices: Catalogue) -> Promotion | None:
    """Have the predecessor serve again where the champion does not load; None where it does, or has no predecessor.

    Raises:
        SpecError: the ledger cannot be read or written.
        ArtifactError: neither of the two models can be loaded.
    """
    book, now = Ledger(), pointer()
    entry = book.get(now.version)
    if now.version is None or entry is None or entry.previous is None:
        return None
    try:
        load_predictor(default_model_dir(), devices).load_all()
    except (ArtifactError, GraphError) as error:
        return taken_back(f"version {now.version} cannot be loaded: {error}")
    return None


def _write_down(before: Pointer, book: Ledger, devices: Catalogue) -> None:
    """Have the ledger name what served until now, so that there is a way back to a model that was promoted by hand."""
    if before.artifact is None or before.version is None or book.get(before.version) is not None:
        return
    try:
        model = past(before.artifact, before.version, devices=devices)
    except (ArtifactError, GraphError):
        # It could not serve again either.
        return
    book.keep(model, "", version=before.version, path=before.artifact, registry=before.version.isdecimal())


def taken_back(why: str) -> Promotion:
    """Have the predecessor serve again, with a finding that says why.

    Raises:
        SpecError: nothing says what served before.
        ArtifactError: it cannot be loaded; the model that serves keeps serving.
    """
    done = roll_back(why=why)
    message = f"{done.summary}. Look at what it learned from before retraining on it."
    return replace(done, findings=(Finding("rollback", "needs-person", done.previous, message), *done.findings))


def _predecessor(book: Ledger, now: Pointer) -> str:
    entry = book.get(now.version)
    if entry is None or entry.previous is None:
        named = "name a version of `kernelcast serve models history`" + (f" or `{SHIPPED}`" if now.version else "")
        raise SpecError(f"nothing says what served before {now.version or SHIPPED}; {named}", field="version")
    return entry.previous


def _differs(sha256: str, expected: Sequence[Floats], probes: Sequence[Cases], devices: Catalogue) -> str | None:
    """Why what serves now is not what was judged; None where it is."""
    try:
        serving = default_model_dir()
        if manifest_sha256(serving) != sha256:
            return f"{serving} serves, which is not the model that was judged"
        answers = _answers(serving, probes, devices)
    except (ArtifactError, GraphError, OSError) as error:
        return f"it does not load from where it serves: {error}"
    for before, after, probe in zip(expected, answers, probes, strict=True):
        if not np.allclose(before, after, rtol=_AGREE, atol=0.0, equal_nan=True):
            return f"its answers for {probe.family.name} are not those that were judged"
    return None


def _answers(path: Path, probes: Sequence[Cases], devices: Catalogue) -> list[Floats]:
    predictor = load_predictor(path, devices)
    predictor.load_all()
    return [
        predictor.predict_cases(probe).targets["latency_s"].value
        if probe.family.name in predictor.families
        else np.zeros(0)
        for probe in probes
    ]


def _alias_to(target: Pointer, registry: bool) -> tuple[str, bool]:
    """Have the registry's alias follow the pointer: how that went, and whether it failed."""
    if not registry or target.version is None or not target.version.isdecimal():
        return "", False
    try:
        promote(int(target.version))
    except (RegistryError, ArtifactError) as error:
        return f"unreachable: {error}", True
    return "ok", False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
