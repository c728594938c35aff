"""Many cases in columns: the one form in which specs, tables and requests reach features, bounds and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .coded import Words, dense_codes
from .device import Catalogue
from .kernel import KernelFamily, KernelSpec, View, get_family
from .kinds import Kind, Kinds

Floats = npt.NDArray[np.float64]
Strings = npt.NDArray[np.str_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Cases:
    """`n` cases of one family, a column each.

    `sizes` and `config` are float64 of shape `(n,)`; a knob not given and threads not given are NaN. The text columns
    are numpy string arrays of shape `(n,)`; `kv_dtype` equals `dtype` where the cache has the same dtype. `device` holds
    names as given.
    """

    family: KernelFamily
    device: Strings
    dtype: Strings
    kv_dtype: Strings
    variant: Strings
    impl: Strings
    cache_state: Strings
    threads: Floats
    sizes: Mapping[str, Floats]
    config: Mapping[str, Floats]
    _coded: dict[str, Words] = field(init=False, compare=False, repr=False, default_factory=dict)
    _kinds: list[Kinds] = field(init=False, compare=False, repr=False, default_factory=list)

    def __len__(self) -> int:
        return len(self.dtype)

    @classmethod
    def of(cls, specs: Sequence[KernelSpec], devices: Sequence[str]) -> Cases:
        """Cases of specs that share one family; `devices` names one device per spec."""
        family = get_family(specs[0].family)
        text = dict(zip(_TEXT[1:], map(np.array, zip(*map(_words_of, specs), strict=True)), strict=True))
        sizes = np.array([[size for _, size in spec.dims] for spec in specs], dtype=np.float64).T
        knobs = np.full((len(family.config), len(specs)), np.nan)
        for i, spec in enumerate(specs):
            for name, value in spec.config:
                knobs[family.config.index(name), i] = value
        return cls(
            family=family,
            device=np.array(devices, dtype=np.str_),
            threads=np.array([spec.threads or np.nan for spec in specs], dtype=np.float64),
            sizes=dict(zip(family.dim_names, sizes, strict=True)),
            config=dict(zip(family.config, knobs, strict=True)),
            **text,
        )

    @classmethod
    def in_words(
        cls,
        family: KernelFamily,
        words: Mapping[str, Words],
        threads: Floats,
        sizes: Mapping[str, Floats],
        config: Mapping[str, Floats],
    ) -> Cases:
        """Cases whose text columns (`device`, `dtype`, `kv_dtype`, `variant`, `impl`, `cache_state`) are encoded already."""
        text = {name: words[name].strings() for name in _TEXT}
        found = cls(family=family, threads=threads, sizes=sizes, config=config, **text)
        found._coded.update(words)
        return found

    def take(self, index: Any) -> Cases:
        """The cases at `index` (integers or a mask), in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in _TEXT}
        found = Cases(
            family=self.family,
            threads=self.threads[index],
            sizes={name: column[index] for name, column in self.sizes.items()},
            config={name: column[index] for name, column in self.config.items()},
            **columns,
        )
        # Which word a row has does not change; words that no row has left are allowed.
        found._coded.update({name: Words(words.words, words.code[index]) for name, words in self._coded.items()})
        return found

    def moved_to(self, index: Indices, devices: Words) -> Cases:
        """The cases at `index`, each on its device in `devices` (catalogue names)."""
        taken = self if len(index) == len(self) and bool((index == np.arange(len(self))).all()) else self.take(index)
        there = replace(taken, device=devices.strings())
        there._coded.update(taken._coded)
        there._coded["device"] = devices
        kinds = self.kinds()
        was = kinds.code[index]
        first, code = dense_codes(was * len(devices.words) + devices.code)
        moved = [kinds.kinds[was[row]]._replace(device=devices.at(row)) for row in first]
        # Kinds that differed by their device only are one now.
        number: dict[Kind, int] = {}
        same = np.array([number.setdefault(kind, len(number)) for kind in moved], dtype=np.intp)
        there._kinds.append(Kinds(tuple(number), same[code]))
        return there

    def kinds(self) -> Kinds:
        """The kind of every case, worked out once."""
        if not self._kinds:
            self._kinds.append(self._find_kinds())
        return self._kinds[0]

    def _find_kinds(self) -> Kinds:
        """Text, threads and which knobs are set, folded into one number per case."""
        if len(self) == 1:
            given = tuple(name for name, column in self.config.items() if column[0] == column[0])
            count = float(self.threads[0])
            words = {name: str(getattr(self, name)[0]) for name in _TEXT}
            # NaN, the only number unlike itself, is no count.
            kind = Kind(**words, threads=count if count == count else None, knobs=tuple(sorted(given)))
            return Kinds((kind,), np.zeros(1, dtype=np.intp))
        names = tuple(sorted(self.config))
        parts: list[tuple[Sequence[Any], Indices]] = [(found.words, found.code) for found in map(self.coded, _TEXT)]
        counts, code = _distinct(self.threads)
        parts.append(([None if np.isnan(count) else count for count in counts.tolist()], code))
        masks, code = _distinct(_set_knobs([self.config[name] for name in names], len(self)))
        by_mask = [
            tuple(name for place, name in enumerate(names) if mask >> place & 1) for mask in masks.astype(int).tolist()
        ]
        parts.append((by_mask, code))
        folded = np.zeros(len(self), dtype=np.intp)
        for values, code in parts:
            if len(values) > 1:
                folded = folded * len(values) + code
        first, dense = dense_codes(folded)
        found = [Kind(*(values[code[row]] for values, code in parts)) for row in first]
        return Kinds(tuple(found), dense)

    def coded(self, key: str) -> Words:
        """The text column `key`, encoded once."""
        if key not in self._coded:
            self._coded[key] = Words.of(getattr(self, key))
        return self._coded[key]

    def groups(self, *keys: str) -> Iterator[tuple[Indices, tuple[str, ...]]]:
        """Index arrays of the cases that agree on the text columns `keys`, each with the values they agree on."""
        if len(self) == 1:
            yield np.zeros(1, dtype=np.intp), tuple(str(getattr(self, key)[0]) for key in keys)
            return
        columns = [self.coded(key) for key in keys]
        if len(self) and all(len(words.words) == 1 for words in columns):
            yield np.arange(len(self)), tuple(words.words[0] for words in columns)
            return
        codes = np.zeros(len(self), dtype=np.int64)
        for words in columns:
            codes = codes * len(words.words) + words.code
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        for index in np.split(order, edges):
            if len(index):
                yield index, tuple(str(getattr(self, key)[index[0]]) for key in keys)

    def with_core_counts(self, catalogue: Catalogue) -> Cases:
        """The cases with "all cores" said as a number: threads not given on a CPU become its core count.

        One machine's "all cores" is then the same case as its core count, in training as in serving. A GPU has no threads.

        Raises:
            SpecError: unknown device.
        """
        unsaid = np.isnan(self.threads)
        if not unsaid.any():
            return self
        devices = [catalogue.get(name) for name in self.coded("device").words]
        if all(device.kind != "cpu" for device in devices):
            return self
        cores = [device.required("compute_units") if device.kind == "cpu" else np.nan for device in devices]
        found = replace(self, threads=np.where(unsaid, np.array(cores)[self.coded("device").code], self.threads))
        found._coded.update(self._coded)
        return found

    def with_catalogue_names(self, catalogue: Catalogue) -> Cases:
        """The cases with every device under its catalogue name.

        Raises:
            SpecError: unknown device.
        """
        given = self.coded("device")
        names = tuple(catalogue.get(word).name for word in given.words)
        if names == given.words:
            return self
        found = replace(self, device=np.array(names, dtype=np.str_)[given.code])
        found._coded.update({key: words for key, words in self._coded.items() if key != "device"})
        return found

    def views(self) -> Iterator[tuple[Indices, View]]:
        """The family's view of each group of cases that share dtype, kv_dtype and variant."""
        for index, (dtype, kv_dtype, variant) in self.groups("dtype", "kv_dtype", "variant"):
            whole = len(index) == len(self)
            sizes = self.sizes if whole else {name: column[index] for name, column in self.sizes.items()}
            yield index, View(dtype, kv_dtype, variant, sizes)


_TEXT = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")


def _words_of(spec: KernelSpec) -> tuple[str, str, str, str, str]:
    """The texts of a spec, in the order of `_TEXT` after the device."""
    return spec.dtype, spec.kv_dtype or spec.dtype, spec.variant, spec.impl, spec.cache_state


def _distinct(column: Floats) -> tuple[Floats, Indices]:
    """The distinct numbers of a column, and which of them each row has; columns of one number, or of none, without sorting."""
    if not len(column) or (column == column[0]).all() or np.isnan(column).all():
        return column[:1], np.zeros(len(column), dtype=np.intp)
    found, code = np.unique(column, return_inverse=True)
    return found, code


def _set_knobs(columns: Sequence[Floats], n: int) -> Floats:
    """Bit j of a row is set where column j is; as floats, exact below 2**53."""
    if not columns:
        return np.zeros(n)
    weights = np.ldexp(1.0, np.arange(len(columns)))
    found: Floats = weights @ ~np.isnan(np.array(columns))
    return found
