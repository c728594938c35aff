"""Steps of language models against timings: sequences of a row, and the constant of other plans."""

from __future__ import annotations

from typing import Any

import kernelcast
import pytest
from kernelcast.workloads.architectures.step import Sequences, Step
from llm_steps import Judged, engine_steps, line, neusight_steps, neusight_training, others_constant_s, page, step_of

NONE: dict[str, int] = dict.fromkeys(
    ("prefill_tokens", "prefill_requests", "prefill_kv_tokens", "decode_requests", "decode_kv_tokens"), 0
)
MIXED = {
    "prefill_tokens": 4097,
    "prefill_requests": 2,
    "prefill_kv_tokens": 4095,
    "decode_requests": 2,
    "decode_kv_tokens": 4096,
}


def judged(label_s: float, value_s: float, *group: str) -> Judged:
    return Judged(group, label_s, value_s, 0.9 * value_s, 1.2 * value_s)


def test_the_sequences_of_a_row() -> None:
    assert step_of(NONE | MIXED) == Step((Sequences(2, 2049, 2047), Sequences(2, 1, 2047)))
    assert step_of(NONE | {"decode_requests": 1, "decode_kv_tokens": 4099}) == Step.decode(1, 4098)


def test_the_constant_is_that_of_other_plans_of_the_same_phase() -> None:
    groups = {
        ("vllm", "a", "decode", "TP1"): [judged(5.0, 4.0, "vllm", "a", "decode", "TP1")],
        ("vllm", "a", "decode", "TP4"): [judged(3.0, 1.0, "vllm", "a", "decode", "TP4")],
        ("vllm", "a", "mixed", "TP1"): [judged(90.0, 1.0, "vllm", "a", "mixed", "TP1")],
        ("PyTorch", "b", "seen device"): [judged(2.0, 1.0, "PyTorch", "b", "seen device")],
    }
    constants = [others_constant_s(group, groups) for group in groups]
    assert constants == [2.0, 1.0, None, None]
    cells = line(("vllm", "a", "decode", "TP1"), groups)
    assert cells[:5] == ["vllm a decode TP1", "1", "20.0 / 20.0", "-20.0", "0"]
    assert cells[5] == "20.0 / 20.0 (2000.00 ms)"
    assert page([item for items in groups.values() for item in items]).count("\n") == 5


@pytest.mark.parametrize(("tp", "faster"), [(1, 1.0), (4, 2.0)])
def test_rows_of_both_tables_are_predicted(tp: int, faster: float) -> None:
    predictor = kernelcast.load()
    row: dict[str, Any] = NONE | {
        "model": "Qwen/Qwen3-32B", "tp": tp, "engine": "vllm", "phase": "decode", "device": "nvidia-b300-sxm",
        "decode_requests": 1, "decode_kv_tokens": 4099, "step_p50_s": 0.01355,
    }  # fmt: skip
    [step] = engine_steps([row], predictor)
    assert step.group == ("vllm", "Qwen/Qwen3-32B", "decode", f"TP{tp}")
    assert step.value_s == pytest.approx(0.0132 / faster, rel=0.25)
    eager: dict[str, Any] = {
        "mode": "inf", "option": "", "model": "bert_large", "batch": 8, "seq_len": 512, "device": "nvidia-v100-pcie-32gb",
        "device_unseen": False, "label_e2e_ms": 257.4, "pred_neusight_e2e_ms": 271.4,
    }  # fmt: skip
    [whole] = neusight_steps([eager, eager | {"mode": "train"}, eager | {"option": "fusion"}], predictor)
    assert whole.value_s == pytest.approx(whole.label_s, rel=0.25)
    assert whole.peer_s == pytest.approx(0.2714)
    [trained] = neusight_training([eager, eager | {"mode": "train", "label_e2e_ms": 841.0}], predictor)
    assert trained.group[-1] == "training"
    assert 2.5 < trained.value_s / whole.value_s < 3.5
    assert trained.lower_s < trained.value_s < trained.upper_s
