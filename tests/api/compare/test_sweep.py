"""POST /v1/sweep: whole numbers along a size or knob, each answered as a single spec is."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from kernelcast.api.compare import sweep as sweep_request
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.transport.problems import ProblemError
from kernelcast.features.device import catalogue
from kernelcast.workloads.compare import sweep as swept_specs

from ..conftest import Recorder

PATH = "/v1/sweep"
GEMM: dict[str, Any] = {
    "family": "gemm", "dtype": "bf16", "sizes": {"n": 512, "k": 512}, "devices": ["h100-sxm"],
    "sweep": {"dim": "m", "from": 1, "to": 100, "points": 10},
}  # fmt: skip
ATTENTION: dict[str, Any] = {
    "family": "attention", "dtype": "bf16", "devices": ["h100-sxm"],
    "sizes": {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 512, "head_dim": 128},
}  # fmt: skip


def asked(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


def test_log_spaced_whole_numbers_each_once(client):
    values = asked(client, GEMM)["values"]
    assert values == [1, 2, 3, 5, 8, 13, 22, 36, 60, 100]
    crowded = asked(client, GEMM | {"sweep": {"dim": "m", "from": 1, "to": 4, "points": 512}})["values"]
    assert crowded == [1, 2, 3, 4]
    linear = asked(client, GEMM | {"sweep": {"dim": "m", "from": 0x10, "to": 64, "points": 4, "scale": "linear"}})
    assert linear["values"] == [16, 32, 48, 64]
    assert asked(client, GEMM | {"sweep": {"dim": "m", "from": 7, "to": 7}})["values"] == [7]


def test_each_point_is_answered_as_a_single_spec(client):
    body = GEMM | {"devices": ["h100-sxm", "amd-epyc-9005-vm-2c"], "dtype": "fp32", "threads": 1, "coverage": 0.8}
    answer = asked(client, body)
    for curve in answer["curves"]:
        threads = 1 if "epyc" in curve["device"] else None
        for i, m in enumerate(answer["values"]):
            spec = {"family": "gemm", "device": curve["device"], "dtype": "fp32", "threads": threads, "coverage": 0.8,
                    "sizes": {"m": m, "n": 512, "k": 512}}  # fmt: skip
            item = client.post(spec).json()
            assert {end: curve["latency_s"][end][i] for end in ("value", "lower", "upper")} == item["latency_s"]
            assert curve["lower_bound_s"][i] == max(item["breakdown"].values())
            assert curve["bound"][i] == item["bound"]
            assert curve["in_domain"][i] == item["in_domain"]
    gpu, cpu = answer["curves"]
    assert gpu["power_w"]["value"] == [350.0] * len(answer["values"])
    assert cpu["power_w"] is None
    assert cpu["energy_j"] is None


def test_values_are_taken_as_given_each_once(client):
    answer = asked(client, GEMM | {"sweep": {"dim": "m", "values": [64, 8.0, 64]}})
    assert answer["values"] == [64, 8]
    assert len(answer["curves"][0]["latency_s"]["value"]) == 2


def test_the_size_in_the_spec_is_replaced_and_knobs_can_be_swept(client):
    with_m = GEMM | {"sizes": {"m": 5, "n": 512, "k": 512}}
    assert asked(client, with_m) == asked(client, GEMM)
    knob = asked(client, with_m | {"sweep": {"dim": "tile_m", "from": 16, "to": 128, "points": 4}})
    assert knob["values"] == [16, 32, 64, 128]
    least = asked(client, with_m | {"sweep": {"dim": "tile_m", "from": 0, "to": 2, "scale": "linear"}})
    assert least["values"] == [0, 1, 2]


def test_sizes_that_must_go_together_are_kept_so(client):
    heads = asked(client, ATTENTION | {"sweep": {"dim": "heads", "from": 1, "to": 64, "points": 20}})["values"]
    assert heads[0] == 8
    assert heads[-1] == 64
    assert all(value % 8 == 0 for value in heads)
    queries = asked(client, ATTENTION | {"sweep": {"dim": "q_len", "from": 256, "to": 1024, "points": 5}})["values"]
    assert max(queries) <= 512
    # The variant follows from the sizes at every point.
    mixed = asked(client, ATTENTION | {"sweep": {"dim": "q_len", "values": [1, 64]}})
    single = {"family": "attention", "device": "h100-sxm", "dtype": "bf16", "variant": "prefill",
              "sizes": ATTENTION["sizes"] | {"q_len": 64}}  # fmt: skip
    assert mixed["curves"][0]["latency_s"]["value"][1] == client.post(single).json()["latency_s"]["value"]


@pytest.mark.parametrize(
    "body",
    [
        # A prime number of heads: only its ends divide it.
        ATTENTION
        | {
            "sizes": ATTENTION["sizes"] | {"heads": 1_099_511_627_689},
            "sweep": {"dim": "kv_heads", "from": 2, "to": 2**40, "points": 512, "scale": "linear"},
        },
        ATTENTION | {"sizes": {"heads": 32}, "sweep": {"dim": "kv_heads", "from": 1, "to": 2**40, "points": 512}},
    ],
)
def test_looking_for_numbers_that_go_together_is_bounded(body, monkeypatch):
    built = []
    read_bare = swept_specs.read_bare

    def counted(*given: Any) -> Any:
        built.append(given)
        return read_bare(*given)

    monkeypatch.setattr(swept_specs, "read_bare", counted)
    with contextlib.suppress(ProblemError):
        sweep_request.read_sweep(json.dumps(body).encode(), catalogue())
    assert 1 <= len(built) <= 2 * swept_specs.MAX_POINTS


def swept(**sweep: Any) -> dict[str, Any]:
    return {"sweep": {"dim": "m", "from": 1, "to": 8} | sweep}


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"sweep": None}, "sweep", "must be an object such as {"),
        ({"sweep": [1]}, "sweep", "not a list"),
        ({"sweep": {"from": 1, "to": 8}}, "sweep.dim", "must be a size or knob of gemm, not null; it has batch, m, n, k"),
        (swept(dim="q"), "sweep.dim", "not 'q'"),
        (swept(dim=3), "sweep.dim", "not a number"),
        (swept(step=2), "sweep.step", "it takes dim, from, to, points, scale, or dim, values"),
        ({"sweep": {"dim": "m", "values": [1], "from": 1}}, "sweep.from", "cannot be combined with `values`"),
        (swept(to=None), "sweep.to", "whole number between 1 and 1099511627776, got null"),
        (swept(**{"from": 0}), "sweep.from", "between 1 and"),
        (swept(dim="tile_m", **{"from": 0}), "sweep.from", "between 1 and"),
        (swept(**{"from": -4, "scale": "linear"}), "sweep.from", "between 1 and"),
        (swept(**{"from": 1.5}), "sweep.from", "got 1.5"),
        (swept(**{"from": True}), "sweep.from", "got true or false"),
        (swept(to=2**41), "sweep.to", "between 1 and"),
        (swept(to=10**400), "sweep.to", "between 1 and"),
        (swept(to="8"), "sweep.to", "got text"),
        (swept(**{"from": 9}), "sweep.to", "at least `from`, which is 9"),
        (swept(points=0), "sweep.points", "between 1 and 512"),
        (swept(points=513), "sweep.points", "between 1 and 512"),
        (swept(scale="cubic"), "sweep.scale", "log, linear"),
        (swept(scale=["log"]), "sweep.scale", "log, linear"),
        ({"sweep": {"dim": "m", "values": []}}, "sweep.values", "one to 512 whole numbers, not 0 values"),
        ({"sweep": {"dim": "m", "values": 5}}, "sweep.values", "not a number"),
        ({"sweep": {"dim": "m", "values": list(range(1, 514))}}, "sweep.values", "not 513 values"),
        ({"sweep": {"dim": "m", "values": [4, 0]}}, "sweep.values[1]", "between 1 and"),
        ({"sweep": {"dim": "m", "values": [4, None]}}, "sweep.values[1]", "whole number"),
        ({"sweep": {"dim": "m", "values": ["4"]}}, "sweep.values[0]", "got text"),
        ({"devices": None}, "devices", "one to 8 device names, not null"),
        ({"devices": ["h100"] * 9}, "devices", "not 9 names"),
        ({"devices": ["h100", "h900"]}, "devices[1]", "are known"),
        ({"device": "h100"}, "device", "unknown field 'device'"),
        ({"sizes": {"n": 512}}, "sizes.k", "needs k"),
        ({"sizes": [1]}, "sizes", "an object of whole numbers"),
        ({"family": None}, "family", "must be text, not null"),
        ({"family": "gem"}, "family", "families:"),
        ({"dtype": "bf17"}, "dtype", "dtypes:"),
        ({"coverage": 0.2}, "coverage", "between 0.5 and 0.99"),
        ({"config": 3, "sweep": {"dim": "tile_m", "values": [16]}}, "config", "an object of whole numbers"),
        (ATTENTION | {"sweep": {"dim": "q_len", "from": 600, "to": 700}}, "sizes.kv_len", "at least q_len"),
        (ATTENTION | {"sweep": {"dim": "heads", "values": [12]}}, "sweep.values[0]", "multiple of kv_heads"),
        (ATTENTION | {"sweep": {"dim": "kv_heads", "values": [8, 3]}}, "sweep.values[1]", "multiple of kv_heads"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(client, change, field, said):
    client.check_refused(PATH, GEMM | change, field, said)


def test_a_device_that_cannot_is_named(odd_client):
    response = odd_client.request("POST", PATH, json=GEMM | {"dtype": "fp64", "devices": ["h100", "odd-one"]})
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error == {"field": "devices[1]", "detail": "odd-one has no peak for fp64; it has: fp32"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body is empty; send {"),
        (b"[]", 422, "must be a JSON object, not a list"),
        (b'{"sweep": {"dim": "m", "dim": "n"}}', 422, "dim: is given twice"),
        (b'{"sweep": {"dim": "m", "from": 1, "to": 2}, "devices": ["h100"]}', 422, "family is missing"),
    ],
)
def test_bodies_that_cannot_be_meant(client, body, status, said):
    client.check_unreadable(PATH, body, status, said)


def test_the_schema_takes_what_is_answered_and_not_what_is_refused(client):
    validator = client.validator("SweepRequest")
    for good in ({}, {"sweep": {"dim": "m", "values": [1, 2]}}, swept(scale="linear", points=3)):
        validator.validate(GEMM | good)
    for bad in ({"x": 1}, {"sweep": {"dim": "m"}}, swept(points=0), {"devices": ["h100"] * 9}, swept(scale="cubic")):
        assert not validator.is_valid(GEMM | bad), bad


@pytest.mark.parametrize(("given", "timing"), [({}, "device"), ({"timing": "call"}, "call")])
def test_all_points_have_one_timing_and_a_method(serve, given, timing):
    predictor = Recorder()
    with serve(FixedSource(predictor, catalogue()), Settings()) as client:
        answer = asked(client, GEMM | {"impl": "torch", "devices": ["h100-sxm", "l40s"]} | given)
    assert answer["timing"] == timing
    assert predictor.timings == {"nvidia-h100-sxm-80gb": {timing}, "nvidia-l40s": {timing}}
    assert [curve["method"] for curve in answer["curves"]] == [{"words": ["fake"], "codes": [0] * 10}] * 2
