"""GET /v1/model-card: the card of the model that is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .accuracy_wire import model_hash
from .card_text import model_card
from .manifest import manifest_of
from .openapi_parts import Refusal, responses
from .problems import ProblemError
from .query import parameters
from .source import Loaded, PredictorSource, loaded_of

PATH = "/v1/model-card"
CARD_FILE = "model-card.md"
"""A card that whoever made the model put into its directory, which is replaced as a whole when the model is."""

_LONGEST_B = 256 << 10
_MEDIA_TYPE = "text/markdown; charset=utf-8"


def card_endpoint(source: PredictorSource) -> Callable[[Request], Response]:
    """What answers `/v1/model-card`."""

    def card(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        return Response(card_of(loaded_of(source)), media_type=_MEDIA_TYPE)

    return card


def card_of(loaded: Loaded) -> str:
    """The card in the model's directory, else one written from its manifest.

    Raises:
        ProblemError: 404, the predictor has neither; 500, the card in the directory cannot be used.
    """
    if loaded.path is not None and (own := _own_card(loaded.path)) is not None:
        return own
    manifest = manifest_of(loaded)
    if manifest is None:
        raise ProblemError(404, "the served predictor has no card and no manifest to write one from")
    return model_card(loaded.name, manifest, model_hash(manifest))


def _own_card(directory: Path) -> str | None:
    try:
        with (directory / CARD_FILE).open("rb") as file:
            raw = file.read(_LONGEST_B + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProblemError(500, f"{CARD_FILE} beside the model cannot be read: {error.strerror}") from error
    if len(raw) > _LONGEST_B:
        raise ProblemError(500, f"{CARD_FILE} beside the model is longer than {_LONGEST_B} bytes; shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(500, f"{CARD_FILE} beside the model is not UTF-8; save it as such") from error


def card_operation(refusal: Refusal) -> dict[str, Any]:
    """The route as the OpenAPI document describes it."""
    content = {"text/markdown": {"schema": {"type": "string"}, "example": "# Model pretrained\n"}}
    return {
        "summary": "The card of the served model: what it was trained on, what it is off by, where it answers",
        "operationId": "get_model_card",
        "responses": responses(content, refusal, (404, 422, 500, 503)),
    }
