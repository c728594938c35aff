"""The closed form agrees with the simulation where it is valid."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.batching.closed_form import closed_loop, static_batch
from kernelcast.workloads.serving.batching.simulation import Arrivals, Scheduling, simulate

from .test_step_table import table

HOW = Scheduling(chunk=2048, sequences=256, cache_tokens=1e9)


@pytest.mark.parametrize(("batch", "inputs", "outputs"), [(1, 512, 64), (16, 128, 256), (32, 1024, 32)])
@pytest.mark.parametrize("splits", [True, False])
def test_a_static_batch(batch: int, inputs: int, outputs: int, splits: bool) -> None:
    how = Scheduling(2048, 256, 1e9, mixes=False, splits=splits)
    service = simulate(table(), Arrivals(np.full(batch, inputs), np.full(batch, outputs), None, batch), how)
    steady = static_batch(table(), batch, inputs, outputs, how)
    assert steady.ttft_s == pytest.approx(service.first_s.mean(), rel=1e-6)
    assert steady.tpot_s == pytest.approx(((service.last_s - service.first_s) / (outputs - 1)).mean(), rel=1e-3)
    assert steady.throughput_tok_s == pytest.approx(batch * outputs / service.duration_s, rel=1e-3)


@pytest.mark.parametrize(("concurrency", "inputs", "outputs"), [(4, 256, 256), (16, 512, 512), (32, 2048, 256)])
def test_a_closed_loop_in_its_steady_state(concurrency: int, inputs: int, outputs: int) -> None:
    random = np.random.default_rng(0)
    # Answers of various lengths, so that the rounds mingle.
    drawn = random.integers(outputs // 2, outputs * 3 // 2, 40 * concurrency)
    service = simulate(table(), Arrivals(np.full(len(drawn), inputs), drawn, None, concurrency), HOW)
    settled = slice(10 * concurrency, 30 * concurrency)
    tpot = (service.last_s - service.first_s)[settled].sum() / (drawn[settled] - 1).sum()
    steady = closed_loop(table(), concurrency, inputs, outputs, HOW)
    assert steady.tpot_s == pytest.approx(tpot, rel=0.05)
    assert steady.throughput_tok_s == pytest.approx(drawn.sum() / service.duration_s, rel=0.1)


def test_what_has_no_closed_form_is_refused() -> None:
    with pytest.raises(SpecError, match="simulated"):
        static_batch(table(), 4, 4096, 16, HOW)
