"""A chosen plan as the command line of its engine."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from ...architectures.config.catalogue import model_names
from ...architectures.facts import ModelFacts
from ...architectures.memory import memory
from ...architectures.step import WEIGHT_ONLY_B, Step
from ..host_experts import PARAMETERS
from ..request import ENGINES
from .question import PlanQuestion
from .sweep import Candidate

DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Formats of activations as engines write them."""
ONLINE = ("fp8",)
"""Formats to which vLLM and SGLang quantise an unquantised checkpoint when they load it (`--quantization fp8`)."""


def command_line(question: PlanQuestion, chosen: Candidate) -> str:
    """The command that starts one replica: vLLM 0.11 (0.18 with experts on the host), SGLang 0.5, TensorRT-LLM 1.0 or later.

    Requests of twice the mean length are taken, as far as the model is made for them.
    """
    return shlex.join(_COMMANDS[chosen.setting.engine](question, chosen))


def command_notes(question: PlanQuestion, chosen: Candidate) -> list[str]:
    """What to know of a command line."""
    setting, facts, notes = chosen.setting, question.facts, []
    shipped = facts.weights or facts.dtype
    quantised = setting.formats.weights
    if quantised != shipped and facts.experts is None and (quantised not in ONLINE or setting.engine == "trtllm"):
        notes.append(f"give a checkpoint of {facts.name} that is quantised to {quantised} in place of its name")
    if question.setting is not None:
        notes.append(f"set every GPU to {question.setting.title} before it starts, as by nvidia-smi")
    if chosen.replicas > 1:
        notes.append(
            f"start it {chosen.replicas} times, each on {setting.plan.devices} GPUs of its own, behind a balancer of load"
        )
    if setting.host_experts and (setting.formats.experts in WEIGHT_ONLY_B or quantised != shipped):
        notes.append(
            "vLLM takes experts to the host as the checkpoint names and stores them: give one whose experts are quantised, and "
            "check the size in its log (Total CPU offloaded parameters)"
        )
    if not _is_shipped(facts):
        notes.append(f"{_checkpoint(facts)} needs the weights and the tokenizer, too")
    if setting.engine == "vllm" and setting.speculation is not None and setting.speculation.draft is not None:
        notes.append("vLLM 0.11 guesses by n-grams, EAGLE and MTP alone: take a newer release for a draft model")
    if setting.engine == "trtllm":
        options = _trtllm_options(chosen)
        if (guesses := setting.speculation) is not None:
            by = "NGram" if guesses.draft is None else "Draft_Target"
            draft = "" if guesses.draft is None else f", speculative_model: {guesses.draft.name}"
            options.append(f"speculative_config: {{decoding_type: {by}, max_draft_len: {guesses.tokens}{draft}}}")
        notes += [f"options.yaml has the line `{option}`" for option in options]
    return notes


def _length(question: PlanQuestion) -> int:
    """Tokens of the longest request that is taken: the lengths of a question are means."""
    return min(2 * question.longest, question.facts.max_length or 2 * question.longest)


def _is_shipped(facts: ModelFacts) -> bool:
    """Whether a model's name is that of a public checkpoint."""
    return facts.name in model_names()


def _checkpoint(facts: ModelFacts) -> str:
    """What an engine takes for a model: its name, or the folder of its configuration."""
    is_file = Path(facts.source).suffix in (".json", ".yaml", ".yml")
    return str(Path(facts.source).parent) if is_file else facts.name


def _trtllm_options(chosen: Candidate) -> list[str]:
    """Lines of the file of options, which has what the command line lacks."""
    setting, options = chosen.setting, []
    if setting.plan.dp > 1:
        options.append("enable_attention_dp: true")
    if setting.formats.kv != setting.formats.dtype:
        share = f"free_gpu_memory_fraction: {ENGINES['trtllm'].of_free:g}"
        options.append(f"kv_cache_config: {{dtype: {setting.formats.kv}, {share}}}")
    return options


def _vllm(question: PlanQuestion, chosen: Candidate) -> list[str]:
    plan, formats = chosen.setting.plan, chosen.setting.formats
    words = ["vllm", "serve", _checkpoint(question.facts), "--tensor-parallel-size", str(plan.tp)]
    if plan.pp > 1:
        words += ["--pipeline-parallel-size", str(plan.pp)]
    if plan.dp > 1:
        words += ["--data-parallel-size", str(plan.dp)]
    if plan.ep > 1:
        words.append("--enable-expert-parallel")
    words += ["--dtype", DTYPES[formats.dtype]]
    if _quantises(question, chosen):
        words += ["--quantization", formats.weights]
    if formats.kv != formats.dtype:
        words += ["--kv-cache-dtype", formats.kv]
    if (guesses := chosen.setting.speculation) is not None:
        # Without a draft, guesses are looked up in the prompt.
        by = {"method": "ngram", "prompt_lookup_max": guesses.tokens}
        by = by if guesses.draft is None else {"model": guesses.draft.name}
        words += ["--speculative-config", json.dumps(by | {"num_speculative_tokens": guesses.tokens})]
    if share := chosen.setting.host_experts:
        host_b = memory(question.facts, Step.decode(1, 1), formats, plan, host_experts=share).host_b
        words += ["--cpu-offload-gb", f"{math.ceil(10 * host_b / 2**30) / 10:.1f}", "--cpu-offload-params", *PARAMETERS]
    return [
        *words, "--max-model-len", str(_length(question)), "--max-num-seqs", str(_sequences(chosen)),
        "--max-num-batched-tokens", str(chosen.chunk), "--gpu-memory-utilization", f"{ENGINES['vllm'].whole:g}",
    ]  # fmt: skip


def _sglang(question: PlanQuestion, chosen: Candidate) -> list[str]:
    plan, formats = chosen.setting.plan, chosen.setting.formats
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        _checkpoint(question.facts),
        "--tp-size",
        str(plan.stage_ranks),
    ]
    if plan.pp > 1:
        words += ["--pp-size", str(plan.pp)]
    if plan.dp > 1:
        words += ["--dp-size", str(plan.dp), "--enable-dp-attention"]
    if plan.ep > 1:
        words += ["--ep-size", str(plan.ep)]
    words += ["--dtype", DTYPES[formats.dtype]]
    if _quantises(question, chosen):
        words += ["--quantization", formats.weights]
    if formats.kv == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if (guesses := chosen.setting.speculation) is not None:
        by = "NGRAM" if guesses.draft is None else "STANDALONE"
        words += ["--speculative-algorithm", by, "--speculative-num-draft-tokens", str(guesses.tokens + 1)]
        if guesses.draft is not None:
            words += [
                "--speculative-draft-model-path",
                guesses.draft.name,
                "--speculative-num-steps",
                str(guesses.tokens),
            ]
            words += ["--speculative-eagle-topk", "1"]
    return [
        *words, "--context-length", str(_length(question)), "--max-running-requests", str(chosen.sequences),
        "--chunked-prefill-size", str(chosen.chunk), "--mem-fraction-static", f"{ENGINES['sglang'].whole:g}",
    ]  # fmt: skip


def _trtllm(question: PlanQuestion, chosen: Candidate) -> list[str]:
    plan, engine = chosen.setting.plan, ENGINES["trtllm"]
    words = ["trtllm-serve", _checkpoint(question.facts), "--backend", "pytorch", "--tp_size", str(plan.stage_ranks)]
    if plan.pp > 1:
        words += ["--pp_size", str(plan.pp)]
    if plan.ep > 1:
        words += ["--ep_size", str(plan.ep)]
    if _trtllm_options(chosen) or chosen.setting.speculation is not None:
        words += ["--extra_llm_api_options", "options.yaml"]
    return [
        *words, "--max_seq_len", str(_length(question)), "--max_batch_size", str(_sequences(chosen)),
        "--max_num_tokens", str(max(chosen.chunk, min(2 * math.ceil(question.input_tokens), _length(question)))),
        "--kv_cache_free_gpu_memory_fraction", f"{engine.of_free:g}",
    ]  # fmt: skip


def _quantises(question: PlanQuestion, chosen: Candidate) -> bool:
    """Whether the engine quantises the checkpoint when it loads it."""
    weights = chosen.setting.formats.weights
    return (
        weights in ONLINE
        and weights != (question.facts.weights or question.facts.dtype)
        and question.facts.experts is None
    )


def _sequences(chosen: Candidate) -> int:
    """Sequences that run together in one of a replica's groups, which vLLM and TensorRT-LLM limit each by itself."""
    return max(1, math.ceil(chosen.sequences / chosen.setting.plan.dp))


_COMMANDS: Mapping[str, Callable[[PlanQuestion, Candidate], list[str]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
