"""Where a kind of case stands with a model: what was measured of it, and what is unusual about it, in words.

All of it follows from the kind alone, so it is worked out once a kind and kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..features.cases import Floats
from ..features.device import Catalogue
from ..features.errors import listed
from ..features.extract import FeatureSchema, KindTable
from ..features.kernel import get_family
from ..features.kinds import ByKind, Kind, Kinds
from ..features.words import NO_THREADS, kv_pair, measured_word, setting_word, thread_word
from .artifact import FamilyModel
from .continuation import limits_of
from .limits import power_limits_of

SCALED_BOUND = "scaled bound"
"""Method where no learned model applies: the lower bound times the family's median ratio to it."""

_METHODS = {"seen": "{regressor}", "unseen_device": "{regressor}, carried over", "unseen_kind": SCALED_BOUND,
            "adapted": "{regressor}, calibrated"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standing:
    """How a kind stands with a whole model.

    `own` holds each target's regime before any adaptation, `regimes` that of the answer (`intervals.REGIMES`). `carried` are
    the targets that others answer for. `strange` is how many of its words were never measured, `told` says so in words, and
    `never` is what to say where nothing else is told.
    `largest` of shape `(n_dims,)` are the largest sizes measured there, infinite where nothing was.
    """

    own: Mapping[str, str]
    regimes: Mapping[str, str]
    carried: frozenset[str]
    method: str
    strange: float
    told: tuple[str, ...]
    never: str | None
    largest: Floats
    limit_w: float
    idle_w: float
    memory_b: float


class StandingTable:
    """`Standing` of kinds with one family's model, under a catalogue."""

    def __init__(self, model: FamilyModel, regressor: str, features: KindTable, devices: Catalogue) -> None:
        self._model = model
        self._regressor = regressor
        self._features = features
        self._devices = devices
        family = get_family(model.schema.family)
        self._dims, self._config = family.dim_names, family.config
        self._measured = {target: frozenset(words) for target, words in model.measured.items()}
        self._powered = frozenset(word.split(" ")[0] for word in model.measured.get("power", ()))
        self._standing: ByKind[Standing] = ByKind()

    def of(self, kinds: Kinds) -> list[Standing]:
        """The standing of each kind."""
        return self._standing.of(kinds, self._find)

    def _find(self, kind: Kind) -> Standing:
        model = self._model
        device = self._devices.get(kind.device)
        read_as = self._features.of(Kinds((kind,), np.zeros(1, dtype=np.intp)))[0].read_as
        learned = device.kind in model.kinds
        word = measured_word(kind)
        targets = [name for name, target in model.targets.items() if target.members]
        own = {
            target: "unseen_kind" if not learned else "seen" if word in self._measured[target] else "unseen_device"
            for target in targets
        }
        carried = {target for target in own if own["latency"] == "unseen_device" == own[target]}
        if own.get("power") == "unseen_device" and kind.device not in self._powered:
            # Measured there in another dtype or variant, a device's own answer of its power stands.
            carried.add("power")
        adapted = frozenset(target for target in model.adaptations.get(kind.device, ()) if target in own)
        regimes = {target: "adapted" if target in adapted else regime for target, regime in own.items()}
        words = _unknown_words(model.schema, kind)
        knobs = [name for name in self._config if name in kind.knobs and name not in model.schema.knobs]
        setting = setting_word(kind, read_as)
        strange = float(learned and setting not in model.schema.settings)
        strange += learned and kind.impl not in ("", read_as)
        strange += sum(what != "impl" for what, _, _ in words) + len(knobs)
        told = (*_place_notes(model, kind, regimes["latency"]), *_word_notes(words), *_knob_notes(knobs))
        if kind.impl in model.schema.impls and kind.impl != read_as:
            told = (*told, f"{kind.impl} was measured on other devices only, never on {kind.device}; read as {read_as}")
        limit_w, idle_w = power_limits_of(device)
        return Standing(
            own, regimes, frozenset(carried), self._method(kind, read_as, regimes["latency"]), strange, told,
            _never_together(model.schema, setting, read_as) if strange > 0 else None,
            limits_of(kind, model.largest, self._dims),
            limit_w, idle_w, device.fact("memory_b") or math.inf,
        )  # fmt: skip

    def _method(self, kind: Kind, read_as: str, regime: str) -> str:
        """How latency is answered, and what the impl was read as where that is another."""
        name = _METHODS[regime].format(regressor=self._regressor)
        stand_in = read_as != kind.impl and regime != "unseen_kind"
        return f"{name} ({kind.impl or 'impl not given'}: read as {read_as})" if stand_in else name


def _unknown_words(schema: FeatureSchema, kind: Kind) -> list[tuple[str, str, Sequence[str]]]:
    """The kind's words that were never measured: what each is, the word, and those that were."""
    given = (
        ("dtype", kind.dtype, schema.dtypes),
        ("variant", kind.variant, schema.variants),
        ("impl", kind.impl, (*schema.impls, "")),
        ("dtype/kv_dtype", kv_pair(kind), schema.kv_pairs),
        ("cache_state", kind.cache_state, schema.cache_states),
        ("threads", thread_word(kind), (*schema.threads, NO_THREADS)),
    )
    return [(what, word, known) for what, word, known in given if word not in known]


def _place_notes(model: FamilyModel, kind: Kind, regime: str) -> list[str]:
    """What to say of where the kind runs."""
    if regime == "unseen_device" and kind.device not in model.devices:
        return [f"{kind.device} is not among the measured devices: {listed(model.devices)}"]
    if regime == "unseen_device":
        what = " ".join(word for word in (kind.variant, kv_pair(kind)) if word)
        return [f"{what} was measured on other devices only, never on {kind.device}"]
    if regime == "unseen_kind":
        return [f"no {model.schema.family} was measured on a device of {kind.device}'s kind"]
    return []


def _word_notes(words: Sequence[tuple[str, str, Sequence[str]]]) -> list[str]:
    """What to say of words that were never measured."""
    found = []
    for what, given, known in words:
        told = listed(word for word in known if word and word != NO_THREADS)
        found.append(f"{what} {given!r} was never measured; measured: {told}")
    return found


def _knob_notes(knobs: Sequence[str]) -> list[str]:
    """What to say of knobs that no measured case had."""
    return [f"{name} was never set in what was measured, and is left out of account" for name in knobs]


def _never_together(schema: FeatureSchema, setting: str, impl: str) -> str:
    """Why a kind is strange all of whose words are known by themselves."""
    known = [word for word in schema.settings if word.split(" ")[0] == impl]
    return f"{setting!r} was never measured; measured of {impl}: {listed(known) or 'nothing'}"
