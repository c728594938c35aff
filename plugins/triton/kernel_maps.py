"""Which argument or meta-parameter of a Triton kernel is which size or knob, and the GPU that Triton compiles for."""

from __future__ import annotations

import importlib
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...features.device import catalogue
from ...features.dtypes import parse_dtype
from ...features.errors import SpecError, listed


def current_gpu() -> str:
    """Catalogue name of the current GPU.

    Raises:
        SpecError: there is no GPU that torch sees, or the catalogue does not know it.
    """
    try:
        torch = importlib.import_module("torch")
        name = str(torch.cuda.get_device_name())
    except (ImportError, RuntimeError, AssertionError) as error:
        # A torch built without CUDA asserts, one without a driver raises; both tell at length.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SpecError(f"there is no current GPU ({reason}); give prune(device=...) one", field="device") from error
    try:
        return catalogue().get(name).name
    except SpecError as error:
        raise SpecError(
            f"the catalogue does not know the current GPU {name!r}; give prune(device=...) the one it is most like",
            field="device",
        ) from error


Arguments = Mapping[str, Any]
"""Everything a kernel is launched with, by name; for a knob, the configuration's meta-parameters among it, and
`num_warps`, `num_stages`, `num_ctas` and `maxnreg`."""

Source = str | int | Callable[[Arguments], Any]
"""Where a number comes from: an argument of that name, a number itself, or a function of the arguments, None for unknown."""

Sources = Source | tuple[Source, ...]
"""One source, or several of which the first that knows is taken. A last number is what holds when no argument does."""

_LARGEST = 2**40
_DTYPES = {
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "float8e4nv": "fp8",
    "float8e5": "fp8",
}
"""Names of dtypes that differ from a catalogued one in the meaning of bits only."""


class UnreadError(SpecError):
    """Arguments or a configuration that a map cannot read; the message says what it looked for."""


@dataclass(frozen=True, slots=True)
class KernelMap:
    """How the arguments and meta-parameters of a kernel are read as a tuning problem.

    Attributes:
        kind: Kind of tuning problem.
        sizes: Where each size of the kind comes from.
        knobs: Where each knob comes from; one that is missing makes the configuration unread, unless its sources end in a
            number. 0 stands for a knob the kernel does not have.
        dtype: Names of arguments with a dtype (tensors, tensor descriptors), or a function that gives a dtype or the name
            of one.
        fp32_as: What products of 32-bit floats are computed in: `tf32` as `tl.dot` does by default, or `fp32`.
    """

    kind: str
    sizes: Mapping[str, Sources]
    knobs: Mapping[str, Sources]
    dtype: Sources
    fp32_as: str = "tf32"

    def __post_init__(self) -> None:
        parse_dtype(self.fp32_as)
        for what, table in (("sizes", self.sizes), ("knobs", self.knobs)):
            for name, sources in table.items():
                for source in _each(sources):
                    if isinstance(source, bool) or not (isinstance(source, str | int) or callable(source)):
                        raise SpecError(
                            f"{what}[{name!r}] of a kernel map is {source!r}; give the name of an argument, a whole number, "
                            "a function of the arguments, or a tuple of these",
                            field=name,
                        )

    def read_sizes(self, arguments: Arguments) -> dict[str, int]:
        """The sizes of a launch.

        Raises:
            UnreadError: an argument is missing or no whole number.
        """
        return {name: _number(name, sources, arguments) for name, sources in self.sizes.items()}

    def read_knobs(self, arguments: Arguments) -> dict[str, int]:
        """The knobs of a configuration, those the kernel does not have left out.

        Raises:
            UnreadError: a meta-parameter is missing or no whole number.
        """
        result = {name: _number(name, sources, arguments) for name, sources in self.knobs.items()}
        return {name: value for name, value in result.items() if value}

    def read_dtype(self, arguments: Arguments) -> str:
        """The canonical dtype of a launch.

        Raises:
            UnreadError: no argument of those named has a dtype, or it is none of the catalogued ones.
        """
        for source in _each(self.dtype):
            value = _value("dtype", source, arguments)
            if (dtype_name := _dtype_name(value, named=callable(source))) is not None:
                try:
                    dtype = parse_dtype(dtype_name)
                except SpecError as error:
                    raise UnreadError(str(error), field="dtype") from error
                return self.fp32_as if dtype == "fp32" else dtype
        raise UnreadError(f"no dtype: looked at {_described(self.dtype)}", field="dtype")


def _each(sources: Sources) -> tuple[Source, ...]:
    return sources if isinstance(sources, tuple) else (sources,)


def _value(name: str, source: Source, arguments: Arguments) -> Any:
    """What a source gives, None where it does not know."""
    if isinstance(source, str):
        return arguments.get(source)
    if not callable(source):
        return source
    try:
        return source(arguments)
    # It is the user's own function, and tuning must go on whatever it raises.
    except Exception as error:
        raise UnreadError(f"the function for {name} raised {type(error).__name__}: {error}", field=name) from error


def _number(name: str, sources: Sources, arguments: Arguments) -> int:
    for source in _each(sources):
        # A constexpr given as such carries its value; a tensor of that name is some other argument.
        value = _value(name, source, arguments)
        value = getattr(value, "value", value)
        if isinstance(value, numbers.Integral) and 0 <= int(value) <= _LARGEST:
            return int(value)
    raise UnreadError(f"no {name}: looked at {_described(sources)}", field=name)


def _dtype_name(value: Any, *, named: bool) -> str | None:
    """The name of a dtype, of something that has one, or of a tensor descriptor's tensor."""
    if named and isinstance(value, str):
        return value
    result = getattr(value, "dtype", None) or getattr(getattr(value, "base", None), "dtype", None)
    if result is None and named:
        result = value
    if result is None:
        return None
    name = str(result).removeprefix("torch.")
    return _DTYPES.get(name, name)


def _described(sources: Sources) -> str:
    return listed(getattr(source, "__name__", str(source)) for source in _each(sources))


def _causal(arguments: Arguments) -> int | None:
    """Whether attention is masked: the tutorial's STAGE is 3 when it is and 1 when it is not."""
    stage = arguments.get("STAGE")
    stage = getattr(stage, "value", stage)
    return None if not isinstance(stage, int) else int(stage == 3)


def _cluster(arguments: Arguments) -> int | None:
    """Blocks of a cluster, 0 for the usual one block."""
    ctas = arguments.get("num_ctas")
    return ctas if isinstance(ctas, int) and ctas > 1 else 0


_LAUNCH_KNOBS: Mapping[str, Sources] = MappingProxyType({
    "warps": ("num_warps", 0), "stages": ("num_stages", 0), "ctas": _cluster, "max_registers": ("maxnreg", 0),
})  # fmt: skip

GEMM = KernelMap(
    kind="triton-gemm",
    sizes={
        "batch": ("BATCH", "batch", 1),
        "m": ("M", "m"),
        "n": ("N", "n"),
        "k": ("K", "k"),
    },
    knobs={
        "tile_m": ("BLOCK_SIZE_M", "BLOCK_M", "TILE_M"),
        "tile_n": ("BLOCK_SIZE_N", "BLOCK_N", "TILE_N"),
        "tile_k": ("BLOCK_SIZE_K", "BLOCK_K", "TILE_K"),
        "group_m": ("GROUP_SIZE_M", "GROUP_M", 0),
        "split_k": ("SPLIT_K", 0),
        **_LAUNCH_KNOBS,
    },
    dtype=("a_ptr", "a_desc", "A", "a", "x_ptr"),
)
"""Products: the names of Triton's tutorials 03 and 09, of `triton.ops.matmul`, and of kernels written like them."""

FLASH_ATTENTION = KernelMap(
    kind="triton-attention",
    sizes={
        "batch": ("Z", "BATCH", "batch"),
        "heads": ("H", "HEADS", "heads", "nheads", "H_Q"),
        "kv_heads": ("H_KV", "KV_HEADS", "kv_heads", "H", "HEADS", "heads", "nheads"),
        "q_len": ("N_CTX_Q", "N_CTX", "seqlen_q", "q_len"),
        "kv_len": ("N_CTX_KV", "N_CTX_K", "N_CTX", "seqlen_k", "kv_len"),
        "head_dim": ("HEAD_DIM", "BLOCK_DMODEL", "head_dim", "headdim"),
        "causal": (_causal, "CAUSAL", "IS_CAUSAL", "causal", 1),
    },
    knobs={
        "tile_m": ("BLOCK_M", "BLOCK_SIZE_M"),
        "tile_n": ("BLOCK_N", "BLOCK_SIZE_N"),
        **_LAUNCH_KNOBS,
    },
    dtype=("Q", "q", "desc_q", "q_ptr", "Q_ptr"),
)
"""Fused attention, forward: the names of Triton's tutorial 06 and of kernels written like it."""
