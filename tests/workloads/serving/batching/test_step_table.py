"""Step times on a grid are those of the steps at its points, and add up between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from kernelcast.features.batch.cases import Floats
from kernelcast.workloads.architectures.step import Step
from kernelcast.workloads.serving.batching.step_table import Line, Overhead, StepTable


class LinearSteps:
    """Steps that take 1 ms, 10 µs a new token and 10 ns a cached position that a new token reads; 300 W."""

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        value = np.array([
            1e-3 + sum(group.tokens * (1e-5 + 1e-8 * (group.context + group.new_tokens / 2)) for group in step) for step
            in steps
        ])  # fmt: skip
        return value, value / 1.1, value * 1.1

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        return 300 * self.seconds(steps)[0]


def table(
    *, batch: int = 64, length: int = 4096, prompt: int = 2048, chunk: int = 2048, **others: Overhead
) -> StepTable:
    return StepTable(LinearSteps(), batch=batch, length=length, prompt=prompt, chunk=chunk, **others)


def test_decode_steps_are_interpolated() -> None:
    wanted = LinearSteps().seconds([Step.decode(24, 1000)])[0][0]
    assert table().decoding(24)(1000) == pytest.approx(wanted, rel=1e-3)
    assert table().decoding(24, energy=True)(1000) == pytest.approx(300 * wanted, rel=1e-3)


def test_a_mixed_step_shares_its_constant() -> None:
    prompt, decode = 512, Step.decode(16, 800)
    apart = LinearSteps().seconds([Step.prefill(1, prompt), decode])[0].sum()
    assert table().mixed(16, 800, [(prompt, 0)]) == pytest.approx(apart - 1e-3, rel=0.01)


def test_devices_wait_for_the_overhead_at_their_power() -> None:
    plain, more = (
        table(),
        StepTable(
            LinearSteps(), batch=64, length=4096, prompt=2048, chunk=2048, overhead=Overhead(step_s=2e-3), waiting_w=100
        ),
    )
    assert more.decoding(8, energy=True)(500) == pytest.approx(plain.decoding(8, energy=True)(500) + 0.2)
    assert more.mixed(8, 500, [(64, 0)], energy=True) == pytest.approx(
        plain.mixed(8, 500, [(64, 0)], energy=True) + 0.2
    )


def test_overhead_is_added_to_times_and_not_to_energy() -> None:
    plain, more = (
        table(),
        table(overhead=Overhead(step_s=1e-3, sequence_s=1e-4, prompt_s=5e-3, decode_factor=2, prompt_factor=3)),
    )
    assert more.decoding(8)(500) == pytest.approx(1e-3 + 8e-4 + 2 * plain.decoding(8)(500))
    assert more.mixed(8, 500, [(64, 0)]) == pytest.approx(6e-3 + 9e-4 + 3 * plain.mixed(8, 500, [(64, 0)]))
    assert more.mixed(8, 500, [(64, 0)], energy=True) == plain.mixed(8, 500, [(64, 0)], energy=True)


def test_a_line_is_constant_below_and_goes_on_beyond() -> None:
    line = Line([1.0, 2.0, 4.0], [10.0, 20.0, 30.0])
    assert [line(x) for x in (0, 1, 1.5, 3, 6)] == [10, 10, 15, 25, 40]
