"""Answers as JSON on stdout, for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import singledispatch
from pathlib import PurePath
from typing import Any

from ...features.errors import printable


def print_json(value: Any) -> None:
    """A value as JSON on stdout: indented for a person, on one line for a program.

    Dataclasses and msgspec's structs are objects, paths text, and floats that are no numbers null. The standard library
    does it alone, since a machine that only measures need not have msgspec.

    Raises:
        TypeError: a part of it has no JSON form.
    """
    indent, separators = (2, None) if sys.stdout.isatty() else (None, (",", ":"))
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    # JSON leaves DEL, the C1 controls and marks of direction as they are.
    text = printable(text, lambda char: json.dumps(char)[1:-1].replace("\x7f", "\\u007f"))
    print(text, flush=True)  # noqa: T201 - stdout is where answers go


@singledispatch
def _plain(value: Any) -> Any:
    """What `json` can write; a record by its fields, anything else as it is."""
    names = getattr(type(value), "__dataclass_fields__", None) or getattr(type(value), "__struct_fields__", None)
    return value if names is None else {name: _plain(getattr(value, name)) for name in names}


@_plain.register
def _(value: Mapping) -> dict[str, Any]:  # type: ignore[type-arg]  # dispatch is on the class alone
    return {str(key): _plain(item) for key, item in value.items()}


@_plain.register
def _(value: list | tuple | set | frozenset) -> list[Any]:  # type: ignore[type-arg]
    return [_plain(item) for item in value]


@_plain.register
def _(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


@_plain.register
def _(value: PurePath) -> str:
    return str(value)
