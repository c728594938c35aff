"""POST /v1/llm/predict, /v1/llm/plan and /v1/llm/fleet: what a service of a language model takes, and what serves one best."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from ...client.llm_answers import ServingPredictions
from ...features.batch.cases import Floats
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.spec_io.reading import MAX_TEXT, kind_of, shown_name
from ...models.predict.carbon import ELECTRICITY_FIELDS, Electricity, read_electricity
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.answers import fleet_answer, plans_answer, serving_answer
from ...workloads.architectures.config.catalogue import model_facts
from ...workloads.architectures.facts import ModelFacts
from ...workloads.serving.batching.load import MAX_REQUESTS
from ...workloads.serving.planning.fleet import SIZE_FIELDS, Bucket, buckets_of, mean_sizes, plan_fleet
from ...workloads.serving.planning.mixed_pipeline import pairs
from ...workloads.serving.planning.planner import plan_service
from ...workloads.serving.planning.question import MAX_CHOICES, PlanQuestion, plan_question
from ...workloads.serving.planning.space import Refusals, settings
from ...workloads.serving.predict import ServingPredictor
from ...workloads.serving.replicas import simulated_requests
from ...workloads.serving.request import ServingRequest, scheduler_of, serving_request
from ...workloads.units import MAX_PRICE
from ..model_source import LoadedModel
from ..transport.bodies import MAX_NUMBER, is_number, read_object, refuse_duplicate_names
from ..transport.problems import ProblemError, invalid_field, naming_field
from .model import facts_of_request
from .thread_endpoint import Call

_log = logging.getLogger("kernelcast.api")
MAX_PASSES = 100_000
"""Most requests simulated times the steps that each prompt takes: about a second's work."""
MAX_LIST_PASSES = 500_000
"""The same of all loads of a request together."""
MAX_SETTINGS = 300
"""Most devices, splits, formats and engines together that a request plans with, twice as many of models with experts: some
20 ms of processor time each the first time, six seconds in all."""

MAX_LOADS = 16
"""Most numbers of requests under way in one request."""
NUMBER, WHOLE = f"a number of at most {MAX_NUMBER:g}", f"a whole number between 0 and {MAX_REQUESTS}"
NUMBERS = f"{NUMBER}, or a list of one to {MAX_LOADS} of them"
TEXT, TEXTS = f"text of at most {MAX_TEXT} characters", f"a list of one to {MAX_CHOICES} texts"
_LOAD = {"input_tokens": NUMBER, "output_tokens": NUMBER, "concurrency": NUMBER, "rate": NUMBER, "cached": NUMBER}
_FORMATS = {"dtype": TEXT, "kv_dtype": TEXT}
PREDICT_FIELDS: Mapping[str, str] = {
    **_LOAD, **_FORMATS, "device": TEXT, "gpus": WHOLE, "batch": NUMBER, "rounds": NUMBER, "requests": WHOLE, "spread": NUMBER,
    "seed": WHOLE, "engine": TEXT, "engine_version": TEXT, "chunk": WHOLE, "max_sequences": WHOLE, "weights": TEXT,
    "concurrency": NUMBERS, "price_per_hour": NUMBER, "speculate": WHOLE, "acceptance": NUMBER, "draft": TEXT,
    "host_experts": NUMBER, "power_limit_w": NUMBER, "clock_hz": NUMBER, "prefill_workers": WHOLE, "prefill_tp": WHOLE,
}  # fmt: skip
"""Fields of a prediction beside the model and `plan`, and what each is."""
PLAN_FIELDS: Mapping[str, str] = {
    **_LOAD, **_FORMATS, "devices": TEXTS, "gpus": WHOLE, "ttft_s": NUMBER, "tpot_s": NUMBER, "engines": TEXTS,
    "weights": TEXTS, "power_budget_w": NUMBER, "speculate": WHOLE, "acceptance": NUMBER, "draft": TEXT,
    "host_experts": NUMBER, "power_limit_w": NUMBER, "clock_hz": NUMBER, "percentile": WHOLE,
}  # fmt: skip
"""Fields of a plan beside the model and `price_per_hour`."""
FLEET_FIELDS: Mapping[str, str] = {
    name: kind for name, kind in PLAN_FIELDS.items()
    if name not in ("input_tokens", "output_tokens", "concurrency", "cached", "percentile")
}  # fmt: skip
"""Fields of a fleet beside these and `sizes`."""
MAX_FLEET_SIZES = 10_000
"""Most sizes of requests in a body."""
SPLIT = ("tp", "pp", "ep", "dp")
SOURCES = ("model", "config")
_WANTED = (
    '{"model": "meta-llama/Llama-3.1-8B", "device": …, "input_tokens": 1024, "output_tokens": 256, "concurrency": 32}'
)
_PLAN_WANTED = (
    '{"model": "meta-llama/Llama-3.1-8B", "devices": […], "gpus": 8, "input_tokens": 1024, "output_tokens": 256}'
)
_FLEET_WANTED = (
    '{"model": "meta-llama/Llama-3.1-8B", "devices": […], "gpus": 16, "rate": 20, "sizes": [{"input_tokens": 1024, '
    '"output_tokens": 256, "weight": 1}]}'
)
_PATHS: Mapping[str, str] = {
    **{name: f"plan.{name}" for name in SPLIT}, "load": "concurrency", "prices": "price_per_hour",
    "memory": "gpus",
}  # fmt: skip
"""Fields of a request by those that errors name."""
_OF_LISTS = {**_PATHS, "device": "devices", "engine": "engines"}
"""The same where a request lists what may be chosen."""
_T = TypeVar("_T")


FIRST_QUESTIONS: tuple[Mapping[str, Any], ...] = tuple(
    {
        "model": "meta-llama/Llama-3.1-70B", "device": device, "plan": {"tp": tp}, "gpus": tp, "weights": "fp8",
        "engine": "vllm", "input_tokens": 1024, "output_tokens": 1024, "concurrency": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    }
    for device in ("nvidia-h100-sxm-80gb", "nvidia-b200-sxm-180gb") for tp in (2, 4)
)  # fmt: skip
"""What the page asks when it is opened: the first of the presets in `page/static/views/llm.js`."""

MOST_KEPT = 1000
"""Settings whose steps are kept for later requests, some 20 kB each; then the server starts afresh."""


class LlmAnswers:
    """Answers of the three routes, which share steps that are known already."""

    def __init__(self) -> None:
        self._current: tuple[LoadedModel, ServingPredictor] | None = None
        self._warm: LoadedModel | None = None
        self._has_readers = False

    def warm_up(self, loaded: LoadedModel | None) -> None:
        """Answer the `FIRST_QUESTIONS`, once for each model: a second of processor time that no reader then waits for.

        Where one asks meanwhile, the rest is left to what is asked.
        """
        if loaded is None or loaded is self._warm or loaded.path is None:
            return
        self._warm = loaded
        try:
            for question in FIRST_QUESTIONS:
                for request in read_prediction(msgspec.json.encode(question), loaded.catalogue).requests:
                    if self._has_readers:
                        return
                    self._service(loaded).predict(request)
        except (ProblemError, SpecError) as error:
            _log.info("services of language models were not warmed up: %s", error)

    def predict(self, call: Call, body: bytes) -> bytes:
        """The JSON answer to a JSON request of `/v1/llm/predict`.

        Raises:
            ProblemError: the request is not acceptable.
        """
        self._has_readers = True
        question = read_prediction(body, call.loaded.catalogue)
        service = self._service(call.loaded)
        services = naming_field(lambda: [service.predict(request) for request in question.requests], paths=_PATHS)
        price, electricity = question.price_per_hour, question.electricity
        answers = [serving_answer(answer, price, electricity) for answer in services]
        return msgspec.json.encode(ServingPredictions(answers) if question.is_list else answers[0])

    def plan(self, call: Call, body: bytes) -> bytes:
        """The JSON answer to a JSON request of `/v1/llm/plan`.

        Raises:
            ProblemError: the request is not acceptable.
        """
        question, electricity = read_plan(body, call.loaded.catalogue)
        answer = naming_field(lambda: plan_service(self._service(call.loaded), question), paths=_PATHS)
        return msgspec.json.encode(plans_answer(answer, electricity))

    def fleet(self, call: Call, body: bytes) -> bytes:
        """The JSON answer to a JSON request of `/v1/llm/fleet`.

        Raises:
            ProblemError: the request is not acceptable, or scipy, which solves the integer program, is not installed.
        """
        if find_spec("scipy") is None:
            missing = "a fleet needs scipy, which is not installed where this service runs"
            raise ProblemError(503, f"{missing}; install the extra `llm` there: kernelcast[llm]")
        question, buckets = read_fleet(body, call.loaded.catalogue)
        answer = naming_field(lambda: plan_fleet(self._service(call.loaded), question, buckets), paths=_PATHS)
        return msgspec.json.encode(fleet_answer(question, answer))

    def _service(self, loaded: LoadedModel) -> ServingPredictor:
        """The predictor of services on the model that is loaded now."""
        current = self._current
        if current is None or current[0] is not loaded or current[1].known > MOST_KEPT:
            # A request that still works with the one before keeps it.
            current = self._current = (loaded, ServingPredictor(cast("ArtifactPredictor", loaded.predictor)))
        return current[1]


@dataclass(frozen=True, slots=True)
class PredictQuestion:
    """A checked request of `/v1/llm/predict`.

    Attributes:
        requests: The services, which differ in the requests under way only.
        is_list: Whether the requests under way were given as a list, so that the answer is one too.
        price_per_hour: Price of one device for an hour; None where none is given.
        electricity: Where electricity is from, and what it costs; None: nobody asks.
    """

    requests: list[ServingRequest]
    is_list: bool
    price_per_hour: float | None
    electricity: Electricity | None


def read_prediction(body: bytes, catalogue: Catalogue) -> PredictQuestion:
    """The services that a JSON body asks about.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for one that takes too long to simulate, 422 naming what is wrong.
    """
    others, needed = ("plan", *ELECTRICITY_FIELDS), ("device", "input_tokens", "output_tokens")
    root, values = _read(body, _WANTED, PREDICT_FIELDS, others, needed)
    price = values.pop("price_per_hour", None)
    if price is not None and not 0 <= price <= MAX_PRICE:
        raise invalid_field("price_per_hour", f"must be a price between 0 and {MAX_PRICE:g}, got {price:g}")
    split = root.get("plan") or {}
    if not isinstance(split, dict):
        raise invalid_field("plan", f"must be an object of {listed(SPLIT)}, not {kind_of(split)}")
    if unknown := [name for name in split if name not in SPLIT]:
        raise invalid_field(f"plan.{shown_name(unknown[0])}", f"unknown field; a plan has {listed(SPLIT)}")
    facts = _facts(root)
    sizes = values.pop("concurrency", None)
    is_list = isinstance(sizes, list)
    draft = _draft(values)

    def checked() -> list[ServingRequest]:
        device = catalogue.get(values.pop("device")).name
        each = sizes if is_list else [sizes]
        return [serving_request(facts, device, draft=draft, **split, concurrency=size, **values) for size in each]

    requests = naming_field(checked, paths=_PATHS)
    chunk = requests[0].chunk or scheduler_of(requests[0].engine, requests[0].engine_version).chunk
    of_each = 1 + math.ceil(requests[0].load.input_tokens / chunk)
    passes = [
        of_each
        * simulated_requests(request.load, request.replicas)
        * (request.workers if request.prefill_workers else 1)
        for request in requests
    ]
    for count, most, what in (
        (max(passes), MAX_PASSES, "`requests`"),
        (sum(passes), MAX_LIST_PASSES, "`requests` or a shorter list of `concurrency`"),
    ):
        if count > most:
            wanted = f"{count:,.0f} steps with prompts are too many for one answer"
            raise ProblemError(413, f"{wanted}; at most {most:,} are simulated, give fewer {what}")
    return PredictQuestion(requests, is_list, price, _electricity(root))


def _electricity(root: Mapping[str, Any]) -> Electricity | None:
    return naming_field(lambda: read_electricity(*map(root.get, ELECTRICITY_FIELDS)))


def read_plan(body: bytes, catalogue: Catalogue) -> tuple[PlanQuestion, Electricity | None]:
    """The question to a planner in a JSON body, and where electricity is from and what it costs.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for more than `MAX_SETTINGS`, 422 naming what is wrong.
    """
    others, needed = ("price_per_hour", *ELECTRICITY_FIELDS), ("devices", "input_tokens", "output_tokens")
    root, values = _read(body, _PLAN_WANTED, PLAN_FIELDS, others, needed)
    return _plan_question(root, values, catalogue), _electricity(root)


def read_fleet(body: bytes, catalogue: Catalogue) -> tuple[PlanQuestion, tuple[Bucket, ...]]:
    """The question in a JSON body, whose lengths are the means, and its sizes of requests in buckets.

    Raises:
        ProblemError: as of `read_plan`; each setting is planned with for two sizes.
    """
    needed = ("devices", "rate")
    root, values = _read(body, _FLEET_WANTED, FLEET_FIELDS, ("price_per_hour", "sizes"), needed)
    buckets = naming_field(lambda: buckets_of(*_sizes(body, root)), paths=_PATHS)
    inputs, outputs = mean_sizes(buckets)
    return _plan_question(
        root, values | {"input_tokens": inputs, "output_tokens": outputs}, catalogue, is_fleet=True
    ), buckets


def _sizes(body: bytes, root: dict[str, Any]) -> list[Floats]:
    """Columns of `SIZE_FIELDS`."""
    sizes = root.get("sizes")
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= MAX_FLEET_SIZES:
        got = f"{len(sizes):,}" if isinstance(sizes, list) else kind_of(sizes)
        raise invalid_field("sizes", f"must be a list of one to {MAX_FLEET_SIZES:,} sizes of requests, got {got}")
    columns = []
    for place, size in enumerate(sizes):
        if not isinstance(size, dict):
            raise invalid_field(f"sizes[{place}]", f"must be an object of {listed(SIZE_FIELDS)}, not {kind_of(size)}")
        if unknown := [name for name in size if name not in SIZE_FIELDS]:
            raise invalid_field(
                f"sizes[{place}].{shown_name(unknown[0])}", f"unknown field; possible are {listed(SIZE_FIELDS)}"
            )
        row = [size.get("input_tokens"), size.get("output_tokens"), size.get("weight", 1)]
        for name, value in zip(SIZE_FIELDS, row, strict=True):
            if not is_number(value):
                raise invalid_field(f"sizes[{place}].{name}", f"must be {NUMBER}, not {kind_of(value)}")
        columns.append(row)
    refuse_duplicate_names(body, root, sizes)
    return list(np.array(columns, dtype=np.float64).T)


def _draft(values: dict[str, Any]) -> ModelFacts | None:
    """The model that guesses, taken out of a request's fields."""
    name = values.pop("draft", None)
    # The name alone: `facts_of` would read files.
    return None if name is None else naming_field(lambda: model_facts(name), paths={"model": "draft"})


def _plan_question(
    root: Mapping[str, Any], values: dict[str, Any], catalogue: Catalogue, is_fleet: bool = False
) -> PlanQuestion:
    """A question to a planner; a fleet sweeps each setting for two sizes of requests."""
    prices = root.get("price_per_hour")
    if prices is not None and not isinstance(prices, dict):
        raise invalid_field("price_per_hour", f"must be an object of prices by device, not {kind_of(prices)}")
    facts, draft = _facts(root), _draft(values)

    def checked() -> PlanQuestion:
        return plan_question(facts, values.pop("devices"), catalogue, prices=prices, draft=draft, **values)

    question = naming_field(checked, paths=_OF_LISTS)
    count = (1 + is_fleet) * naming_field(
        lambda: sum(1 for _ in settings(question, catalogue, Refusals())), paths=_PATHS
    )
    if not is_fleet:
        # A pipeline has steps of two kinds.
        count += 2 * naming_field(lambda: sum(1 for _ in pairs(catalogue, question)), paths=_PATHS)
    if facts.expert_layers:
        # Steps with experts take twice as long to estimate.
        count *= 2
    if count > MAX_SETTINGS:
        wanted = f"{count} devices, splits, formats and engines together in one request"
        raise ProblemError(413, f"{wanted}; at most {MAX_SETTINGS} are compared, ask for fewer of them")
    return question


def _read(
    body: bytes, wanted: str, fields: Mapping[str, str], others: tuple[str, ...], needed: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object of a body, and its plain fields that are no null, each of the kind that it should be."""
    root = read_object(body, wanted)
    known = (*SOURCES, *others, *fields)
    if unknown := [name for name in root if name not in known]:
        raise invalid_field(shown_name(unknown[0]), f"unknown field; possible are {listed(known)}")
    inner = [root[name] for name in ("config", *others) if isinstance(root.get(name), dict)]
    refuse_duplicate_names(body, root, [root, *inner])
    values = {name: root[name] for name in fields if root.get(name) is not None}
    for name, value in values.items():
        if not _CHECKS[fields[name]](value):
            wrong = _first_wrong(value) if fields[name] is NUMBERS else value
            shown = shown_name(wrong) if type(wrong) in (int, float) else kind_of(wrong)
            raise invalid_field(name, f"must be {fields[name]}, not {shown}")
    if missing := [name for name in needed if name not in values]:
        raise invalid_field(missing[0], f"is missing: {wanted}")
    return root, values


def _first_wrong(value: Any) -> Any:
    """Of a list, the first that is no number; else the value itself."""
    return next((item for item in value if not is_number(item)), value) if isinstance(value, list) else value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    NUMBER: is_number,
    NUMBERS: lambda value: (
        1 <= len(value) <= MAX_LOADS and all(map(is_number, value)) if isinstance(value, list) else is_number(value)
    ),
    WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REQUESTS,
    TEXT: _is_text,
    TEXTS: lambda value: isinstance(value, list) and 1 <= len(value) <= MAX_CHOICES and all(map(_is_text, value)),
}


def _facts(root: Mapping[str, Any]) -> ModelFacts:
    if len(sources := [name for name in SOURCES if root.get(name) is not None]) != 1:
        got = f", got {listed(sources)}" if sources else ""
        raise invalid_field("model", f"give one of {listed(SOURCES)}{got}")
    return facts_of_request(root)
