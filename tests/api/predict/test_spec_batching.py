"""Single specs that come at the same time are predicted together, and answered as if they had come alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernelcast.api.model_source import FixedSource, LoadedModel
from kernelcast.api.predict.spec import MicroBatcher
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Prediction

H100 = "nvidia-h100-sxm-80gb"


class Counting:
    """A predictor that counts how often it is asked."""

    devices = catalogue()

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[int] = []

    def predict(self, specs: Any, devices: Any, *, coverage: float = 0.9) -> list[Prediction]:
        self.calls.append(len(specs))
        result: list[Prediction] = self.inner.predict(specs, devices, coverage=coverage)
        return result


@pytest.fixture
def counting(fake: Any) -> Counting:
    return Counting(fake)


@pytest.fixture
def loaded(counting: Counting) -> LoadedModel:
    result = FixedSource(counting, catalogue()).current  # type: ignore[arg-type]
    assert result is not None
    return result


def ask(loaded: LoadedModel, specs: list[tuple[KernelSpec, float]]) -> list[Any]:
    async def all_at_once() -> list[Any]:
        batcher = MicroBatcher()
        query = (batcher.predict(loaded, spec, H100, coverage) for spec, coverage in specs)
        return await asyncio.gather(*query, return_exceptions=True)

    return asyncio.run(all_at_once())


def gemm(m: int) -> KernelSpec:
    return KernelSpec.of("gemm", "bf16", m=m, n=64, k=64)


def test_specs_of_one_turn_are_predicted_in_one_go(loaded: LoadedModel, counting: Counting, fake: Any) -> None:
    result = ask(loaded, [(gemm(64 * (i + 1)), 0.9) for i in range(20)])
    assert counting.calls == [20]
    alone = [fake.predict([gemm(64 * (i + 1))], [H100])[0] for i in range(20)]
    assert [item.latency_s for item in result] == [item.latency_s for item in alone]


def test_specs_of_turns_that_follow_each_other_are_predicted_in_one_go(loaded: LoadedModel, counting: Counting) -> None:
    async def one_each_turn() -> None:
        batcher, asked = MicroBatcher(), []
        for i in range(40):
            asked.append(asyncio.ensure_future(batcher.predict(loaded, gemm(64 * (i + 1)), H100, 0.9)))
            await asyncio.sleep(0)
        await asyncio.gather(*asked)

    asyncio.run(one_each_turn())
    assert sum(counting.calls) == 40
    assert counting.calls[0] == 32


def test_each_coverage_is_asked_for_by_itself_and_many_specs_in_parts(loaded: LoadedModel, counting: Counting) -> None:
    result = ask(loaded, [(gemm(8 * (i + 1)), 0.8 + 0.1 * (i % 2)) for i in range(80)])
    assert sorted(counting.calls) == [8, 8, 32, 32]
    assert [item.coverage for item in result] == [0.8 + 0.1 * (i % 2) for i in range(80)]


def test_a_spec_the_model_refuses_or_fails_on_spoils_no_other(loaded: LoadedModel) -> None:
    refused = KernelSpec.of("conv2d", "bf16", batch=1, in_channels=8, out_channels=8, height=8, width=8, kernel=3)
    failing = KernelSpec.of("elementwise", "bf16", variant="tanh", rows=8, cols=8)
    result = ask(loaded, [(gemm(64), 0.9), (refused, 0.9), (failing, 0.9), (gemm(128), 0.9), (gemm(64), 0.2)])
    assert isinstance(result[0], Prediction)
    assert isinstance(result[3], Prediction)
    assert isinstance(result[1], SpecError)
    assert "not trained on conv2d" in str(result[1])
    assert isinstance(result[2], RuntimeError)
    assert "coverage must be between" in str(result[4])


def test_who_went_away_is_not_predicted(loaded: LoadedModel, counting: Counting) -> None:
    async def leave() -> Prediction:
        batcher = MicroBatcher()
        missing = asyncio.ensure_future(batcher.predict(loaded, gemm(64), H100, 0.9))
        stays = asyncio.ensure_future(batcher.predict(loaded, gemm(128), H100, 0.9))
        await asyncio.sleep(0)
        missing.cancel()
        return await stays

    asyncio.run(leave())
    assert counting.calls == [1]
