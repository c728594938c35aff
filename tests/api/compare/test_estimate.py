"""POST /v1/estimate over the shipped model: models, configurations and captured programs, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import kernelcast
import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import model_names
from kernelcast.workloads.torch_program.captured import FORMAT, VERSION

from ..conftest import Client, FakePredictor, serving

PATH = "/v1/estimate"
LLAMA = {
    "model": "meta-llama/Llama-3.1-8B",
    "devices": ["h100-sxm", "rtx-4090"],
    "phase": "decode",
    "batch": 8,
    "length": 2048,
}
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 1024, "vocab_size": 1000,
}  # fmt: skip
MATRIX = [[64, 512], [512, 1], "float32", 4]
PROGRAM = {
    "format": FORMAT, "version": VERSION, "operators": 3, "batch": 64, "flops": 6.7e7,
    "memory": {"peak_b": 3000000, "weights_b": 2000000, "gradients_b": 0, "optimizer_state_b": 0, "activations_b": 900000,
               "inputs_b": 100000},
    "tensors": [MATRIX, [[512, 512], [512, 1], "float32", 4]],
    "calls": [
        {"name": "aten.mm", "count": 2, "compiled": 2, "inputs": [[0, 0], [1, 1]], "outputs": [[0, 2]],
         "arguments": {"self": {"input": 0}, "mat2": {"input": 1}}, "module": "Net.layers.*"},
        {"name": "aten.relu", "count": 1, "compiled": 1, "inputs": [[0, 0]], "outputs": [[0, 1]], "pointwise": True},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(create_app(FixedSource(kernelcast.load(), catalogue()))) as one:
        yield one


def asked(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    client.validator("EstimateRequest").validate(body)
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 200, response.text
    client.validator("Estimates").validate(response.json())
    result: dict[str, Any] = response.json()
    return result


def test_a_shipped_model_is_what_the_library_says(client: Client) -> None:
    result = asked(client, LLAMA | {"price_per_hour": {"h100-sxm": 3.6}})
    expected = kernelcast.estimate_model("meta-llama/Llama-3.1-8B", "h100-sxm", decode=True, context=2048, batch=8)
    h100, rtx = result["answers"]
    assert (h100["device"], rtx["device"]) == ("nvidia-h100-sxm-80gb", "nvidia-rtx-4090")
    for name in ("value", "lower", "upper"):
        assert h100["latency_s"][name] == pytest.approx(getattr(expected.whole.latency_s, name))
    assert h100["tokens_per_s"]["value"] == pytest.approx(8 / h100["latency_s"]["value"])
    assert h100["cost"]["value"] == pytest.approx(h100["latency_s"]["value"] / 1000)
    assert h100["cost_per_million_tokens"]["value"] == pytest.approx(h100["cost"]["value"] * 1e6 / 8)
    assert rtx["cost"] is None
    assert h100["memory"]["total_b"] == pytest.approx(sum(h100["memory"]["parts_b"].values()))
    assert h100["memory"]["fits"] is True
    for parts in (h100["modules"], h100["kernels"], h100["phases"]):
        assert sum(part["latency_s"] for part in parts) == pytest.approx(h100["latency_s"]["value"])
        assert [part["latency_s"] for part in parts] == sorted((p["latency_s"] for p in parts), reverse=True)
    assert {"layers.attention", "layers.mlp", "logits"} <= {part["name"] for part in h100["modules"]}
    assert sum(h100["bound"].values()) == pytest.approx(1)
    assert {saving["kind"] for saving in h100["savings"]} >= {"weights", "batch"}
    assert result["model"]["parameters"] == pytest.approx(8.03e9, rel=0.001)
    assert result["step"] == "8 × 1 new token after 2048"


def test_a_configuration_is_trained(client: Client) -> None:
    (item,) = asked(client, {"config": CONFIG, "devices": ["h200"], "phase": "train", "batch": 4, "length": 256})[
        "answers"
    ]
    assert {part["name"] for part in item["phases"]} == {"forward", "backward", "optimizer"}
    assert {"weights", "gradients", "optimizer_state", "activations"} == set(item["memory"]["parts_b"])


def test_training_may_run_its_layers_forwards_again(client: Client) -> None:
    body = {"config": CONFIG, "devices": ["h200"], "phase": "train", "batch": 4, "length": 256}
    kept, again = (asked(client, body | {"recompute": value})["answers"][0] for value in (False, True))
    assert again["latency_s"]["value"] > kept["latency_s"]["value"]
    assert again["memory"]["parts_b"]["activations"] < kept["memory"]["parts_b"]["activations"]
    client.check_refused(PATH, body | {"recompute": 1}, "recompute", "true or false")
    client.check_refused(PATH, LLAMA | {"recompute": True}, "recompute", "goes with train")


def test_an_encoder_beside_a_decoder_runs_alone(client: Client) -> None:
    body = {"model": "openai/whisper-large-v3", "devices": ["h200"], "phase": "encode", "batch": 2}
    result = asked(client, body)
    assert (result["length"], result["model"]["generates"]) == (1500, False)
    client.check_refused(PATH, LLAMA | {"phase": "encode"}, "phase", "no encoder")


def test_what_an_encoder_of_text_reads_is_a_field(client: Client) -> None:
    t5 = {
        "model_type": "t5",
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "vocab_size": 32128,
    }
    body = {"config": t5, "devices": ["h200"], "phase": "decode", "batch": 8, "length": 64}
    short, long = (asked(client, body | {"source": source}) for source in (128, 4096))
    assert short["model"]["parameters"] == pytest.approx(222.9e6, rel=0.001)
    parts_b = [answer["answers"][0]["memory"]["parts_b"]["cache"] for answer in (short, long)]
    assert parts_b[1] - parts_b[0] == 8 * (4096 - 128) * 12 * 2 * 768 * 2
    assert any("the encoder reads 128 tokens" in note for note in short["answers"][0]["notes"])
    assert asked(client, {"config": t5, "devices": ["h200"], "phase": "encode", "source": 300})["length"] == 300
    client.check_refused(PATH, body, "source", "such as source 512")
    client.check_refused(PATH, body | {"source": 0}, "source", "between 1 and")
    client.check_refused(PATH, LLAMA | {"source": 10}, "source", "no encoder of text")


def test_plans_and_formats_are_passed_on(client: Client) -> None:
    body = LLAMA | {"model": "llama-3.1-70b", "devices": ["h100-sxm"], "plan": {"tp": 4}, "weights": "fp8"}
    result = asked(client, body | {"price_per_hour": {"h100-sxm": 3.6}})
    (item,) = result["answers"]
    assert (result["devices"], result["formats"]["weights"]) == (4, "fp8")
    assert item["cost"]["value"] == pytest.approx(4 * item["latency_s"]["value"] / 1000)
    assert item["energy_per_token_j"]["value"] == pytest.approx(item["energy_j"]["value"] / 8)
    assert any("collectives" in note for note in item["notes"])


def test_a_captured_program_is_priced_without_torch(client: Client) -> None:
    result = asked(client, {"program": PROGRAM, "devices": ["h200", "epyc-9005-vm-2c"], "threads": 1})
    gpu, cpu = result["answers"]
    assert gpu["samples_per_s"]["value"] == pytest.approx(64 / gpu["latency_s"]["value"])
    assert gpu["bound_by"] == "host"
    assert 0 < gpu["idle_share"] < 1
    assert cpu["idle_share"] == 0
    assert {part["name"] for part in cpu["kernels"]} == {"aten.mm", "aten.relu"}
    assert {part["name"]: part["runs"] for part in cpu["modules"]} == {"Net.layers.*": 2, "outside modules": 1}
    assert {saving["kind"] for saving in gpu["savings"]} >= {"launches"}
    assert gpu["memory"]["parts_b"] == {"weights": 2000000, "activations": 900000, "inputs": 100000}


class WithoutP4(FakePredictor):
    """Knows nothing of one device."""

    def predict(self, specs: Any, devices: Any, *, coverage: float = 0.9) -> Any:
        if "nvidia-p4" in devices:
            raise SpecError("the model knows no attention on nvidia-p4", field="family")
        return super().predict(specs, devices, coverage=coverage)


def test_devices_that_cannot_are_named_beside_those_that_can() -> None:
    with serving(create_app(FixedSource(WithoutP4(), catalogue()))) as client:
        h100, p4 = asked(client, LLAMA | {"devices": ["h100-sxm", "p4"]})["answers"]
    assert h100["refusal"] is None
    assert p4["refusal"] == "the model knows no attention on nvidia-p4"
    assert p4["latency_s"] is None
    assert p4["kernels"] == []


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"model": "meta-llama/Llama-3.1-9B"}, "model", "nearest: meta-llama/Llama-3.1-8B"),
        ({"model": 7}, "model", "must be the name"),
        ({"model": None}, "model", "give one of model, config, program"),
        ({"config": CONFIG}, "config", "give one of model, config, program"),
        ({"model": None, "config": CONFIG | {"model_type": "lama"}}, "config.model_type", "nearest: llama"),
        ({"model": None, "config": CONFIG | {"hidden_size": "x"}}, "config.hidden_size", "a whole number"),
        ({"model": None, "config": []}, "config", "must be the object of a config.json"),
        ({"devices": ["h900"]}, "devices[0]", "no device"),
        ({"devices": []}, "devices", "one to 16"),
        ({"devices": ["h100-sxm"] * 2}, "devices[1]", "named twice"),
        ({"phase": "sleep"}, "phase", "must be one of"),
        ({"phase": ["decode"]}, "phase", "must be one of"),
        ({"model": "google-bert/bert-base-uncased"}, "phase", "generates nothing"),
        ({"batch": 0}, "batch", "between 1 and"),
        ({"batch": 1.5}, "batch", "a whole number"),
        ({"batch": True}, "batch", "a whole number"),
        ({"length": None}, "length", "is missing"),
        ({"length": -1}, "length", "between 0 and"),
        ({"context": 5}, "context", "goes with prefill"),
        ({"plan": {"tp": 3}}, "plan.tp", "does not divide"),
        ({"plan": {"tp": "2"}}, "plan.tp", "whole number"),
        ({"plan": {"xp": 2}}, "plan.xp", "unknown field"),
        ({"plan": 2}, "plan", "must be an object"),
        ({"weights": "fp7"}, "weights", "it is one of"),
        ({"dtype": 1}, "dtype", "must be text"),
        ({"coverage": 2}, "coverage", "number between"),
        ({"coverage": 0.9999}, "coverage", "coverage"),
        ({"price_per_hour": {"h200": 2}}, "price_per_hour.h200", "not among"),
        ({"threads": 0}, "threads", "whole number"),
        ({"quick": True}, "quick", "unknown field"),
        ({"phase": "train", "weights": "fp8"}, "weights", "give weights bf16"),
        ({"model": "openai-community/gpt2", "length": 5000}, "length", "longer than the table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(client: Client, change: dict[str, Any], field: str, said: str) -> None:
    client.check_refused(PATH, LLAMA | change, field, said)


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"format": "other"}, "program", "save_program"),
        ({"version": 9}, "program", "version 9"),
        ({"calls": []}, "program", "damaged"),
        ({"memory": {}}, "program", "damaged"),
        ({"calls": [PROGRAM["calls"][0] | {"inputs": [[9, 0]]}]}, "program.calls[0]", "no tensor 9"),
        ({"calls": [PROGRAM["calls"][0] | {"arguments": {}}]}, "program.calls[0]", "has not the inputs"),
        ({"calls": [PROGRAM["calls"][0] | {"arguments": {"self": "x" * 301}}]}, "program.calls[0]", "arguments are numbers"),
        ({"tensors": [MATRIX, [[2], [1, 1], "float32", 4]]}, "program.calls[0]", "number of strides"),
        ({"tensors": [MATRIX, [[512, 512], [512, 1], "float33", 4]]}, "program.tensors[1]", "no dtype 'float33' of 4 bytes"),
        ({"tensors": [[[256, 77], [77, 1], "float32", 4], [[1024, 8], [8, 1], "float32", 4]]}, "program.calls[0]",
         "aten.mm: the shapes [256, 77] and [1024, 8] do not fit"),
        ({"calls": [PROGRAM["calls"][1] | {"count": 0, "compiled": 0}]}, "program", "runs no operator"),
    ],
)  # fmt: skip
def test_damaged_programs_are_refused(client: Client, change: dict[str, Any], field: str, said: str) -> None:
    client.check_refused(PATH, {"program": PROGRAM | change, "devices": ["h200"]}, field, said)


def test_a_program_says_its_own_sizes(client: Client) -> None:
    client.check_refused(PATH, {"program": PROGRAM, "devices": ["h200"], "batch": 3}, "batch", "says its own sizes")


def test_bodies_that_cannot_be_meant_and_programs_too_long(client: Client) -> None:
    client.check_unreadable(PATH, b"{", 400, "not valid JSON")
    client.check_unreadable(PATH, b"", 400, "empty")
    client.check_unreadable(PATH, b'{"model": "a", "model": "b", "devices": ["h200"]}', 422, "given twice")
    long = PROGRAM | {"calls": PROGRAM["calls"] * 600}
    response = client.request("POST", PATH, json={"program": long, "devices": ["h200", "h100-sxm"]})
    assert response.status_code == 413
    assert "fewer devices" in response.json()["detail"]


def test_the_longest_requests_take_a_second_or_two(client: Client) -> None:
    devices = [device.name for device in catalogue() if device.kind == "gpu"][:16]
    began = time.process_time()
    asked(client, LLAMA | {"model": "deepseek-ai/DeepSeek-V3", "devices": devices, "batch": 1})
    assert time.process_time() - began < 5
    calls = [PROGRAM["calls"][1] | {"inputs": [[i, 0]], "outputs": [[i, 1]]} for i in range(1000)]
    shapes = [[[64, 512 + i], [512 + i, 1], "float32", 4] for i in range(1000)]
    began = time.process_time()
    asked(client, {"program": PROGRAM | {"calls": calls, "tensors": shapes}, "devices": ["h200", "h100-sxm"]})
    assert time.process_time() - began < 5


def test_every_shipped_model_is_listed_and_can_be_asked_about(client: Client) -> None:
    models = client.get("/v1/estimate/models").json()["models"]
    assert [item["name"] for item in models] == list(model_names())
    for item in models[::6]:
        body = {"model": item["name"], "devices": ["h200"], "length": item["fixed_length"] or 64}
        assert asked(client, body)["model"] == item


def test_limits_and_footprints(client: Client) -> None:
    setting = {"power_limit_w": 250, "grid": "de", "electricity_price": 0.25}
    model = {"model": "meta-llama/Llama-3.1-8B", "devices": ["h100-sxm"], "length": 1024}
    for body in (model, {"program": PROGRAM, "devices": ["h100-sxm"]}):
        (usual,), (limited,) = asked(client, body)["answers"], asked(client, body | setting)["answers"]
        assert "footprint" not in usual
        energy_j = limited["energy_j"]["value"]
        assert limited["footprint"]["carbon_g"]["value"] == pytest.approx(344 * energy_j / 3.6e6)
        assert limited["footprint"]["electricity_cost"]["value"] == pytest.approx(0.25 * energy_j / 3.6e6)
        assert limited["power_w"]["value"] <= usual["power_w"]["value"]
        several = body | {"devices": ["rtx-4090", "h100-sxm", "epyc-9005-vm-2c"], "power_limit_w": 500}
        big, *rest = (item["refusal"] for item in asked(client, several)["answers"])
        assert "above its own limit; give 125 to 450 W" in big
        assert rest[0] is None
        assert "is a CPU" in rest[1]
    expected = kernelcast.estimate_model(model["model"], "h100-sxm", prefill=1024, power_limit_w=250)
    (answer,) = asked(client, model | setting)["answers"]
    assert answer["latency_s"]["value"] == pytest.approx(expected.whole.latency_s.value)
    for change, field in (
        ({"power_limit_w": 5}, "power_limit_w"),
        ({"clock_hz": 1}, "clock_hz"),
        ({"grid": "x"}, "grid"),
    ):
        response = client.request("POST", PATH, json=model | change)
        assert [item["field"] for item in response.json()["errors"]] == [field]
