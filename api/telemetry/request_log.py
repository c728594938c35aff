"""The request that is answered, and the log: one line per event, as JSON or as text, with the id of its request.

Nothing that a client sends can end a line or begin one: control characters and all that is not ASCII are escaped. Keys,
queries and bodies are never logged.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from starlette.types import Scope

KEY_PREFIX = "kc_"
"""The first characters of every API key, so that a search for secrets in a repository or a log finds keys."""

MAX_ID = 128
"""Longest request id that is taken over from a client, characters."""

_WELL_FORMED = re.compile(rb"[A-Za-z0-9._:@=+/-]{1,%d}" % MAX_ID)
_KEY = KEY_PREFIX.encode()
_ID_B = 16


@dataclass(slots=True)
class RequestContext:
    """What is known about the request that is being answered.

    Attributes:
        request_id: Safe to print anywhere; a new random one where none is given.
        predictions: Number of predictions made for it.
        families: Number of kernel families among them.
        devices: Number of devices among them.
        body_b: Bytes of its body that have come.
        trace_id: Id of its span in hex, empty where it is not traced.
    """

    request_id: str = field(default_factory=partial(secrets.token_hex, _ID_B))
    predictions: int = 0
    families: int = 0
    devices: int = 0
    body_b: int = 0
    trace_id: str = ""


CURRENT_REQUEST: ContextVar[RequestContext | None] = ContextVar("kernelcast_request", default=None)
"""The request that the running code works for; None outside of one. Threads that work for a request see it too."""


def new_request_context(client_id: bytes) -> RequestContext:
    """A context with the client's id (header X-Request-Id) where that is well-formed, else with a new random one.

    An id is logged and sent back, so one that contains the prefix of API keys is not taken: somebody mixed the headers up.
    """
    if client_id and _WELL_FORMED.fullmatch(client_id) and _KEY not in client_id:
        return RequestContext(client_id.decode("ascii"))
    return RequestContext()


_FIELDS = "kernelcast_fields"
_MAX_PATH = 200
_MAX_METHOD = 20
_UNSAFE = re.compile(r"[^ -~]")
_access = logging.getLogger("kernelcast.access")


def install(style: str, level: str) -> None:
    """Log everything of this process to stderr, one way: `style` is one of `STYLES`, `level` a level's name.

    For a process that serves and does nothing else. Libraries are heard from `warning` on.
    """
    handler = _Stderr()
    handler.setFormatter(STYLES[style]())
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("kernelcast").setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        # Whatever uvicorn has set up for itself would say each thing a second time, in another form.
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def log_request(
    request: RequestContext, scope: Scope, method: str, route: str, status: int, seconds: float, sent_b: int
) -> None:
    """The one line of a request. The path is told only where no route is known, the key by the name it was given."""
    client, key_name = scope.get("client"), scope.get("state", {}).get("key_name")
    fields: dict[str, Any] = {
        "method": method[:_MAX_METHOD], "route": route, "status": status, "seconds": round(seconds, 6), "bytes": sent_b,
    }  # fmt: skip
    if route == "other":
        fields["path"] = scope["path"][:_MAX_PATH]
    if client:
        fields["client"] = client[0]
    if key_name:
        fields["key_name"] = key_name
    if request.predictions:
        fields["predictions"] = request.predictions
        fields["families"] = request.families
        fields["devices"] = request.devices
    _access.info("request", extra={_FIELDS: fields})


class JsonLines(logging.Formatter):
    """A JSON object per line: time, level, logger, message, request_id, trace_id, fields of its own, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line: dict[str, Any] = {
            "time": _time(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
            **_request_fields(), **_fields(record),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # ASCII alone, and not DEL either, which JSON leaves as it is: a terminal acts on the rest.
        return json.dumps(line, default=str, separators=(",", ":")).replace("\x7f", "\\u007f")


class TextLines(logging.Formatter):
    """A line for people; only a traceback takes more, and each of its lines is indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        named = " ".join(f"{name}={value}" for name, value in {**_fields(record), **_request_fields()}.items())
        line = _printable(f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()} {named}".rstrip())
        if record.exc_info:
            traceback = self.formatException(record.exc_info).split("\n")
            line = "\n    ".join([line, *map(_printable, traceback)])
        return line


STYLES: Mapping[str, Callable[[], logging.Formatter]] = {"json": JsonLines, "text": TextLines}


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stderr` is when it writes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _request_fields() -> dict[str, str]:
    request = CURRENT_REQUEST.get()
    if request is None:
        return {}
    trace = {"trace_id": request.trace_id} if request.trace_id else {}
    return {"request_id": request.request_id, **trace}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, _FIELDS, {})


def _printable(text: str) -> str:
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
