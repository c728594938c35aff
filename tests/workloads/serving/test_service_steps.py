"""Times of the steps of a service where they differ from its engine's."""

from __future__ import annotations

import kernelcast
import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Step
from kernelcast.workloads.serving.batching.load import Load
from kernelcast.workloads.serving.predict import ServingPredictor
from kernelcast.workloads.serving.request import ServingRequest, serving_request
from kernelcast.workloads.serving.service_steps import check_engine, check_formats, newest_vllm, service_steps

STEPS = [Step.decode(16, 1024), Step.decode(16, 2048), Step.prefill(1, 1024)]


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


@pytest.mark.parametrize(
    ("device", "library"),
    [("h100-sxm-80gb", "vllm-0.24.0"), ("a100-sxm-80gb", "vllm-0.14.0"), ("v100-sxm-16gb", ""), ("rtx-4090", "")],
)
def test_products_are_the_newest_vllms_where_the_device_was_measured_with_it(
    predictor: ArtifactPredictor, device: str, library: str
) -> None:
    assert newest_vllm(predictor, f"nvidia-{device}") == library


def test_one_sequence_takes_no_longer_than_two_where_weights_are_fp8(predictor: ArtifactPredictor) -> None:
    facts = model_facts("meta-llama/Llama-3.1-70B")
    for device in ("nvidia-b200-sxm-180gb", "nvidia-h100-sxm-80gb"):
        question = ServingRequest(
            facts, device, Load("static", 1, 1024, 64), Formats.of("bf16", weights="fp8"), plan=ParallelPlan(tp=4)
        )
        steps = [Step.decode(count, 1536) for count in (1, 2, 4, 8)]
        one, two, four, eight = service_steps(predictor, question).seconds(steps)[0]
        assert one < 1.02 * two
        assert two < 1.02 * four
        assert four < 1.02 * eight


def test_a_cache_in_a_format_that_the_device_lacks_is_converted(predictor: ArtifactPredictor) -> None:
    def slower_s(device: str, version: str) -> np.ndarray:
        question = ServingRequest(
            model_facts("llama-3.1-8b"),
            device,
            Load("static", 16, 1024, 64),
            Formats.of("fp16", kv="fp8"),
            engine_version=version,
        )
        times = service_steps(predictor, question)
        return times.seconds(STEPS)[0] - times.times.seconds(STEPS)[0]

    more_s = slower_s("a100-sxm-80gb", "0.5")
    # 65,536 numbers a position, 3.2 clocks of one of 108 multiprocessors at 1.41 GHz each.
    assert more_s[1] == pytest.approx(16 * 2048 * 65536 * 3.2 / (108 * 1.41e9), rel=0.01)
    assert more_s[0] == pytest.approx(more_s[1] / 2, rel=0.01)
    assert more_s[2] == 0
    assert np.all(slower_s("h100-sxm", "0.5") == 0)
    assert np.all(slower_s("a100-sxm-80gb", "0.17.0") == 0)


@pytest.mark.parametrize(
    ("engine", "device", "formats", "message"),
    [
        ("trtllm", "mi300x", Formats.of("bf16"), "does not run on devices of amd such as amd-mi300x; vllm, sglang do"),
        ("vllm", "amd-epyc-7302", Formats.of("fp16"), "is a cpu"),
        ("vllm", "v100-sxm-16gb", Formats.of("bf16"), "computes no bf16, which vllm needs units for; use dtype fp16"),
        ("vllm", "v100-sxm-16gb", Formats.of("fp16", weights="fp8"), "use int8, int4, fp16"),
        ("trtllm", "a100-sxm-80gb", Formats.of("bf16", weights="nvfp4"), "use int8, int4, fp16, bf16"),
        ("vllm", "mi250", Formats.of("bf16", weights="fp8"), "no products of fp8 weights"),
        ("trtllm", "a100-sxm-80gb", Formats.of("bf16", weights="fp8_block"), "no products of fp8_block weights"),
    ],
)  # fmt: skip
def test_what_does_not_run_is_refused_with_what_does(engine: str, device: str, formats: Formats, message: str) -> None:
    where = catalogue().get(device)

    def check() -> None:
        check_engine(engine, where)
        check_formats(engine, formats, where)

    with pytest.raises(SpecError, match=message):
        check()


@pytest.mark.parametrize(
    ("engine", "device", "formats"),
    [
        ("vllm", "a100-sxm-80gb", Formats.of("bf16", weights="fp8")),
        ("trtllm", "b200", Formats.of("bf16", weights="nvfp4")),
        ("pytorch", "v100-sxm-16gb", Formats.of("bf16")),
        ("vllm", "mi300x", Formats.of("bf16", weights="fp8")),
        # As DeepSeek-V3 has them.
        ("vllm", "mi300x", Formats.of("bf16", weights="fp8_block")),
        ("trtllm", "b200", Formats.of("bf16", weights="fp8_block")),
        ("trtllm", "h100-sxm", Formats.of("bf16", weights="fp8_block")),
        ("vllm", "max-1550", Formats.of("fp16")),
    ],
)  # fmt: skip
def test_what_runs_passes(engine: str, device: str, formats: Formats) -> None:
    check_engine(engine, catalogue().get(device))
    check_formats(engine, formats, catalogue().get(device))


@pytest.mark.parametrize(
    ("model", "device", "sizes", "message"),
    [
        ("llama-3.1-70b", "h100-sxm", {}, r"use tp 2 or weights in int4$"),
        ("llama-3.1-405b", "l40s", {"tp": 8}, r"use tp 8, pp 4 or weights in int4$"),
        ("mixtral-8x7b", "a40", {"weights": "bf16"}, r"or weights in int4 or more experts on the host"),
    ],
)  # fmt: skip
def test_a_model_without_room_names_the_nearest_that_has_it(
    predictor: ArtifactPredictor, model: str, device: str, sizes: dict[str, int], message: str
) -> None:
    question = serving_request(model_facts(model), device, input_tokens=512, output_tokens=64, concurrency=4, **sizes)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=message) as refused:
        ServingPredictor(predictor).predict(question)
    assert refused.value.field == "memory"
