"""POST /v1/roofline: the roof is the catalogue's, the point under it the prediction's."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.device import catalogue

PATH = "/v1/roofline"
GEMM: dict[str, Any] = {
    "family": "gemm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}, "devices": ["h100-sxm", "t4"],
}  # fmt: skip


def asked(client: Any, **changes: Any) -> dict[str, Any]:
    response = client.request("POST", PATH, json=GEMM | changes)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def test_roof_and_point(client):
    answer = asked(client)
    item = answer["answers"][0]
    device = catalogue().get("h100-sxm")
    peak, memory = device.matrix_flops_per_s["bf16"], device.facts["memory_bandwidth_b_per_s"]
    assert item["peak_flops_per_s"] == {"value": peak.value, "source": peak.source}
    assert item["bandwidth_b_per_s"] == {"value": memory.value, "source": memory.source}
    assert item["ridge_intensity"] == pytest.approx(peak.value / memory.value)
    assert item["intensity"] == pytest.approx(answer["flops"] / answer["bytes"])
    prediction = client.post(
        {name: GEMM[name] for name in ("family", "dtype", "sizes")} | {"device": "h100-sxm"}
    ).json()
    assert item["latency_s"] == prediction["latency_s"]
    assert item["breakdown"] == prediction["breakdown"]
    assert item["bound"] == prediction["bound"]
    assert item["lower_bound_s"] == max(prediction["breakdown"].values())
    assert item["attained_flops_per_s"]["upper"] == pytest.approx(answer["flops"] / prediction["latency_s"]["lower"])
    assert item["of_limit"] == pytest.approx(0.5)


def test_a_dtype_the_hardware_lacks_stands_under_the_roof_of_what_it_runs_as(client):
    t4 = asked(client)["answers"][1]
    assert t4["dtype"] == catalogue().get("t4").peak_flops_per_s("bf16", "matrix")[1]
    assert t4["dtype"] != "bf16"


def test_fewer_threads_have_a_lower_roof_that_says_so(client):
    changes = {"devices": ["amd-epyc-9005-vm-2c", "h100"], "dtype": "fp32"}
    (half, gpu), (whole, same) = (asked(client, **changes, threads=n)["answers"] for n in (1, None))
    assert half["peak_flops_per_s"]["value"] == pytest.approx(whole["peak_flops_per_s"]["value"] / 2)
    assert half["peak_flops_per_s"]["source"] == whole["peak_flops_per_s"]["source"] + "; 1 of 2 cores"
    assert gpu == same


def test_a_kernel_without_arithmetic_has_intensity_0(client):
    schema = client.get("/v1/kernels/copy").json()["examples"][0]
    body = {name: schema[name] for name in schema if name != "device"} | {"devices": ["h100"]}
    (item,) = client.request("POST", PATH, json=body).json()["answers"]
    assert item["intensity"] == 0
    assert item["attained_flops_per_s"]["value"] == 0


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"devices": None}, "devices", "one to 8 device names, not null"),
        ({"devices": []}, "devices", "not 0 names"),
        ({"devices": ["h100"] * 9}, "devices", "not 9 names"),
        ({"devices": ["h100", "h900"]}, "devices[1]", "are known"),
        ({"devices": ["h100", "H100"]}, "devices[1]", "named twice"),
        ({"device": "h100"}, "device", "unknown field 'device'"),
        ({"price_per_hour": {}}, "price_per_hour", "unknown field"),
        ({"family": "gem"}, "family", "families:"),
        ({"sizes": {"m": 0, "n": 2, "k": 3}}, "sizes.m", "between 1 and"),
        ({"coverage": 0.999}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": "x"}, "coverage", "between 0.5 and 0.99"),
        ({"family": "conv2d", "sizes": {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1,
                                        "kernel": 1}}, "family", "not trained on conv2d"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(client, change, field, said):
    client.check_refused(PATH, GEMM | change, field, said)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body is empty; send {"),
        (b"{]", 400, "not valid JSON"),
        (b"null", 422, "must be a JSON object, not null"),
        (b'{"sizes": {"m": 1, "m": 2}}', 422, "m: is given twice"),
    ],
)
def test_bodies_that_cannot_be_meant(client, body, status, said):
    client.check_unreadable(PATH, body, status, said)


def test_a_device_that_cannot_is_named(odd_client):
    response = odd_client.request("POST", PATH, json=GEMM | {"dtype": "fp64", "devices": ["h100", "odd-one"]})
    assert response.json()["errors"] == [
        {"field": "devices[1]", "detail": "odd-one has no peak for fp64; it has: fp32"}
    ]


def test_the_schema_takes_what_is_answered_and_not_what_is_refused(client):
    validator = client.validator("RooflineRequest")
    validator.validate(GEMM | {"impl": "torch", "coverage": 0.5})
    for bad in ({"x": 1}, {"devices": []}, {"devices": ["h100"] * 9}, {"sizes": {"q": 1}}, {"cache_state": "warm"}):
        assert not validator.is_valid(GEMM | bad), bad
