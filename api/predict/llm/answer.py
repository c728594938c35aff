"""POST /v1/llm/predict and /v1/llm/plan: what a service of a language model gives and takes, and the best plans for one."""

from __future__ import annotations

from typing import cast

import msgspec

from ....models.predict.predictor import ArtifactPredictor
from ....workloads.serving.answers import plans_answer, serving_answer
from ....workloads.serving.planning.planner import plan_service
from ....workloads.serving.predict import ServingPredictor
from ...model_source import LoadedModel
from ..thread_endpoint import Call
from .request import naming_field, read_plan, read_prediction

MOST_KEPT = 1000
"""Settings whose steps are kept for later requests, some 20 kB each; then the server starts afresh."""


class LlmAnswers:
    """Answers of both routes, which share steps that are known already."""

    def __init__(self) -> None:
        self._kept: tuple[LoadedModel, ServingPredictor] | None = None

    def predict(self, call: Call, body: bytes) -> bytes:
        """The JSON answer to a JSON request of `/v1/llm/predict`.

        Raises:
            ProblemError: the request is not acceptable.
        """
        request, price = read_prediction(body, call.loaded.catalogue)
        answer = naming_field(lambda: self._service(call).predict(request))
        return msgspec.json.encode(serving_answer(answer, price))

    def plan(self, call: Call, body: bytes) -> bytes:
        """The JSON answer to a JSON request of `/v1/llm/plan`.

        Raises:
            ProblemError: the request is not acceptable.
        """
        question = read_plan(body, call.loaded.catalogue)
        answer = naming_field(lambda: plan_service(self._service(call), question))
        return msgspec.json.encode(plans_answer(answer))

    def _service(self, call: Call) -> ServingPredictor:
        """The predictor of services on the model that is loaded now."""
        kept = self._kept
        if kept is None or kept[0] is not call.loaded or kept[1].known > MOST_KEPT:
            # A request that still works with the one before keeps it.
            kept = self._kept = (call.loaded, ServingPredictor(cast("ArtifactPredictor", call.loaded.predictor)))
        return kept[1]
