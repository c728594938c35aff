"""POST /v2/models/{name}/infer: many kernels of one family as tensors in, their costs as tensors out."""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from ...features.errors import SpecError
from ...models.prediction import Predictions
from ..bodies import media_type, read_body
from ..column_counts import counted
from ..metrics import Metrics
from ..predict import INLINE_BODY_B
from ..settings import Settings
from ..source import Loaded, PredictorSource, loaded_of
from ..turns import on_thread
from .answers import encode_answer
from .columns import read_cases, refusal
from .models import model_named
from .request import HEADER, InferRequest, read_infer_request

_MEDIA_TYPES = frozenset({"application/json", "application/octet-stream"})
_ADVICE = "send the rows in parts"
INLINE_ROWS = 64
"""Most rows predicted on the event loop: bytes hold a row in so few that a body within `INLINE_BODY_B` may have hundreds."""


class InferEndpoint:
    """The ASGI application behind the infer routes; a large body is worked on by a thread."""

    def __init__(self, source: PredictorSource, settings: Settings, metrics: Metrics) -> None:
        self._source = source
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        # The protocol's clients send binary tensors without a media type.
        media_type({b"content-type": b"application/octet-stream", **headers}, _MEDIA_TYPES)
        loaded = loaded_of(self._source)
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

    async def _answer(self, loaded: Loaded, name: str, body: bytes, header_b: bytes | None) -> tuple[bytes, int | None]:
        """The answer to a body, and how many bytes of it are JSON; None where all of it is."""
        read = partial(read_infer_request, body, header_b, name, loaded.version, self._settings.max_columns_rows)
        if len(body) > INLINE_BODY_B:
            return await on_thread(lambda: self._answered(loaded, name, read()))
        request = read()
        if request.rows > INLINE_ROWS:
            return await on_thread(self._answered, loaded, name, request)
        return self._answered(loaded, name, request)

    def _answered(self, loaded: Loaded, name: str, request: InferRequest) -> tuple[bytes, int | None]:
        return encode_answer(request, name, loaded.version, self._predict(loaded, name, request))

    def _predict(self, loaded: Loaded, name: str, request: InferRequest) -> Predictions:
        cases = read_cases(request, name, loaded.catalogue)
        try:
            found = loaded.predictor.predict_cases(cases, coverage=request.coverage)
        except SpecError as error:
            raise refusal(error, request) from error
        self._metrics.predictions(counted(name, cases.coded("device"), found))
        self._metrics.asked_rows(cases)
        return found
