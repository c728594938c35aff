"""How many sets of operands a cold case rotates through."""

from __future__ import annotations

import pytest
from kernelcast.collectors.gpu.measure.operands import MAX_ROTATED_B, ROTATED_OVER_CACHE, Rotation, SetCounts
from kernelcast.features.kernel import KernelSpec, View, get_family

torch = pytest.importorskip("torch")

CACHE_B, MEMORY_B = 60e6, 141e9
FEW_TOKENS = KernelSpec.of("moe", "bf16", tokens=1, hidden=2048, inter=1024, topk=2, experts=64, tp=1, ep=1)
STRIDED = KernelSpec.of("conv2d", "bf16", batch=16, in_channels=64, out_channels=64, height=128, width=128, kernel=1,
                        stride=8, padding=0)  # fmt: skip
PLAIN = KernelSpec.of("copy", "fp32", rows=1024, cols=1024)


@pytest.mark.parametrize("spec", [FEW_TOKENS, STRIDED, PLAIN], ids=lambda spec: spec.family)
def test_what_the_sets_between_two_uses_touch_outgrows_the_cache(spec: KernelSpec) -> None:
    touched_b = float(get_family(spec.family).bytes_moved(View.of(spec)))
    counts = SetCounts.of(spec, CACHE_B, MEMORY_B)
    assert counts.most_calls is None or counts.most_calls < counts.outgrow
    assert (counts.outgrow - 1) * touched_b >= ROTATED_OVER_CACHE * CACHE_B


def test_experts_no_token_reaches_and_pixels_a_stride_skips_do_not_count() -> None:
    for spec in (FEW_TOKENS, STRIDED):
        by_size = ROTATED_OVER_CACHE * CACHE_B / float(get_family(spec.family).footprint_b(View.of(spec))) + 2
        assert SetCounts.of(spec, CACHE_B, MEMORY_B).outgrow > 1.5 * by_size


def test_sets_fit_a_share_of_the_memory_and_a_limit_of_their_own() -> None:
    size_b = float(get_family("copy").footprint_b(View.of(PLAIN)))
    assert SetCounts.of(PLAIN, CACHE_B, 8e9).affordable == int(1e9 // size_b)
    assert SetCounts.of(PLAIN, CACHE_B, 1e15).affordable == int(MAX_ROTATED_B // size_b)
    assert SetCounts.of(PLAIN, CACHE_B, 1.0).affordable == 1


def test_sets_are_used_again_only_where_they_outgrow_the_cache() -> None:
    roomy, tight = SetCounts(outgrow=23, affordable=100), SetCounts(outgrow=23, affordable=5)
    assert (roomy.most_calls, roomy.needed(10), roomy.needed(256)) == (None, 10, 23)
    assert (tight.most_calls, tight.needed(3), tight.needed(5)) == (5, 3, 5)


def test_sets_are_made_once_and_used_in_turn() -> None:
    made: list[int] = []

    def launch(operands):
        made.append(operands[0].data_ptr())
        at = len(made)
        return lambda: at

    first = (torch.ones(4),)
    rotation = Rotation(first, launch, SetCounts(3, 100), [lambda: 0])
    assert [call() for call in rotation.in_turn(2)] == [0, 1]
    assert [call() for call in rotation.in_turn(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [call() for call in rotation.in_turn(1)] == [0]
    assert len({first[0].data_ptr(), *made}) == 3
