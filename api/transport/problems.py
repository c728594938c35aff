"""Errors on the wire: RFC 9457 problem+json, whatever went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ...features.errors import SpecError
from ..telemetry.request_log import CURRENT_REQUEST

_T = TypeVar("_T")

MEDIA_TYPE = "application/problem+json"

MAX_LISTED = 20
"""Most single errors one answer lists; the rest would only bury the first."""


MAX_ECHO = 300
"""Longest detail sent back, so that a request cannot be echoed at full length."""


class FieldProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input that was not accepted."""

    field: Annotated[str, Meta(description="Path of the input, such as `sizes.m` or `requests[3].device`")]
    detail: Annotated[str, Meta(description="What was given, what is possible")]
    index: Annotated[int | None, Meta(description="Position of the spec in `requests`, absent for a single spec")] = (
        None
    )


class Problem(msgspec.Struct, frozen=True):
    """An error, RFC 9457."""

    type: Annotated[str, Meta(description="URN that names the kind of problem")]
    title: Annotated[str, Meta(description="The kind of problem in a few words")]
    status: Annotated[int, Meta(description="HTTP status")]
    detail: Annotated[str, Meta(description="What went wrong this time and what to do")]
    errors: Annotated[list[FieldProblem], Meta(description=f"The inputs at fault, at most {MAX_LISTED}")] = []
    request_id: Annotated[
        str | msgspec.UnsetType, Meta(description="Id of the request, also in X-Request-Id and in the log")
    ] = msgspec.UNSET


_KINDS: Mapping[int, tuple[str, str]] = {
    400: ("malformed-body", "The body cannot be read"),
    401: ("key-needed", "An API key is needed"),
    403: ("not-allowed", "This is not allowed"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "Method not allowed"),
    408: ("too-slow", "The request came too slowly"),
    413: ("too-large", "The request is too large"),
    415: ("unsupported-media-type", "Unsupported media type"),
    422: ("invalid-request", "The request was understood but cannot be predicted"),
    500: ("internal-error", "The server failed"),
    503: ("not-ready", "Not ready to answer"),
    504: ("took-too-long", "The answer took too long"),
}


class ProblemError(Exception):
    """A request that ends in a problem; `errors` names the inputs at fault, `headers` go with the answer."""

    def __init__(
        self, status: int, detail: str, errors: Sequence[FieldProblem] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})


def problem_bytes(status: int, detail: str, errors: Sequence[FieldProblem] = ()) -> bytes:
    """The JSON of a problem."""
    phrase = HTTPStatus(status).phrase
    kind, title = _KINDS.get(status, (phrase.lower().replace(" ", "-"), phrase))
    listed, request = list(errors[:MAX_LISTED]), CURRENT_REQUEST.get()
    request_id = msgspec.UNSET if request is None else request.request_id
    return msgspec.json.encode(
        Problem(f"urn:kernelcast:problem:{kind}", title, status, shortened(detail), listed, request_id)
    )


def field_problem(error: SpecError, field: str, index: int | None = None) -> FieldProblem:
    """A spec error as the problem of one field."""
    return FieldProblem(field, shortened(str(error)), index)


def naming_field(work: Callable[[], _T], field: str = "", paths: Mapping[str, str] = {}) -> _T:
    """The result of the work; what is wrong with its input is a problem of the field the error names.

    Args:
        work: what is done.
        field: the field where the error names none.
        paths: fields of the request by those that errors name, where these have other names.

    Raises:
        ProblemError: 422 with the error's words.
    """
    try:
        return work()
    except SpecError as error:
        raise invalid([field_problem(error, paths.get(error.field or "", error.field or field))]) from error


def invalid_field(field: str, detail: str) -> ProblemError:
    """The problem of one field."""
    return invalid([FieldProblem(field, detail)])


def shortened(text: str) -> str:
    """The text, cut in the middle where it is longer than `MAX_ECHO`; lists of what is possible stay readable."""
    if len(text) <= MAX_ECHO * 8:
        return text
    return f"{text[: MAX_ECHO * 4]} … {text[-MAX_ECHO * 3 :]}"


def invalid(errors: list[FieldProblem]) -> ProblemError:
    """The problem that names every field that is wrong."""
    first = errors[0]
    more = "" if len(errors) == 1 else f" (and {len(errors) - 1} more, see errors)"
    return ProblemError(422, f"{first.field}: {first.detail}{more}" if first.field else first.detail + more, errors)


_ROOT = "/v2"


def is_inference(path: str) -> bool:
    """Whether a request's path is one of the protocol's."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def with_error(problem: bytes) -> bytes:
    """The JSON of a problem with its detail repeated as `error`, the protocol's one member of an error."""
    members = msgspec.json.decode(problem)
    return msgspec.json.encode({**members, "error": members["detail"]})
