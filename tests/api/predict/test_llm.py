"""POST /v1/llm/predict and /v1/llm/plan: answers, and problems of every bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kernelcast
import pytest
from kernelcast.api.model_source import LoadedModel
from kernelcast.api.predict.llm import FIRST_QUESTIONS, LlmAnswers
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.predict.predictor import load_predictor

PREDICT: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "device": "h100-sxm", "input_tokens": 512, "output_tokens": 64, "concurrency": 8,
    "price_per_hour": 2.5,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "devices": ["h100-sxm", "l40s"], "gpus": 2, "input_tokens": 512, "output_tokens": 64,
    "engines": ["vllm"],
}  # fmt: skip
FLEET: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B", "devices": ["h100-sxm", "l40s"], "gpus": 2, "rate": 4, "engines": ["vllm"],
    "weights": ["bf16"],
    "tpot_s": 0.05, "price_per_hour": {"h100-sxm": 2.5, "l40s": 0.9},
    "sizes": [
        {"input_tokens": 256, "output_tokens": 128, "weight": 4}, {"input_tokens": 4096, "output_tokens": 256},
    ],
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 128256,
}  # fmt: skip


def ask(client: Any, name: str, body: dict[str, Any]) -> Any:
    return client.request("POST", f"/v1/llm/{name}", json=body)


def test_a_service_is_predicted(client: Any) -> None:
    answer = ask(client, "predict", PREDICT | {"gpus": 2, "plan": {"tp": 2}}).json()
    assert (answer["gpus"], answer["replicas"], answer["plan"]["tp"]) == (2, 1, 2)
    latency = answer["ttft_s"]
    assert latency["p50"]["value"] <= latency["p99"]["value"]
    cost = 1e6 * 2 * 2.5 / 3600 / answer["throughput_tok_s"]["value"]
    assert answer["cost_per_million_tokens"]["value"] == pytest.approx(cost)
    again = ask(client, "predict", PREDICT | {"gpus": 2, "plan": {"tp": 2}}).json()
    assert again == answer


def test_a_list_of_loads_is_answered_by_a_list(client: Any) -> None:
    services = ask(client, "predict", PREDICT | {"concurrency": [16, 1, 8]}).json()["services"]
    assert [one["load"]["size"] for one in services] == [16, 1, 8]
    assert services[2] == ask(client, "predict", PREDICT).json()
    assert ask(client, "predict", PREDICT | {"concurrency": [8]}).json() == {"services": [services[2]]}


def test_a_service_that_guesses(client: Any) -> None:
    guesses = {"speculate": 3, "acceptance": 0.6, "draft": "meta-llama/Llama-3.2-1B"}
    answer = ask(client, "predict", PREDICT | guesses).json()
    item = answer["speculation"]
    assert (item["tokens"], item["acceptance"], item["draft"]) == (3, 0.6, "meta-llama/Llama-3.2-1B")
    assert item["tokens_per_step"]["lower"] < 1 + 0.6 + 0.36 + 0.216 < item["tokens_per_step"]["upper"]
    assert answer["step_parts"]["draft"] > 0
    assert answer["preemptions"] == 0
    assert ask(client, "predict", PREDICT).json()["speculation"] is None


def test_few_requests_with_long_prompts_are_answered(client: Any) -> None:
    body = PREDICT | {"input_tokens": 100_000, "concurrency": 1, "chunk": 2048}
    assert ask(client, "predict", body).status_code == 200


def test_answers_of_one_token_have_no_time_per_token(client: Any) -> None:
    answer = ask(client, "predict", PREDICT | {"output_tokens": 1}).json()
    assert (answer["tpot_s"], answer["itl_s"], answer["tokens_per_user_s"]) == (None, None, None)


def test_a_model_by_its_configuration(client: Any) -> None:
    body = {name: value for name, value in PREDICT.items() if name != "model"} | {"config": CONFIG}
    assert ask(client, "predict", body).status_code == 200


def test_plans(client: Any) -> None:
    answer = ask(client, "plan", PLAN | {"price_per_hour": {"h100-sxm": 2.5, "l40s": 0.9}, "tpot_s": 0.1}).json()
    assert answer["possible"] > 50
    assert [choice["aim"] for choice in answer["choices"]] == ["cost", "latency", "energy", "throughput"]
    assert all(choice["command"].startswith("vllm serve") for choice in answer["choices"])
    assert answer["devices"] == ["nvidia-h100-sxm-80gb", "nvidia-l40s"]


def test_plans_that_guess_are_tried_beside_those_that_do_not(client: Any) -> None:
    guesses = {"speculate": 3, "acceptance": 0.8, "draft": "meta-llama/Llama-3.2-1B", "devices": ["h100-sxm"]}
    answer = ask(client, "plan", PLAN | guesses).json()
    assert {item["guesses"] for item in answer["front"]} == {0, 3}
    fastest = next(choice for choice in answer["choices"] if choice["aim"] == "latency")
    assert fastest["plan"]["guesses"] == 3
    assert fastest["service"]["speculation"]["tokens"] == 3
    assert '"num_speculative_tokens": 3' in fastest["command"]


def test_a_fleet(client: Any) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    response = ask(client, "fleet", FLEET)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert [bucket["share"] for bucket in answer["buckets"]] == pytest.approx([0.8, 0.2])
    assert sum(kind["gpus"] for kind in answer["kinds"]) == answer["gpus"] <= 2
    for place in range(2):
        assert sum(kind["shares"][place] for kind in answer["kinds"]) == pytest.approx(1, abs=1e-6)
    assert answer["cost_per_hour"] <= answer["one_kind_cost_per_hour"] + 1e-9
    assert (answer["probability"] is None) == (len(answer["kinds"]) == 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sizes": None}, "sizes"), ({"sizes": []}, "sizes"), ({"sizes": [1]}, "sizes[0]"),
        ({"sizes": [{"input_tokens": 1}]}, "sizes[0].output_tokens"), ({"rate": None}, "rate"), ({"rate": 1e6}, "gpus"),
        ({"sizes": [{"input_tokens": 0, "output_tokens": 1}]}, "sizes"),
        ({"sizes": [{"input_tokens": 1, "output_tokens": 1, "x": 1}]}, "sizes[0].x"), ({"input_tokens": 1}, "input_tokens"),
        ({"speculate": 3}, "acceptance"), ({"devices": ["no-such"]}, "devices"),
    ],
)  # fmt: skip
def test_bad_fleets_are_problems(client: Any, change: dict[str, Any], field: str) -> None:
    pytest.importorskip("scipy", reason="the integer program needs the extra calibrate")
    response = ask(client, "fleet", FLEET | change)
    assert response.status_code == 422, response.text
    assert [item["field"] for item in response.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"model": "no-such"}, 422, "model"), ({"model": "/etc/passwd"}, 422, "model"), ({"config": CONFIG}, 422, "model"),
        ({"model": 5}, 422, "model"), ({"device": "no-such"}, 422, "device"), ({"device": None}, 422, "device"),
        ({"concurrency": 0}, 422, "concurrency"), ({"concurrency": None}, 422, "concurrency"),
        ({"rate": 1}, 422, "concurrency"), ({"concurrency": []}, 422, "concurrency"),
        ({"concurrency": [1] * 17}, 422, "concurrency"), ({"concurrency": [1, "many"]}, 422, "concurrency"),
        ({"concurrency": [1, 0]}, 422, "concurrency"), ({"concurrency": [1, None]}, 422, "concurrency"),
        ({"concurrency": [1], "rate": 1}, 422, "concurrency"), ({"concurrency": [1] * 6, "requests": 50000}, 413, None),
        ({"concurrency": "many"}, 422, "concurrency"), ({"input_tokens": 0}, 422, "input_tokens"),
        ({"input_tokens": 1e300}, 422, "input_tokens"), ({"input_tokens": 10**6}, 422, "input_tokens"),
        ({"plan": {"tp": 3}}, 422, "plan.tp"), ({"plan": {"tp": "two"}}, 422, "plan.tp"), ({"plan": {"x": 1}}, 422, "plan.x"),
        ({"plan": 2}, 422, "plan"), ({"gpus": 3, "plan": {"tp": 2}}, 422, "gpus"), ({"engine": "tgi"}, 422, "engine"),
        ({"weights": "int3"}, 422, "weights"), ({"price_per_hour": -1}, 422, "price_per_hour"), ({"spread": 1}, 422, "spread"),
        ({"chunk": -1}, 422, "chunk"), ({"unknown": 1}, 422, "unknown"), ({"max_sequences": 0}, 422, "max_sequences"),
        ({"model": "meta-llama/Llama-3.1-70B"}, 422, "gpus"), ({"requests": 100000, "chunk": 64}, 413, None),
        ({"chunk": 1, "requests": 1000}, 413, None), ({"concurrency": 2.5}, 422, "concurrency"),
        ({"speculate": 3}, 422, "acceptance"), ({"acceptance": 0.5}, 422, "speculate"),
        ({"speculate": 3.5}, 422, "speculate"), ({"speculate": 3, "acceptance": 2}, 422, "acceptance"),
        ({"speculate": 3, "acceptance": 0.5, "draft": "/etc/passwd"}, 422, "draft"),
        ({"speculate": 3, "acceptance": 0.5, "draft": "Qwen/Qwen3-8B"}, 422, "draft"),
    ],
)  # fmt: skip
def test_bad_predictions_are_problems(client: Any, change: dict[str, Any], status: int, field: str | None) -> None:
    response = ask(client, "predict", PREDICT | change)
    assert response.status_code == status, response.text
    assert [item["field"] for item in response.json().get("errors", [])] == ([] if field is None else [field])


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"devices": []}, 422, "devices"), ({"devices": ["no-such"]}, 422, "devices"), ({"devices": "h100"}, 422, "devices"),
        ({"devices": [1]}, 422, "devices"), ({"devices": ["amd-epyc-9654"]}, 422, "devices"), ({"gpus": 0}, 422, "gpus"),
        ({"gpus": 10**9}, 422, "gpus"), ({"gpus": 2.5}, 422, "gpus"),
        ({"price_per_hour": {"h100-sxm": 1}}, 422, "price_per_hour"),
        ({"price_per_hour": 1}, 422, "price_per_hour"), ({"price_per_hour": {"x": 1}}, 422, "devices"),
        ({"tpot_s": 1e-5}, 422, "tpot_s"), ({"ttft_s": -1}, 422, "ttft_s"), ({"rate": 1e6}, 422, "rate"),
        ({"rate": 1, "concurrency": 1}, 422, "concurrency"), ({"engines": ["tgi"]}, 422, "engines"),
        ({"engines": ["pytorch"]}, 422, "engines"), ({"weights": ["int3"]}, 422, "weights"),
        ({"model": "meta-llama/Llama-3.1-405B"}, 422, "gpus"), ({"power_budget_w": 10}, 422, "power_budget_w"),
        ({"devices": ["h100", "h200", "b200", "l40s"], "gpus": 64, "model": "Qwen/Qwen3-30B-A3B", "engines": None}, 413, None),
    ],
)  # fmt: skip
def test_bad_plans_are_problems(client: Any, change: dict[str, Any], status: int, field: str | None) -> None:
    response = ask(client, "plan", PLAN | change)
    assert response.status_code == status, response.text
    assert [item["field"] for item in response.json().get("errors", [])] == ([] if field is None else [field])


def test_bodies_that_are_none(client: Any) -> None:
    for name in ("predict", "plan", "fleet"):
        for body, status in ((b"", 400), (b"{", 400), (b"[]", 422), (b"{}", 422), (b'{"gpus": 1, "gpus": 2}', 422)):
            response = client.request(
                "POST", f"/v1/llm/{name}", content=body, headers={"content-type": "application/json"}
            )
            assert response.status_code == status, (name, body, response.text)


def test_the_first_questions_are_those_of_the_page() -> None:
    view = (Path(kernelcast.__file__).parent / "api/page/static/views/llm.js").read_text(encoding="utf-8")
    question = FIRST_QUESTIONS[0]
    start = view.partition("const PRESETS = {\n")[2].partition("\n")[0]
    assert f'"{question["model"]}", `${{H100}},${{B200}}`, "2,4", {{ weights: "{question["weights"]}" }}' in start
    assert f"const CONCURRENCIES = {question['concurrency']};" in view
    assert {item["device"] for item in FIRST_QUESTIONS} == {"nvidia-h100-sxm-80gb", "nvidia-b200-sxm-180gb"}
    assert {item["plan"]["tp"] for item in FIRST_QUESTIONS} == {2, 4}


def test_a_model_is_warmed_up_once_and_not_beside_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.api.predict.llm.FIRST_QUESTIONS", [FIRST_QUESTIONS[0] | {"concurrency": [1]}])
    predictor = load_predictor(shipped_model_dir())
    loaded = LoadedModel(predictor, catalogue(), "shipped", Path("/model"), {}, "")
    answers = LlmAnswers()
    answers.warm_up(None)
    answers.warm_up(loaded)
    assert answers._service(loaded).known == 1
    monkeypatch.setattr(LlmAnswers, "_service", None)
    answers.warm_up(loaded)
    busy = LlmAnswers()
    busy._has_readers = True
    busy.warm_up(loaded)


def test_services_and_plans_have_footprints_and_limits(client: Any) -> None:
    grid = {"grid": 100, "electricity_price": 0.2}
    usual, answer = ask(client, "predict", PREDICT).json(), ask(client, "predict", PREDICT | grid).json()
    assert "footprint_per_request" not in usual
    for name, energy_j in (
        ("footprint_per_request", answer["energy_per_request_j"]["value"]),
        ("footprint_per_million_tokens", 1e6 * answer["energy_per_token_j"]["value"]),
    ):
        assert answer[name]["carbon_g"]["value"] == pytest.approx(100 * energy_j / 3.6e6)
    plan = PLAN | {"devices": ["h100-sxm"], "weights": ["bf16"], "power_limit_w": 300} | grid
    for choice in ask(client, "plan", plan).json()["choices"]:
        assert choice["service"]["power_w"]["upper"] <= 300
        assert choice["service"]["footprint_per_request"]["electricity_cost"]["value"] > 0
    for name, body in (("plan", PLAN), ("fleet", FLEET)):
        problem = ask(client, name, body | {"power_limit_w": 5000}).json()["errors"][0]
        assert problem["field"] == "power_limit_w"
    assert ask(client, "predict", PREDICT | {"pue": 2}).json()["errors"][0]["field"] == "pue"
