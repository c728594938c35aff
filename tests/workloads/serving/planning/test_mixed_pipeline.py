"""Pipelines over two kinds of devices."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.serving.planning import mixed_pipeline
from kernelcast.workloads.serving.planning.mixed_pipeline import best_pipeline, pairs
from kernelcast.workloads.serving.planning.planner import plan_service
from kernelcast.workloads.serving.planning.space import Refusals, Setting
from kernelcast.workloads.serving.planning.sweep import replicas_of
from kernelcast.workloads.serving.predict import ServingPredictor

FEW = ("a100-sxm-80gb:1", "l40s:2")
LARGE = {"model": "meta-llama/Llama-3.1-70B", "devices": FEW, "gpus": None, "weights": ["bf16"], "input_tokens": 1024}


def test_a_model_that_no_kind_has_room_for_runs_on_two(service: ServingPredictor, ask: Any) -> None:
    answer = plan_service(service, ask(**LARGE))
    assert (answer.possible, answer.choices, answer.by_gpus) == (0, (), ())
    item = answer.pipeline
    assert item is not None
    assert sum(stage.layers for stage in item.stages) == 80
    assert item.devices == {"nvidia-a100-sxm-80gb": 1, "nvidia-l40s": 2}
    on_a100, *on_l40s = (stage.layers for stage in item.stages)
    # 1.71 GB a layer: 42 fill the 72 GB of an A100, 25 the 43 GB of an L40S.
    assert 80 - 2 * 25 <= on_a100 <= 42
    assert max(on_l40s) <= 25
    partition = ",".join(str(stage.layers) for stage in item.stages)
    assert item.command.startswith(f"VLLM_PP_LAYER_PARTITION={partition} vllm serve")
    assert "--pipeline-parallel-size 3" in item.command
    assert item.service.tpot_s.p50.lower < item.service.tpot_s.p50.value < item.service.tpot_s.p50.upper


def test_a_pipeline_of_equal_halves_is_that_of_one_kind(service: ServingPredictor, ask: Any) -> None:
    question = ask(devices=("h100-sxm:2",), gpus=2, concurrency=16, weights=["bf16"])
    device = service.predictor.devices.get("h100-sxm")
    kinds = (mixed_pipeline._Kind(device, 1, 1), mixed_pipeline._Kind(device, 1, 1))
    formats = next(iter(mixed_pipeline.formats_to_try(question, device)))
    rooms = kinds[0].rooms(question, formats)
    mixed = mixed_pipeline._replica(service, question, kinds, formats, 16, rooms[16])
    setting = Setting(device.name, ParallelPlan(pp=2), formats, "vllm")
    alone = replicas_of(service, question, [setting], Refusals())[0]
    assert mixed is not None
    assert mixed.how.cache_tokens == pytest.approx(alone.how.cache_tokens, rel=0.02)
    assert (mixed.idle_w, mixed.limit_w) == pytest.approx((alone.idle_w, alone.limit_w))
    two, one = mixed.steady(16, question), alone.steady(16, question)
    assert two.tpot_s == pytest.approx(one.tpot_s, rel=0.03)
    assert two.energy_per_token_j == pytest.approx(one.energy_per_token_j, rel=0.1)


def test_more_layers_on_the_faster_kind_take_less_time(service: ServingPredictor, ask: Any) -> None:
    question = ask(devices=("h100-sxm:1", "l40s:1"), gpus=None, concurrency=4, weights=["bf16"])
    devices = [service.predictor.devices.get(name) for name in ("h100-sxm", "l40s")]
    first, second = (mixed_pipeline._Kind(device, 1, 1) for device in devices)
    formats = next(iter(mixed_pipeline.formats_to_try(question, devices[0])))
    times = []
    for layers in (4, 16, 28):
        replica = mixed_pipeline._replica(service, question, (first, second), formats, layers, 64.0)
        assert replica is not None
        times.append(replica.steady(4, question).tpot_s)
    assert times == sorted(times, reverse=True)


def test_a_pipeline_keeps_limits_and_numbers(service: ServingPredictor, ask: Any) -> None:
    question = ask(devices=("a100-sxm-80gb:2", "l40s:4"), gpus=None, concurrency=8, weights=["bf16"], tpot_s=0.05,
                   prices={"a100-sxm-80gb": 2.0, "l40s": 1.0})  # fmt: skip
    item = best_pipeline(service, question)
    assert item is not None
    assert item.service.tpot_s.p50.value <= 0.05
    assert item.devices["nvidia-a100-sxm-80gb"] <= 2
    assert item.devices["nvidia-l40s"] <= 4
    per_hour = 2.0 * item.devices["nvidia-a100-sxm-80gb"] + item.devices["nvidia-l40s"]
    assert item.plan.cost_per_million_tokens == pytest.approx(1e6 * per_hour / 3600 / item.plan.throughput_tok_s)
    assert best_pipeline(service, ask(devices=FEW, gpus=None, tpot_s=1e-4)) is None


@pytest.mark.parametrize(
    "others",
    [
        {"devices": ("a100-sxm-80gb", "l40s")}, {"devices": ("h100-sxm:2",)}, {"devices": ("h100-sxm:1", "mi300x:1")},
        {"devices": FEW, "engines": ["sglang"]}, {"devices": FEW, "speculate": 2, "acceptance": 0.5},
        {"devices": FEW, "model": "openai/whisper-large-v3", "input_tokens": 8},
    ],
    ids=["no numbers", "one kind", "two vendors", "another engine", "guesses", "an encoder"],
)  # fmt: skip
def test_no_pipeline(service: ServingPredictor, ask: Any, others: dict[str, Any]) -> None:
    assert list(pairs(service.predictor.devices, ask(**others))) == []


def test_plans_use_no_more_than_there_are(service: ServingPredictor, ask: Any) -> None:
    question = ask(devices=("h100-sxm:1", "l40s:3"), gpus=None)
    assert question.gpus == 4
    answer = plan_service(service, question)
    used = {(item.setting.device, item.gpus) for item in answer.front}
    assert used <= {("nvidia-h100-sxm-80gb", 1), ("nvidia-l40s", 3)}


@pytest.mark.parametrize(
    "devices", [("h100-sxm:0",), ("h100-sxm:x",), ("h100-sxm:",), ("h100-sxm:1", "h100:2"), ("l40s:1.5",)]
)
def test_numbers_of_devices_are_whole(ask: Any, devices: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as refused:
        ask(devices=devices)
    assert refused.value.field == "devices"


def test_without_gpus_every_device_says_how_many(ask: Any) -> None:
    with pytest.raises(SpecError) as refused:
        ask(devices=("h100-sxm:2", "l40s"), gpus=None)
    assert refused.value.field == "gpus"
    assert "nvidia-l40s:4" in str(refused.value)
    assert math.isfinite(ask(devices=("h100-sxm:2", "l40s"), gpus=4).at_most("nvidia-l40s"))
