"""Cases worth asking about on a device, drawn from what a model was trained on: a third of them at least is like its rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.cases import Cases, Floats
from ..features.device import Catalogue, Device
from ..features.dtypes import parse_dtype
from ..features.errors import SpecError, listed
from ..features.extract import extract
from ..features.kernel import CACHE_STATES, KernelFamily, KernelSpec, get_family
from ..features.words import NO_THREADS
from .artifact import FamilyModel

_TRAINED_SHARE, _MODELS_SHARE = 1 / 2, 1 / 6
"""Shares of shapes that are the training rows' and of shapes met in real models; the rest fills the space between."""

_MEMORY_SHARE = 0.8
"""Share of a device's memory that operands may take: contexts, libraries and their scratch space need the rest."""

_DRAWS = 4
"""Space-filling shapes drawn for each one wanted, since many lie where nothing was measured."""

_FINE, _COARSE = 1024.0, 32.0
"""Steps to the octave in which sizes are told: the domain keeps sizes to three digits, and people choose round ones."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """What runs a kernel, in which dtypes and variant."""

    impl: str
    dtype: str
    kv_dtype: str
    variant: str


def drawn_cases(
    model: FamilyModel, device: Device, devices: Catalogue, n: int, *, impls: Collection[str] = (), seed: int = 0
) -> Cases:
    """At most `n` cases of the model's family on `device`, all within the model's domain and what the device can hold.

    Implementations, dtypes and variants are those measured on devices of its kind; those measured only with tuning knobs
    are left out, as nothing here says which knobs a device takes. Of `impls` alone, where some are given.

    Raises:
        SpecError: the model knows nothing that could run there.
    """
    family = get_family(model.schema.family)
    settings = _settings(model, device, devices, impls)
    rng = np.random.default_rng(seed)
    order = [settings[i] for i in rng.permutation(len(settings)).tolist()]
    threads = _threads(model, device)
    state = min(model.schema.cache_states, key=CACHE_STATES.index)
    turns = itertools.count()
    chosen: dict[KernelSpec, None] = {}
    for sizes in _shapes(family, model, n, seed):
        own = _suited(family, order, sizes)
        turn = next(turns)
        one = own[turn % len(own)]
        spec = KernelSpec.of(
            family.name, one.dtype, variant=one.variant, impl=one.impl, kv_dtype=one.kv_dtype, cache_state=state,
            threads=threads[turn // len(own) % len(threads)] if threads else None, **sizes,
        )  # fmt: skip
        chosen[spec] = None
    if not chosen:
        return Cases.of([KernelSpec.of(family.name, "fp32", **dict(family.model_shapes[0]))], [device.name]).take([])
    cases = Cases.of(list(chosen), [device.name] * len(chosen))
    cases = cases.take(runnable(cases, device))
    if len(cases):
        cases = cases.take(model.domain.excess(extract(cases, model.schema, devices)) <= 0.0)
    return cases.take(np.arange(min(n, len(cases))))


def runnable(cases: Cases, device: Device) -> Any:
    """Which cases the device has a peak for and memory enough, a mask of shape `(n,)`."""
    good = np.ones(len(cases), dtype=np.bool_)
    for index, (dtype,) in cases.groups("dtype"):
        try:
            device.peak_flops_per_s(dtype, cases.family.unit)
        except SpecError:
            good[index] = False
    room = (device.fact("memory_b") or math.inf) * _MEMORY_SHARE
    for index, view in cases.views():
        good[index] &= np.broadcast_to(cases.family.footprint_b(view) <= room, index.shape)
    return good


def _settings(model: FamilyModel, device: Device, devices: Catalogue, impls: Collection[str]) -> list[_Setting]:
    """What was measured without tuning knobs on devices of this kind, and the device can run as it is.

    A dtype that the device has no units for is taken only if some device was measured without such units.
    """
    schema, family = model.schema, get_family(model.schema.family)
    alike = {name for name in model.devices if devices.get(name).kind == device.kind}
    plain = {tuple(words[:2]) for words in map(str.split, _kept_empty(schema.settings)) if words[2:] == [device.kind]}
    variants: dict[str, set[str]] = {}
    for name, variant, pair in (word.split(" ") for word in model.measured["latency"]):
        if name in alike:
            variants.setdefault(pair, set()).add(variant)
    groups = {tuple(word.split(" ")[1:]): set[str]() for word in schema.groups}
    for name, impl, pair in (word.split(" ") for word in schema.groups):
        if name in alike:
            groups[impl, pair].add(name)
    known: set[str] = set()
    found = []
    for (impl, pair), there in sorted(groups.items()):
        dtype, kv_dtype = pair.split("/")
        if (impl or _EMPTY, dtype) not in plain or not there:
            continue
        known.add(impl)
        emulated = any(not _native(devices.get(name), dtype, family) for name in there)
        if (impls and impl not in impls) or not (emulated or _native(device, dtype, family)):
            continue
        found += [_Setting(impl, dtype, kv_dtype, variant) for variant in sorted(variants.get(pair, ()))]
    if not found:
        raise SpecError(
            f"{device.name} runs nothing of what the model knows of {family.name}"
            f"{f' by {listed(impls)}' if impls else ''}; it knows {listed(sorted(known)) or 'nothing'} on devices of its "
            "kind, without tuning knobs. Give a table of cases with --candidates",
            field="impl" if impls else "device",
        )
    return found


_EMPTY = "''"


def _kept_empty(words: Sequence[str]) -> list[str]:
    """Words of settings, an `impl` that is empty written as quotes, so that splitting at spaces keeps it."""
    return [f"{_EMPTY}{word}" if word.startswith(" ") else word for word in words]


def _native(device: Device, dtype: str, family: KernelFamily) -> bool:
    try:
        return device.peak_flops_per_s(dtype, family.unit)[1] == parse_dtype(dtype)
    except SpecError:
        return False


def _threads(model: FamilyModel, device: Device) -> list[int]:
    """Thread counts to ask about: those measured that the device has cores for, and none at all on a GPU."""
    if device.kind != "cpu":
        return []
    cores = int(device.required("compute_units"))
    counts = {int(word) for word in model.schema.threads if word != NO_THREADS}
    return sorted({min(count, cores) for count in counts} | {cores})


def _suited(family: KernelFamily, settings: Sequence[_Setting], sizes: dict[str, int]) -> Sequence[_Setting]:
    """The settings whose variant goes with the sizes; all of them where none does."""
    if family.variant_of is not None:
        wanted = family.variant_of(sizes)
        found = [one for one in settings if one.variant == wanted]
    elif "batched" in family.variants:
        # A product of more than one pair of matrices and one of a single pair are different calls.
        found = [one for one in settings if (one.variant == "batched") == (sizes["batch"] > 1)]
    else:
        return settings
    return found or settings


def _shapes(family: KernelFamily, model: FamilyModel, n: int, seed: int) -> Iterator[dict[str, int]]:
    """Sizes like the training rows', of real models, and space-filling ones, in that order, each of them possible."""
    trained = round(n * _TRAINED_SHARE)
    columns = [model.domain.names.index(f"log {name}") for name in family.dim_names]
    rng = np.random.default_rng(seed)
    logs = model.domain.points[rng.permutation(len(model.domain.points))][:, columns]
    # Fewer points than wanted stand for several settings each.
    rows = _tidy(np.resize(logs, (trained, len(columns))), _FINE)
    models = [family.model_shapes[i] for i in rng.permutation(len(family.model_shapes))[: round(n * _MODELS_SHARE)]]
    filling = _tidy(_space_filling(model.domain.low[columns], model.domain.high[columns], _DRAWS * n, seed), _COARSE)
    defaults = {dim.name: dim.default for dim in family.dims if dim.default is not None}
    least = np.array([dim.minimum for dim in family.dims])
    drawn = itertools.chain(
        _named(family, np.maximum(rows, least)),
        (defaults | dict(sizes) for sizes in models),
        (family.finish(sizes) for sizes in _named(family, np.maximum(filling, least))),
    )
    return (sizes for sizes in drawn if family.check(sizes) is None)


def _named(family: KernelFamily, rows: Floats) -> Iterator[dict[str, int]]:
    for row in rows.astype(np.int64).tolist():
        yield dict(zip(family.dim_names, row, strict=True))


def _space_filling(low: Floats, high: Floats, n: int, seed: int) -> Floats:
    """A scrambled Sobol sequence between two corners, shape `(n, d)` (Owen, "Scrambling Sobol' and Niederreiter-Xing
    points", 1998)."""
    from scipy.stats.qmc import Sobol

    points: Floats = Sobol(len(low), seed=seed).random_base2(max(1, math.ceil(math.log2(n))))[:n]
    return low + points * (high - low)


def _tidy(logs: Floats, steps: float) -> Floats:
    """Whole sizes from their log2, in multiples of the power of two that makes at least `steps` steps of an octave."""
    sizes = 2.0**logs
    step = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(sizes, 1.0) / steps)), 0.0)
    # Half a size stands for none at all.
    tidied: Floats = np.where(logs < -0.5, 0.0, np.rint(sizes / step) * step)
    return tidied
