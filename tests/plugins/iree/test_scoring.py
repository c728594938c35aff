"""Which configuration of a dispatch wins, what constant weights save, and which ways to compile a module are compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.kind import Candidates, Task
from kernelcast.plugins.iree.dispatches import CONTRACTION, CONVOLUTION, Dispatch
from kernelcast.plugins.iree.scoring import Scored, score, to_measure, variants

from .conftest import DEVICE, LaidDown

SIZES = {"batch": 1, "m": 64, "n": 512, "k": 512, "a_transposed": 0, "b_transposed": 0}
PRODUCT = Dispatch(("main_0",), CONTRACTION, SIZES, ("m", "n", "k"), (), ())
ANY = np.ones(4, dtype=np.bool_)


def scored(seconds: list[float], measured: str = "0000", calls: int = 1, kind: str = CONTRACTION) -> Scored:
    """A dispatch with the compiler's own choice, data tiling (products) and tiles."""
    own = [{}, {"data_tiling": 1}] if kind == CONTRACTION else [{}]
    tiles = [{"tile_m": i + 1, "inner_m": 1} for i in range(len(seconds) - len(own))]
    candidates = Candidates.of(Task(kind, SIZES, "fp32", DEVICE), [*own, *tiles])
    flags = np.array([item == "1" for item in measured[: len(seconds)]])
    return Scored(replace(PRODUCT, kind=kind, calls=calls), candidates, np.array(seconds), flags)


@pytest.mark.parametrize(("seconds", "measured", "best"), [
    ([4.0, 3.0, 2.0, 1.0], "0000", 3),
    ([4.0, 4.0, 3.99, 4.0], "0000", 0),
    ([4.0, 4.0, 3.99, 4.0], "1110", 2),
    ([4.0, 3.0, 2.0, 1.0], "1110", 2),
    ([4.0, 5.0, 2.0, 1.0], "1100", 0),
    ([1.0, 5.0, 2.0, 3.0], "0000", 0),
])  # fmt: skip
def test_the_fastest_wins_and_measurements_beat_predictions(seconds: list[float], measured: str, best: int) -> None:
    assert scored(seconds, measured).best(ANY) == best


def test_nothing_is_chosen_that_is_not_allowed() -> None:
    item = scored([4.0, 1.0, 2.0, 3.0])
    assert item.best(item.tiled | (np.arange(4) == 0)) == 2
    assert item.best(np.array([True, False, False, False])) == 0


def test_measurements_that_failed_change_nothing() -> None:
    item = scored([4.0, 3.0, 2.0, 1.0]).with_measured([0, 2, 3], [5.0, np.nan, 2.5])
    assert item.seconds.tolist() == [5.0, 3.0, 2.0, 2.5]
    assert item.measured.tolist() == [True, False, False, True]


def test_the_compilers_own_choices_are_always_measured() -> None:
    assert to_measure(scored([4.0, 9.0, 3.0, 1.0]), 1) == [0, 1, 3]
    assert to_measure(scored([4.0, 9.0, 3.0, 1.0]), 0) == [0, 1]


def test_ways_to_compile_a_module() -> None:
    result = variants([
        scored([4.0, 1.0, 2.0]),
        scored([4.0, 3.0, 1.0], calls=2),
        scored([4.0, 2.0, 3.0], kind=CONVOLUTION),
    ])  # fmt: skip
    totals = {item.name: item.total_s for item in result}
    assert totals == {
        "default": 4 + 8 + 4, "tuned": 2 + 2 + 2, "data tiling": 1 + 6 + 4, "tuned, data tiling": 1 + 6 + 2, "mixed": 1 + 2 + 2,
    }  # fmt: skip


def test_ways_that_come_to_the_same_are_one() -> None:
    assert [item.name for item in variants([scored([1.0, 2.0, 3.0])])] == ["default", "data tiling"]
    assert [item.name for item in variants([])] == ["default"]


def test_constant_weights_make_data_tiling_cheaper_but_never_free() -> None:
    device = catalogue().get(DEVICE)
    model = LaidDown(1e-3, 5e-4, {})
    plain = score(PRODUCT, model, device, 1)
    weights = score(replace(PRODUCT, constant_calls=1), model, device, 1)
    assert plain.seconds[1] == 5e-4
    # Weights of 1 MB read and written once at 56 GB/s.
    assert weights.seconds[1] == pytest.approx(5e-4 - 2 * 4 * 512 * 512 / (1.5 * 3.7424e10))
    assert weights.with_measured([1], [6e-4]).seconds[1] == pytest.approx(6e-4 - weights.packing_s)
    tiny = score(replace(PRODUCT, constant_calls=1), LaidDown(1e-3, 1e-6, {}), device, 1)
    assert tiny.seconds[1] > 0
    assert 0 < weights.with_measured([1], [weights.packing_s / 2]).seconds[1] <= weights.packing_s / 2


def test_sums_are_not_sliced_where_something_is_fused_behind() -> None:
    device, model = catalogue().get(DEVICE), LaidDown(1e-3, 5e-4, {})
    sliced = [
        "tile_k" in score(item, model, device, 1).candidates.knobs for item in (PRODUCT, replace(PRODUCT, fused=True))
    ]
    assert sliced == [True, False]
