"""Problems as clients of the protocol read them: they show the member `error`, which RFC 9457 leaves room for."""

from __future__ import annotations

import msgspec

_ROOT = "/v2"


def is_inference(path: str) -> bool:
    """Whether a request's path is one of the protocol's."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def with_error(problem: bytes) -> bytes:
    """The JSON of a problem with its detail repeated as `error`, the protocol's one member of an error."""
    members = msgspec.json.decode(problem)
    return msgspec.json.encode({**members, "error": members["detail"]})
