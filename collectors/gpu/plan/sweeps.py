"""What can be measured on a GPU, per family: ranges of sizes, shapes of real models, and who runs them in which dtype.

A family's own `ranges` suit a CPU; the sizes here are those of a card with hundreds of teraflops. A sweep only says
what may be measured; `plan` says which of it is worth measuring next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from ....features.errors import SpecError
from ....features.kernel import KernelSpec, get_family
from ...cpu.plans.shapes import MODEL_SHARE, additive_recurrence, aligned
from .model_shapes import MODEL_SHAPES

Sizes = dict[str, int]

COLD_SHARE = 1 / 3
"""Share of candidates with caches flushed before every call."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Who runs a kernel, and how.

    Attributes:
        impl: The library.
        dtype: The dtype.
        variant: The variant.
        weight: How often, beside the family's other settings.
    """

    impl: str
    dtype: str
    variant: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class GpuSweep:
    """What to measure of one family on a GPU.

    Attributes:
        family: Its name.
        share: Its part of a campaign.
        ranges: Bounds of every size of a space-filling shape (inclusive, log-uniform).
        settings: Who runs it, and how.
        shape: `shape(sizes, setting, u)` makes a space-filling point a sensible shape, with `u` uniform in [0, 1) for
            choices that no size expresses.
        finish: `finish(sizes, setting)` does what its runner demands of any shape, model shapes included; None where the
            setting has no such shape.
    """

    family: str
    share: float
    ranges: Mapping[str, tuple[int, int]]
    settings: Sequence[Setting]
    shape: Callable[[Sizes, Setting, float], Sizes] = field(default=lambda sizes, setting, u: sizes)
    finish: Callable[[Sizes, Setting], Sizes | None] = field(default=lambda sizes, setting: sizes)

    def candidates(self, setting: Setting, n: int, rng: np.random.Generator) -> Iterator[tuple[KernelSpec, bool]]:
        """About `n` possible cases of one setting, each with whether it is a model's; sizes may be beyond any limit.

        `MODEL_SHARE` of them are models' as long as there are that many; `COLD_SHARE` of them are cold.
        """
        family = get_family(self.family)
        known = MODEL_SHAPES[self.family]
        drawn = rng.permutation(len(known))[: round(n * MODEL_SHARE)]
        models: Iterator[tuple[Sizes, bool]] = ((dict(known[i]), True) for i in drawn)
        filling = ((sizes, False) for sizes in self._filling(setting, n - len(drawn), rng))
        for sizes, from_model in itertools.chain(models, filling):
            finished = self.finish(sizes, setting)
            if finished is None or family.check(finished, setting.variant) is not None:
                continue
            cold = rng.random() < COLD_SHARE
            yield KernelSpec.of(family.name, setting.dtype, variant=setting.variant, impl=setting.impl,
                                cache_state="cold" if cold else "hot", **finished), from_model  # type: ignore[arg-type]  # fmt: skip

    def _filling(self, setting: Setting, n: int, rng: np.random.Generator) -> Iterator[Sizes]:
        """Space-filling sizes: the additive recurrence of `collectors.cpu.plans.shapes`, in columns."""
        names = tuple(self.ranges)
        bounds = np.log(np.array([self.ranges[name] for name in names], dtype=np.float64))
        points = recurrence(n, len(names), rng)
        values = np.rint(np.exp(bounds[:, 0] + points * (bounds[:, 1] - bounds[:, 0]))).astype(int).tolist()
        for row, u in zip(values, rng.random(n).tolist(), strict=True):
            yield self.shape(dict(zip(names, row, strict=True)), setting, u)


def recurrence(n: int, dims: int, rng: np.random.Generator) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """`n` points of the additive recurrence R_d (see `collectors.cpu.plans.shapes`) from a random start, shape `(n, dims)`."""
    points = itertools.islice(additive_recurrence(dims, rng.random(dims)), n)
    return np.array(list(points)).reshape(n, dims)


def _people_like(u: float) -> int:
    """What people round widths to: half of them to 64, a quarter to 8 (16 bytes of bf16), a quarter not at all."""
    return 64 if u < 0.5 else 8 if u < 0.75 else 1


# -- gemm -------------------------------------------------------------------------------------------------------------

# torch._scaled_mm and torch._int_mm want widths in multiples of 16, the latter also more than 16 rows.
_QUANTISED_ALIGNMENT = 16
_LEAST_INT8_ROWS = 17

_MANY_PRODUCTS = 256
"""Where a batch has more products, each is small: pairs of a recommender's features, windows of a picture."""


def _gemm_shape(sizes: Sizes, setting: Setting, u: float) -> Sizes:
    if setting.variant == "batched" and sizes["batch"] > _MANY_PRODUCTS:
        sizes = sizes | {name: round(sizes[name] ** 0.5) for name in ("m", "n", "k")}
    to = _people_like(u)
    widths = {name: sizes[name] if sizes[name] < to else aligned(sizes[name], to) for name in ("n", "k")}
    return sizes | widths | {"batch": max(2, sizes["batch"]) if setting.variant == "batched" else 1}


def _gemm_finish(sizes: Sizes, setting: Setting) -> Sizes | None:
    if (sizes["batch"] > 1) != (setting.variant == "batched"):
        return None
    if setting.dtype in ("fp8", "int8"):
        sizes |= {name: aligned(sizes[name], _QUANTISED_ALIGNMENT) for name in ("n", "k")}
    if setting.dtype == "int8":
        sizes["m"] = max(_LEAST_INT8_ROWS, sizes["m"])
    return sizes


def _gemm_settings() -> list[Setting]:
    variants = {"": 3.0, "bias": 1.0, "batched": 1.0, "nt": 1.0, "tn": 0.4, "tt": 0.4}
    dtypes = {"bf16": 3.0, "fp16": 1.5, "tf32": 1.0, "fp32": 1.0}
    floats = [Setting("torch", dtype, variant, of_dtype * of_variant)
              for (dtype, of_dtype), (variant, of_variant) in itertools.product(dtypes.items(), variants.items())]  # fmt: skip
    return [
        *floats,
        Setting("torch", "fp8", "", 9.0),
        Setting("torch", "fp8", "bias", 2.0),
        Setting("torch", "int8", "", 6.0),
    ]


# -- attention --------------------------------------------------------------------------------------------------------

_HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)
_WINDOWED_SHARE, _CHUNKED_SHARE = 0.1, 0.25


def _attention_shape(sizes: Sizes, setting: Setting, u: float) -> Sizes:
    head_dim = min(_HEAD_DIMS, key=lambda size: abs(np.log(size / sizes["head_dim"])))
    low, high = sorted((sizes["kv_heads"], sizes["heads"]))
    alone = setting.impl == "torch-efficient" or u < 0.4
    kv_heads = high if alone else low
    kv_len = sizes["kv_len"]
    q_len = 1 if setting.variant == "decode" else max(2, min(sizes["q_len"], kv_len))
    # The place of u within each tenth decides what is left, so that it does not depend on the heads.
    if setting.variant == "prefill" and 10 * u % 1.0 >= _CHUNKED_SHARE:
        kv_len = q_len
    windowed = 100 * u % 1.0 < _WINDOWED_SHARE and kv_len > 2
    return sizes | {
        "head_dim": head_dim, "kv_heads": kv_heads, "heads": high // kv_heads * kv_heads,
        "q_len": q_len, "kv_len": kv_len, "window": kv_len // 3 if windowed else 0,
    }  # fmt: skip


def _attention_finish(sizes: Sizes, setting: Setting) -> Sizes | None:
    if (sizes["q_len"] == 1) != (setting.variant == "decode"):
        return None
    if setting.impl == "torch-efficient" and sizes["heads"] != sizes["kv_heads"]:
        return None  # The memory-efficient kernels know no grouped heads.
    if setting.impl == "torch-flash" and setting.variant == "prefill" and sizes["window"]:
        return None  # The flash kernels take no mask but the causal one.
    return sizes


def _attention_settings() -> list[Setting]:
    impls = {"torch": 3.0, "torch-flash": 2.0, "torch-cudnn": 2.0, "torch-efficient": 1.0, "torch-math": 0.5}
    dtypes = {"bf16": 2.0, "fp16": 1.0, "fp32": 0.5}
    return [
        Setting(impl, dtype, variant, of_impl * of_dtype)
        for (impl, of_impl), (dtype, of_dtype) in itertools.product(impls.items(), dtypes.items())
        for variant in ("prefill", "decode")
        if dtype != "fp32" or impl in ("torch", "torch-efficient", "torch-math")
    ]


# -- convolution and experts ------------------------------------------------------------------------------------------

_CONV_KERNELS = (1, 3, 5, 7)


def _conv2d_shape(sizes: Sizes, _setting: Setting, u: float) -> Sizes:
    kernel = min(_CONV_KERNELS, key=lambda size: abs(size - sizes["kernel"]))
    to = _people_like(u)
    channels = {
        name: sizes[name] if sizes[name] < to else aligned(sizes[name], to) for name in ("in_channels", "out_channels")
    }
    return sizes | channels | {"kernel": kernel, "padding": kernel // 2, "width": sizes["height"]}


def _moe_shape(sizes: Sizes, _setting: Setting, u: float) -> Sizes:
    widths = {name: aligned(sizes[name], 64 if u < 0.7 else 8) for name in ("hidden", "inter")}
    return sizes | widths | {"topk": min(sizes["topk"], sizes["experts"]), "tp": 1, "ep": 1}


def _moe_finish(sizes: Sizes, _setting: Setting) -> Sizes | None:
    # Grouped products want rows in multiples of 16 bytes, and a rank a whole number of columns.
    whole = sizes["inter"] % (8 * sizes["tp"]) == 0 and sizes["hidden"] % 8 == 0
    return sizes if whole else None


def _moe_settings() -> list[Setting]:
    variants = get_family("moe").variants
    return [Setting(impl, "bf16", variant, weight)
            for (impl, weight), variant in itertools.product((("torch-grouped", 1.0), ("torch", 0.15)), variants)]  # fmt: skip


# -- families of plain tensors ----------------------------------------------------------------------------------------


def _plain(family: str, share: float, rows: tuple[int, int], cols: tuple[int, int]) -> GpuSweep:
    """A sweep of [rows, cols] arrays in three dtypes and every variant; half of them with columns as people choose them."""
    settings = [
        Setting("torch", dtype, variant, weight)
        for (dtype, weight), variant in itertools.product(
            (("bf16", 2.0), ("fp32", 1.0), ("fp16", 1.0)), get_family(family).variants
        )
    ]

    def shape(sizes: Sizes, _setting: Setting, u: float) -> Sizes:
        return sizes | {"cols": aligned(sizes["cols"], 64)} if u < 0.5 and sizes["cols"] > 64 else sizes

    return GpuSweep(family, share, {"rows": rows, "cols": cols}, settings, shape)


# -- families of steps, tokens and rows -------------------------------------------------------------------------------


def _of_family(
    family: str, share: float, ranges: Mapping[str, tuple[int, int]], dtypes: Mapping[str, float]
) -> GpuSweep:
    """A sweep whose shapes the family itself makes sensible, in every variant."""
    known = get_family(family)
    settings = [
        Setting("torch", dtype, variant, weight)
        for (dtype, weight), variant in itertools.product(dtypes.items(), known.variants)
        if known.variant_of is None or variant in known.implied
    ]

    def finish(sizes: Sizes, setting: Setting) -> Sizes | None:
        if known.finish is not None:
            sizes = known.finish(sizes)
        return sizes if known.variant_of is None or known.variant_of(sizes) == setting.variant else None

    return GpuSweep(family, share, ranges, settings, finish=finish)


def _latent_attention() -> GpuSweep:
    ranges = {
        "batch": (1, 128), "heads": (4, 128), "q_len": (1, 8192), "kv_len": (16, 32768), "hidden": (1024, 8192),
        "query_rank": (256, 2048), "kv_rank": (128, 512), "nope_dim": (32, 128), "rope_dim": (16, 64), "value_dim": (32, 128),
    }  # fmt: skip
    sweep = _of_family("latent_attention", 0.03, ranges, {"bf16": 2.0, "fp16": 1.0})

    def shape(sizes: Sizes, setting: Setting, _u: float) -> Sizes:
        """Models have widths in multiples of eight; half of the shapes decode."""
        whole = {name: aligned(sizes[name], 8) for name in tuple(ranges)[4:]}
        return sizes | whole | {"q_len": 1 if setting.variant == "decode" else max(3, sizes["q_len"])}

    return replace(sweep, shape=shape)


_FLOATS = {"bf16": 2.0, "fp32": 1.0}
_WIDE = (1, 2**18)

SWEEPS: Mapping[str, GpuSweep] = MappingProxyType({
    sweep.family: sweep
    for sweep in (
        GpuSweep(
            "gemm", 0.24, {"batch": (1, 65536), "m": (1, 16384), "n": (16, 16384), "k": (16, 16384)},
            _gemm_settings(), _gemm_shape, _gemm_finish,
        ),
        GpuSweep(
            "attention", 0.16,
            {"batch": (1, 128), "heads": (1, 128), "kv_heads": (1, 128), "q_len": (1, 16384), "kv_len": (16, 65536),
             "head_dim": (32, 256)},
            _attention_settings(), _attention_shape, _attention_finish,
        ),
        GpuSweep(
            "conv2d", 0.08,
            {"batch": (1, 256), "in_channels": (1, 2048), "out_channels": (1, 2048), "height": (7, 256), "kernel": (1, 7),
             "stride": (1, 2)},
            [Setting("torch", dtype, "", weight) for dtype, weight in (("bf16", 2), ("fp16", 1), ("tf32", 1), ("fp32", 1))],
            _conv2d_shape,
        ),
        GpuSweep(
            "moe", 0.08,
            {"tokens": (1, 8192), "hidden": (512, 8192), "inter": (256, 8192), "topk": (1, 8), "experts": (8, 256)},
            _moe_settings(), _moe_shape, _moe_finish,
        ),
        _plain("elementwise", 0.06, _WIDE, _WIDE),
        _plain("layernorm", 0.06, _WIDE, (8, 2**16)),
        _plain("softmax", 0.05, _WIDE, (2, 2**18)),
        _plain("reduction", 0.04, _WIDE, (2, 2**18)),
        _plain("copy", 0.03, _WIDE, _WIDE),
        _of_family("embedding", 0.03, {"tokens": (1, 65536), "vocabulary": (128, 2**18), "cols": (8, 8192)}, _FLOATS),
        _of_family("cross_entropy", 0.03, {"rows": (1, 32768), "cols": (2, 2**18)}, _FLOATS),
        _of_family("optimizer", 0.03, {"tensors": (1, 512), "elements": (16, 2**26)}, {"fp32": 2.0, "bf16": 1.0}),
        _of_family("rope", 0.03, {"tokens": (1, 65536), "heads": (1, 128), "head_dim": (32, 256)}, _FLOATS),
        _of_family("quantize", 0.02, {"rows": (1, 65536), "cols": (32, 65536)}, {"fp8": 1.0}),
        _of_family(
            "causal_conv1d", 0.02, {"batch": (1, 256), "q_len": (1, 16384), "channels": (32, 16384), "width": (2, 4)}, _FLOATS,
        ),
        _latent_attention(),
        # Position by position, as a reference does it: longer prompts are captured as thousands of kernels.
        _of_family(
            "linear_attention", 0.01,
            {"batch": (1, 256), "q_len": (1, 8), "heads": (1, 128), "key_heads": (1, 32), "key_dim": (32, 256),
             "value_dim": (32, 256)},
            {"bf16": 1.0},
        ),
    )
})  # fmt: skip
"""Sweeps by family; the shares add up to one."""


def get_sweep(family: str) -> GpuSweep:
    """The sweep of a family.

    Raises:
        SpecError: the family has none; the message lists those that have.
    """
    if family not in SWEEPS:
        raise SpecError(f"no GPU sweep of {family!r}; there are: {', '.join(SWEEPS)}", field="family")
    return SWEEPS[family]
