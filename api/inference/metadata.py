"""The protocol's addresses that say what is served and whether it answers: server, health, models, and their index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ..bodies import json_response, read_body
from ..problems import FieldProblem
from ..requests import invalid, kind_of, read_object, shown_name
from ..source import PredictorSource, loaded_of
from .models import model_metadata, model_named, served

EXTENSIONS = ("binary_tensor_data", "parameters")
"""Extensions of the protocol spoken here; of the model repository there is the index alone, as nothing is loaded by request."""

_MAX_INDEX_B = 4096

Answer = Callable[[Request], Awaitable[Response]]


def server_metadata(_: PredictorSource) -> Answer:
    """`GET /v2`."""
    return _always({"name": "kernelcast", "version": __version__, "extensions": list(EXTENSIONS)})


def server_live(_: PredictorSource) -> Answer:
    """`GET /v2/health/live`: 200 while the process answers."""
    return _always({"live": True})


def server_ready(source: PredictorSource) -> Answer:
    """`GET /v2/health/ready`: 200 once a model is loaded, 503 before."""

    async def answer(_: Request) -> Response:
        loaded_of(source)
        return json_response({"ready": True})

    return answer


def model_ready(source: PredictorSource) -> Answer:
    """`GET /v2/models/{name}[/versions/{version}]/ready`: 200, or 404 for a model or version that is not served."""

    async def answer(request: Request) -> Response:
        loaded = loaded_of(source)
        family = model_named(loaded, *_address(request.path_params))
        return json_response({"name": family.name, "ready": True})

    return answer


def model(source: PredictorSource) -> Answer:
    """`GET /v2/models/{name}[/versions/{version}]`: the tensors a model takes and gives."""

    async def answer(request: Request) -> Response:
        loaded = loaded_of(source)
        return json_response(model_metadata(loaded, model_named(loaded, *_address(request.path_params))))

    return answer


def repository_index(source: PredictorSource) -> Answer:
    """`POST /v2/repository/index`: every model; all are ready, or there would be none."""

    async def answer(request: Request) -> Response:
        body = await read_body(dict(request.scope["headers"]), request.receive, _MAX_INDEX_B, "send {} or nothing")
        _check_index_request(body)
        loaded = loaded_of(source)
        index = [{"name": name, "version": loaded.version, "state": "READY", "reason": ""} for name in served(loaded)]
        return json_response(index)

    return answer


def _check_index_request(body: bytes) -> None:
    """All models are ready: `{"ready": true}` asks for the same as nothing."""
    asked = read_object(body) if body.strip() else {}
    if unknown := [name for name in asked if name != "ready"]:
        raise invalid([FieldProblem(shown_name(unknown[0]), "unknown field; an index request takes ready")])
    if not isinstance(asked.get("ready", False), bool):
        raise invalid([FieldProblem("ready", f"must be true or false, not {kind_of(asked['ready'])}")])


def _address(path: Mapping[str, str]) -> tuple[str, str | None]:
    return path["name"], path.get("version")


def _always(answer: Mapping[str, Any]) -> Answer:
    body = msgspec.json.encode(answer)

    async def fixed(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return fixed
