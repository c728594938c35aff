"""Questions in the rows of a table, and their answers as columns; labels are not read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...features.errors import SpecError, listed
from ...models.predict.power_law import read_setting
from ...models.predict.prediction import Interval
from ..architectures.config.catalogue import FACTS, model_facts, row_facts
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats
from .batching.load import Load
from .engine.profile import has_number
from .predict import ServingPrediction, ServingPredictor
from .request import ServingRequest, engine_named, scheduler_of
from .speculation import Speculation, speculation_of

Row = Mapping[str, Any]

COLUMNS = (
    "model", "device", "num_gpus", "tp", "pp", "ep", "dp", "engine", "engine_version", "precision", "weight_dtype", "kv_dtype",
    "isl", "osl", "concurrency", "batch", "request_rate", "num_requests", "load", "task", "mode", "note", "decode_workers",
    "decode_tp", "decode_ep", "decode_dp", "spec_tokens", "spec_acceptance", "draft_model", "power_limit_w",
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
    "fp4": "nvfp4", "nvfp4": "nvfp4", "fp8": "fp8", "fp8_block": "fp8_block",
    **dict.fromkeys(("int8", "int8_sq", "int8_wo", "w8a8"), "int8"),
    **dict.fromkeys(("int4", "int4_wo", "int4_awq", "w4a16", "awq", "gptq"), "int4"),
}  # fmt: skip
"""Formats of weights by the names of tables."""
DTYPES: Mapping[str, str] = {
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
}
"""Formats of activations, which weights then have, too."""
SHIPPED_FORMATS = ("", "auto", "full_prec", "mxfp4")
"""Names that leave a model the format that it ships in."""
CACHES: Mapping[str, str | None] = {
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    "int8": "int8",
    **dict.fromkeys(("auto", *(name for name, dtype in DTYPES.items() if dtype != "fp32"))),
}
"""Formats of the cache by the names of tables; None: that of activations, of which those of 16 bits are as long."""
MODES = ("agg", "disagg")
"""What `mode` says: the same devices compute prompts and answers, or others do."""


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
    engine = engine_named(_text(row, "engine") or "vllm")
    client = _client(row)
    version = _text(row, "engine_version") or (client.version if engine == "vllm" else "") or None
    if version is not None and not has_number(version):
        version = None
    if _text(row, "engine") == "vllm (splitwise profiling)":
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
    return speculation_of(_whole(row, "spec_tokens", 0, 0) if tokens else None, _number(row, "spec_acceptance"), draft)


def row_formats(row: Row, facts: ModelFacts) -> Formats:
    """Number formats of a row; what it does not say is the model's own.

    Raises:
        SpecError: a name is no format.
    """
    column = "weight_dtype" if _text(row, "weight_dtype") else "precision"
    word = _text(row, column).split("|")[0].strip().lower()
    if word not in (*WEIGHTS, *DTYPES, *SHIPPED_FORMATS):
        known = listed(dict.fromkeys((*WEIGHTS, *DTYPES)))
        raise SpecError(f"{column} {word[:40]!r} is no format that is known; give one of {known}", field=column)
    kv_word = _text(row, "kv_dtype").lower()
    if word == "mxfp4" and "mxfp4" not in (facts.experts, facts.weights):
        raise SpecError(f"{facts.name} does not ship in mxfp4; give one of {listed(WEIGHTS)}", field=column)
    if kv_word and kv_word not in CACHES:
        raise SpecError(f"kv_dtype {kv_word[:40]!r} is none; give one of {listed(CACHES)}", field="kv_dtype")
    dtype, weights, kv = DTYPES.get(word), WEIGHTS.get(word), CACHES.get(kv_word)
    # Checkpoints that NVIDIA quantises say that the cache is fp8 (`kv_cache_quant_algo` in their hf_quant_config.json).
    if not kv_word and weights in ("nvfp4", "fp8"):
        kv = "fp8"
    if facts.experts is not None or facts.weights is not None:
        # A checkpoint that is quantised as it ships runs as it is, but for one quantised further.
        weights = weights if weights == "nvfp4" and facts.experts != "mxfp4" and facts.weights != "mxfp4" else None
    if weights is not None:
        return formats_of(facts, dtype=dtype, weights=weights, kv=kv)
    if dtype is not None:
        return Formats.of(
            dtype, weights=dtype if facts.weights is None else facts.weights, experts=facts.experts, kv=kv
        )
    return formats_of(facts, kv=kv)


def _text(row: Row, name: str) -> str:
    """A text, empty where the row has none.

    Raises:
        SpecError: it is none: of a version 0.10 a number says 0.1.
    """
    value = row.get(name)
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        raise SpecError(f"{name} must be text, such as '0.10', got {str(value)[:40]!r}", field=name)
    return value.strip()


def _number(row: Row, name: str) -> float | None:
    """A number, None where the row has none: empty or NaN.

    Raises:
        SpecError: it is no finite number.
    """
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if isinstance(value, bool) or math.isinf(number):
        raise SpecError(f"{name} must be a number, got {str(value)[:40]!r}", field=name)
    return None if math.isnan(number) else number


def _whole(row: Row, name: str, default: int, least: int = 1) -> int:
    value = _number(row, name)
    if value is None:
        return default
    if value != int(value) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {row.get(name)!r}", field=name)
    return int(value)


def _plan(row: Row) -> tuple[ParallelPlan, int]:
    """The plan of one replica, and how many replicas the devices of a row make."""
    mode = _text(row, "mode")
    if mode not in ("", *MODES):
        raise SpecError(f"mode is {listed(MODES)}, not {mode[:40]!r}", field="mode")
    if mode == "disagg":
        return _decoding_plan(row)
    gpus = None if _number(row, "num_gpus") is None else _whole(row, "num_gpus", 1)
    pp, dp = _whole(row, "pp", 1), _whole(row, "dp", 1)
    rest = max((gpus or 1) // (pp * dp), 1)
    if _number(row, "tp") is None and _text(row, "note") in PIPELINES and pp == 1:
        pp, rest = rest, 1
    tp = _whole(row, "tp", rest)
    if tp * dp * pp > (gpus or tp * dp * pp) and tp % dp == 0:
        tp //= dp
    plan = ParallelPlan(tp=tp, pp=pp, dp=dp, ep=_whole(row, "ep", 1))
    if gpus and gpus % plan.devices:
        fewer = gpus // plan.devices * plan.devices
        near = f"{fewer} or {fewer + plan.devices}" if fewer else str(plan.devices)
        raise SpecError(f"{plan} takes {plan.devices} devices, and num_gpus is {gpus}; give {near}", field="num_gpus")
    return plan, (gpus or plan.devices) // plan.devices


NODE = 8
"""Devices of a node, within which a plan is put: what is sent between nodes has no law yet."""


def _decoding_plan(row: Row) -> tuple[ParallelPlan, int]:
    """The plan of the devices that decode, where others compute the prompts.

    Experts are shared out over the devices of a node, as these services do; nodes are stages.
    """
    ranks = max(_whole(row, name, 1) for name in ("decode_tp", "decode_ep", "decode_dp"))
    if _number(row, "decode_tp") is None and _number(row, "num_gpus") is not None:
        ranks = _whole(row, "num_gpus", 1)
    tp, pp = min(ranks, NODE), max(1, ranks // NODE)
    ep = tp if _number(row, "experts") and _whole(row, "decode_ep", 1) > 1 else 1
    return ParallelPlan(tp=tp, pp=pp, ep=ep), _whole(row, "decode_workers", 1)


def _client(row: Row) -> Client:
    return CLIENTS.get(_text(row, "task"), Client())


def _load(row: Row) -> tuple[Load, int | None]:
    """The load of a row, and the most sequences that its server is set to run."""
    inputs, outputs = _number(row, "isl"), _number(row, "osl")
    for name, tokens in (("isl", inputs), ("osl", outputs)):
        if tokens is not None and tokens < 1:
            raise SpecError(f"{name} must be at least 1 token, got {tokens:g}", field=name)
    if outputs is None:
        outputs = USUAL_OUTPUT if inputs is None else 1
    inputs = USUAL_INPUT if inputs is None else inputs
    requests = None if _number(row, "num_requests") is None else _whole(row, "num_requests", 1)
    client = _client(row)
    mean = (1 + client.shortest) / 2
    spread = (1 - client.shortest) / (1 + client.shortest)
    # vLLM's client writes an infinite rate where all requests are sent at once, or as many as its concurrency lets.
    at_once = row.get("request_rate") == math.inf
    rate = None if at_once else _number(row, "request_rate")
    concurrency, batch = (_number(row, name) for name in ("concurrency", "batch"))
    if concurrency is not None and rate is not None:
        raise SpecError("a load is a concurrency or a request_rate, not both", field="request_rate")
    # Beside a concurrency the batch is what a server may run at most, or a mean that was measured.
    if concurrency is not None:
        return Load(
            "closed", concurrency, inputs * mean, outputs * mean, client.rounds, requests, spread, client.cached
        ), None
    if rate is not None:
        return Load("open", rate, inputs, outputs, requests=requests, cached=client.cached), None
    kind = QUEUED if at_once else LOADS.get(_text(row, "load") or (STATIC if batch else ""))
    if kind == QUEUED:
        sequences = None if batch is None else _whole(row, "batch", 1)
        requests = requests or (None if sequences is None else min(max(4 * sequences, 64), 4000))
        return Load("queued", 1, inputs, outputs, requests=requests, spread=spread), sequences
    if kind == STATIC and batch is not None:
        return Load("static", batch, inputs, outputs), None
    raise SpecError(
        "a row needs a load: concurrency, request_rate or batch, or `load` that says all requests are queued",
        field="load",
    )
