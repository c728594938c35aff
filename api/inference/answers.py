"""What an infer request is answered: the outputs asked for, in JSON or as bytes after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...features.coded import Words
from ...models.prediction import TARGETS, Predictions
from .request import InferRequest
from .tensors import to_bytes, to_json

_ENDS = {"": "value", "_lower": "lower", "_upper": "upper"}


def _target(target: str, end: str) -> Callable[[Predictions], Any]:
    return lambda found: getattr(found.targets[target], end)


_COLUMNS: Mapping[str, Callable[[Predictions], Any]] = {
    **{f"{target}{suffix}": _target(target, end) for target in TARGETS for suffix, end in _ENDS.items()},
    "in_domain": lambda found: found.in_domain,
    "bound": lambda found: _words(found.bound),
    "method": lambda found: _words(found.method),
}


def encode_answer(request: InferRequest, model: str, version: str, found: Predictions) -> tuple[bytes, int | None]:
    """The body of an answer, and how many bytes of it are JSON; None where all of it is."""
    parts: list[bytes] = []
    outputs: list[dict[str, Any]] = []
    for kind, as_bytes in request.outputs:
        values = _COLUMNS[kind.name](found)
        output: dict[str, Any] = {"name": kind.name, "datatype": kind.datatype, "shape": [len(found)]}
        if as_bytes:
            parts.append(to_bytes(kind.datatype, values))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = to_json(kind.datatype, values)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        answer["id"] = request.id
    answer |= {"parameters": {"coverage": found.coverage}, "outputs": outputs}
    text = msgspec.json.encode(answer)
    return (b"".join((text, *parts)), len(text)) if parts else (text, None)


def _words(column: Sequence[str] | Words) -> Words:
    return column if isinstance(column, Words) else Words.of(np.array(column, dtype=np.object_))
