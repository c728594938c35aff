"""Questions in the rows of a table, and their answers as columns; labels are not read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...features.errors import SpecError
from ...models.predict.power_law import read_setting
from ...models.predict.prediction import Interval
from ..architectures.config.catalogue import FACTS, model_facts, row_facts
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats
from .engine.profile import has_number
from .predict import ServingPrediction, ServingPredictor
from .request import Load, ServingRequest, engine_named, scheduler_of
from .speculation import Speculation, speculation_of

Row = Mapping[str, Any]

COLUMNS = (
    "model", "device", "num_gpus", "tp", "pp", "ep", "dp", "engine", "engine_version", "precision", "weight_dtype", "kv_dtype",
    "isl", "osl", "concurrency", "batch", "request_rate", "num_requests", "load", "task", "mode", "note", "prefill_workers",
    "decode_workers", "decode_tp", "decode_ep", "decode_dp", "spec_tokens", "spec_acceptance", "draft_model", "power_limit_w",
    "clock_hz", *FACTS,
)  # fmt: skip
"""The columns that are read; all but `model`, `device` and a load may be missing."""
TEXTS = frozenset({
    "model", "device", "engine", "engine_version", "precision", "weight_dtype", "kv_dtype", "load", "task", "mode", "note",
    "draft_model",
})  # fmt: skip
"""Those of them that are texts."""
TARGETS = (
    ("ttft", "s"), ("tpot", "s"), ("itl_p50", "s"), ("throughput", "tok_s"), ("total", "tok_s"), ("power", "w"),
    ("energy_per_token", "j"),
)  # fmt: skip
"""Words and units of the columns that are added: `pred_ttft_s`, `pred_ttft_lo_s`, `pred_ttft_hi_s` and so on."""

USUAL_INPUT, USUAL_OUTPUT = 161, 338
"""Mean tokens of prompts and answers of ShareGPT's conversations, where a row gives none (Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", SOSP 2023, figure 11)."""


@dataclass(frozen=True, slots=True)
class Client:
    """What a benchmark's client is known to send.

    Attributes:
        rounds: Requests per request under way in a closed loop.
        shortest: Shortest length as a share of the longest, which the table gives; 1: all are alike.
        cached: Share of prompts that the prefix cache already has.
        devices: What its names of devices stand for, where a name alone would be read as another.
        version: Version of the engine where a row does not give one; empty: the newest.
        apart: Whether requests reach the engine one after another even where several are sent at once: a step that mixes has
            one prompt.
        events: Events per token of an answer by which it divides times: 2 where it counts an empty one beside every token.
        name: Of its services in `service_profiles.yaml`; empty: those of any client.
    """

    rounds: float = 10.0
    shortest: float = 1.0
    cached: float = 0.0
    devices: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    apart: bool = False
    events: float = 1.0
    name: str = ""


_ARGONNE = Client(devices={"nvidia-a100-sxm": "nvidia-a100-sxm-40gb"}, version="0.5", name="llm-inference-bench")
_MLENERGY = Client(version="0.5", shortest=0.05, name="mlenergy")
_SHARED_PREFIX = Client(cached=0.9, events=2.0)
CLIENTS: Mapping[str, Client] = {
    "inferencex": Client(rounds=10, shortest=0.8),
    "nvidia-gap-analysis": Client(rounds=10, apart=True),
    **dict.fromkeys(("all_results", "power", "quant", "tp_ep_pp", "ttft_itl"), _ARGONNE),
    **dict.fromkeys(("llm_text_generation/chat", "llm_text_generation/code", "mllm_text_generation/chat"), _MLENERGY),
    **{
        f"inference-perf shared_prefix multi-turn: {name}": _SHARED_PREFIX
        for name in ("codegen", "general", "roleplay", "reasoning")
    },
}  # fmt: skip
"""Clients by the table's `task`. InferenceX: `--num-prompts` of ten times `--max-concurrency`, `--random-range-ratio 0.8` (its
`benchmark_serving` scripts). LLM-Inference-Bench's A100s are Polaris', of 40 GB; it and ML.ENERGY run engines of 2024 whose
versions the table does not give. ML.ENERGY's prompts are ShareGPT's, whose lengths vary widely. Sessions of several turns with
a shared prefix: all but the last question and answer is in the cache; their client counts two events per token, as its
end-to-end time less that to the first token is twice its time per token times its tokens. Of NVIDIA's gap analysis the time to
the first token is that of prompts computed one by one, whatever their length and the engine."""

STATIC, QUEUED = "static batch", "queued"
LOADS: Mapping[str, str] = {
    "static batch": STATIC, "one request at a time": STATIC, "saturating; server max batch set": QUEUED,
    "offline max throughput (all requests queued)": QUEUED, "offline (infinite rate)": QUEUED,
}  # fmt: skip
"""What the table's `load` says where neither a concurrency nor a rate is given."""
PIPELINES = ("parallelism: Pipeline Parallelism", "parallelism: PP")
"""What the table's `note` says of rows whose devices are stages."""

WEIGHTS: Mapping[str, str] = {
    "fp4": "nvfp4", "nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8_block", "int4": "int4", "int4_wo": "int4", "int8": "int8",
    "int8_sq": "int8", "int8_wo": "int8",
}  # fmt: skip
"""Formats of weights by the names of tables; names that are not here are those of activations."""
DTYPES: Mapping[str, str] = {"fp16": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}


def predict_rows(
    rows: Sequence[Row], service: ServingPredictor, tell: Callable[[int], None] = lambda _: None
) -> dict[str, list[Any]]:
    """The columns to add to a table of questions; `refused` says why a row has no answer."""
    names = [f"pred_{word}{end}_{unit}" for word, unit in TARGETS for end in ("", "_lo", "_hi")]
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in names}
    columns["refused"] = [""] * len(rows)
    answers: dict[ServingRequest, ServingPrediction | SpecError] = {}
    for index, row in enumerate(rows):
        tell(index)
        try:
            request = request_of(row)
            if request not in answers:
                answers[request] = _answer(service, request)
            answer = answers[request]
            if isinstance(answer, SpecError):
                raise answer
        except SpecError as error:
            columns["refused"][index] = f"{error.field}: {error}" if error.field else str(error)
            continue
        for (word, unit), value in zip(TARGETS, _values(answer), strict=True):
            if value is not None:
                for end, number in (("", value.value), ("_lo", value.lower), ("_hi", value.upper)):
                    columns[f"pred_{word}{end}_{unit}"][index] = number
    return columns


def _answer(service: ServingPredictor, request: ServingRequest) -> ServingPrediction | SpecError:
    try:
        return service.predict(request)
    except SpecError as error:
        return error


def _values(answer: ServingPrediction) -> tuple[Interval | None, ...]:
    return (
        answer.ttft_s.mean, None if answer.tpot_s is None else answer.tpot_s.mean,
        None if answer.itl_s is None else answer.itl_s.p50, answer.throughput_tok_s, answer.total_tok_s, answer.power_w,
        answer.energy_per_token_j,
    )  # fmt: skip


def request_of(row: Row) -> ServingRequest:
    """The question of a row.

    Raises:
        SpecError: it has no model, no load or no number where one belongs.
    """
    facts = row_facts(row)
    engine = engine_named(row.get("engine") or "vllm")
    client = _client(row)
    version = row.get("engine_version") or (client.version if engine == "vllm" else "") or None
    if version is not None and not has_number(version):
        version = None
    if row.get("engine") == "vllm (splitwise profiling)":
        version = "0.2"
    device = row.get("device")
    if not isinstance(device, str):
        raise SpecError("a row needs the name of a device", field="device")
    device = client.devices.get(device, device)
    plan, replicas = _plan(row)
    formats = row_formats(row, facts)
    load, sequences = _load(row)
    chunk = None
    if client.apart and scheduler_of(engine, version).mixes and load.kind == "closed":
        chunk = math.ceil(load.input_tokens + load.size)
    if facts.max_length is not None and load.longest > facts.max_length:
        # Benchmarks run lengths beyond those a model is made for; the steps are the same.
        facts = replace(facts, max_length=load.longest)
    return ServingRequest(
        facts=facts, device=device, load=load, formats=formats, plan=plan, engine=engine, engine_version=version,
        replicas=replicas, sequences=sequences, chunk=chunk, client=client.name, events=client.events,
        speculation=_speculation(row), setting=read_setting(_number(row, "power_limit_w"), _number(row, "clock_hz")),
    )  # fmt: skip


def _speculation(row: Row) -> Speculation | None:
    """How a row's service speculates; None where it gives no `spec_tokens`, or 0."""
    tokens = _number(row, "spec_tokens")
    name = row.get("draft_model")
    if not tokens and not name:
        return None
    draft = model_facts(name) if isinstance(name, str) and name else None
    return speculation_of(_whole(row, "spec_tokens", 0) if tokens else None, _number(row, "spec_acceptance"), draft)


def row_formats(row: Row, facts: ModelFacts) -> Formats:
    """Number formats of a row; what it does not say is the model's own."""
    words = [word.strip().lower() for word in str(row.get("weight_dtype") or row.get("precision") or "").split("|")]
    dtype = DTYPES.get(words[0])
    weights = WEIGHTS.get(words[0])
    kv_word = str(row.get("kv_dtype") or "").lower()
    kv = {"fp8": "fp8", "int8": "int8"}.get(kv_word)
    # Checkpoints that NVIDIA quantises say that the cache is fp8 (`kv_cache_quant_algo` in their hf_quant_config.json).
    if not kv_word and weights in ("nvfp4", "fp8"):
        kv = "fp8"
    if facts.experts is not None or facts.weights is not None:
        # A checkpoint that is quantised as it ships runs as it is, but for one quantised further.
        weights = weights if weights == "nvfp4" and facts.experts != "mxfp4" and facts.weights != "mxfp4" else None
    if weights is not None:
        return formats_of(facts, dtype=dtype, weights=weights, kv=kv)
    if dtype is not None:
        return Formats.of(dtype, weights=dtype if words[0] in DTYPES and facts.weights is None else facts.weights,
                          experts=facts.experts, kv=kv)  # fmt: skip
    return formats_of(facts, kv=kv)


def _whole(row: Row, name: str, default: int) -> int:
    value = row.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return default
    if value != int(value) or value < 0:
        raise SpecError(f"{name} must be a whole number, got {value!r}", field=name)
    return max(int(value), 1)


def _plan(row: Row) -> tuple[ParallelPlan, int]:
    """The plan of one replica, and how many replicas the devices of a row make."""
    if row.get("mode") == "disagg":
        return _decoding_plan(row)
    gpus = _whole(row, "num_gpus", 0) if row.get("num_gpus") is not None else None
    pp, dp = _whole(row, "pp", 1), _whole(row, "dp", 1)
    rest = max((gpus or 1) // (pp * dp), 1)
    if row.get("tp") is None and row.get("note") in PIPELINES and pp == 1:
        pp, rest = rest, 1
    tp = _whole(row, "tp", rest)
    if tp * dp * pp > (gpus or tp * dp * pp) and tp % dp == 0:
        tp //= dp
    plan = ParallelPlan(tp=tp, pp=pp, dp=dp, ep=_whole(row, "ep", 1))
    return plan, max((gpus or plan.devices) // plan.devices, 1)


NODE = 8
"""Devices of a node, within which a plan is put: what is sent between nodes has no law yet."""


def _decoding_plan(row: Row) -> tuple[ParallelPlan, int]:
    """The plan of the devices that decode, where others compute the prompts.

    Experts are shared out over the devices of a node, as these services do; nodes are stages.
    """
    ranks = max(_whole(row, name, 1) for name in ("decode_tp", "decode_ep", "decode_dp"))
    if row.get("decode_tp") is None and row.get("num_gpus") is not None:
        ranks = _whole(row, "num_gpus", 1)
    tp, pp = min(ranks, NODE), max(1, ranks // NODE)
    ep = tp if row.get("experts") and _whole(row, "decode_ep", 1) > 1 else 1
    return ParallelPlan(tp=tp, pp=pp, ep=ep), _whole(row, "decode_workers", 1)


def _client(row: Row) -> Client:
    return CLIENTS.get(row.get("task") or "", Client())


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else float(value)


def _load(row: Row) -> tuple[Load, int | None]:
    """The load of a row, and the most sequences that its server is set to run."""
    inputs = _number(row, "isl") or USUAL_INPUT
    outputs = _number(row, "osl") or (1 if _number(row, "isl") else USUAL_OUTPUT)
    outputs = max(outputs, 1)
    requests = None if _number(row, "num_requests") is None else _whole(row, "num_requests", 1)
    client = _client(row)
    mean = (1 + client.shortest) / 2
    spread = (1 - client.shortest) / (1 + client.shortest)
    rate, concurrency, batch = (_number(row, name) for name in ("request_rate", "concurrency", "batch"))
    if concurrency is not None:
        return Load(
            "closed", concurrency, inputs * mean, outputs * mean, client.rounds, requests, spread, client.cached
        ), None
    if rate is not None:
        return Load("open", rate, inputs, outputs, requests=requests, cached=client.cached), None
    kind = LOADS.get(row.get("load") or (STATIC if batch else ""))
    if kind == QUEUED:
        sequences = None if batch is None else int(batch)
        requests = requests or (None if sequences is None else min(max(4 * sequences, 64), 4000))
        return Load("queued", 1, inputs, outputs, requests=requests, spread=spread), sequences
    if kind == STATIC and batch is not None:
        return Load("static", batch, inputs, outputs), None
    raise SpecError(
        "a row needs a load: concurrency, request_rate or batch, or `load` that says all requests are queued",
        field="load",
    )
