"""What an answer must say of itself: how it was made, and what about the case was never measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.coded import Words
from ..features.device import Catalogue
from ..features.errors import listed
from ..features.extract import Features, FeatureSchema
from ..features.words import NO_THREADS, kv_pairs, setting_words, thread_words
from .artifact import FamilyModel
from .continuation import beyond, limits_of

SCALED_BOUND = "scaled bound"
"""Method where no learned model applies: the lower bound times the family's median ratio to it."""

_METHODS = {"seen": "{regressor}", "unseen_device": "{regressor}, carried over", "unseen_kind": SCALED_BOUND,
            "adapted": "{regressor}, calibrated"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strangeness:
    """How unlike the training rows each case is, shape `(n,)`: words and knobs never seen, and steps outside the domain, by
    anything and by its tuning knobs alone.
    """

    words: Floats
    excess: Floats
    tiles: Floats

    @classmethod
    def of(cls, model: FamilyModel, cases: Cases, features: Features, learned: Any) -> Strangeness:
        """The strangeness of cases; `learned` says for which of them a learned model answers at all, shape `(n,)`."""
        excess = np.where(learned, np.maximum(model.domain.excess(features), beyond(cases, model.largest)), 0.0)
        never = ~setting_words(cases, features.read_as).among(model.schema.settings)
        strange = (never & learned).astype(np.float64)
        # A version that stands in for the one asked for is as strange where that one ran elsewhere as where it never ran.
        stand_in = Words.joined(
            [cases.coded("impl"), features.read_as], lambda given, read: "yes" if given not in ("", read) else "no"
        )
        strange += stand_in.is_word("yes") & learned
        for what, words, given in _words(model.schema, cases):
            strange += ~given.among(words) if what != "impl" else 0.0
        for column in _unknown_knobs(model.schema, cases).values():
            strange += ~np.isnan(column)
        return cls(strange, excess, model.domain.tiles.excess(features))


def methods(regressor: str, cases: Cases, read_as: Words, regimes: Words) -> list[str]:
    """How each case's latency was answered, and what its impl was read as where that is another."""

    def method(given: str, used: str, regime: str) -> str:
        name = _METHODS[regime].format(regressor=regressor)
        stand_in = used != given and regime != "unseen_kind"
        return f"{name} ({given or 'impl not given'}: read as {used})" if stand_in else name

    found = Words.joined([cases.coded("impl"), read_as, regimes], method)
    return [found.words[code] for code in found.code.tolist()]


def notes(
    model: FamilyModel, cases: Cases, features: Features, regimes: Any, strangeness: Strangeness, devices: Catalogue
) -> list[tuple[str, ...]]:
    """What is unusual about each case, in words; nothing for a case like those measured."""
    found: list[tuple[str, ...]] = [()] * len(cases)
    memory_b = _memory_b(cases, devices)
    too_large = features.work.footprint_b > memory_b
    odd = (strangeness.words > 0) | (strangeness.excess > 0)
    words = _words(model.schema, cases)
    for i in np.flatnonzero(((regimes != "seen") & (regimes != "adapted")) | odd | too_large).tolist():
        found[i] = tuple(_notes_of(model, cases, features, str(regimes[i]), strangeness, memory_b[i], words, i))
    return found


def _notes_of(
    model: FamilyModel,
    cases: Cases,
    features: Features,
    regime: str,
    strangeness: Strangeness,
    memory_b: float,
    words: Sequence[tuple[str, tuple[str, ...], Words]],
    i: int,
) -> list[str]:
    found = []
    device, family = str(cases.device[i]), cases.family.name
    if features.work.footprint_b[i] > memory_b:
        needed, there = features.work.footprint_b[i] / 1e9, memory_b / 1e9
        found.append(f"operands of {needed:.3g} GB do not fit into {device}'s {there:.3g} GB of memory")
    if regime == "unseen_device" and device not in model.devices:
        found.append(f"{device} is not among the measured devices: {listed(model.devices)}")
    elif regime == "unseen_device":
        what = " ".join(word for word in (str(cases.variant[i]), kv_pairs(cases.take([i])).words[0]) if word)
        found.append(f"{what} was measured on other devices only, never on {device}")
    elif regime == "unseen_kind":
        found.append(f"no {family} was measured on a device of {device}'s kind")
    for what, known, column in words:
        if (given := column.at(i)) not in known:
            told = listed(word for word in known if word and word != NO_THREADS)
            found.append(f"{what} {given!r} was never measured; measured: {told}")
    found += [f"{name} was never set in what was measured, and is left out of account"
              for name, column in _unknown_knobs(model.schema, cases).items() if not np.isnan(column[i])]  # fmt: skip
    given, read = str(cases.impl[i]), features.read_as.at(i)
    if given in model.schema.impls and given != read:
        found.append(f"{given} was measured on other devices only, never on {device}; read as {read}")
    if not found and strangeness.words[i] > 0:
        found.append(_never_together(model.schema, cases, features, i))
    if strangeness.excess[i] > 0:
        found.append(_too_large(model, cases.take([i])) or model.domain.farthest(features, i, strangeness.tiles[i]))
    return found


def _too_large(model: FamilyModel, case: Cases) -> str | None:
    """What of one case is larger than anything measured where it runs, in words."""
    for name, limit in limits_of(case, model.largest).items():
        if case.sizes[name][0] > limit[0]:
            of = f"of {case.variant[0]} " if case.variant[0] else ""
            return f"{name} {case.sizes[name][0]:.6g} is beyond the largest measured {of}on {case.device[0]}, {limit[0]:.6g}"
    return None


def _unknown_knobs(schema: FeatureSchema, cases: Cases) -> dict[str, Floats]:
    return {name: column for name, column in cases.config.items() if name not in schema.knobs}


def _words(schema: FeatureSchema, cases: Cases) -> tuple[tuple[str, tuple[str, ...], Words], ...]:
    return (("dtype", schema.dtypes, cases.coded("dtype")), ("variant", schema.variants, cases.coded("variant")),
            ("impl", (*schema.impls, ""), cases.coded("impl")), ("dtype/kv_dtype", schema.kv_pairs, kv_pairs(cases)),
            ("cache_state", schema.cache_states, cases.coded("cache_state")),
            ("threads", tuple(dict.fromkeys((*schema.threads, NO_THREADS))), thread_words(cases)))  # fmt: skip


def _never_together(schema: FeatureSchema, cases: Cases, features: Features, i: int) -> str:
    """Why a case is strange all of whose words are known by themselves."""
    impl = features.read_as.at(i)
    known = [word for word in schema.settings if word.split(" ")[0] == impl]
    asked = setting_words(cases.take([i]), Words((impl,), np.zeros(1, dtype=np.intp))).words[0]
    return f"{asked!r} was never measured; measured of {impl}: {listed(known) or 'nothing'}"


def _memory_b(cases: Cases, devices: Catalogue) -> Floats:
    """Memory of each case's device in bytes, shape `(n,)`, infinite where it is not public."""
    memory = np.full(len(cases), np.inf)
    for index, (name,) in cases.groups("device"):
        memory[index] = devices.get(name).fact("memory_b") or np.inf
    return memory
