"""Settings and footprints in Python: what work they take, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernelcast
import pytest
from kernelcast.workloads.compare.best_cap import Budget

LLAMA = "meta-llama/Llama-3.1-8B"
GEMM = {"dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}


def test_a_kernel_alone_is_set_nearly_as_in_a_list():
    alone = kernelcast.best_cap("matmul", "h100-sxm", slowdown=0.05, **GEMM)
    listed = kernelcast.best_cap([{"family": "gemm", **GEMM}], "h100-sxm", slowdown=0.05)
    # In a list it runs for seconds, and so draws a little more than a single one.
    assert alone.best.power_limit_w == pytest.approx(listed.best.power_limit_w, abs=20)
    assert alone.best.time <= 1.05
    assert alone.best.energy < 0.95


def test_a_program_under_a_budget_as_mapping_or_object():
    ask = {"time_s": 312.0, "power_w": 241.0}
    plain = kernelcast.best_cap(None, "a40", budget={"budget_w": 40_000, "host_w": 1500}, **ask)
    assert plain == kernelcast.best_cap(None, "a40", budget=Budget(40_000, 8, 1500), **ask)
    assert plain.best.throughput is not None
    assert plain.best.throughput > 1


def test_a_service_is_set_by_its_requests():
    load = {"input_tokens": 64, "output_tokens": 4, "concurrency": 1, "requests": 2}
    result = kernelcast.best_cap(LLAMA, "h100-sxm", slowdown=0.3, **load)
    assert result.best.energy < 1
    assert result.usual.latency_s.value > 0


def test_a_service_may_guess_by_a_model_that_ships():
    load = {"input_tokens": 64, "output_tokens": 4, "concurrency": 1, "requests": 2}
    guesses = {"speculate": 2, "acceptance": 0.7, "draft": "meta-llama/Llama-3.2-1B"}
    assert kernelcast.best_cap(LLAMA, "h100-sxm", **load, **guesses).best.energy < 1


def test_the_curves_are_a_picture(tmp_path: Path):
    result = kernelcast.best_cap(None, "a40", time_s=312, power_w=241)
    text = result.save(tmp_path / "curve.svg").read_text()
    assert text.startswith("<svg xmlns")
    assert "power limit in W" in text
    assert "clock in MHz" in text
    assert f"energy {result.best.energy:.2f} ×" in text
    with pytest.raises(kernelcast.SpecError, match=r"written as an \.svg, got curve\.png"):
        result.save(tmp_path / "curve.png")


@pytest.mark.parametrize(
    ("work", "options", "words"),
    [
        (None, {}, "give work, or both"),
        (None, {"time_s": 3}, "give work, or both"),
        ("gemm", {"time_s": 3, "power_w": 200, **GEMM}, "give work, or both"),
        ("gem", GEMM, "gemm"),
        ("gemm", GEMM | {"slowdown": "5%"}, "slowdown must be a number"),
        ("gemm", GEMM | {"budget": {"watts": 3}}, "there is no argument 'watts'"),
        (LLAMA, {"input_tokens": 64, "output_tokens": 4, "speed": 1}, "there is no argument 'speed'"),
        (LLAMA, {"input_tokens": 64, "output_tokens": 4, "batch": 1, "clock_hz": 1e9}, "clock_hz is what is"),
        (LLAMA, {"input_tokens": 64, "output_tokens": 4, "batch": 1, "power_limit_w": 200}, "power_limit_w is what is"),
    ],
)
def test_work_that_cannot_be_read_is_refused(work: Any, options: dict[str, Any], words: str):
    with pytest.raises(kernelcast.SpecError, match=words):
        kernelcast.best_cap(work, "a40", **options)


def test_answers_have_footprints():
    answer = kernelcast.predict("gemm", device="h200", **GEMM)
    total, step = 3 * answer, kernelcast.estimate_model(LLAMA, "h200", prefill=128)
    for item, energy_j in ((answer, answer.energy_j), (total, total.energy_j), (step, step.whole.energy_j)):
        footprint = kernelcast.footprint(item, grid="de", electricity_price=0.25)
        assert footprint.carbon_g.value == pytest.approx(energy_j.value / 3.6e6 * 344)
        assert footprint.electricity_cost.upper == pytest.approx(energy_j.upper / 3.6e6 * 0.25)
    assert kernelcast.footprint(answer.energy_j, grid=400).g_per_kwh == 400


def test_a_service_has_the_footprint_of_a_request():
    load = {"input_tokens": 64, "output_tokens": 4, "concurrency": 1, "requests": 2}
    answer = kernelcast.llm_predict(LLAMA, "h100-sxm", **load)
    footprint = kernelcast.footprint(answer, grid="fr", pue=1.2)
    assert footprint.carbon_g.value == pytest.approx(1.2 * answer.energy_per_request_j.value / 3.6e6 * 44)


@pytest.mark.parametrize(
    ("answer", "options", "words"),
    [
        (kernelcast.Interval(1, 1, 1), {}, "give a grid"),
        (kernelcast.Interval(1, 1, 1), {"grid": "polnd"}, r"pl \(Poland\)"),
        (3.0, {"grid": "de"}, "an answer with an energy, got float"),
    ],
)
def test_footprints_that_cannot_be_are_refused(answer: Any, options: dict[str, Any], words: str):
    with pytest.raises(kernelcast.SpecError, match=words):
        kernelcast.footprint(answer, **options)
