"""POST /v1/predict: bytes in, bytes out, with nothing between the socket and the predictor that costs time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from anyio.to_thread import run_sync
from starlette.types import Message, Receive, Scope, Send

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.prediction import Prediction
from .compression import is_packed, unpack
from .gathering import Gathering
from .metrics import Metrics
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import Request, read_request
from .settings import Settings
from .source import Loaded, PredictorSource
from .wire import encode_predictions

INLINE_BODY_B = 8192
"""Bodies up to this size (some 40 specs) are answered on the event loop; larger ones go to a thread so that health
checks and small requests are answered meanwhile."""

JSON = frozenset({"application/json"})
"""The media type of a body that is JSON."""

_MAX_PROBES = 200


class PredictEndpoint:
    """The ASGI application behind `/v1/predict`."""

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
        media_type(headers, JSON)
        body = await read_body(headers, receive, self._settings.max_body_b)
        answer = await self.answer_soon(body) if len(body) <= INLINE_BODY_B else await run_sync(self.answer, body)
        length = str(len(answer)).encode()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/json"), (b"content-length", length)]})  # fmt: skip
        await send({"type": "http.response.body", "body": answer})

    def _loaded(self) -> Loaded:
        loaded = self._source.current()
        if loaded is None:
            raise ProblemError(503, f"no model is loaded: {self._source.problem}", headers={"retry-after": "2"})
        return loaded

    async def answer_soon(self, body: bytes) -> bytes:
        """The JSON answer to a short JSON request, on the event loop.

        Raises:
            ProblemError: as of `answer`.
        """
        return self.answer(body)

    def answer(self, body: bytes) -> bytes:
        """The JSON answer to a JSON request.

        Raises:
            ProblemError: no model is loaded, or the request is not acceptable.
        """
        loaded = self._loaded()
        return self._answered(loaded, read_request(body, loaded.catalogue, self._settings.max_specs))

    def _answered(self, loaded: Loaded, request: Request) -> bytes:
        found = _predict(loaded, request)
        self._metrics.predictions(_counted(request.specs, request.devices, found))
        return encode_predictions(request.specs, request.devices, found, single=request.single)


class SpecEndpoint(PredictEndpoint):
    """The same, with single specs that come together predicted together."""

    def __init__(self, source: PredictorSource, settings: Settings, metrics: Metrics) -> None:
        super().__init__(source, settings, metrics)
        self._gathering = Gathering()

    async def answer_soon(self, body: bytes) -> bytes:
        """See `PredictEndpoint.answer_soon`."""
        loaded = self._loaded()
        request = read_request(body, loaded.catalogue, self._settings.max_specs)
        if not request.single:
            return self._answered(loaded, request)
        spec, device = request.specs[0], request.devices[0]
        try:
            found = await self._gathering.predict(loaded, spec, device, request.coverage)
        except SpecError as error:
            raise _single_problem(error) from error
        self._metrics.predictions(((spec.family, device, found.in_domain),))
        return encode_predictions([spec], [device], [found], single=True)


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str = "send the specs in parts"
) -> bytes:
    """The body, read no further than its limit; `advice` says what to do about one that is longer.

    A gzip body is unpacked on a thread, and is within the limit both packed and unpacked.

    Raises:
        ProblemError: 413 as soon as the body is known to be longer; the connection is closed rather than drained. 415 for a
            body packed with something else than gzip, 400 for one that is no gzip or cut short.
    """
    if is_packed(headers):
        return await run_sync(unpack, await _read_plain(headers, receive, limit_b, advice), limit_b, advice)
    return await _read_plain(headers, receive, limit_b, advice)


async def _read_plain(headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str) -> bytes:
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit_b:
        raise _too_large(limit_b, advice)
    message: Message = await receive()
    body: bytes = message.get("body", b"")
    if len(body) > limit_b:
        raise _too_large(limit_b, advice)
    if not message.get("more_body"):
        return body
    parts, length = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > limit_b:
            raise _too_large(limit_b, advice)
    if message["type"] == "http.disconnect":
        raise ProblemError(400, "the connection was closed before the whole body had come")
    return b"".join(parts)


def _too_large(limit_b: int, advice: str) -> ProblemError:
    return ProblemError(413, f"the body is longer than {limit_b} bytes; {advice}", headers={"connection": "close"})


def media_type(headers: Mapping[bytes, bytes], taken: Collection[str]) -> str:
    """The media type of a body, one of those `taken`.

    Raises:
        ProblemError: 415 for another, and for text that is not UTF-8.
    """
    given = headers.get(b"content-type", b"").decode("latin-1")
    name, _, parameters = given.partition(";")
    if (found := name.strip().lower()) not in taken:
        shown = f"got {given[:100]!r}" if given else "none was given"
        raise ProblemError(415, f"send the header content-type: {' or '.join(sorted(taken))} ({shown})")
    charset = parameters.strip().lower().partition("charset=")[2].strip('"')
    if charset not in ("", "utf-8", "utf8"):
        raise ProblemError(415, f"bodies are UTF-8; got charset {charset[:40]!r}")
    return found


def _predict(loaded: Loaded, request: Request) -> list[Prediction]:
    try:
        return loaded.predictor.predict(request.specs, request.devices, coverage=request.coverage)
    except SpecError as error:
        if error.field == "coverage" or request.single:
            raise _single_problem(error) from error
        errors = _at_fault(loaded, request) or [field_problem(error, error.field or "requests")]
        raise ProblemError(422, errors[0].detail, errors) from error


def _single_problem(error: SpecError) -> ProblemError:
    return ProblemError(422, str(error), [field_problem(error, error.field or "")])


def _at_fault(loaded: Loaded, request: Request) -> list[FieldProblem]:
    """Which specs of a batch the model refuses: one spec of each kind is tried alone.

    What a model refuses (a family or device it does not know) depends on the kind of spec, not on its sizes.
    """
    refused: dict[tuple[str, ...], SpecError | None] = {}
    errors: list[FieldProblem] = []
    for index, (spec, device) in enumerate(zip(request.specs, request.devices, strict=True)):
        kind = (spec.family, device, spec.dtype, spec.variant, spec.impl)
        if kind not in refused:
            if len(refused) == _MAX_PROBES:
                break
            refused[kind] = _refusal(loaded, spec, device, request.coverage)
        if (error := refused[kind]) is not None:
            errors.append(field_problem(error, f"requests[{index}].{error.field or 'family'}", index))
            if len(errors) == MAX_LISTED:
                break
    return errors


def _refusal(loaded: Loaded, spec: KernelSpec, device: str, coverage: float) -> SpecError | None:
    try:
        loaded.predictor.predict([spec], [device], coverage=coverage)
    except SpecError as error:
        return error
    return None


def _counted(specs: list[KernelSpec], devices: list[str], found: list[Prediction]) -> Iterable[tuple[str, str, bool]]:
    for spec, device, prediction in zip(specs, devices, found, strict=True):
        yield spec.family, device, prediction.in_domain
