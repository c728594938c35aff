"""Times of a service's steps: an fp8 cache is converted where a device has no instructions for it."""

from __future__ import annotations

import pytest
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.step import Step
from kernelcast.workloads.serving.predict import ServingPredictor
from kernelcast.workloads.serving.request import serving_request
from kernelcast.workloads.serving.service_steps import ServiceSteps


@pytest.fixture(scope="module")
def service() -> ServingPredictor:
    return ServingPredictor(load_predictor(default_model_dir()))


def steps_on(service: ServingPredictor, device: str, kv_dtype: str, tp: int = 1) -> ServiceSteps:
    name = service.predictor.devices.get(device).name
    request = serving_request(
        model_facts("meta-llama/Llama-3.1-8B"), name, input_tokens=1024, output_tokens=256, concurrency=8, kv_dtype=kv_dtype,
        tp=tp,
    )  # fmt: skip
    return service.times(request)


def test_an_fp8_cache_slows_decoding_where_it_is_converted(service: ServingPredictor) -> None:
    decode = [Step.decode(32, 3072)]
    ampere = {kv: steps_on(service, "a100-sxm", kv) for kv in ("bf16", "fp8")}
    assert ampere["fp8"].seconds(decode)[0] > 2 * ampere["bf16"].seconds(decode)[0]
    assert ampere["fp8"].energy_j(decode) > ampere["bf16"].energy_j(decode)
    # A prompt is converted when it is written alone.
    prompt = [Step.prefill(1, 1024)]
    assert ampere["fp8"].seconds(prompt)[0] == pytest.approx(ampere["bf16"].seconds(prompt)[0], rel=0.02)
    hopper = {kv: steps_on(service, "h100-sxm", kv) for kv in ("bf16", "fp8")}
    assert hopper["fp8"].seconds(decode)[0] < hopper["bf16"].seconds(decode)[0]


def test_ranks_share_the_heads_that_convert(service: ServingPredictor) -> None:
    one, two = (steps_on(service, "a100-sxm", "fp8", tp).position_s for tp in (1, 2))
    assert one == pytest.approx(2 * two)
    # 32 layers of 32 heads of 128, keys and values; 9.75e12 lanes a second.
    assert one == pytest.approx(32 * 32 * 128 * 2 * 45 / 9.75e12, rel=0.02)


def test_parts_add_up(service: ServingPredictor) -> None:
    times = steps_on(service, "a100-sxm", "fp8")
    decode = [Step.decode(16, 2048)]
    assert sum(part[0] for part in times.parts(decode).values()) == pytest.approx(times.seconds(decode)[0][0])
