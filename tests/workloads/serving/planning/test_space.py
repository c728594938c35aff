"""What is chosen among: splits that divide, fit and are linked; the others are counted."""

from __future__ import annotations

from typing import Any

from kernelcast.features.device import catalogue
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.serving.planning.space import Refusals, settings


def test_a_dense_model_is_split_by_layers_and_stages_alone(ask: Any) -> None:
    refusals = Refusals()
    plans = {item.plan for item in settings(ask(gpus=4), catalogue(), refusals)}
    assert plans == {
        ParallelPlan(tp=tp, pp=pp) for tp, pp in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
    }  # fmt: skip
    assert not refusals.count


def test_experts_are_shared_out_too(ask: Any) -> None:
    plans = {item.plan for item in settings(ask("Qwen/Qwen3-30B-A3B"), catalogue(), Refusals())}
    assert {ParallelPlan(tp=2), ParallelPlan(tp=2, ep=2), ParallelPlan(dp=2, ep=2)} <= plans


def test_what_does_not_divide_is_counted_with_the_nearest(ask: Any) -> None:
    refusals = Refusals()
    plans = {item.plan.tp for item in settings(ask(gpus=6), catalogue(), refusals)}
    assert plans == {1, 2}
    divide = refusals.kinds["divide"]
    assert divide.count == 6
    assert "tp 3 does not divide" in divide.nearest


def test_engines_and_links_that_a_device_lacks_are_counted(ask: Any) -> None:
    refusals = Refusals()
    question = ask(devices=("mi300x", "h100-sxm"), gpus=16, engines=["vllm", "trtllm"])
    kinds = {(item.device, item.engine) for item in settings(question, catalogue(), refusals)}
    assert ("amd-mi300x", "trtllm") not in kinds
    assert "trtllm does not run on devices of amd" in refusals.kinds["engine"].nearest
    assert "16 devices" in refusals.kinds["links"].nearest


def test_fp8_is_tried_where_a_device_multiplies_it(ask: Any) -> None:
    def formats(**others: Any) -> set[str]:
        return {item.formats.weights for item in settings(ask(**others), catalogue(), Refusals())}

    assert formats() == {"bf16", "fp8"}
    assert formats(devices=("a100-sxm",)) == {"bf16"}
    assert formats(weights=["int4"]) == {"int4"}


def test_a_nearer_refusal_replaces_the_reason() -> None:
    refusals = Refusals()
    for reason, distance in (("far", 2.0), ("near", 1.0), ("farther", 3.0)):
        refusals.add("memory", reason, distance)
    assert refusals.kinds["memory"].nearest == "near"
    assert refusals.count == 3
