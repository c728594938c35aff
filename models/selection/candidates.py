"""Cases that could be measured on a device, drawn from what a model was trained on: its rows' sizes, models', and between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.batch.category import NO_THREADS
from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import CACHE_STATES, KernelFamily, KernelSpec, get_family
from ...features.vector.extract import extract
from ..family_model.artifact import FamilyModel

_TRAINED_SHARE, _MODELS_SHARE = 1 / 2, 1 / 6
"""Shares of shapes that are the training rows' and of shapes met in real models; the rest fills the space between."""

MEMORY_SHARE = 0.8
"""Share of a device's memory that operands may take: contexts, libraries and their scratch space need the rest."""

_DRAWS = 4
"""Space-filling shapes drawn for each one wanted, since many lie where nothing was measured."""

_RANKS = ("tp", "ep")
"""Sizes that say over how many devices a kernel is split."""

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
    model: FamilyModel, device: Device, devices: Catalogue, n: int, *, impls: Collection[str] = (), single_device: bool = False,
    seed: int = 0,
) -> Cases:  # fmt: skip
    """At most `n` cases of the model's family on `device`, all within the model's domain and what the device can hold.

    Implementations, dtypes and variants are those measured on devices of its kind; those measured only with tuning knobs
    are left out, as nothing here says which knobs a device takes. Of `impls` alone, where some are given. `single_device`
    leaves out what one of several devices does of a kernel they share.

    Raises:
        SpecError: the model knows nothing that could run there.
    """
    family = get_family(model.schema.family)
    settings = _settings(model, device, devices, impls)
    rng = np.random.default_rng(seed)
    threads = _threads(model, device)
    state = min(model.schema.cache_states, key=CACHE_STATES.index)
    chosen: dict[KernelSpec, None] = {}
    for sizes in _shapes(family, model, n, seed):
        if single_device and any(sizes.get(name, 1) > 1 for name in _RANKS):
            continue
        suited = _suited(family, settings, sizes)
        setting = suited[int(rng.integers(len(suited)))]
        spec = KernelSpec.of(
            family.name, setting.dtype, variant=setting.variant, impl=setting.impl, kv_dtype=setting.kv_dtype,
            cache_state=state, threads=threads[int(rng.integers(len(threads)))], **sizes,  # type: ignore[arg-type]
        )  # fmt: skip
        chosen[spec] = None
    cases = Cases.from_specs(list(chosen), [device.name] * len(chosen))
    cases = cases.take(runnable(cases, device))
    if len(cases):
        cases = cases.take(model.domain.excess(extract(cases, model.schema, devices))[0] <= 0.0)
    return cases.take(np.arange(min(n, len(cases))))


def runnable(cases: Cases, device: Device) -> Any:
    """Which cases the device has a peak for and memory enough, a mask of shape `(n,)`."""
    good = np.ones(len(cases), dtype=np.bool_)
    for index, (dtype,) in cases.groups("dtype"):
        try:
            device.peak_flops_per_s(dtype, cases.family.unit)
        except SpecError:
            good[index] = False
    room = (device.fact("memory_b") or math.inf) * MEMORY_SHARE
    for index, view in cases.views():
        good[index] &= np.broadcast_to(cases.family.footprint_b(view) <= room, good[index].shape)
    return good


def _settings(model: FamilyModel, device: Device, devices: Catalogue, impls: Collection[str]) -> list[_Setting]:
    """What was measured without tuning knobs on devices of this kind, and the device can run as it is.

    A dtype that the device has no matrix units for is taken only if the same stood in for it on a device measured: libraries
    refuse most stand-ins that a datasheet would allow.
    """
    family = get_family(model.schema.family)
    measured_on: dict[tuple[str, str], set[str]] = {}
    variants: dict[tuple[str, str], set[str]] = {}
    for name, kind, variant, pair, impl, _, knobs in _split(model.measured["latency"]):
        if (kind, knobs) == (device.kind, ""):
            measured_on.setdefault((impl, pair), set()).add(name)
            variants.setdefault((impl, pair), set()).add(variant)
    settings = []
    for (impl, pair), names in sorted(measured_on.items()):
        dtype, kv_dtype = pair.split("/")
        known = {dtype, *(_runs_as(devices.get(name), dtype, family) for name in names)} - {None}
        if (not impls or impl in impls) and _runs_as(device, dtype, family) in known:
            settings += [_Setting(impl, dtype, kv_dtype, variant) for variant in sorted(variants[impl, pair])]
    if not settings:
        there = listed(sorted({f"{impl} in {pair.split('/')[0]}" for impl, pair in measured_on}))
        by_impls = f" by {listed(impls)}" if impls else ""
        raise SpecError(
            f"nothing the model knows of {family.name}{by_impls} runs on {device.name} as it is; measured without tuning "
            f"knobs were: {there or 'none'}. Give a table of cases with --candidates",
            field="impl" if impls else "device",
        )
    return settings


def _split(words: Iterable[str]) -> Iterator[list[str]]:
    """Words of `features.batch.category` in their parts; an `impl` or variant that is empty is a part as well."""
    return (word.split(" ") for word in words)


def _runs_as(device: Device, dtype: str, family: KernelFamily) -> str | None:
    """What a device runs a dtype as; None where it cannot. Units for vectors take any dtype: they convert what they load."""
    try:
        ran = device.peak_flops_per_s(dtype, family.unit)[1]
    except SpecError:
        return None
    return ran if family.unit == "matrix" else dtype


def _threads(model: FamilyModel, device: Device) -> Sequence[int | None]:
    """Thread counts to ask about: those measured that the device has cores for, and all cores; a GPU has none."""
    if device.kind != "cpu":
        return [None]
    cores = int(device.required("compute_units"))
    counts = {int(word) for word in model.schema.threads if word != NO_THREADS}
    return sorted({min(count, cores) for count in counts} | {cores})


def _suited(family: KernelFamily, settings: Sequence[_Setting], sizes: dict[str, int]) -> Sequence[_Setting]:
    """The settings whose variant goes with the sizes; all of them where none does."""
    if family.variant_of is not None:
        suited = [setting for setting in settings if family.suits(setting.variant, sizes)]
    elif "batched" in family.variants:
        # A product of more than one pair of matrices and one of a single pair are different calls.
        suited = [setting for setting in settings if (setting.variant == "batched") == (sizes["batch"] > 1)]
    else:
        return settings
    return suited or settings


def _shapes(family: KernelFamily, model: FamilyModel, n: int, seed: int) -> Iterator[dict[str, int]]:
    """Sizes like the training rows', of real models, and space-filling ones, in that order, each of them possible."""
    trained = round(n * _TRAINED_SHARE)
    columns = [model.domain.names.index(f"log {name}") for name in family.dim_names]
    rng = np.random.default_rng(seed)
    logs = model.domain.points[rng.permutation(len(model.domain.points))][:, columns]
    # Fewer points than wanted stand for several settings each.
    rows = tidy(np.resize(logs, (trained, len(columns))), _FINE)
    models = [family.model_shapes[i] for i in rng.permutation(len(family.model_shapes))[: round(n * _MODELS_SHARE)]]
    filling = tidy(space_filling(model.domain.low[columns], model.domain.high[columns], _DRAWS * n, seed), _COARSE)
    defaults = {dim.name: dim.default for dim in family.dims if dim.default is not None}
    least = np.array([dim.minimum for dim in family.dims])
    drawn = itertools.chain(
        _named(family, np.maximum(rows, least)),
        (defaults | dict(sizes) for sizes in models),
        (family.finish(sizes) for sizes in _named(family, np.maximum(filling, least))),
    )
    return (sizes for sizes in drawn if not family.impossible(sizes))


def _named(family: KernelFamily, rows: Floats) -> Iterator[dict[str, int]]:
    for row in rows.astype(np.int64).tolist():
        yield dict(zip(family.dim_names, row, strict=True))


def space_filling(low: Floats, high: Floats, n: int, seed: int | np.random.Generator) -> Floats:
    """A scrambled Sobol sequence between two corners, shape `(n, d)` (Owen, "Scrambling Sobol' points", 1998)."""
    from scipy.stats.qmc import Sobol

    points: Floats = Sobol(len(low), seed=seed).random_base2(max(1, math.ceil(math.log2(max(n, 2)))))[:n]
    return low + points * (high - low)


def tidy(logs: Floats, steps: float | Floats) -> Floats:
    """Whole sizes from their log2, in multiples of the power of two that makes at least `steps` steps of an octave."""
    sizes = 2.0**logs
    step = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(sizes, 1.0) / steps)), 0.0)
    # Half a size stands for none at all.
    return np.where(logs < -0.5, 0.0, np.rint(sizes / step) * step)
