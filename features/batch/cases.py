"""Many cases in columns: the one form in which specs, tables and requests reach features, bounds and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device import Catalogue
from ..kernel import KernelFamily, KernelSpec, View, families, get_family
from .categorical import Categorical, dense_codes
from .category import CaseCategories, CaseCategory

Floats = npt.NDArray[np.float64]
Strings = npt.NDArray[np.str_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Cases:
    """`n` cases of one family, a column each.

    Attributes:
        family: Their family.
        device: Device names as given, shape `(n,)` like all text columns.
        dtype: Dtypes of the operands.
        kv_dtype: Dtypes of attention caches; equal to `dtype` where the cache has the same dtype.
        variant: Variants of the family.
        impl: What runs each case; empty where none is given.
        cache_state: `hot` or `cold`.
        timing: `device` or `call`, empty where it is not given.
        threads: CPU threads, NaN where they are not given, shape `(n,)`.
        sizes: The family's sizes by name, shape `(n,)` each.
        config: Tuning knobs by name, shape `(n,)` each, NaN where a knob is not set.
    """

    family: KernelFamily
    device: Strings
    dtype: Strings
    kv_dtype: Strings
    variant: Strings
    impl: Strings
    cache_state: Strings
    timing: Strings
    threads: Floats
    sizes: Mapping[str, Floats]
    config: Mapping[str, Floats]
    _coded: dict[str, Categorical] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __len__(self) -> int:
        return len(self.dtype)

    @classmethod
    def from_specs(cls, specs: Sequence[KernelSpec], devices: Sequence[str]) -> Cases:
        """Cases of specs that share one family; `devices` names one device per spec."""
        family = families().get(specs[0].family) or get_family(specs[0].family)
        number: dict[CaseCategory, int] = {}
        code = np.array([
            number.setdefault(CaseCategory(
                device, spec.dtype, spec.kv_dtype or spec.dtype, spec.variant, spec.impl, spec.cache_state, spec.timing,
                spec.threads, tuple([name for name, _ in spec.config]) if spec.config else (),
            ), len(number))
            for spec, device in zip(specs, devices, strict=True)
        ], dtype=np.intp)  # fmt: skip
        categories = CaseCategories(tuple(number), code)
        sizes = np.array([[size for _, size in spec.dims] for spec in specs], dtype=np.float64).T
        knobs = np.full((len(family.config), len(specs)), np.nan)
        if any(category.knobs for category in number):
            for i, spec in enumerate(specs):
                for name, value in spec.config:
                    knobs[family.config.index(name), i] = value
        text: dict[str, Strings] = dict(zip(_TEXT, _labels(categories.distinct)[code].T, strict=True))
        threads = np.array([category.threads for category in number], dtype=np.float64)[code]
        cases = cls(
            family=family,
            threads=threads,
            sizes=dict(zip(family.dim_names, sizes, strict=True)),
            config=dict(zip(family.config, knobs, strict=True)),
            **text,
        )
        # Known already: what `categories` would find.
        vars(cases)["categories"] = categories
        return cases

    @classmethod
    def from_columns(
        cls,
        family: KernelFamily,
        text: Mapping[str, Categorical],
        threads: Floats,
        sizes: Mapping[str, Floats],
        config: Mapping[str, Floats],
    ) -> Cases:
        """Cases whose text columns (`device`, `dtype`, `kv_dtype`, `variant`, `impl`, `cache_state`, `timing`) are encoded
        already.

        All columns have the shape `(n,)`; `threads` is NaN for all cores or a GPU, a knob in `config` where a case has none.
        """
        strings = {name: text[name].strings() for name in _TEXT}
        cases = cls(family=family, threads=threads, sizes=sizes, config=config, **strings)
        cases._coded.update(text)
        return cases

    def take(self, index: Any) -> Cases:
        """The cases at `index` (integers or a mask), in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in _TEXT}
        cases = Cases(
            family=self.family,
            threads=self.threads[index],
            sizes={name: column[index] for name, column in self.sizes.items()},
            config={name: column[index] for name, column in self.config.items()},
            **columns,
        )
        # Which word a row has does not change; words that no row has left are allowed.
        cases._coded.update({name: Categorical(words.words, words.code[index]) for name, words in self._coded.items()})
        if "categories" in vars(self):
            distinct, code = self.categories.distinct, self.categories.code[index]
            first, dense = dense_codes(code)
            vars(cases)["categories"] = CaseCategories(tuple(distinct[code[row]] for row in first), dense)
        return cases

    def resized(self, sizes: Mapping[str, Floats]) -> Cases:
        """The same cases with other sizes."""
        cases = replace(self, sizes=sizes)
        cases._coded.update(self._coded)
        vars(cases)["categories"] = self.categories
        return cases

    @cached_property
    def categories(self) -> CaseCategories:
        """The category of every case: text, threads and which knobs are set, folded into one number per case."""
        names = tuple(sorted(self.config))
        parts: list[tuple[Sequence[Any], Indices]] = [(column.words, column.code) for column in map(self.coded, _TEXT)]
        counts, code = _distinct(self.threads)
        # NaN, the only number unlike itself, is no count.
        parts.append(([count if count == count else None for count in counts.tolist()], code))
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
        return CaseCategories(
            tuple(CaseCategory(*(values[code[row]] for values, code in parts)) for row in first), dense
        )

    def coded(self, key: str) -> Categorical:
        """The text column `key`, encoded once."""
        if key not in self._coded:
            if "categories" in vars(self):
                self._coded[key] = self.categories.labels(lambda category: str(getattr(category, key)))
            else:
                self._coded[key] = Categorical.encode(getattr(self, key))
        return self._coded[key]

    def groups(self, *keys: str) -> Iterator[tuple[Indices, tuple[str, ...]]]:
        """Index arrays of the cases that agree on the text columns `keys`, each with the values they agree on."""
        columns = [self.coded(key) for key in keys]
        if len(self) and all(len(column.words) == 1 for column in columns):
            yield np.arange(len(self)), tuple(column.words[0] for column in columns)
            return
        codes = np.zeros(len(self), dtype=np.int64)
        for column in columns:
            codes = codes * len(column.words) + column.code
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order])) + 1
        for index in np.split(order, edges):
            if len(index):
                yield index, tuple(str(getattr(self, key)[index[0]]) for key in keys)

    def with_core_counts(self, catalogue: Catalogue) -> Cases:
        """The cases with "all cores" as a number: threads not given on a CPU become its core count. A call there is the device.

        One machine's "all cores" is then the same case as its core count, in training as in serving. A GPU has no threads.

        Raises:
            SpecError: unknown device.
        """
        missing = np.isnan(self.threads)
        if not missing.any() and "call" not in self.coded("timing").words:
            return self
        devices, code = [catalogue.get(name) for name in self.coded("device").words], self.coded("device").code
        if all(device.kind != "cpu" for device in devices):
            return self
        cores = np.array([device.required("compute_units") if device.kind == "cpu" else np.nan for device in devices])
        timing = np.where(~np.isnan(cores)[code] & (self.timing == "call"), "device", self.timing)
        cases = replace(self, threads=np.where(missing, cores[code], self.threads), timing=timing)
        cases._coded.update({name: column for name, column in self._coded.items() if name != "timing"})
        return cases

    def with_catalogue_names(self, catalogue: Catalogue) -> Cases:
        """The cases with every device under its catalogue name.

        Raises:
            SpecError: unknown device.
        """
        raw = self.coded("device")
        names = tuple(catalogue.get(word).name for word in raw.words)
        if names == raw.words:
            return self
        cases = replace(self, device=np.array(names, dtype=np.str_)[raw.code])
        cases._coded.update({key: column for key, column in self._coded.items() if key != "device"})
        return cases

    def views(self) -> list[tuple[Any, View]]:
        """The family's view of each group of cases that share dtype, kv_dtype and variant, with their place among all."""
        categories = self.categories.distinct
        if len({category[1:4] for category in categories}) == 1:
            return [(slice(None), View(*categories[0][1:4], self.sizes))]
        return [
            (index, View(dtype, kv_dtype, variant, {name: column[index] for name, column in self.sizes.items()}))
            for index, (dtype, kv_dtype, variant) in self.groups("dtype", "kv_dtype", "variant")
        ]


_TEXT = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "timing")


def _labels(categories: Sequence[CaseCategory]) -> Strings:
    """The text of each category, shape `(n_categories, n_labels)`; that of a lone one is kept for the next call."""
    if len(categories) == 1:
        return _lone_labels(categories[0])
    return np.array([category[: len(_TEXT)] for category in categories], dtype=np.str_)


@lru_cache(maxsize=1024)
def _lone_labels(category: CaseCategory) -> Strings:
    return np.array([category[: len(_TEXT)]], dtype=np.str_)


def _distinct(column: Floats) -> tuple[Floats, Indices]:
    """The distinct numbers of a column, and which of them each row has; columns of one number, or of none, without sorting."""
    if not len(column) or (column == column[0]).all() or np.isnan(column).all():
        return column[:1], np.zeros(len(column), dtype=np.intp)
    values, code = np.unique(column, return_inverse=True)
    return values, code


def _set_knobs(columns: Sequence[Floats], n: int) -> Floats:
    """Bit j of a row is set where column j is; as floats, exact below 2**53."""
    if not columns:
        return np.zeros(n)
    weights = np.ldexp(1.0, np.arange(len(columns)))
    return weights @ ~np.isnan(np.array(columns))
