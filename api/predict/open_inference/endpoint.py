"""POST /v2/models/{name}/infer: many kernels of one family as tensors in, their costs as tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from starlette.types import Receive, Scope, Send

from ....features.batch.cases import Cases, Floats
from ....features.batch.categorical import Categorical
from ....features.device import Catalogue
from ....features.errors import SpecError
from ....features.kernel import CACHE_STATES, KernelFamily, get_family
from ....models.predict.named_impl import check_impls
from ....models.predict.prediction import TARGETS, Predictions
from ...model_source import LoadedModel, Service, require_model
from ...transport.bodies import media_type, read_body
from ...transport.problems import field_problem, invalid
from ..columns import prediction_counts
from ..columns_request import COLUMNS, Table, checked_cases
from ..spec import INLINE_BODY_B
from ..thread_endpoint import on_thread
from . import models
from .models import NOT_SET, model_named
from .request import HEADER, InferRequest, read_infer_request
from .tensors import Column, to_bytes, to_json

_MEDIA_TYPES = frozenset({"application/json", "application/octet-stream"})
_ADVICE = "send the rows in parts"
INLINE_ROWS = 64
"""Most rows predicted on the event loop: bytes hold a row in so few that a body within `INLINE_BODY_B` may have hundreds."""


class InferEndpoint:
    """The ASGI application behind the infer routes; a large body is worked on by a thread."""

    def __init__(self, service: Service) -> None:
        self._source = service.source
        self._settings = service.settings
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        # The protocol's clients send binary tensors without a media type.
        media_type({b"content-type": b"application/octet-stream", **headers}, _MEDIA_TYPES)
        loaded = require_model(self._source)
        path: dict[str, str] = scope["path_params"]
        name = model_named(loaded, path["name"], path.get("version")).name
        body = await read_body(headers, receive, self._settings.max_columns_b, _ADVICE)
        answer, json_b = await self._answer(loaded, name, body, headers.get(HEADER))
        sent = [(b"content-type", b"application/json" if json_b is None else b"application/octet-stream"),
                (b"content-length", str(len(answer)).encode())]  # fmt: skip
        if json_b is not None:
            sent.append((HEADER, str(json_b).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": sent})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(
        self, loaded: LoadedModel, name: str, body: bytes, header_b: bytes | None
    ) -> tuple[bytes, int | None]:
        """The answer to a body, and how many bytes of it are JSON; None where all of it is."""
        read = partial(read_infer_request, body, header_b, name, loaded.version, self._settings.max_columns_rows)
        if len(body) > INLINE_BODY_B:
            return await on_thread(lambda: self._answer_request(loaded, name, read()))
        request = read()
        if request.rows > INLINE_ROWS:
            return await on_thread(self._answer_request, loaded, name, request)
        return self._answer_request(loaded, name, request)

    def _answer_request(self, loaded: LoadedModel, name: str, request: InferRequest) -> tuple[bytes, int | None]:
        return encode_answer(request, name, loaded.version, self._predict(loaded, name, request))

    def _predict(self, loaded: LoadedModel, name: str, request: InferRequest) -> Predictions:
        cases = read_cases(request, name, loaded.catalogue)
        try:
            check_impls(loaded.predictor, cases)
            predictions = loaded.predictor.predict_cases(cases, coverage=request.coverage)
        except SpecError as error:
            row = None if error.field == "impl" else 0
            where = "parameters.coverage" if error.field == "coverage" else _position(request, error.field, row)
            raise invalid([field_problem(error, where)]) from error
        self._metrics.count_predictions(prediction_counts(cases, predictions))
        self._metrics.count_usage_cases(cases)
        return predictions


_MEANING_OF_EMPTY = {"cache_state": CACHE_STATES[0], "kv_dtype": None}
"""What the empty text of an input stands for, where that is not the empty text."""


def read_cases(request: InferRequest, name: str, catalogue: Catalogue) -> Cases:
    """The cases of a request, one of each row, devices by their catalogue names.

    Raises:
        ProblemError: 422, naming the values that cannot be predicted.
    """
    family = get_family(name)
    columns = {name: _column(name, column, request.rows, family) for name, column in request.columns.items()}
    groups = {"sizes": family.dim_names, "config": family.config}
    table = Table(
        family,
        {name: column for name, column in columns.items() if name in COLUMNS}
        | {group: {name: columns[name] for name in names if name in columns} for group, names in groups.items()},
        request.rows,
    )
    return checked_cases(table, catalogue, partial(_position, request))


def _column(name: str, column: Column, rows: int, family: KernelFamily) -> Categorical | Floats:
    """A column as tables have it: a value per row, and no number that stands for one not given."""
    if isinstance(column, Categorical):
        words: Any = tuple(word or _MEANING_OF_EMPTY.get(name, word) for word in column.words)
        return Categorical(words, np.broadcast_to(column.code, rows))
    numbers = np.broadcast_to(column.astype(np.float64), rows)
    return numbers if name in family.dim_names else np.where(numbers == NOT_SET, np.nan, numbers)


def _position(request: InferRequest, field: str | None, row: int | None) -> str:
    """Where in the request a field of a row is, or its whole column (None)."""
    name = (field or "").rpartition(".")[2]
    if name not in request.positions:
        return "inputs"
    place = f"inputs[{request.positions[name]}]"
    return place if row is None else f"{place}.data[{0 if len(request.columns[name]) == 1 else row}]"


_ENDS = {"": "value", "_lower": "lower", "_upper": "upper"}


def _target(target: str, end: str) -> Callable[[Predictions], Any]:
    return lambda predictions: getattr(predictions.targets[target], end)


_COLUMNS: Mapping[str, Callable[[Predictions], Any]] = {
    **{f"{target}{suffix}": _target(target, end) for target in TARGETS for suffix, end in _ENDS.items()},
    "in_domain": lambda predictions: predictions.in_domain,
    "bound": lambda predictions: _categorical(predictions.bound),
    "method": lambda predictions: _categorical(predictions.method),
}


def encode_answer(
    request: InferRequest, model: str, version: str, predictions: Predictions
) -> tuple[bytes, int | None]:
    """The body of an answer, and how many bytes of it are JSON; None where all of it is."""
    parts: list[bytes] = []
    outputs: list[dict[str, Any]] = []
    for kind, as_bytes in request.outputs:
        values = _COLUMNS[kind.name](predictions)
        output: dict[str, Any] = {"name": kind.name, "datatype": kind.datatype, "shape": [len(predictions)]}
        if as_bytes:
            parts.append(to_bytes(kind.datatype, values))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = to_json(values)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id is not None:
        answer["id"] = request.id
    answer |= {"parameters": {"coverage": predictions.coverage}, "outputs": outputs}
    text = msgspec.json.encode(answer)
    return (b"".join((text, *parts)), len(text)) if parts else (text, None)


def _categorical(column: Sequence[str] | Categorical) -> Categorical:
    return column if isinstance(column, Categorical) else Categorical.encode(np.array(column, dtype=np.object_))


_MODEL = "/v2/models/{name}"
_VERSION = "/v2/models/{name}/versions/{version}"

ROWS: tuple[tuple[str, str, str, Callable[[Service], Callable[..., Any]]], ...] = (
    ("/v2", "GET", "inference_server", models.server_metadata),
    ("/v2/health/live", "GET", "inference_live", models.server_live),
    ("/v2/health/ready", "GET", "inference_ready", models.server_ready),
    (_MODEL, "GET", "inference_model", models.model),
    (_VERSION, "GET", "inference_model_version", models.model),
    (f"{_MODEL}/ready", "GET", "inference_model_ready", models.model_ready),
    (f"{_VERSION}/ready", "GET", "inference_model_version_ready", models.model_ready),
    (f"{_MODEL}/infer", "POST", "inference_infer", InferEndpoint),
    (f"{_VERSION}/infer", "POST", "inference_infer_version", InferEndpoint),
    ("/v2/repository/index", "POST", "inference_index", models.repository_index),
)
"""Every address of the protocol, as the fields of a `Route`: path, method, name, and what builds it."""
