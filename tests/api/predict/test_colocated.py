"""POST /v1/predict/colocated over the shipped model: what the library says, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kernelcast
import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue

from ..conftest import Client, serving

PATH = "/v1/predict/colocated"
CPU = "amd-epyc-7003-vm-2c"
COPY = {"family": "copy", "dtype": "fp32", "sizes": {"rows": 2048, "cols": 2048}, "threads": 1}
GEMM = {"family": "gemm", "dtype": "fp32", "sizes": {"m": 16, "n": 2560, "k": 2048}, "threads": 1}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(create_app(FixedSource(kernelcast.load(), catalogue()))) as it:
        yield it


def test_kernels_beside_each_other_are_as_the_library_says(client: Client) -> None:
    body = {"device": CPU, "kernels": [COPY, GEMM], "coverage": 0.8}
    client.validator("ColocatedRequest").validate(body)
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 200, response.text
    client.validator("Colocation").validate(response.json())
    result: dict[str, Any] = response.json()
    expected = kernelcast.predict(
        "copy", device=CPU, dtype="fp32", rows=2048, cols=2048, threads=1, beside=[GEMM], coverage=0.8
    )
    assert [item["slowdown"]["value"] for item in result["kernels"]] == pytest.approx(
        [item.slowdown.value for item in expected.kernels if item.slowdown is not None]
    )
    assert (result["method"], result["notes"]) == ("law", [])


def test_a_gpu_is_answered_by_a_law_and_of_more_than_two_kernels_by_bounds(client: Client) -> None:
    kernels = [{name: value for name, value in kernel.items() if name != "threads"} for kernel in (COPY, GEMM)]
    two = client.request("POST", PATH, json={"device": "h100-sxm", "kernels": kernels}).json()
    assert two["method"] == "law"
    assert [item["slowdown"]["value"] > 1 for item in two["kernels"]] == [True, True]
    result = client.request("POST", PATH, json={"device": "h100-sxm", "kernels": [*kernels, kernels[0]]}).json()
    client.validator("Colocation").validate(result)
    assert (result["method"], result["source"]) == ("bounds", None)
    assert result["kernels"][0]["slowdown"] is result["kernels"][0]["latency_s"] is None
    assert result["kernels"][0]["shortest_s"] < result["kernels"][0]["longest_s"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"device": CPU, "kernels": [COPY]}, "kernels", "2 to 64 kernels"),
        ({"device": CPU}, "kernels", "got NoneType"),
        ({"kernels": [COPY, GEMM]}, "device", "not null"),
        ({"device": "brew", "kernels": [COPY, GEMM]}, "device", "no device 'brew'"),
        ({"device": CPU, "kernels": [COPY, GEMM], "brew": 1}, "brew", "unknown field"),
        ({"device": CPU, "kernels": [COPY, {**GEMM, "family": "brew"}]}, "kernels[1].family", "no kernel family"),
        ({"device": CPU, "kernels": [COPY, {**GEMM, "device": "h100-sxm"}]}, "kernels[1].device", "one device only"),
        ({"device": CPU, "kernels": [COPY, {**GEMM, "threads": 2}]}, "threads", "3 threads"),
        ({"device": CPU, "kernels": [COPY, GEMM], "coverage": 2}, "coverage", "between"),
    ],
)
def test_a_bad_request_names_the_field(client: Client, body: dict[str, Any], field: str, words: str) -> None:
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 422
    (problem,) = response.json()["errors"]
    assert problem["field"] == field
    assert words in problem["detail"]
