"""Steps and number formats."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.step import Formats, Sequences, Step


def test_a_mixed_step_adds_up() -> None:
    step = Step((Sequences(2, 512, 100), Sequences(30, 1, 4000)))
    assert (step.tokens, step.sequences, step.longest) == (2 * 512 + 30, 32, 4001)
    assert str(step) == "2 × 512 new tokens after 100 + 30 × 1 new token after 4000"


def test_the_busiest_group_of_ranks_takes_the_larger_part() -> None:
    share = Step((Sequences(5, 8), Sequences(4, 1, 9))).share(2)
    assert [group.count for group in share] == [3, 2]


def test_what_a_user_asks_for() -> None:
    assert Step.of(batch=4, prefill=10) == Step.prefill(4, 10)
    assert Step.of(prefill=10, context=7) == Step.prefill(1, 10, 7)
    assert Step.of(batch=4, decode=True, context=7) == Step.decode(4, 7)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "prefill"),
        ({"decode": True}, "context"),
        ({"decode": True, "prefill": 3, "context": 1}, "decode"),
        ({"prefill": 0}, "new_tokens"),
        ({"prefill": 2**32}, "new_tokens"),
        ({"prefill": 3, "batch": -1}, "count"),
        ({"prefill": 3, "context": -1}, "context"),
        ({"prefill": "3"}, "new_tokens"),
    ],
)
def test_impossible_steps_are_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Step.of(**asked)
    assert refused.value.field == field


def test_formats_default_to_each_other() -> None:
    assert Formats.of("bfloat16") == Formats("bf16", "bf16", "bf16", "bf16")
    assert Formats.of("bf16", weights="fp8", kv="fp8") == Formats("bf16", "fp8", "fp8", "fp8")
    assert Formats.of("bf16", experts="nvfp4").weights == "bf16"
    assert Formats.of("fp16", weights="INT4").experts == "int4"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"dtype": "fp8"}, "dtype"),
        ({"dtype": "bf16", "weights": "fp16"}, "weights"),
        ({"dtype": "bf16", "weights": "fp64"}, "weights"),
        ({"dtype": "bf16", "kv": "nvfp4"}, "kv_dtype"),
        ({"dtype": "int4"}, "dtype"),
        ({"dtype": "bf16", "experts": "fp32"}, "experts"),
        ({"dtype": "float17"}, "dtype"),
    ],
)
def test_formats_that_do_not_go_together_are_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        Formats.of(**asked)
    assert refused.value.field == field
