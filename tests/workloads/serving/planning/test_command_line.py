"""Command lines of engines have the plan's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats
from kernelcast.workloads.serving.planning.command_line import command_line, command_notes
from kernelcast.workloads.serving.planning.space import Setting
from kernelcast.workloads.serving.planning.sweep import Candidate
from kernelcast.workloads.serving.speculation import Speculation

QUANTISED = Formats.of("bf16", weights="fp8", kv="fp8")
EXPERTS = ParallelPlan(dp=4, ep=4)


def chosen(engine: str, plan: ParallelPlan, formats: Formats = QUANTISED, replicas: int = 2) -> Candidate:
    setting = Setting("nvidia-h100-sxm-80gb", plan, formats, engine)
    return Candidate(setting, replicas, 30, 30, 2048, 0.1, 0.01, 1000.0, 1.0, 1000.0, 1.0)


@pytest.mark.parametrize(
    ("engine", "plan", "words"),
    [
        ("vllm", ParallelPlan(tp=2, pp=2), (
            "vllm serve meta-llama/Llama-3.1-8B", "--tensor-parallel-size 2", "--pipeline-parallel-size 2", "--dtype bfloat16",
            "--quantization fp8", "--kv-cache-dtype fp8", "--max-model-len 1152", "--max-num-seqs 30",
            "--max-num-batched-tokens 2048",
        )),
        ("vllm", EXPERTS, ("--tensor-parallel-size 1", "--data-parallel-size 4", "--enable-expert-parallel", "seqs 8")),
        ("sglang", EXPERTS, (
            "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B", "--tp-size 4", "--dp-size 4",
            "--enable-dp-attention", "--ep-size 4", "--kv-cache-dtype fp8_e4m3", "--chunked-prefill-size 2048",
            "--max-running-requests 30",
        )),
        ("trtllm", ParallelPlan(tp=2), (
            "trtllm-serve meta-llama/Llama-3.1-8B", "--tp_size 2", "--max_batch_size 30", "--max_num_tokens 2048",
            "--max_seq_len 1152",
        )),
        ("trtllm", EXPERTS, ("--tp_size 4", "--ep_size 4", "--extra_llm_api_options options.yaml")),
    ],
)  # fmt: skip
def test_commands(ask: Any, engine: str, plan: ParallelPlan, words: tuple[str, ...]) -> None:
    command = command_line(ask(), chosen(engine, plan))
    for word in words:
        assert word in command


def test_what_a_command_cannot_say_is_a_note(ask: Any) -> None:
    question = ask()
    plain = chosen("vllm", ParallelPlan(tp=2), Formats.of("bf16"), replicas=1)
    assert command_notes(question, plain) == []
    assert "--quantization" not in command_line(question, plain)
    assert "2 times" in command_notes(question, replace(plain, replicas=2))[0]
    assert "quantised to fp8" in command_notes(question, chosen("trtllm", ParallelPlan(tp=2), replicas=1))[0]
    assert "quantised to int4" in command_notes(
        question, chosen("vllm", ParallelPlan(), Formats.of("bf16", weights="int4"), replicas=1)
    )[0]  # fmt: skip
    notes = " ".join(command_notes(question, chosen("trtllm", EXPERTS, replicas=1)))
    assert "enable_attention_dp: true" in notes
    assert "kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.9}" in notes


def test_the_longest_request_is_twice_the_mean_as_far_as_the_model_is_made_for(ask: Any) -> None:
    question = ask(input_tokens=100_000, output_tokens=1000)
    assert "--max-model-len 131072 " in command_line(question, chosen("vllm", ParallelPlan()))


def test_a_configuration_of_ones_own_is_served_from_its_folder(ask: Any) -> None:
    question = ask()
    own = replace(question, facts=replace(question.facts, name="mine", source="/models/mine/config.json"))
    for engine in ("vllm", "sglang", "trtllm"):
        assert " /models/mine " in command_line(own, chosen(engine, ParallelPlan(), replicas=1))
    assert "weights and the tokenizer" in " ".join(command_notes(own, chosen("vllm", ParallelPlan())))


def test_a_name_with_spaces_is_quoted(ask: Any) -> None:
    question = ask()
    odd = replace(question, facts=replace(question.facts, name="my model; rm"))
    assert "vllm serve 'my model; rm' " in command_line(odd, chosen("vllm", ParallelPlan()))


@pytest.mark.parametrize(
    ("engine", "draft", "words"),
    [
        ("vllm", "meta-llama/Llama-3.2-1B", ('"model": "meta-llama/Llama-3.2-1B"', '"num_speculative_tokens": 4')),
        ("vllm", None, ('"method": "ngram"', '"prompt_lookup_max": 4', '"num_speculative_tokens": 4')),
        ("sglang", "meta-llama/Llama-3.2-1B", (
            "--speculative-algorithm STANDALONE", "--speculative-draft-model-path meta-llama/Llama-3.2-1B",
            "--speculative-num-steps 4", "--speculative-num-draft-tokens 5",
        )),
        ("sglang", None, ("--speculative-algorithm NGRAM",)),
        ("trtllm", "meta-llama/Llama-3.2-1B", (
            "options.yaml", "decoding_type: Draft_Target, max_draft_len: 4, speculative_model: meta-llama/Llama-3.2-1B",
        )),
        ("trtllm", None, ("decoding_type: NGram, max_draft_len: 4",)),
    ],
)  # fmt: skip
def test_commands_of_plans_that_guess(ask: Any, engine: str, draft: str | None, words: tuple[str, ...]) -> None:
    plain = chosen(engine, ParallelPlan(), Formats.of("bf16"), replicas=1)
    guesses = Speculation(4, 0.7, None if draft is None else model_facts(draft))
    plan = replace(plain, setting=replace(plain.setting, speculation=guesses))
    text = "\n".join([command_line(ask(), plan), *command_notes(ask(), plan)])
    for word in words:
        assert word in text
    assert "specul" not in command_line(ask(), plain)
