"""GET /v1/measurements and its `sets`, POST /v1/measurements/like and `nearest`: browsing measured rows.

A query string or a body is checked and becomes a question. A process of its own reads the rows: it is started at the first
question, replaced when it dies, and ends when idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import anyio
import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from ...features.device import Catalogue, canonical_name
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec, get_family
from ...features.spec_io.reading import SPEC_FIELDS, kind_of, read_spec, shown_name
from ...process import ChildEndedError, ChildLostError, FrameChild, python_command, small_environment
from ...workloads.compare.spec_on_devices import with_timing
from ..predict.thread_endpoint import acquire_slot
from ..transport.bodies import integer_parameter, parameters, read_json_body, read_object, refuse_duplicate_names
from ..transport.problems import ProblemError, field_problem, invalid, invalid_field
from ..transport.responses import Endpoint
from .measurements_wire import (
    FILTERS,
    HEAD,
    SETS,
    LikeDevice,
    LikeQuestion,
    NearestQuestion,
    Question,
    Refused,
    RowsQuestion,
    SetsQuestion,
)

MAX_LIMIT = 200
"""Most rows of one page."""
DEFAULT_LIMIT = 50
MAX_DEVICES = 8
"""Most devices of one question, as in a sweep."""

PARAMETERS = (*FILTERS, "sort", "descending", "offset", "limit")
_MAX_OFFSET = 10**9
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def read_rows_question(query: bytes, catalogue: Catalogue) -> RowsQuestion:
    """The question in a query string. A filter given more than once takes any of its values, an empty one says nothing.

    Raises:
        ProblemError: 422 naming the parameter.
    """
    values = parameters(query, PARAMETERS)
    for name in ("sort", "descending"):
        if len(values.get(name, ())) > 1:
            raise invalid_field(name, "is given more than once")
    filters = {name: values[name] for name in FILTERS if name in values}
    for value in filters.get("set", ()):
        if value not in SETS:
            raise invalid_field("set", f"no set {value!r}; the sets are: {listed(SETS)}")
    for value in filters.get("family", ()):
        try:
            get_family(value)
        except SpecError as error:
            raise invalid([field_problem(error, "family")]) from error
    if "device" in filters:
        # Rows may be of devices the catalogue does not know.
        filters["device"] = [canonical_name(name, catalogue) for name in filters["device"]]
    descending = values.get("descending", ["false"])[0].lower()
    if descending not in _FLAGS:
        raise invalid_field("descending", f"must be true or false, got {descending!r}")
    return RowsQuestion(
        filters,
        values.get("sort", [None])[0],
        _FLAGS[descending],
        integer_parameter(values, "offset", 0, 0, _MAX_OFFSET),
        integer_parameter(values, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
    )


def read_like_question(body: bytes, catalogue: Catalogue, has_dim: bool) -> LikeQuestion | NearestQuestion:
    """The question in a JSON body: a spec without `device`, `devices`, and where `has_dim`, `dim`, a size or knob.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    wanted = ', "dim": …}' if has_dim else "}"
    root = read_object(body, '{"family": …, "dtype": …, "sizes": {…}, "devices": […]' + wanted)
    refuse_duplicate_names(body, root, [root])
    known = [name for name in SPEC_FIELDS if name != "device"] + ["devices", *(["dim"] if has_dim else [])]
    for name in root:
        if name not in known:
            raise invalid_field(shown_name(name), f"unknown field; possible are: {listed(known)}")
    devices = _devices(root.get("devices"))
    specs = [_spec(root, place, device, catalogue) for place, device in enumerate(devices)]
    spec = specs[0][0]
    dim = _dim(root.get("dim"), spec) if has_dim else None
    question = (
        spec.family, spec.dtype, spec.kv_dtype, spec.variant, spec.impl,
        {name: size for name, size in spec.dims if name != dim},
        {name: knob for name, knob in spec.config if name != dim},
        # As in a sweep, whose curves the points are drawn beside.
        spec.threads, spec.cache_state, with_timing(spec).timing,
        [_like_device(name, catalogue) for name in dict.fromkeys(device for _, device in specs)],
    )  # fmt: skip
    return NearestQuestion(*question) if dim is None else LikeQuestion(*question, dim)


def _devices(names: Any) -> list[Any]:
    if not isinstance(names, list) or not names:
        raise invalid_field("devices", f"must be a list of 1 to {MAX_DEVICES} device names")
    if len(names) > MAX_DEVICES:
        raise invalid_field("devices", f"has {len(names)} names; at most {MAX_DEVICES} are allowed")
    return names


def _spec(root: Mapping[str, Any], place: int, device: Any, catalogue: Catalogue) -> tuple[KernelSpec, str]:
    item = {name: value for name, value in root.items() if name in SPEC_FIELDS} | {"device": device}
    try:
        return read_spec(item, catalogue)
    except SpecError as error:
        field = f"devices[{place}]" if error.field == "device" else error.field or ""
        raise invalid([field_problem(error, field)]) from error


def _dim(dim: Any, spec: KernelSpec) -> str:
    family = get_family(spec.family)
    possible = (*family.dim_names, *family.config)
    if not isinstance(dim, str) or dim not in possible:
        got = f"{shown_name(dim)!r}" if isinstance(dim, str) else "nothing" if dim is None else kind_of(dim)
        raise invalid_field(
            "dim", f"must be a size or a knob of {family.name}, got {got}; possible are: {listed(possible)}"
        )
    return dim


def _like_device(name: str, catalogue: Catalogue) -> LikeDevice:
    device = catalogue.get(name)
    cores = int(device.required("compute_units")) if device.kind == "cpu" else None
    return LikeDevice(device.name, [device.name, *device.aliases], cores)


MAX_BODY_B = 16384
"""Longest body of a question, bytes: one spec and a few device names. A question must also fit into a pipe at once."""
MAX_WAITING = 64
"""Most questions that wait; they are answered one after the other, some hundred a second."""
WAIT_S = 10.0
"""Seconds that a question may wait before it is refused."""
DEADLINE_S = 20.0
"""Longest a question may take. Those about the shipped rows take some hundredths of a second; a large store that has changed is
read anew first."""
IDLE_S = 300.0
"""Seconds without a question after which the process ends itself and gives its memory back."""

_REFUSALS = msgspec.json.Decoder(Refused)
"""Made before threads ask: two that decode a first refusal at once end the process (msgspec 0.22)."""

_STORE = ("HOME", "KERNELCAST_HOME")
"""Where the user's own store is found."""


class MeasuredRows:
    """Answers questions about measured rows from a process of its own, one after the other. Threads may share it."""

    def __init__(self, deadline_s: float = DEADLINE_S, idle_s: float = IDLE_S) -> None:
        self.child = FrameChild(
            python_command("kernelcast.api.browse.measurements_reader", str(idle_s)),
            small_environment(*_STORE), HEAD, itemgetter(1), stderr="inherit",
        )  # fmt: skip
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._closing = False
        # Waiting questions hold no threads, which predictions need.
        self._slot = anyio.Semaphore(1)

    async def answer(self, question: Question) -> bytes:
        """The JSON of the answer.

        Raises:
            ProblemError: the question is refused, too many wait, or the process failed.
        """
        busy = ProblemError(
            503, "too many queries of measured rows are waiting; try again", headers={"retry-after": "2"}
        )
        async with acquire_slot(self._slot, MAX_WAITING, WAIT_S, busy):
            return await run_sync(self.ask, question)

    def ask(self, question: Question) -> bytes:
        """The JSON of the answer, from any thread.

        Raises:
            ProblemError: 422, the question is refused; 500 or 503, the process failed, and the next question gets a new one.
        """
        raw = msgspec.json.encode(question)
        frame = HEAD.pack(0, len(raw)) + raw
        with self._lock:
            try:
                head, reply = self._ask(frame)
            except ChildLostError as lost:
                has_status = isinstance(lost, ChildEndedError) and lost.code is not None and lost.code >= 0
                hint = "; the server's log says why" if has_status else ""
                raise child_failure(503, f"the process that reads measured rows {lost}{hint}; try again") from None
        if head[0] == 200:
            return reply
        refused = _REFUSALS.decode(reply)
        raise invalid_field(refused.field, refused.detail) if head[0] == 422 else child_failure(head[0], refused.detail)

    def _ask(self, frame: bytes) -> tuple[tuple[int, ...], bytes]:
        try:
            return self.child.ask(frame, self._deadline_s)
        except ChildEndedError:
            if self._closing:
                raise
            # Idle for long, or killed by the system for its memory: questions change nothing, so it is asked once more.
            return self.child.ask(frame, self._deadline_s)

    def close(self) -> None:
        """End the process, if there is one, even while it works on a question; the next question starts another."""
        self._closing = True
        # Without waiting for the question: a service that ends has no time for one that takes long.
        self.child.kill()
        with self._lock:
            self.child.close()
            self._closing = False


def child_failure(status: int, detail: str) -> ProblemError:
    """The problem of a question that the process could not answer."""
    return ProblemError(status, detail, headers={"retry-after": "2"} if status == 503 else {})


def sets_endpoint(rows: MeasuredRows) -> Endpoint:
    """What answers `/v1/measurements/sets`."""

    def question(request: Request) -> Question:
        parameters(request.scope["query_string"], ())
        return SetsQuestion()

    return _endpoint(rows, question)


def rows_endpoint(rows: MeasuredRows, devices: Catalogue) -> Endpoint:
    """What answers `/v1/measurements`; devices may be given by the catalogue's aliases."""
    return _endpoint(rows, lambda request: read_rows_question(request.scope["query_string"], devices))


def _endpoint(rows: MeasuredRows, question: Callable[[Request], Question]) -> Endpoint:
    async def answer(request: Request) -> Response:
        return Response(await rows.answer(question(request)), media_type="application/json")

    return answer


def like_endpoint(rows: MeasuredRows, devices: Catalogue, has_dim: bool) -> Endpoint:
    """What answers `/v1/measurements/like`, or without a dimension `/v1/measurements/nearest`."""

    async def answer(request: Request) -> Response:
        headers = dict(request.scope["headers"])
        body = await read_json_body(
            headers, request.receive, MAX_BODY_B, "a question is one spec and a few device names"
        )
        return Response(await rows.answer(read_like_question(body, devices, has_dim)), media_type="application/json")

    return answer
