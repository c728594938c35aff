"""POST /v1/best-cap over the shipped model: the settings that the library chooses, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kernelcast
import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue

from ..conftest import Client, serving

PATH = "/v1/best-cap"
KERNEL = {"family": "gemm", "dtype": "bf16", "sizes": {"m": 4096, "n": 4096, "k": 4096}, "count": 2}
SERVICE = {"model": "meta-llama/Llama-3.1-8B", "input_tokens": 128, "output_tokens": 8, "concurrency": 2, "requests": 4}
MEASURED = {"time_s": 312, "power_w": 241}
BUDGET = {"budget_w": 40_000, "gpus": 8, "host_w": 1500}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(create_app(FixedSource(kernelcast.load(), catalogue()))) as it:
        yield it


def asked(client: Client, **body: Any) -> dict[str, Any]:
    client.validator("BestCapRequest").validate(body)
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 200, response.text
    client.validator("BestCap").validate(response.json())
    result: dict[str, Any] = response.json()
    return result


def test_kernels_are_set_as_the_library_says(client: Client) -> None:
    result = asked(client, device="h100-sxm", kernels=[KERNEL], slowdown=0.05)
    expected = kernelcast.best_cap([KERNEL], "h100-sxm", slowdown=0.05)
    assert result["device"] == expected.device
    assert result["best"]["power_limit_w"] == expected.best.power_limit_w
    assert result["best"]["energy"] == pytest.approx(expected.best.energy)
    assert result["best"]["time"] <= 1.05
    assert (len(result["limits"]), len(result["clocks"])) == (len(expected.limits), len(expected.clocks))


def test_a_measured_program_under_a_budget(client: Client) -> None:
    result = asked(client, device="a40", measured=MEASURED, budget=BUDGET)
    expected = kernelcast.best_cap(None, "a40", **MEASURED, budget=BUDGET)
    assert result["best"]["servers"] == expected.best.servers
    assert result["clocks"] == []


def test_a_service_is_set_with_fewer_points(client: Client) -> None:
    result = asked(client, device="h100-sxm", service=SERVICE, slowdown=0.2)
    assert result["best"]["energy"] < 0.95
    assert result["best"]["time"] <= 1.2
    assert 10 <= len(result["limits"]) < 24


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "kernels", "give one of kernels, service, measured"),
        ({"kernels": [KERNEL], "measured": MEASURED}, "measured", "got kernels, measured"),
        ({"measured": MEASURED, "speed": 1}, "speed", "unknown field"),
        ({"measured": MEASURED, "device": "a41"}, "device", "a40"),
        ({"measured": MEASURED, "device": None}, "device", "name of a device"),
        ({"measured": MEASURED, "device": "amd-epyc-9654"}, "power_limit_w", "is a CPU"),
        ({"measured": MEASURED, "slowdown": -1}, "slowdown", "at least 0"),
        ({"measured": MEASURED, "slowdown": "5%"}, "slowdown", "must be a number"),
        ({"measured": MEASURED | {"power_w": 400}}, "measured.power_w", "above the 300 W"),
        ({"measured": MEASURED | {"watts": 4}}, "measured.watts", "unknown field"),
        ({"measured": {"time_s": 3}}, "measured.power_w", "is missing"),
        ({"measured": 4}, "measured", "must be an object"),
        ({"measured": MEASURED, "budget": {"budget_w": 9}}, "budget.budget_w", "too little for a server"),
        ({"measured": MEASURED, "budget": BUDGET | {"gpus": 1.5}}, "budget.gpus", "whole number"),
        ({"kernels": []}, "kernels", "list of one to 500"),
        ({"kernels": [KERNEL | {"dtype": "int5"}]}, "kernels[0].dtype", "int5"),
        ({"service": 1}, "service", "must be an object"),
        ({"service": SERVICE | {"power_limit_w": 300}}, "service.power_limit_w", "does not go here"),
        ({"service": SERVICE | {"input_tokens": 0}}, "service.input_tokens", "between 1 and"),
        ({"service": SERVICE | {"concurrency": [1, 2]}}, "service.concurrency", "not a list"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    client: Client, body: dict[str, Any], field: str, words: str
) -> None:
    response = client.request("POST", PATH, json={"device": "a40"} | body)
    assert response.status_code == 422, response.text
    (problem,) = response.json()["errors"]
    assert problem["field"] == field
    assert words in problem["detail"]


def test_too_many_requests_are_refused(client: Client) -> None:
    response = client.request("POST", PATH, json={"device": "a40", "service": SERVICE | {"requests": 5000}})
    assert response.status_code == 413
    assert "5,000 requests are too many" in response.json()["detail"]
    # As many are simulated of a closed loop unless a number is given.
    many = {name: value for name, value in SERVICE.items() if name != "requests"} | {"concurrency": 500}
    asked(client, device="h100-sxm", service=many, slowdown=0.2)
