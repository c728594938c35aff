"""POST /v1/predict/model: whole models over the wire."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.page.openapi import document
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue

PATH = "/v1/predict/model"


@pytest.fixture
def model() -> dict[str, Any]:
    projection = {
        "family": "gemm",
        "dtype": "bf16",
        "sizes": {"m": 512, "n": 4096, "k": 4096},
        "count": 32,
        "name": "qkv",
    }
    scores = {"family": "softmax", "dtype": "bf16", "sizes": {"rows": 16384, "cols": 512}, "count": 32}
    return {"devices": ["h100-sxm"], "kernels": [projection, scores]}


def post(client: Any, body: Any) -> Any:
    if isinstance(body, bytes):
        return client.request("POST", PATH, content=body, headers={"content-type": "application/json"})
    return client.request("POST", PATH, json=body)


def test_a_model_is_the_sum_of_its_kernels(client, model):
    response = post(client, model)
    assert response.status_code == 200
    (result,) = response.json()["answers"]
    singles = [
        client.post(
            {name: value for name, value in item.items() if name not in ("count", "name")} | {"device": "h100-sxm"}
        )
        for item in model["kernels"]
    ]
    latencies = [item.json()["latency_s"]["value"] for item in singles]
    assert result["device"] == "nvidia-h100-sxm-80gb"
    assert result["latency_s"]["value"] == pytest.approx(32 * sum(latencies))
    assert result["energy_j"]["value"] == pytest.approx(result["latency_s"]["value"] * result["power_w"]["value"])
    for target in ("latency_s", "power_w", "energy_j"):
        assert result[target]["lower"] <= result[target]["value"] <= result[target]["upper"]
    assert result["bound_s"] == pytest.approx(result["latency_s"]["value"] / 2)
    assert result["kernels"][0]["name"] == "qkv"
    assert [kernel["latency_s"]["value"] for kernel in result["kernels"]] == pytest.approx(latencies)
    assert sum(kernel["time_share"] for kernel in result["kernels"]) == pytest.approx(1.0)
    assert {item["family"] for item in result["families"]} == {"gemm", "softmax"}
    assert result["launches"] == 64


def test_every_device_is_answered_in_order(client, model):
    cpu = next(device.name for device in catalogue() if device.kind == "cpu")
    answers = post(client, model | {"devices": ["h100-sxm", cpu, "l40s"], "coverage": 0.8}).json()["answers"]
    assert [item["device"] for item in answers] == ["nvidia-h100-sxm-80gb", cpu, "nvidia-l40s"]
    assert all(item["coverage"] == 0.8 for item in answers)
    assert answers[1]["energy_j"] is None
    assert answers[1]["power_w"] is None
    assert "qkv" in answers[1]["without_energy"]


def test_gaps_are_counted_once_a_run(client, model):
    tight, gaps = (post(client, model | {"launch_s": gap}).json()["answers"][0] for gap in (0, 1e-5))
    assert gaps["launch_s"] == pytest.approx(64e-5)
    assert gaps["latency_s"]["value"] == pytest.approx(tight["latency_s"]["value"] + 64e-5)


def test_kernels_are_counted_in_the_metrics(client, model):
    def count() -> float:
        line = 'kernelcast_predictions_total{device="nvidia-t4",family="softmax",in_domain="true"} '
        return float(
            next((item for item in client.get("/metrics").text.splitlines() if item.startswith(line)), "0").split()[-1]
        )

    before = count()
    assert (
        post(
            client, model | {"devices": ["t4"]} | {"kernels": [model["kernels"][1] | {"dtype": "fp16"}] * 2}
        ).status_code
        == 200
    )
    assert count() == before + 2


def refused(response: Any, status: int = 422) -> list[str]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    return [error["field"] for error in response.json()["errors"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"devices": []}, "devices"),
        ({"devices": "h100"}, "devices"),
        ({"devices": ["h100", "h900"]}, "devices[1]"),
        ({"devices": [3]}, "devices[0]"),
        ({"device": "h100"}, "device"),
        ({"kernels": []}, "kernels"),
        ({"kernels": {}}, "kernels"),
        ({"kernels": [3]}, "kernels[0]"),
        ({"coverage": 2}, "coverage"),
        ({"coverage": 0.995}, "coverage"),
        ({"launch_s": -1}, "launch_s"),
        ({"launch_s": True}, "launch_s"),
        ({"queued": 1}, "queued"),
        ({"power_limit_w": 7}, "power_limit_w"),
        ({"power_limit_w": "400"}, "power_limit_w"),
        ({"clock_hz": 1200}, "clock_hz"),
    ],
)
def test_what_is_wrong_with_a_model_is_named(client, model, change, field):
    assert refused(post(client, model | change)) == [field]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sizes": {"m": 0, "n": 1, "k": 1}}, "sizes.m"),
        ({"sizes": {"m": 1, "n": 1, "k": 1, "q": 1}}, "sizes.q"),
        ({"count": 0}, "count"),
        ({"count": "3"}, "count"),
        ({"name": 3}, "name"),
        ({"device": "h100"}, "device"),
        ({"family": "gem"}, "family"),
        ({"dtype": "fp3"}, "dtype"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_named_by_its_place(client, model, change, field):
    good, bad = model["kernels"][0], model["kernels"][0] | change
    assert refused(post(client, model | {"kernels": [good, good, bad]})) == [f"kernels[2].{field}"]


def test_a_family_the_model_does_not_know_is_named_wherever_it_stands(client, model):
    conv = {"family": "conv2d", "dtype": "fp32",
            "sizes": {"batch": 1, "in_channels": 3, "out_channels": 8, "height": 8, "width": 8, "kernel": 3}}  # fmt: skip
    result = refused(post(client, model | {"kernels": [*model["kernels"], conv, conv]}))
    assert result == ["kernels[2].family", "kernels[3].family"]


def test_limits_are_those_of_the_other_route(client, model):
    assert refused(post(client, model | {"kernels": model["kernels"] * 300, "devices": ["h100", "l40s"]}), 413) == []
    assert refused(post(client, b" " * 200_001), 413) == []
    assert refused(post(client, b"{"), 400) == []
    assert post(client, b"").json()["detail"] == 'the body is empty; send {"devices": […], "kernels": […]}'
    assert refused(client.request("POST", PATH, content=b"{}"), 415) == []
    assert client.get(PATH).status_code == 405


def test_a_name_given_twice_is_refused(client):
    kernel = b'{"family": "gemm", "dtype": "bf16", "sizes": {"m": 1, "m": 2, "n": 1, "k": 1}}'
    twice = b'{"devices": ["h100"], "kernels": [' + kernel + b"]}"
    assert refused(post(client, twice)) == ["m"]


def test_without_a_model_it_is_not_ready(serve, model):
    with serve(FixedSource(None, catalogue()), Settings()) as client:
        assert post(client, model).status_code == 503


def test_the_document_describes_the_route_and_its_example_is_taken(client):
    described = document(catalogue())
    operation = described["paths"][PATH]["post"]
    content = operation["requestBody"]["content"]["application/json"]
    assert post(client, content["example"]).status_code == 200
    schemas = described["components"]["schemas"]
    assert "device" not in schemas["GemmKernel"]["properties"]
    assert set(schemas["GemmKernel"]["required"]) == {"family", "dtype", "sizes"}
    answer = operation["responses"]["200"]["content"]["application/json"]["example"]["answers"][0]
    assert set(answer) == set(schemas["WholeModelPredictionAnswer"]["properties"])
    assert set(answer["kernels"][0]) == set(schemas["KernelPartAnswer"]["properties"])
    assert set(answer["families"][0]) == set(schemas["FamilyPartAnswer"]["properties"])
    assert {"400", "413", "415", "422", "500", "503"} <= set(operation["responses"])
