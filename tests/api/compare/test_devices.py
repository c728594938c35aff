"""POST /v1/compare: every device answers, or says why not; costs and rates follow from the prediction."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue

from ..conftest import Recorder

PATH = "/v1/compare"
GEMM: dict[str, Any] = {"family": "gemm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}}


def asked(client: Any, **changes: Any) -> dict[str, Any]:
    response = client.request("POST", PATH, json=GEMM | changes)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def test_the_whole_catalogue_answers_and_none_is_dropped(odd_client):
    answer = asked(odd_client, dtype="fp64", price_per_hour={"odd-one": 1})
    assert {item["device"] for item in answer["answers"]} == {*catalogue().names(), "odd-one"}
    refused = {item["device"]: item for item in answer["answers"] if item["prediction"] is None}
    assert refused["odd-one"]["refusal"] == "odd-one has no peak for fp64; it has: fp32"
    assert set(refused) - {"odd-one"} == {
        device.name
        for device in catalogue()
        if "fp64" not in {**device.matrix_flops_per_s, **device.vector_flops_per_s}
    }
    for name in ("flops_per_s", "joules_per_flop", "of_bound", "cost_per_million_calls"):
        assert all(item[name] is None for item in refused.values())


def test_a_refusal_everywhere_is_an_answer(odd_client):
    (item,) = asked(odd_client, dtype="fp64", devices=["odd-one"])["answers"]
    assert item["prediction"] is None
    assert "no peak" in item["refusal"]


def test_the_prediction_is_that_of_predict(client):
    (item,) = asked(client, devices=["H100-SXM"], coverage=0.8)["answers"]
    assert item["prediction"] == client.post(GEMM | {"device": "h100-sxm", "coverage": 0.8}).json()
    assert item["refusal"] is None


def test_rates_and_costs_follow_from_the_prediction(client):
    answer = asked(client, devices=["h100-sxm", "l40s"], price_per_hour={"H100-SXM": 3.6})
    first, second = answer["answers"]
    latency, energy = first["prediction"]["latency_s"], first["prediction"]["energy_j"]
    flops = 2.0 * 64 * 4096 * 4096
    assert answer["flops"] == flops
    assert answer["bytes"] == 2.0 * (64 * 4096 + 4096 * 4096 + 64 * 4096)
    assert first["flops_per_s"]["value"] == pytest.approx(flops / latency["value"])
    assert first["flops_per_s"]["lower"] == pytest.approx(flops / latency["upper"])
    assert first["joules_per_flop"]["upper"] == pytest.approx(energy["upper"] / flops)
    assert first["of_bound"] == pytest.approx(0.5)
    # 3.6 an hour is a thousandth a second: a million calls cost a thousand times one call's seconds.
    for end in ("value", "lower", "upper"):
        assert first["cost_per_million_calls"][end] == pytest.approx(1000 * latency[end])
    assert second["cost_per_million_calls"] is None


def test_what_is_free_costs_nothing_and_what_does_not_calculate_has_no_rate(client):
    sizes = {"rows": 64, "cols": 64}
    family = {"family": "copy", "dtype": "fp32", "sizes": sizes}
    schema = client.get("/v1/kernels/copy").json()["examples"][0]
    family = {name: schema[name] for name in schema if name != "device"}
    body = family | {"devices": ["h100"], "price_per_hour": {"h100": 0}}
    answer = client.request("POST", PATH, json=body).json()
    assert answer["flops"] == 0
    (item,) = answer["answers"]
    assert item["flops_per_s"] is None
    assert item["joules_per_flop"] is None
    assert item["cost_per_million_calls"] == {"value": 0, "lower": 0, "upper": 0}


def test_unknown_energy_is_null(client):
    (item,) = asked(client, devices=["amd-epyc-9005-vm-2c"], dtype="fp32")["answers"]
    assert item["prediction"]["energy_j"] is None
    assert item["joules_per_flop"] is None


def test_threads_are_those_of_the_cpus(client):
    cpu, gpu = asked(client, devices=["amd-epyc-9005-vm-2c", "h100"], dtype="fp32", threads=1)["answers"]
    both, same = asked(client, devices=["amd-epyc-9005-vm-2c", "h100"], dtype="fp32")["answers"]
    assert gpu == same
    assert cpu["prediction"]["latency_s"]["value"] > both["prediction"]["latency_s"]["value"]


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"device": "h100"}, "device", "unknown field 'device'; possible are family, dtype"),
        ({"x": 1}, "x", "unknown field 'x'"),
        ({"devices": []}, "devices", "one to 200 device names, not 0 names"),
        ({"devices": "h100"}, "devices", "one to 200 device names, not text"),
        ({"devices": ["h100"] * 201}, "devices", "not 201 names"),
        ({"devices": ["h100", "h900"]}, "devices[1]", "are known"),
        ({"devices": [7]}, "devices[0]", "must be text"),
        ({"devices": ["x" * 200]}, "devices[0]", "at most 128 characters"),
        ({"devices": ["h100", "H100"]}, "devices[1]", "named twice"),
        ({"sizes": {"m": 1, "n": 2}}, "sizes.k", "needs k"),
        ({"family": "gem"}, "family", "families:"),
        ({"dtype": "bf17"}, "dtype", "dtypes:"),
        ({"coverage": 0.1}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": 1}, "coverage", "between 0.5 and 0.99"),
        ({"price_per_hour": [1]}, "price_per_hour", "an object of prices by device, not a list"),
        ({"price_per_hour": {"h900": 1}}, "price_per_hour.h900", "are known"),
        ({"price_per_hour": {"l40s": 1}, "devices": ["h100"]}, "price_per_hour.l40s", "is not among the compared devices"),
        ({"price_per_hour": {"h100": -1}}, "price_per_hour.h100", "from 0 to 1e+06, got -1"),
        ({"price_per_hour": {"h100": 1e300}}, "price_per_hour.h100", "from 0 to 1e+06, got 1e+300"),
        ({"price_per_hour": {"h100": True}}, "price_per_hour.h100", "got true or false"),
        ({"price_per_hour": {"h100": "3"}}, "price_per_hour.h100", "got text"),
        ({"price_per_hour": {"h100": None}}, "price_per_hour.h100", "got null"),
        ({"price_per_hour": {"h100": 10**400}}, "price_per_hour.h100", "from 0 to 1e+06"),
        ({"price_per_hour": {"h100": 1, "H100": 2}}, "price_per_hour.H100", "has two prices"),
        ({"family": "conv2d", "sizes": {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1,
                                        "kernel": 1}}, "family", "not trained on conv2d"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(client, change, field, said):
    client.check_refused(PATH, GEMM | change, field, said)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b" ", 400, "the body is empty; send {"),
        (b"nope", 400, "not valid JSON"),
        (b"3", 422, "must be a JSON object, not a number"),
        (b'{"family": "gemm", "price_per_hour": {"h100": 1, "h100": 2}}', 422, "h100: is given twice"),
        (b'{"family": "gemm"}', 422, "dtype is missing; a spec needs family, dtype, sizes"),
    ],
)
def test_bodies_that_cannot_be_meant(client, body, status, said):
    client.check_unreadable(PATH, body, status, said)


def test_the_schema_takes_what_is_answered_and_not_what_is_refused(client):
    validator = client.validator("CompareRequest")
    validator.validate(GEMM)
    validator.validate(GEMM | {"devices": ["h100"], "price_per_hour": {"h100": 1.5}, "threads": None})
    for bad in ({"x": 1}, {"device": "h100"}, {"devices": []}, {"price_per_hour": {"h100": -1}}, {"dtype": "bf17"}):
        assert not validator.is_valid(GEMM | bad), bad


@pytest.mark.parametrize("path", ["/v1/compare", "/v1/roofline"])
@pytest.mark.parametrize(
    ("given", "timing"), [({}, "device"), ({"timing": None}, "device"), ({"timing": "call"}, "call")]
)
def test_all_devices_are_asked_for_one_timing_and_the_answer_names_it(serve, path, given, timing):
    predictor = Recorder()
    with serve(FixedSource(predictor, catalogue()), Settings()) as client:
        body = GEMM | {"impl": "torch", "devices": ["h100-sxm", "l40s"]} | given
        answer = client.request("POST", path, json=body).json()
    assert answer["timing"] == timing
    assert predictor.timings == {"nvidia-h100-sxm-80gb": {timing}, "nvidia-l40s": {timing}}
