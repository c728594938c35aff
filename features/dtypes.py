"""Number formats: their names, their size in memory, and what a device without native support runs them as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .errors import SpecError


@dataclass(frozen=True, slots=True)
class Dtype:
    """A number format: bytes per element in memory, other names it goes by, what stands in where hardware lacks it.

    Attributes:
        name: Its name in specs and tables.
        itemsize_b: Bytes per element in memory, scales of block formats included.
        aliases: Other names it goes by.
        runs_as: The format that takes its place on hardware without it; None where there is none.
        needs_matrix_units: Whether products of two operands in it exist only on hardware that has it.
    """

    name: str
    itemsize_b: float
    aliases: tuple[str, ...] = ()
    runs_as: str | None = None
    needs_matrix_units: bool = False


# Block formats carry scales: fp8_block one fp32 per 128 elements of a row (DeepSeek-V3 report, arXiv 2412.19437, 3.3.2);
# nvfp4 one fp8 per 16 elements (NVIDIA, "Introducing NVFP4", developer blog, June 2025).
_ALL = (
    Dtype("fp64", 8.0, ("float64", "f64", "double")),
    Dtype("fp32", 4.0, ("float32", "f32", "float")),
    Dtype("tf32", 4.0, ("tensorfloat32",), runs_as="fp32"),
    Dtype("bf16", 2.0, ("bfloat16",), runs_as="fp32"),
    Dtype("fp16", 2.0, ("float16", "f16", "half"), runs_as="fp32"),
    Dtype(
        "fp8", 1.0, ("fp8_e4m3", "float8_e4m3fn", "float8_e4m3", "f8e4m3fn"), runs_as="bf16", needs_matrix_units=True
    ),
    Dtype("fp8_block", 1.0 + 4.0 / 128, ("fp8_blockwise",), runs_as="fp8"),
    Dtype("nvfp4", 0.5 + 1.0 / 16, ("fp4",), runs_as="fp8", needs_matrix_units=True),
    Dtype("int8", 1.0, ("i8", "s8"), runs_as="fp16"),
    Dtype("int32", 4.0, ("i32", "s32"), runs_as="fp32"),
    Dtype("int64", 8.0, ("i64", "s64"), runs_as="fp64"),
)

DTYPES: Mapping[str, Dtype] = MappingProxyType({dtype.name: dtype for dtype in _ALL})
_BY_ANY_NAME = {name: dtype.name for dtype in _ALL for name in (dtype.name, *dtype.aliases)}


def itemsize_b(dtype: str) -> float:
    """Bytes per element in memory, scales of block formats included."""
    return DTYPES[dtype].itemsize_b


def parse_dtype(name: str, *, field: str = "dtype") -> str:
    """The canonical name of a dtype given by any of its names.

    Raises:
        SpecError: no such dtype; the message lists those there are.
    """
    canonical = _BY_ANY_NAME.get(name.lower().removeprefix("torch.")) if isinstance(name, str) else None
    if canonical is None:
        raise SpecError(f"no dtype {name!r}; dtypes: {', '.join(DTYPES)}", field=field)
    return canonical
