"""POST /v1/predict: one spec, or a batch of them, every bad one named by index and field.

Single specs are collected for as long as each turn of the event loop brings more, and then predicted in one batch, as most of
the cost of a prediction is per call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...client.answers import Batch
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from ...features.spec_io.reading import DEFAULT_COVERAGE, SETTING_FIELDS, SpecReader, shown_name
from ...models.predict.carbon import ELECTRICITY_FIELDS, Electricity, read_electricity
from ...models.predict.named_impl import check_specs
from ...models.predict.power_cap import prediction_under, rows_under
from ...models.predict.power_law import PowerSetting, checked_setting
from ...models.predict.prediction import Prediction
from ...workloads.answers import prediction_answer
from ..model_source import LoadedModel, Service, require_model
from ..transport.bodies import JSON, media_type, read_body, read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import MAX_LISTED, FieldProblem, ProblemError, field_problem, invalid, invalid_field
from .thread_endpoint import Call, on_thread, refusal_problem

MAX_IMPLS = 100
"""Most different implementations in one request. What follows from a name is worked out once a name, which takes as long as
hundreds of rows: nothing but new names would keep the server busy for minutes."""

BATCH_FIELDS = ("requests", "coverage")
_BESIDE = (*SETTING_FIELDS, *ELECTRICITY_FIELDS)
"""Fields beside those of a spec."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request of `/v1/predict`.

    Attributes:
        specs: The specs.
        devices: Catalogue name of each spec's device.
        settings: How each spec's board is set; None: as it comes.
        electricity: Where each spec's electricity is from, and what it costs; None: nobody asks.
        coverage: Coverage of the intervals.
        single: Whether the body was one spec and not a batch.
    """

    specs: list[KernelSpec]
    devices: list[str]
    settings: list[PowerSetting | None]
    electricity: list[Electricity | None]
    coverage: float
    single: bool


def read_request(body: bytes, catalogue: Catalogue, max_specs: int) -> Request:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for too many specs, 422 naming what is wrong with the specs.
    """
    root = read_object(body)
    single = "requests" not in root
    items = [root] if single else root["requests"]
    if not single and (unknown := [name for name in root if name not in BATCH_FIELDS]):
        raise invalid_field(shown_name(unknown[0]), f"unknown field; a batch takes {listed(BATCH_FIELDS)}")
    if not isinstance(items, list) or not items:
        raise invalid_field("requests", "must be a list of at least one spec")
    if len(items) > max_specs:
        raise ProblemError(
            413, f"{len(items)} specs in one request; at most {max_specs} are allowed, send them in parts"
        )
    refuse_duplicate_names(body, root, items)
    coverage = read_coverage(root) if "coverage" in root else DEFAULT_COVERAGE
    specs: list[KernelSpec] = []
    devices: list[str] = []
    settings: list[PowerSetting | None] = []
    electricity: list[Electricity | None] = []
    errors: list[FieldProblem] = []
    reader = SpecReader(catalogue, extra=(*_BESIDE, "coverage") if single else _BESIDE)
    for index, item in enumerate(items):
        try:
            spec, device = reader.read(item)
            setting = drawn = None
            if "power_limit_w" in item or "clock_hz" in item:
                setting = checked_setting(item.get("power_limit_w"), item.get("clock_hz"), catalogue.get(device))
            if "grid" in item or "electricity_price" in item or "pue" in item:
                drawn = read_electricity(*(item.get(name) for name in ELECTRICITY_FIELDS))
        except SpecError as error:
            where = error.field or ""
            if not single:
                where = f"requests[{index}].{where}" if where else f"requests[{index}]"
            errors.append(field_problem(error, where, None if single else index))
            if len(errors) == MAX_LISTED:
                break
        else:
            specs.append(spec)
            devices.append(device)
            settings.append(setting)
            electricity.append(drawn)
    if not errors and (named := len({spec.impl for spec in specs})) > MAX_IMPLS:
        errors.append(FieldProblem("requests", too_many_impls(named)))
    if errors:
        raise invalid(errors)
    return Request(specs, devices, settings, electricity, coverage, single)


def too_many_impls(named: int) -> str:
    """Why a request that names that many implementations is refused."""
    return f"names {named} different implementations; at most {MAX_IMPLS} are allowed in one request, split the request"


_MAX_BATCH = 32
"""Specs predicted in one go; more would hold up the event loop, and gain little."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A spec that waits for its prediction."""

    loaded: LoadedModel
    spec: KernelSpec
    device: str
    coverage: float
    answer: asyncio.Future[Prediction]


class MicroBatcher:
    """Collects specs on one event loop and predicts them together."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._collected = 0

    async def predict(self, loaded: LoadedModel, spec: KernelSpec, device: str, coverage: float) -> Prediction:
        """The prediction of one spec by the model that was loaded when it was read.

        Raises:
            SpecError: the model refuses the spec; others that came with it are answered all the same.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Prediction] = loop.create_future()
        self._waiting.append(_Waiting(loaded, spec, device, coverage, answer))
        if len(self._waiting) == 1:
            loop.call_soon(self._answer_all)
        return await answer

    def _answer_all(self) -> None:
        """Answer all that wait, those that share a model and a coverage together, once a turn of the loop brings no more."""
        if self._collected < len(self._waiting) < _MAX_BATCH:
            self._collected = len(self._waiting)
            asyncio.get_running_loop().call_soon(self._answer_all)
            return
        waiting, self._waiting, self._collected = self._waiting, [], 0
        groups: dict[tuple[int, float], list[_Waiting]] = {}
        for request in waiting:
            # One that was cancelled meanwhile needs no answer.
            if not request.answer.done():
                groups.setdefault((id(request.loaded), request.coverage), []).append(request)
        left = [group[i : i + _MAX_BATCH] for group in groups.values() for i in range(0, len(group), _MAX_BATCH)]
        while left:
            batch = left.pop(0)
            predictor, coverage = batch[0].loaded.predictor, batch[0].coverage
            specs, devices = [request.spec for request in batch], [request.device for request in batch]
            try:
                predictions = predictor.predict(specs, devices, coverage=coverage)
            except Exception as error:  # noqa: BLE001 - any failure belongs to the request it is about, whose boundary reports it
                if len(batch) == 1:
                    batch[0].answer.set_exception(error)
                else:
                    # One spec of several is refused: each is predicted by itself.
                    left[:0] = [[request] for request in batch]
                continue
            for request, prediction in zip(batch, predictions, strict=True):
                request.answer.set_result(prediction)


INLINE_BODY_B = 8192
"""Bodies up to this size (some 40 specs) are answered on the event loop; larger ones go to a thread so that health
checks and small requests are answered meanwhile."""

_MAX_PROBES = 200


class SpecEndpoint:
    """The ASGI application behind `/v1/predict`; single specs that come together are predicted together."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._batcher = MicroBatcher()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        service, headers = self._service, dict(scope["headers"])
        media_type(headers, JSON)
        body = await read_body(headers, receive, service.settings.max_body_b)
        loaded = service.source.current or require_model(service.source)
        call = Call(loaded, service.settings, service.metrics)
        if len(body) > INLINE_BODY_B:
            content = await on_thread(answer, call, body)
        elif not (request := read_request(body, loaded.catalogue, service.settings.max_specs)).single:
            content = _answer_request(call, request)
        else:
            spec, device = request.specs[0], request.devices[0]
            try:
                check_specs(loaded.predictor, request.specs)
                usual = await self._batcher.predict(loaded, spec, device, request.coverage)
                (prediction,) = _under_settings(loaded, request, [usual])
            except SpecError as error:
                raise refusal_problem(error, "") from error
            service.metrics.count_predictions(((spec.family, device, prediction.in_domain),))
            if service.metrics.usage is not None:
                service.metrics.count_usage(request.specs, request.devices)
            content = msgspec.json.encode(prediction_answer(spec, device, prediction, request.electricity[0]))
        await Response(content, media_type="application/json")(scope, receive, send)


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    return _answer_request(call, read_request(body, call.loaded.catalogue, call.settings.max_specs))


def _answer_request(call: Call, request: Request) -> bytes:
    predictions = _predict(call.loaded, request)
    call.metrics.count_predictions(
        (spec.family, device, prediction.in_domain)
        for spec, device, prediction in zip(request.specs, request.devices, predictions, strict=True)
    )
    call.metrics.count_usage(request.specs, request.devices)
    answers = list(map(prediction_answer, request.specs, request.devices, predictions, request.electricity))
    return msgspec.json.encode(answers[0] if request.single else Batch(answers))


def _predict(loaded: LoadedModel, request: Request) -> list[Prediction]:
    try:
        check_specs(loaded.predictor, request.specs)
        usual = loaded.predictor.predict(request.specs, request.devices, coverage=request.coverage)
        return _under_settings(loaded, request, usual)
    except SpecError as error:
        if error.field == "coverage" or request.single:
            raise refusal_problem(error, "") from error
        errors = _at_fault(loaded, request) or [field_problem(error, error.field or "requests")]
        raise ProblemError(422, errors[0].detail, errors) from error


def _under_settings(loaded: LoadedModel, request: Request, predictions: list[Prediction]) -> list[Prediction]:
    """The predictions of a request for boards set as it says.

    Raises:
        SpecError: a power limit for a single spec whose power is unknown.
        ProblemError: 422 naming the specs of a batch of which that is so.
    """
    if not any(request.settings):
        return predictions
    boards = [loaded.catalogue.get(device) for device in request.devices]
    try:
        return rows_under(predictions, boards, request.settings)
    except SpecError:
        if request.single:
            raise
        # One of them is at fault: each alone says which.
        errors: list[FieldProblem] = []
        for i, each in enumerate(zip(predictions, boards, request.settings, strict=True)):
            try:
                prediction_under(*each)
            except SpecError as error:
                errors.append(field_problem(error, f"requests[{i}].{error.field}", i))
        raise invalid(errors[:MAX_LISTED]) from None


def _at_fault(loaded: LoadedModel, request: Request) -> list[FieldProblem]:
    """Which specs of a batch the model refuses: one spec of each kind is tried alone.

    What a model refuses (a family, implementation or device it does not know) depends on the kind of spec, not on its sizes.
    """
    refused: dict[tuple[str, ...], SpecError | None] = {}
    errors: list[FieldProblem] = []
    for index, (spec, device) in enumerate(zip(request.specs, request.devices, strict=True)):
        kind = (spec.family, device, spec.dtype, spec.variant, spec.impl)
        if kind not in refused:
            if len(refused) == _MAX_PROBES:
                break
            refused[kind] = refusal(loaded, spec, device, request.coverage)
        if (error := refused[kind]) is not None:
            errors.append(field_problem(error, f"requests[{index}].{error.field or 'family'}", index))
            if len(errors) == MAX_LISTED:
                break
    return errors


def refusal(loaded: LoadedModel, spec: KernelSpec, device: str, coverage: float) -> SpecError | None:
    """Why the model refuses a spec, None where it does not."""
    try:
        check_specs(loaded.predictor, [spec])
        loaded.predictor.predict([spec], [device], coverage=coverage)
    except SpecError as error:
        return error
    return None
