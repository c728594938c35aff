"""Experts in the host's memory: steps wait for the weights that their tokens choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Floats
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Formats, Step
from kernelcast.workloads.serving.host_experts import LINK_SHARE, HostExpertSteps
from kernelcast.workloads.serving.planning.plan_table import plan_rows
from kernelcast.workloads.serving.planning.planner import plan_service
from kernelcast.workloads.serving.planning.question import plan_question
from kernelcast.workloads.serving.predict import ServingPredictor
from kernelcast.workloads.serving.request import ServingRequest, serving_request
from kernelcast.workloads.serving.speculation import UNMEASURED

MIXTRAL = model_facts("mistralai/Mixtral-8x7B-v0.1")
A40 = catalogue().get("a40")
MOE_S = 0.01


class Steps:
    """Steps of 30 ms, of which experts take 10 unless said otherwise."""

    resting_w = 50.0

    def __init__(self, moe_s: float = MOE_S) -> None:
        self.moe_s = moe_s

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        value = np.full(len(steps), 3 * MOE_S)
        return value, 0.5 * value, 2 * value

    def parts(self, steps: Sequence[Step]) -> dict[str, Floats]:
        return {"moe": np.full(len(steps), self.moe_s), "gemm": np.full(len(steps), 2 * MOE_S)}

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        return np.full(len(steps), 9.0)


@pytest.fixture(scope="module")
def service() -> ServingPredictor:
    return ServingPredictor(load_predictor(default_model_dir()))


def request(**others: Any) -> ServingRequest:
    given: dict[str, Any] = {"input_tokens": 512, "output_tokens": 64, "concurrency": 16, "host_experts": 0.75}
    return serving_request(MIXTRAL, "a40", **(given | others))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("plan", [ParallelPlan(), ParallelPlan(tp=2), ParallelPlan(tp=2, ep=2)])
def test_a_step_waits_for_the_experts_that_its_tokens_choose(share: float, plan: ParallelPlan) -> None:
    steps = HostExpertSteps(Steps(), MIXTRAL, A40, plan, Formats.of("bf16"), share)
    one, many = steps.seconds([Step.decode(1, 64), Step.decode(4096, 64)])[0]
    # 32 layers of 8 experts with three matrices of 4096 x 14336 in two bytes; one token chooses two of eight.
    whole_s = 32 * 8 * 3 * 4096 * 14336 * 2 / plan.devices / (LINK_SHARE * 3.15e10)
    assert many == pytest.approx((3 - share) * MOE_S + share * whole_s)
    assert one == pytest.approx((3 - share) * MOE_S + share * whole_s / 4)
    parts = steps.parts([Step.decode(1, 64)])
    assert sum(part[0] for part in parts.values()) == pytest.approx(one)
    assert steps.energy_j([Step.decode(1, 64)])[0] > 9.0


def test_a_step_that_reads_little_does_not_wait() -> None:
    steps = HostExpertSteps(Steps(moe_s=10.0), MIXTRAL, A40, ParallelPlan(), Formats.of("bf16"), 1.0)
    assert steps.seconds([Step.decode(1, 64)])[0] == 3 * MOE_S


def test_groups_with_experts_of_their_own_read_what_their_own_tokens_choose() -> None:
    steps = [Step.decode(2, 64)]
    alone, shared = (
        HostExpertSteps(Steps(), MIXTRAL, A40, plan, Formats.of("bf16"), 1.0).seconds(steps)[0][0]
        for plan in (ParallelPlan(dp=2), ParallelPlan(dp=2, ep=2))
    )
    whole_s = 32 * 8 * 3 * 4096 * 14336 * 2 / (LINK_SHARE * 3.15e10)
    assert alone == pytest.approx(2 * MOE_S + whole_s / 4)
    assert shared == pytest.approx(2 * MOE_S + whole_s / 2 * (1 - 0.75**2))


def test_a_service_has_room_waits_and_says_so(service: ServingPredictor) -> None:
    with pytest.raises(SpecError, match=r"takes 93\.41 GB"):
        service.predict(request(host_experts=0.0))
    answer, less = service.predict(request()), service.predict(request(host_experts=0.6, kv_dtype="fp8"))
    assert answer.memory.host_b == pytest.approx(0.75 * 32 * 8 * 3 * 4096 * 14336 * 2)
    assert answer.memory.weights_b + answer.memory.host_b == pytest.approx(93.41e9, rel=1e-4)
    assert less.memory.host_b < answer.memory.host_b
    assert less.tpot_s.p50.value < answer.tpot_s.p50.value
    assert answer.parts["moe"] > 0.9
    assert any("75 % of the experts are in the host's memory" in note for note in answer.notes)
    fits = replace(request(), device="h100-sxm", plan=ParallelPlan(tp=2))
    logs = [
        np.log(item.tpot_s.p50.upper / item.tpot_s.p50.value)
        for item in map(service.predict, (fits, replace(fits, host_experts=0.0)))
    ]
    assert logs[0] == pytest.approx(UNMEASURED * logs[1])


def test_no_interval_is_faster_than_the_link(service: ServingPredictor) -> None:
    answer = service.predict(request())
    steps = service.times(replace(request(), device=A40.name))
    batch = [Step.decode(16, 544)]
    assert isinstance(steps, HostExpertSteps)
    assert answer.tpot_s.mean.lower >= 0.98 * steps.reads_s(batch)[0]
    assert answer.throughput_tok_s.upper <= 1.02 * 16 / steps.reads_s(batch)[0]
    assert answer.tpot_s.mean.upper > 1.2 * answer.tpot_s.mean.value


def test_a_dense_draft_guesses_for_a_model_with_experts_on_the_host(service: ServingPredictor) -> None:
    draft = model_facts("meta-llama/Llama-3.2-1B")
    guess = {"speculate": 3, "acceptance": 0.7, "draft": replace(draft, vocabulary=MIXTRAL.vocabulary)}
    answer = service.predict(request(**guess))
    assert answer.speculation is not None
    assert answer.memory.host_b > 60e9


def test_prompts_that_no_step_has_room_for_wait_in_closed_form_too(service: ServingPredictor) -> None:
    question = plan_question(
        MIXTRAL, ["a40"], service.predictor.devices, gpus=1, input_tokens=512, output_tokens=64, engines=["vllm"],
        host_experts=0.75, weights=["bf16"],
    )  # fmt: skip
    answer = plan_service(service, question)
    assert answer.split is None
    for choice in answer.choices:
        assert choice.plan.throughput_tok_s == pytest.approx(choice.service.throughput_tok_s.value, rel=0.35)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host_experts": 1.5}, "between 0 and 1, got 1.5"), ({"host_experts": True}, "between 0 and 1"),
        ({"engine": "sglang"}, "vllm, not by sglang"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        request(**change)
    assert caught.value.field == "host_experts"


def test_a_device_whose_slot_is_unknown_is_refused(service: ServingPredictor) -> None:
    with pytest.raises(SpecError, match="pcie_bandwidth_b_per_s"):
        service.predict(replace(request(), device="gb200"))


def test_rows_of_a_plan_table(service: ServingPredictor) -> None:
    row = {
        "model": MIXTRAL.name,
        "devices": "a40",
        "gpus": 1,
        "input_tokens": 512,
        "output_tokens": 64,
        "requests": 1000,
    }
    dense = row | {"model": "meta-llama/Llama-3.1-8B", "host_experts": 0.5}
    columns = plan_rows([row, row | {"host_experts": 0.75}, dense], service)
    without, answered, refused = columns["refused"]
    assert (answered, "memory: " in without, "has no experts" in refused) == (None, True, True)
    assert columns["plan_engine"][1] == "vllm"
    assert columns["pred_host_memory_b"][1] == pytest.approx(67.65e9, rel=1e-3)
    assert columns["pred_memory_b"][1] < 48e9
    assert "--cpu-offload-gb 63.0 --cpu-offload-params w13_weight w2_weight" in columns["plan_command"][1]
