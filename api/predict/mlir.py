"""POST /v1/predict/mlir: what a function of MLIR text costs, on one device or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import MAX_THREADS
from ...features.mlir.parse.parser_process import NativeReader
from ...features.mlir.understanding import functions, read, understand
from ...features.spec_io.reading import DEFAULT_COVERAGE, MAX_TEXT, kind_of, shown_name
from ...models.family_model.intervals import check_coverage
from ...workloads.answers import programs_answer
from ...workloads.mlir.program_text import SHORTEN, read_bind, threads_on, whole_number
from ..model_source import Service
from ..transport.bodies import (
    JSON,
    MAX_DEVICES,
    media_type,
    named_devices,
    parameters,
    read_body,
    read_object,
    refuse_duplicate_names,
)
from ..transport.problems import ProblemError, field_problem, invalid, invalid_field
from .thread_endpoint import acquire_slot

TEXT = frozenset({"text/plain", "text/mlir", "text/x-mlir", "application/mlir", "application/x-mlir"})
"""Media types of a body that is the text itself."""
AT_ONCE = 2
"""Texts worked on at the same time; more would only make each other slow."""
MAX_WAITING = 16
"""Texts that wait for their turn; each may hold some megabytes."""
WAIT_S = 10.0
"""Seconds that a text waits for its turn before it is sent away."""

_JSON_EXTRA_B = 65536
_T = TypeVar("_T")


class ProgramEndpoint:
    """The ASGI application behind `/v1/predict/mlir`.

    The work on a text is done on a thread, a few texts at a time, and native parsers run in `native`'s process, so that
    neither a long text nor one that brings a parser down is felt by other requests.
    """

    def __init__(self, service: Service, native: NativeReader) -> None:
        self._source = service.source
        self._max_text_b = service.settings.max_mlir_b
        self._metrics = service.metrics
        self._native = native
        self._slots = anyio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ProblemError: the request is refused; the boundary turns it into problem+json.
        """
        headers = dict(scope["headers"])
        is_json = media_type(headers, TEXT | JSON) in JSON
        # In JSON a line's end and a quote take two bytes.
        limit_b = 2 * self._max_text_b + _JSON_EXTRA_B if is_json else self._max_text_b
        body = await read_body(headers, receive, limit_b, SHORTEN)
        async with acquire_slot(self._slots, MAX_WAITING, WAIT_S, _busy()):
            answer = await run_sync(partial(self.answer, body, scope["query_string"], is_json=is_json))
        await Response(answer, media_type="application/json")(scope, receive, send)

    def answer(self, body: bytes, query: bytes, *, is_json: bool) -> bytes:
        """The JSON answer to a body, JSON or the text itself with its settings in the query.

        Raises:
            ProblemError: no model is loaded, or the request is not acceptable.
        """
        loaded = self._source.current
        if loaded is None or loaded.programs is None:
            reason = self._source.problem or "the loaded model cannot predict programs"
            raise ProblemError(503, f"no model is loaded: {reason}", headers={"retry-after": "2"})
        take = read_json_request if is_json else read_text_request
        request = take(body, query, loaded.catalogue, self._max_text_b)
        module = _naming_field("text", lambda: read(request.text, native=self._native))
        self._metrics.count_text(module.reader)
        program = _naming_field("text", lambda: understand(module, request.function, request.bind))
        ask = partial(loaded.programs.predict, program, compiler=request.compiler, coverage=request.coverage)
        threads = threads_on([loaded.catalogue.get(name) for name in request.devices], request.threads)
        runs = list(zip(request.devices, threads, strict=True))
        predictions = _naming_field("text", lambda: [ask(device, threads=count) for device, count in runs])
        self._metrics.count_predictions(("mlir", prediction.device, prediction.in_domain) for prediction in predictions)
        # What stands in for something else was not asked for.
        kernels = dict.fromkeys(group.spec for group in program.groups if group.spec is not None and not group.stand_in)
        for prediction, count in zip(predictions, threads, strict=True):
            self._metrics.count_usage(
                [replace(spec, threads=count) for spec in kernels], [prediction.device] * len(kernels)
            )
        return msgspec.json.encode(programs_answer(module, functions(module), predictions))


def _naming_field(field: str, work: Callable[[], _T]) -> _T:
    """The result of the work; what is wrong with its input is a problem of the field the error names, or else of `field`.

    Raises:
        ProblemError: 422 with the error's words.
    """
    try:
        return work()
    except SpecError as error:
        problem = field_problem(error, error.field if error.field not in (None, "mlir") else field)
        raise ProblemError(422, problem.detail, [problem]) from error


def _busy() -> ProblemError:
    return ProblemError(
        503,
        "this server is predicting as many programs as it can at once; try again",
        headers={"retry-after": "5"},
    )


PARAMETERS = ("device", "function", "bind", "compiler", "threads", "coverage")
"""Query parameters of a body that is the text itself; `device` and `bind` may be given again."""
FIELDS = ("text", "devices", *PARAMETERS)
"""Fields of a JSON body."""
MAX_FUNCTION = 1024
"""Longest name of a function; mangled names are long."""
MAX_BINDS = 1000
_REPEATED = ("device", "bind")
_MAX_PAIRS = MAX_DEVICES + MAX_BINDS + len(PARAMETERS)


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A checked request of `/v1/predict/mlir`.

    Attributes:
        text: The MLIR text.
        devices: Catalogue names of the devices.
        function: The function to predict; None where the text has a single candidate.
        bind: Values of dynamic sizes and arguments, by name.
        compiler: The compiler, empty where none is named.
        threads: Number of CPU threads, None for the default.
        coverage: Coverage of the intervals.
    """

    text: str | bytes
    devices: list[str]
    function: str | None
    bind: dict[str, int]
    compiler: str
    threads: int | None
    coverage: float


def read_text_request(body: bytes, query: bytes, catalogue: Catalogue, max_text_b: int) -> ProgramRequest:
    """The request of a body that is MLIR text, its settings in the query.

    Raises:
        ProblemError: 413 for text of more than `max_text_b` bytes, 422 naming the parameter that is wrong.
    """
    raw: dict[str, Any] = {"text": body}
    for name, values in parameters(query, PARAMETERS, _MAX_PAIRS, MAX_FUNCTION).items():
        if name not in _REPEATED and len(values) > 1:
            raise invalid_field(name, "is given twice")
        raw[name] = values if name in _REPEATED else values[0]
    try:
        if "bind" in raw:
            raw["bind"] = read_bind(raw["bind"])
        for name, kind in (("threads", whole_number), ("coverage", _number)):
            if name in raw:
                raw[name] = kind(name, raw[name])
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    if "device" in raw:
        raw["devices"] = raw.pop("device")
    return _check(raw, catalogue, max_text_b, devices_field="device")


def read_json_request(body: bytes, query: bytes, catalogue: Catalogue, max_text_b: int) -> ProgramRequest:
    """The request of a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for text of more than `max_text_b` bytes, 422 naming what is wrong.
    """
    if query:
        raise ProblemError(422, "a JSON body contains its settings; remove the query parameters")
    root = read_object(body, '{"text": "…", "device": "…"}')
    if unknown := [name for name in root if name not in FIELDS]:
        raise invalid_field(unknown[0], f"unknown field; MLIR takes {listed(FIELDS)}")
    refuse_duplicate_names(body, root, [])
    raw = {name: value for name, value in root.items() if value is not None}
    if not isinstance(raw.get("text"), str):
        raise invalid_field(
            "text", f"must be MLIR text, not {kind_of(root['text'])}" if "text" in root else "is missing"
        )
    if "device" in raw and "devices" in raw:
        raise invalid_field("device", "give either device or devices")
    devices_field = "device" if "device" in raw else "devices"
    if "device" in raw:
        raw["devices"] = [raw.pop("device")]
    return _check(raw, catalogue, max_text_b, devices_field)


def _check(raw: Mapping[str, Any], catalogue: Catalogue, max_text_b: int, devices_field: str) -> ProgramRequest:
    """The request of plain values; `devices_field` is the field that names the devices."""
    text = raw["text"]
    length_b = len(text) if isinstance(text, bytes) else len(text.encode())
    if length_b > max_text_b:
        raise ProblemError(413, f"the text is {length_b} bytes long; at most {max_text_b} are read, {SHORTEN}")
    function, compiler = raw.get("function"), raw.get("compiler", "")
    if function is not None and (not isinstance(function, str) or len(function) > MAX_FUNCTION):
        raise invalid_field("function", f"must be a name of at most {MAX_FUNCTION} characters")
    if not isinstance(compiler, str) or len(compiler) > MAX_TEXT:
        raise invalid_field("compiler", f"must be a name of at most {MAX_TEXT} characters")
    threads = raw.get("threads")
    if threads is not None and not (_is_whole(threads) and 1 <= threads <= MAX_THREADS):
        raise invalid_field("threads", f"must be a whole number between 1 and {MAX_THREADS}")
    coverage = raw.get("coverage", DEFAULT_COVERAGE)
    try:
        coverage = check_coverage(coverage)
    except SpecError as error:
        raise invalid_field("coverage", str(error)) from error
    names = raw.get("devices")
    if names is None:
        raise invalid_field(devices_field, "is missing; name a device, /v1/devices lists them")
    if not isinstance(names, Sequence) or isinstance(names, str) or not 1 <= len(names) <= MAX_DEVICES:
        raise invalid_field(devices_field, f"must be a list of one to {MAX_DEVICES} device names")
    devices = named_devices(names, catalogue, "device" if devices_field == "device" else None)
    return ProgramRequest(
        text, [device.name for device in devices], function, _sizes(raw.get("bind", {})), compiler, threads,
        coverage,
    )  # fmt: skip


def _sizes(sizes: Any) -> dict[str, int]:
    if not isinstance(sizes, Mapping):
        raise invalid_field("bind", f"must be an object of sizes, such as {{'dim0': 128}}, not {kind_of(sizes)}")
    if len(sizes) > MAX_BINDS:
        raise invalid_field("bind", f"binds {len(sizes)} sizes; at most {MAX_BINDS} are allowed")
    for name, size in sizes.items():
        if not _is_whole(size):
            raise invalid_field(f"bind.{shown_name(name)}", f"must be a whole number, not {kind_of(size)}")
    return dict(sizes)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise SpecError(f"{name} must be a number, got {word[:40]!r}", field=name) from error
