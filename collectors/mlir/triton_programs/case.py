"""One Triton program in one configuration, as plain data that a process without Triton can make and send."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Scalar = int | float | bool | str | None

POINT = "POINT"
"""A constant of this name that is not None names a function of the case's own source."""

GENERATED = "generated"
"""The module, in names of kernels, that stands for the case's own source."""


@dataclass(frozen=True, slots=True)
class TritonCase:
    """A program, its configuration and its compile options.

    `program` names it, sizes, element types and options left out (`softmax/log`, `pointwise/flat-0b1c2d3e`). `kernel` is
    `module.function`, the module one of this package or `generated` for `source`, which is Python and empty where nothing is
    generated. `arguments` are `(parameter, Triton type)` of what is passed at launch, `constants` `(parameter, value)` of what
    is compiled in, None for an operand left out. `aligned` are parameters that 16 divides.
    """

    program: str
    kernel: str
    source: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Scalar], ...]
    aligned: tuple[str, ...]
    num_warps: int
    num_stages: int

    @property
    def case_id(self) -> str:
        """16 hex digits that name it by content."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=8).hexdigest()


def case_of(said: Mapping[str, Any]) -> TritonCase:
    """The case that `dataclasses.asdict` and JSON made plain."""
    pairs = {name: tuple((key, value) for key, value in said[name]) for name in ("arguments", "constants")}
    return TritonCase(**{**said, **pairs, "aligned": tuple(said["aligned"])})
