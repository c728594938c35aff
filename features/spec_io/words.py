"""Kernels and devices in the words of a person: `matmul 4kx4kx4k bf16` on an `RTX 4090`.

What was read otherwise than it was written is told: in the canonical words of a kernel, in a remark about a device. A name
that may mean several devices is never decided silently, and one that means none is refused with the closest names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from ..device import CATALOGUE_DIR, Catalogue, Device, known_by
from ..dtypes import DTYPES, parse_dtype
from ..errors import SpecError, listed
from ..kernel import KernelFamily, families, get_family

SETTINGS = ("dtype", "variant", "impl", "kv_dtype", "threads", "cache_state", "timing")
_CLOSE = 3
"""Most names that a message proposes."""

_NUMBER = r"\d+(?:_\d+)*(?:\.\d+)?(?:e\d+)?[kmg]?"
_WHOLE = re.compile(_NUMBER, re.IGNORECASE)
_SHAPE = re.compile(rf"{_NUMBER}(?:[x×]{_NUMBER})+", re.IGNORECASE)
_SUFFIXES = {"k": 2**10, "m": 2**20, "g": 2**30}

# Names that frameworks, papers and libraries have for a family, and the variant that some of them mean.
_FAMILIES: Mapping[str, tuple[str, str]] = MappingProxyType({
    **dict.fromkeys(("matmul", "mm", "linear", "dense", "fully_connected", "addmm", "dot"), ("gemm", "")),
    **dict.fromkeys(("bmm", "batch_matmul", "batched_matmul"), ("gemm", "batched")),
    **dict.fromkeys(("conv", "convolution"), ("conv2d", "")),
    **dict.fromkeys(("sdpa", "scaled_dot_product_attention", "flash_attention", "flashattention", "flash_attn", "fmha",
                     "mha", "gqa", "mqa", "self_attention"), ("attention", "")),
    **dict.fromkeys(("mla", "multi_head_latent_attention"), ("latent_attention", "")),
    **dict.fromkeys(("layer_norm", "ln"), ("layernorm", "layernorm")),
    **dict.fromkeys(("rms_norm", "rmsnorm"), ("layernorm", "rmsnorm")),
    **dict.fromkeys(("pointwise", "eltwise", "activation"), ("elementwise", "")),
    **{name: ("elementwise", name) for name in ("relu", "gelu", "silu", "tanh", "exp", "sigmoid", "sqrt", "log", "add",
                                                "mul", "sub", "div", "pow", "maximum")},
    "swish": ("elementwise", "silu"),
    **dict.fromkeys(("reduce", "reduce_sum", "sum"), ("reduction", "sum")),
    **dict.fromkeys(("reduce_mean", "mean"), ("reduction", "mean")),
    **dict.fromkeys(("reduce_max", "max"), ("reduction", "max")),
    **dict.fromkeys(("memcpy", "clone"), ("copy", "")),
    "transpose": ("copy", "transpose"),
    **dict.fromkeys(("mixture_of_experts", "fused_moe", "experts"), ("moe", "")),
    **dict.fromkeys(("rotary", "rotary_embedding"), ("rope", "")),
    **dict.fromkeys(("crossentropy", "ce", "nll_loss"), ("cross_entropy", "")),
    **dict.fromkeys(("quantise", "quantization", "quant"), ("quantize", "")),
    **dict.fromkeys(("mamba2", "ssd"), ("linear_attention", "mamba2")),
    **dict.fromkeys(("gated_delta", "gated_deltanet", "gated_delta_net"), ("linear_attention", "gated_delta")),
    "kda": ("linear_attention", "kda"),
    **{name: ("optimizer", name) for name in ("adam", "sgd", "momentum")},
})  # fmt: skip


_SIZES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    **dict.fromkeys(("seq", "seq_len", "seqlen", "length"), ("q_len", "kv_len")),
    **dict.fromkeys(("b", "bs", "batch_size"), ("batch",)), **dict.fromkeys(("h", "n_heads", "num_heads"), ("heads",)),
    **dict.fromkeys(("n_kv_heads", "num_kv_heads"), ("kv_heads",)), **dict.fromkeys(("head_size", "d_head"), ("head_dim",)),
    **dict.fromkeys(("tokens", "n_rows"), ("rows",)), **dict.fromkeys(("hidden", "hidden_size", "n_cols"), ("cols",)),
})  # fmt: skip
"""Names that frameworks have for sizes, and the sizes meant, in families that have all of these and none of that name."""

_LEFT_OUT: Mapping[str, Mapping[str, str | int]] = MappingProxyType(
    {"attention": {"batch": 1, "kv_heads": "heads", "kv_len": "q_len"}}
)
"""By family what a size is that was not named: a number, or another size."""


@dataclass(frozen=True, slots=True)
class KernelWords:
    """A kernel as it was read.

    Attributes:
        request: The fields of a spec but its device, as `/v1/predict` takes them.
        read_as: The same in canonical words; empty where these are the words that were given.
    """

    request: dict[str, Any]
    read_as: str


def read_kernel(name: str, words: Sequence[str]) -> KernelWords:
    """A kernel from the name of its family and words: `m=4096`, a shape such as `4096x4096x4096`, a dtype, a variant.

    Numbers may end in k, m or g, which are powers of 1024; names may be written in capitals.

    Raises:
        SpecError: a word is none of these, names nothing of the family, or says something a second time.
    """
    family, variant = read_family(name)
    request: dict[str, Any] = {"family": family.name, "sizes": {}, "config": {}}
    for word in words:
        for field, value in _pairs(family, word):
            place = request if field in SETTINGS else request["sizes" if field in family.dim_names else "config"]
            if field in place:
                raise SpecError(f"{field} is given twice", field=field)
            place[field] = value
    for size, other in _LEFT_OUT.get(family.name, {}).items():
        value = request["sizes"].get(other) if isinstance(other, str) else other
        if value is not None:
            request["sizes"].setdefault(size, value)
    if variant:
        request.setdefault("variant", variant)
    canonical = canonical_words(request)
    is_plain = name == family.name and sorted(words) == sorted(canonical)
    return KernelWords(request, "" if is_plain else " ".join([family.name, *canonical]))


def canonical_words(request: Mapping[str, Any]) -> list[str]:
    """The canonical words of a request but its family: sizes, knobs, settings."""
    pairs = {**request["sizes"], **request["config"], **{name: request[name] for name in SETTINGS if name in request}}
    return [f"{name}={value}" for name, value in pairs.items()]


def read_family(name: str) -> tuple[KernelFamily, str]:
    """The family of a name that people have for it, and the variant that the name means, empty where it means none.

    Raises:
        SpecError: there is none; the message has the closest names.
    """
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    if key in families():
        return get_family(key), ""
    if key in _FAMILIES:
        family, variant = _FAMILIES[key]
        return get_family(family), variant
    close = difflib.get_close_matches(key, [*families(), *_FAMILIES], n=_CLOSE)
    raise SpecError(f"no kernel family {name!r}", field="family", advice=_did_you_mean(close))


def read_number(text: str, name: str) -> int:
    """A whole number such as `4096`, `4_096`, `4k` or `1e6`; `name` says in an error what it is.

    Raises:
        SpecError: it is no whole number.
    """
    if _WHOLE.fullmatch(text):
        digits, factor = (text[:-1], _SUFFIXES[text[-1].lower()]) if text[-1].lower() in _SUFFIXES else (text, 1)
        if digits.replace("_", "").isdecimal():
            return int(digits) * factor
        value = float(digits) * factor
        if value.is_integer():
            return int(value)
    elif re.fullmatch(r"-\d{1,20}", text):
        return int(text)
    raise SpecError(f"{name} must be a whole number, got {text[:40]!r}", field=name)


def _pairs(family: KernelFamily, word: str) -> Iterable[tuple[str, Any]]:
    """What a word says: names of fields and their values.

    Raises:
        SpecError: nothing that the family knows.
    """
    name, equals, value = word.partition("=")
    if not equals:
        return _bare_word(family, word)
    known = (*family.dim_names, *SETTINGS, *family.config)
    field = name if name in known else name.lower().replace("-", "_")
    meant = _SIZES.get(field, ())
    if field not in known and meant and set(meant) <= set(family.dim_names):
        return [(size, read_number(value, field)) for size in meant]
    if field not in known:
        raise SpecError(f"{family.name} has no {name!r}; it takes: {listed(known)}", field=name)
    if field in ("dtype", "kv_dtype"):
        return [(field, parse_dtype(value, field=field))]
    if field in SETTINGS and field != "threads":
        return [(field, value)]
    return [(field, read_number(value, field))]


def _bare_word(family: KernelFamily, word: str) -> Iterable[tuple[str, Any]]:
    if _SHAPE.fullmatch(word):
        return _shape(family, word)
    if word and word.lower() in family.variants:
        return [("variant", word.lower())]
    try:
        return [("dtype", parse_dtype(word))]
    except SpecError:
        raise SpecError(
            f"{word!r} is not name=value, such as m=4096, nor a shape, a dtype ({listed(DTYPES)}) or a variant",
            field=word,
        ) from None


def _shape(family: KernelFamily, word: str) -> list[tuple[str, int]]:
    """The sizes of a shape: those without a default in their order, or all of them.

    Raises:
        SpecError: it has another number of sizes.
    """
    needed = [dim.name for dim in family.dims if dim.default is None]
    numbers = re.split("[x×]", word, flags=re.IGNORECASE)
    for names in (needed, family.dim_names):
        if len(names) == len(numbers):
            return [(name, read_number(number, name)) for name, number in zip(names, numbers, strict=True)]
    orders = " or ".join(dict.fromkeys(("×".join(needed), "×".join(family.dim_names))))
    raise SpecError(f"{word} has {len(numbers)} sizes; a shape of {family.name} is {orders}", field="sizes")


def read_device(name: str, known: Catalogue) -> tuple[Device, str]:
    """The device of a name that people have for it, and a remark: how it was read, or which others it may mean.

    Raises:
        SpecError: it means none, or several of which none goes by this name; the message has the closest names.
    """
    key = _device_key(name)
    device = known_by(name.strip(), known) or known_by(key, known)
    fitting = [other for other in shipped_names() if _fits(key, other)]
    if device is not None:
        others = [] if _is_full(key, device.name) else [other for other in fitting if other != device.name]
        return device, f"{name} is read as {device.name}; it may also be {_first_few(others)}" if others else ""
    if not fitting:
        # Written together: rtx4090ti for rtx-4090-ti.
        fitting = sorted(
            {
                item.name
                for item in known
                if _letters_and_digits(key) in map(_letters_and_digits, (item.name, *item.aliases))
            }
        )
    if len(fitting) == 1:
        return known.get(fitting[0]), f"{name} is read as {fitting[0]}"
    if fitting:
        raise SpecError(f"{name!r} may be {_first_few(fitting)}; name one of them", field="device")
    owners = {alias.lower(): item.name for item in known for alias in (item.name, *item.aliases)}
    close = difflib.get_close_matches(key, owners, n=4 * _CLOSE)
    unique = {owners[alias]: alias for alias in reversed(close)}
    advice = _did_you_mean([alias for alias in close if alias in unique.values()][:_CLOSE])
    raise SpecError(f"no device {name!r}", field="device", advice=advice)


def fitting_devices(name: str, known: Catalogue) -> list[Device]:
    """The devices whose names have every part of a name, such as those of `h100` or `nvidia`; the one it is, where it is one.

    Raises:
        SpecError: there is none; the message has the closest names.
    """
    key = _device_key(name)
    fitting = [item for item in known if _fits(key, item.name)]
    exact = [item for item in fitting if _is_full(key, item.name)]
    return exact or fitting or [read_device(name, known)[0]]


@cache
def shipped_names() -> tuple[str, ...]:
    """Names of the shipped devices, sorted, which are those of their files: reading all of these takes longer."""
    return tuple(sorted(path.stem for path in CATALOGUE_DIR.glob("*.yaml")))


def _device_key(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _fits(key: str, name: str) -> bool:
    """Whether every part of a key is one of the name's, such as `a100-80gb` in `nvidia-a100-pcie-80gb`.

    A key that ends in a digit may lack a letter at its end: `mi300` for `mi300x`.
    """
    parts = name.split("-")
    return all(
        any(part == word or (word[-1:].isdigit() and part[:-1] == word and part[-1:].isalpha()) for part in parts)
        for word in key.split("-")
    )


def _is_full(key: str, name: str) -> bool:
    """Whether a key is the name itself, with or without the maker."""
    return key in (name, name.partition("-")[2])


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())


def _first_few(names: Sequence[str]) -> str:
    more = f" or {len(names) - _CLOSE} others" if len(names) > _CLOSE else ""
    return listed(names[:_CLOSE]) + more


def _did_you_mean(close: Sequence[str]) -> str:
    return f"did you mean {listed(close)}?" if close else ""
