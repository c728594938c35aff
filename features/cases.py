"""Many cases in columns: the one form in which specs, tables and requests reach features, bounds and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .coded import Words
from .device import Catalogue
from .kernel import KernelFamily, KernelSpec, View, get_family

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

    def __len__(self) -> int:
        return len(self.dtype)

    @classmethod
    def of(cls, specs: Sequence[KernelSpec], devices: Sequence[str]) -> Cases:
        """Cases of specs that share one family; `devices` names one device per spec."""
        family = get_family(specs[0].family)
        sizes = np.array([[size for _, size in spec.dims] for spec in specs], dtype=np.float64).T
        knobs = [dict(spec.config) for spec in specs]
        return cls(
            family=family,
            device=np.array(devices, dtype=np.str_),
            dtype=np.array([spec.dtype for spec in specs], dtype=np.str_),
            kv_dtype=np.array([spec.kv_dtype or spec.dtype for spec in specs], dtype=np.str_),
            variant=np.array([spec.variant for spec in specs], dtype=np.str_),
            impl=np.array([spec.impl for spec in specs], dtype=np.str_),
            cache_state=np.array([spec.cache_state for spec in specs], dtype=np.str_),
            threads=np.array([spec.threads or np.nan for spec in specs], dtype=np.float64),
            sizes=dict(zip(family.dim_names, sizes, strict=True)),
            config={name: np.array([row.get(name, np.nan) for row in knobs]) for name in family.config},
        )

    def take(self, index: Any) -> Cases:
        """The cases at `index` (integers or a mask), in that order."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in _TEXT}
        return Cases(
            family=self.family,
            threads=self.threads[index],
            sizes={name: column[index] for name, column in self.sizes.items()},
            config={name: column[index] for name, column in self.config.items()},
            **columns,
        )

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
        codes = np.zeros(len(self), dtype=np.int64)
        for key in keys:
            words = self.coded(key)
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
        threads = self.threads.copy()
        for index, (name,) in self.groups("device"):
            device = catalogue.get(name)
            if device.kind == "cpu":
                threads[index] = np.where(unsaid[index], device.required("compute_units"), threads[index])
        return replace(self, threads=threads)

    def with_catalogue_names(self, catalogue: Catalogue) -> Cases:
        """The cases with every device under its catalogue name.

        Raises:
            SpecError: unknown device.
        """
        given = self.coded("device")
        names = tuple(catalogue.get(word).name for word in given.words)
        if names == given.words:
            return self
        return replace(self, device=np.array(names, dtype=np.str_)[given.code])

    def views(self) -> Iterator[tuple[Indices, View]]:
        """The family's view of each group of cases that share dtype, kv_dtype and variant."""
        for index, (dtype, kv_dtype, variant) in self.groups("dtype", "kv_dtype", "variant"):
            yield index, View(dtype, kv_dtype, variant, {name: column[index] for name, column in self.sizes.items()})


_TEXT = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state")
