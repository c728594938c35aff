"""Questions are checked where they are made."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.estimate import formats_of
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.serving.batching.load import Load
from kernelcast.workloads.serving.request import ServingRequest, engine_named, replicas_of, scheduler_of

FACTS = model_facts("llama-3.1-8b")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"size": 0}, "concurrency"), ({"size": float("nan")}, "concurrency"), ({"input_tokens": 0}, "input_tokens"),
        ({"output_tokens": float("inf")}, "output_tokens"), ({"spread": 1.0}, "spread"), ({"cached": -0.1}, "cached"),
        ({"rounds": 0.5}, "rounds"), ({"requests": 0}, "requests"), ({"kind": "open", "size": -1}, "rate"),
        ({"kind": "static", "size": 0.5}, "batch"), ({"size": 2.5}, "concurrency"), ({"kind": "static", "size": 2.5}, "batch"),
        ({"requests": 2.5}, "requests"), ({"seed": -1}, "seed"), ({"seed": 0.5}, "seed"),
    ],
)  # fmt: skip
def test_a_load_says_what_is_wrong(values: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Load(**({"kind": "closed", "size": 8, "input_tokens": 100, "output_tokens": 10} | values))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_question_beyond_the_model_is_refused() -> None:
    long = Load("closed", 1, 200_000, 10)
    with pytest.raises(SpecError, match="131072") as refused:
        ServingRequest(FACTS, "h100-sxm", long, formats_of(FACTS))
    assert refused.value.field == "input_tokens"


def test_lengths_that_may_be_drawn_beyond_the_model_are_refused() -> None:
    load = Load("closed", 1, 100_000, 20_000, requests=3, spread=0.9)
    with pytest.raises(SpecError, match=r"228000 tokens, the longest that spread 0.9 draws") as refused:
        ServingRequest(FACTS, "h100-sxm", load, formats_of(FACTS))
    assert refused.value.field == "spread"
    ServingRequest(FACTS, "h100-sxm", Load("closed", 1, 100_000, 20_000, spread=0.05), formats_of(FACTS))


def test_a_rate_of_too_few_digits_is_refused() -> None:
    with pytest.raises(SpecError, match="at least 1e-06 requests per second") as refused:
        ServingRequest(FACTS, "h100-sxm", Load("open", 1e-12, 100, 10), formats_of(FACTS))
    assert refused.value.field == "rate"


def test_a_model_that_writes_nothing_is_refused() -> None:
    facts = model_facts("bert-base")
    with pytest.raises(SpecError, match="generates no text"):
        ServingRequest(facts, "h100-sxm", Load("static", 1, 10, 10), formats_of(facts))


def test_engines_by_any_name() -> None:
    assert engine_named("TensorRT-LLM") == "trtllm"
    with pytest.raises(SpecError, match="no engine 'sambaflow'"):
        engine_named("sambaflow")


def test_old_releases_schedule_prompts_first() -> None:
    assert not scheduler_of("vllm", "0.6.1").mixes
    assert scheduler_of("vllm", "0.11.2").mixes
    assert scheduler_of("vllm", None).mixes


def test_devices_are_a_multiple_of_the_plan() -> None:
    assert replicas_of(ParallelPlan(tp=2), 8) == 4
    with pytest.raises(SpecError, match="no multiple of the 4") as refused:
        replicas_of(ParallelPlan(tp=4), 6)
    assert refused.value.field == "gpus"


def test_a_trace_is_a_load_of_its_mean_rate_and_lengths() -> None:
    load = Load.of_trace([10.0, 12.0, 11.0], [100, 300, 200], [10, 30, 20])
    assert load.trace == ((0.0, 100, 10), (1.0, 200, 20), (2.0, 300, 30))
    assert (load.kind, load.size, load.input_tokens, load.output_tokens, load.requests) == ("open", 1.0, 200, 20, 3)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([0.0], [1], [1]), "between 2 and"),
        (([0.0, None], [1, 1], [1, 1]), "request 2 of the trace: arrival_s"),
        (([0.0, 1.0], [1, 1.5], [1, 1]), "input must be a whole number"),
        (([0.0, 1.0], [1, 1], [0, 1]), "request 1 of the trace: output"),
        (([3.0, 3.0], [1, 1], [1, 1]), "arrive at once"),
    ],
)
def test_a_trace_says_what_is_wrong(columns: tuple[list[Any], list[Any], list[Any]], words: str) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        Load.of_trace(*columns)
    assert refused.value.field == "trace"


def test_a_request_of_a_trace_beyond_the_model_is_refused() -> None:
    facts = model_facts("llama-2-7b")
    with pytest.raises(SpecError, match="5000 tokens are longer"):
        ServingRequest(facts, "h100-sxm", Load.of_trace([0.0, 1.0], [10, 4000], [10, 1000]), formats_of(facts))
