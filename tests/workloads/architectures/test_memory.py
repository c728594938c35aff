"""Memory: what a model keeps per token and sequence, and what fits."""

from __future__ import annotations

import pytest
from kernelcast.features.device import catalogue
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.memory import USABLE_SHARE, memory, ways_to_fit
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Sequences, Step

BF16 = Formats.of("bf16")


@pytest.mark.parametrize(
    ("name", "per_token_b"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("llama-3.1-70b", 80 * 2 * 8 * 128 * 2),
        # Latents: 512 and 64 positions' elements in 61 layers.
        ("deepseek-v3", 61 * 576 * 2),
        # Beyond the window only the layers without one grow.
        ("gemma-3-1b", 4 * 2 * 1 * 256 * 2),
        ("gpt-oss-120b", 18 * 2 * 8 * 64 * 2),
        ("qwen3.6-35b-a3b", 10 * 2 * 2 * 256 * 2),
        ("mamba-codestral-7b", 0),
    ],
)
def test_what_a_position_adds(name: str, per_token_b: float) -> None:
    assert memory(model_facts(name), Step.decode(1, 5000), BF16).cache_per_token_b == per_token_b


def test_a_state_does_not_grow() -> None:
    facts = model_facts("mamba-codestral-7b")
    short, long = (memory(facts, Step.decode(1, context), BF16).cache_per_sequence_b for context in (10, 100_000))
    assert short == long == 64 * (8192 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2)


def test_a_window_bounds_the_cache() -> None:
    facts = model_facts("mistral-7b")
    at_window, beyond = (memory(facts, Step.decode(1, context), BF16).cache_b for context in (4095, 30_000))
    assert at_window == beyond


def test_a_cache_in_fp8_is_half() -> None:
    facts, step = model_facts("llama-3.1-8b"), Step.decode(4, 999)
    assert memory(facts, step, Formats.of("bf16", kv="fp8")).cache_b * 2 == memory(facts, step, BF16).cache_b


def test_block_formats_count_their_scales() -> None:
    facts, step = model_facts("llama-3.1-8b"), Step.decode(1, 1)
    sizes = {name: memory(facts, step, Formats.of("bf16", weights=name)).weights_b for name in ("bf16", "fp8", "int4")}
    matrices = facts.weights_of().products
    assert sizes["bf16"] - sizes["fp8"] == matrices
    assert sizes["fp8"] - sizes["int4"] == pytest.approx(matrices * (0.5 - 2.5 / 128))


def test_sequences_that_fit_fill_the_usable_memory() -> None:
    device = catalogue().get("h100-sxm")
    item = memory(model_facts("llama-3.1-8b"), Step.decode(32, 4095), BF16, device=device)
    assert item.fits
    assert item.usable_b == USABLE_SHARE * 80e9
    assert item.sequences is not None
    full, beyond = (
        memory(model_facts("llama-3.1-8b"), Step.decode(item.sequences + more, 4095), BF16, device=device)
        for more in (0, 1)
    )
    assert full.fits
    assert not beyond.fits


@pytest.mark.parametrize("batch", [1, 8, 200])
def test_prompts_that_fit_are_as_many_whatever_batch_is_given(batch: int) -> None:
    """Activations of eight prompts once stood for those of two hundred."""
    device, facts = catalogue().get("h100-sxm"), model_facts("llama-3.1-8b")
    most = memory(facts, Step.prefill(batch, 2048), BF16, device=device).sequences
    assert most is not None
    assert memory(facts, Step.prefill(most, 2048), BF16, device=device).fits
    assert not memory(facts, Step.prefill(most + 1, 2048), BF16, device=device).fits


def test_a_model_too_large_fits_on_enough_devices() -> None:
    facts, device = model_facts("llama-3.1-70b"), catalogue().get("h100-sxm")
    alone = memory(facts, Step.decode(8, 1000), BF16, device=device)
    assert alone.fits is False
    assert alone.sequences == 0
    assert memory(facts, Step.decode(8, 1000), BF16, ParallelPlan(tp=4), device).fits
    split = memory(facts, Step.decode(8, 1000), BF16, ParallelPlan(tp=2, pp=2), device)
    assert split.fits
    assert split.cache_b == pytest.approx(alone.cache_b / 4)


def test_groups_of_ranks_hold_their_own_sequences() -> None:
    facts, device = model_facts("llama-3.1-8b"), catalogue().get("h100-sxm")
    one, two = (memory(facts, Step.decode(64, 1000), BF16, ParallelPlan(dp=dp), device) for dp in (1, 2))
    assert two.cache_b == one.cache_b / 2
    assert two.sequences is not None
    assert one.sequences is not None
    # Half as many tokens take half the activations, which leaves room for a sequence or two.
    assert 2 * one.sequences <= two.sequences <= 2 * one.sequences + 4


def test_encoders_keep_nothing_and_an_unknown_memory_is_unknown() -> None:
    item = memory(model_facts("bert-base"), Step.prefill(4, 128), Formats.of("fp32"))
    assert (item.cache_b, item.sequences, item.fits, item.usable_b) == (0, None, None, None)


def test_sequences_of_several_lengths_add_up() -> None:
    facts = model_facts("llama-3.1-8b")
    mixed = memory(facts, Step((Sequences(2, 100, 0), Sequences(3, 1, 999))), BF16)
    assert mixed.cache_b == (2 * 100 + 3 * 1000) * 131072
    assert mixed.cache_per_sequence_b == 1000 * 131072


def test_ways_to_fit_are_plans_formats_and_recomputation() -> None:
    h100, llama = catalogue().get("h100-sxm"), model_facts("llama-3.1-8b")
    long, wide = Step.of(batch=1, prefill=4096), Step.of(batch=16, prefill=2048)
    assert ways_to_fit(model_facts("llama-3.1-70b"), long, BF16, ParallelPlan(), h100) == ["tp 2", "weights int4"]
    assert ways_to_fit(llama, wide, BF16, ParallelPlan(tp=4), h100, training=True) == ["tp 8", "recompute"]
    assert ways_to_fit(model_facts("deepseek-v3"), long, BF16, ParallelPlan(), catalogue().get("l4")) == []
