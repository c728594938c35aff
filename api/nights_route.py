"""GET /v1/nights, /v1/nights/{id} and /nights/{id}: what the nightly machinery did, to look through."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from .nights_folder import NightError, NightsFolder
from .nights_wire import NightsAnswer
from .openapi_parts import Refusal, json_of, responses
from .problems import FieldProblem, ProblemError
from .query import parameters
from .requests import invalid

PATH = "/v1/nights"
NIGHT_PATH = "/v1/nights/{id}"
PAGE_PATH = "/nights/{id}"
MAX_LIMIT = 200
"""Most nights of one page."""
DEFAULT_LIMIT = 30
_MAX_OFFSET = 10**9

Endpoint = Callable[[Request], Awaitable[Response]]


def list_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/v1/nights`."""

    def answer(offset: int, limit: int) -> bytes:
        ids = nights.ids()
        return msgspec.json.encode(
            NightsAnswer(len(ids), offset, [nights.summary(one) for one in ids[offset : offset + limit]])
        )

    async def listed(request: Request) -> Response:
        given = parameters(request.scope["query_string"], ("offset", "limit"))
        offset = _whole(given, "offset", 0, 0, _MAX_OFFSET)
        limit = _whole(given, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        return Response(await _told(answer, offset, limit), media_type="application/json")

    return listed


def night_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/v1/nights/{id}`."""

    async def night(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        content, _ = await _told(nights.report, request.path_params["id"])
        return Response(content, media_type="application/json")

    return night


def page_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/nights/{id}`."""

    async def page(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        html, policy = await _told(_page, nights, request.path_params["id"])
        return Response(html, media_type="text/html", headers={"content-security-policy": policy})

    return page


def page_policy(html: str) -> str:
    """Content-Security-Policy of a report: its own style sheets by their hash, and nothing else whatever."""
    styles = _Styles()
    styles.feed(html)
    styles.close()
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in styles.found]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes) or "'none'"
    return f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class _Styles(HTMLParser):
    """The text of every style element, in `found`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's signature
        """Begin a style element."""
        self._inside = tag == "style"
        if self._inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser's signature
        """End it."""
        self._inside = False

    def handle_data(self, data: str) -> None:
        """Keep its text."""
        if self._inside:
            self.found[-1] += data


def _page(nights: NightsFolder, night: str) -> tuple[str, str]:
    html = nights.page(night)
    return html, page_policy(html)


async def _told(work: Callable[..., Any], *given: Any) -> Any:
    """The result of work that reads files, on a thread; what is wrong with them as a problem."""
    try:
        return await run_sync(work, *given)
    except NightError as error:
        raise ProblemError(error.status, str(error)) from error


def _whole(given: dict[str, list[str]], name: str, default: int, low: int, high: int) -> int:
    values = given.get(name, [str(default)])
    if len(values) > 1:
        raise invalid([FieldProblem(name, "is given more than once")])
    text = values[0]
    if not text.isascii() or not text.isdigit() or not low <= int(text[:20]) <= high:
        raise invalid([FieldProblem(name, f"must be a whole number between {low} and {high}, got {text[:60]!r}")])
    return int(text)


_ID = "20261122T220000Z-rack"
_EXAMPLE = {
    "id": _ID, "plan": "rack", "device": "nvidia-h200-sxm-141gb", "outcome": "kept", "began": "2026-11-22T22:00:00+00:00",
    "ended": "2026-11-22T23:10:00+00:00", "champion_before": "v12", "champion_after": "v12", "stage": "report",
    "rows": {"ok": 640, "failed": 2}, "findings": {"info": 3, "warning": 1, "needs-person": 0}, "needs_person": [],
    "champion_error": 0.061, "has_page": True, "problem": None,
}  # fmt: skip
_STAGE = {"name": "gate", "status": "done", "began": "2026-11-22T23:05:00+00:00", "seconds": 41.0,
          "said": "No challenger was better beyond doubt.", "facts": {"champion": "v12"}, "findings": []}  # fmt: skip
_REPORT = {
    "format_version": 1, "id": _ID, "plan": "rack", "device": "nvidia-h200-sxm-141gb", "outcome": "kept",
    "began": "2026-11-22T22:00:00+00:00", "ended": "2026-11-22T23:10:00+00:00", "budget_s": 4200.0, "champion_before": "v12",
    "champion_after": "v12", "stages": [_STAGE],
}  # fmt: skip


def list_operation(refusal: Refusal) -> dict[str, Any]:
    """`GET /v1/nights`."""
    whole = {"type": "integer", "minimum": 0, "maximum": _MAX_OFFSET, "default": 0}
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    return {
        "summary": "The nights of measuring and training, newest first, a page at a time",
        "operationId": "list_nights",
        "parameters": [
            _parameter("query", "offset", whole, "Nights to pass over", 0),
            _parameter("query", "limit", limit, "Nights of a page", DEFAULT_LIMIT),
        ],
        "responses": responses(
            json_of("NightsAnswer", {"total": 1, "offset": 0, "nights": [_EXAMPLE]}), refusal, (422, 500)
        ),
    }


def night_operation(refusal: Refusal) -> dict[str, Any]:
    """`GET /v1/nights/{id}`."""
    return {
        "summary": "What one night did, stage by stage",
        "operationId": "get_night",
        "parameters": [_name()],
        "responses": responses(json_of("NightReport", _REPORT), refusal, (404, 422, 500)),
    }


def page_operation(refusal: Refusal) -> dict[str, Any]:
    """`GET /nights/{id}`."""
    content = {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html><html lang=en>…</html>"}}
    return {
        "summary": "The report of one night as a page to read",
        "operationId": "get_night_page",
        "parameters": [_name()],
        "responses": responses(content, refusal, (404, 422, 500)),
    }


def _name() -> dict[str, Any]:
    return _parameter("path", "id", {"type": "string", "maxLength": 120}, "The night, as /v1/nights names it", _ID)


def _parameter(place: str, name: str, schema: dict[str, Any], what: str, example: Any) -> dict[str, Any]:
    return {
        "name": name, "in": place, "required": place == "path", "description": what, "schema": schema, "example": example,
    }  # fmt: skip
