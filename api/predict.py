"""POST /v1/predict: bytes in, bytes out, with nothing between the socket and the predictor that costs time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from starlette.types import Receive, Scope, Send

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.prediction import Prediction
from .bodies import JSON, media_type, read_body, send_json
from .gathering import Gathering
from .metrics import Metrics
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import Request, read_request
from .settings import Settings
from .source import Loaded, PredictorSource, loaded_of
from .turns import on_thread
from .wire import encode_predictions

INLINE_BODY_B = 8192
"""Bodies up to this size (some 40 specs) are answered on the event loop; larger ones go to a thread so that health
checks and small requests are answered meanwhile."""

_MAX_PROBES = 200


class PredictEndpoint(ABC):
    """A route that takes a JSON body: short ones are answered on the event loop, longer ones on a thread."""

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
        answer = await self.answer_soon(body) if len(body) <= INLINE_BODY_B else await on_thread(self.answer, body)
        await send_json(send, answer)

    async def answer_soon(self, body: bytes) -> bytes:
        """The same as `answer` for a short request, on the event loop."""
        return self.answer(body)

    @abstractmethod
    def answer(self, body: bytes) -> bytes:
        """The JSON answer to a JSON request.

        Raises:
            ProblemError: no model is loaded, or the request is not acceptable.
        """


class SpecEndpoint(PredictEndpoint):
    """The ASGI application behind `/v1/predict`; single specs that come together are predicted together."""

    def __init__(self, source: PredictorSource, settings: Settings, metrics: Metrics) -> None:
        super().__init__(source, settings, metrics)
        self._gathering = Gathering()

    async def answer_soon(self, body: bytes) -> bytes:
        """See `PredictEndpoint.answer_soon`."""
        loaded = loaded_of(self._source)
        request = read_request(body, loaded.catalogue, self._settings.max_specs)
        if not request.single:
            return self._answered(loaded, request)
        spec, device = request.specs[0], request.devices[0]
        try:
            found = await self._gathering.predict(loaded, spec, device, request.coverage)
        except SpecError as error:
            raise _single_problem(error) from error
        self._metrics.predictions(((spec.family, device, found.in_domain),))
        self._metrics.asked(request.specs, request.devices)
        return encode_predictions([spec], [device], [found], single=True)

    def answer(self, body: bytes) -> bytes:
        """See `PredictEndpoint.answer`."""
        loaded = loaded_of(self._source)
        return self._answered(loaded, read_request(body, loaded.catalogue, self._settings.max_specs))

    def _answered(self, loaded: Loaded, request: Request) -> bytes:
        found = _predict(loaded, request)
        self._metrics.predictions(_counted(request.specs, request.devices, found))
        self._metrics.asked(request.specs, request.devices)
        return encode_predictions(request.specs, request.devices, found, single=request.single)


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
