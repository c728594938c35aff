"""POST /v1/measurements/like: measured points along one dimension, its refusals; and how the document describes all three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log2
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.datasets.rows.schema import arrow_schema
from kernelcast.datasets.shipped import read_shipped
from kernelcast.features.device import catalogue

PATH = "/v1/measurements"
SETS_PATH = "/v1/measurements/sets"
LIKE_PATH = "/v1/measurements/like"

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"


@pytest.fixture(scope="module")
def browse(serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service without any model and with an empty store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELCAST_HOME", str(tmp_path_factory.mktemp("home")))
        with serve(FixedSource(None, catalogue()), Settings()) as client:
            yield client


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    result: dict[str, Any] = response.json()
    return result


QUESTION = {"family": "copy", "dtype": "fp32", "sizes": {"rows": 64, "cols": 64}, "threads": 1, "devices": [CPU]}


def like(client: Any, **changes: Any) -> httpx.Response:
    body = QUESTION | {"dim": "cols"} | changes
    result: httpx.Response = client.request("POST", LIKE_PATH, json={k: v for k, v in body.items() if v is not ...})
    return result


def test_rows_like_a_measured_one_have_it_among_them(browse: Any) -> None:
    rows = [row for row in read_shipped("gemm").to_pylist() if row["status"] == "ok"]
    names = ("batch", "m", "n", "k")
    knobs = [
        name for name in arrow_schema("gemm").names if name.startswith(("tile", "inner", "warps", "stages", "group"))
    ]
    for row in rows[::600]:
        config = {name: row[name] for name in [*knobs, "split_k", "data_tiling"] if row[name] is not None}
        raw = {"family": "gemm", "dtype": row["dtype"], "sizes": {name: row[name] for name in names}, "config": config,
                 "threads": row["threads"], "cache_state": row["cache_state"], "devices": [row["device"]],
                 "variant": row["variant"]}  # fmt: skip
        for dim in ("n", *list(config)[:1]):
            answer = like(browse, **raw, dim=dim)
            assert answer.status_code == 200, answer.text
            result = answer.json()
            assert result["dim"] == dim
            mine = [item for item in result["points"] if item["value"] == row[dim] and item["impl"] == row["impl"]]
            assert len(mine) == 1
            assert mine[0]["runs"] >= 1
            assert (mine[0]["device"], mine[0]["cache_state"]) == (row["device"], row["cache_state"])
        named = like(browse, **raw, dim="n", impl=row["impl"]).json()["points"]
        assert {item["impl"] for item in named} == {row["impl"]}


def test_points_come_in_order_and_by_catalogue_name(browse: Any) -> None:
    alias = catalogue().get(GPU).aliases[0]
    widest = {"sizes": {"rows": 4096, "cols": 4096}, "dtype": "bf16", "threads": ...}
    result = like(browse, **widest, devices=[alias, GPU, CPU]).json()
    order = [(item["device"], item["impl"], item["value"]) for item in result["points"]]
    assert order == sorted(order)
    assert {item["device"] for item in result["points"]} <= {CPU, GPU}
    assert len(order) == len(set(order))


def test_nothing_measured_is_no_points(browse: Any) -> None:
    assert like(browse, sizes={"rows": 31337, "cols": 1}).json() == {
        "dim": "cols", "timing": "device", "points": [], "left_out": 0,
    }  # fmt: skip
    assert like(browse, sizes={"rows": 31337, "cols": 1}, timing="call").json()["timing"] == "call"


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"dim": ...}, "dim", "got nothing; possible are: rows, cols"),
        ({"dim": "m"}, "dim", "got 'm'; possible are: rows, cols"),
        ({"dim": ["cols"]}, "dim", "got a list"),
        ({"dim": "tile_m"}, "dim", "possible are: rows, cols"),
        ({"devices": ...}, "devices", "1 to 8 device names"),
        ({"devices": []}, "devices", "1 to 8"),
        ({"devices": CPU}, "devices", "must be a list"),
        ({"devices": [CPU] * 9}, "devices", "9 names; at most 8"),
        ({"devices": [CPU, "h900"]}, "devices[1]", "are known"),
        ({"devices": [CPU, 3]}, "devices[1]", "must be text"),
        ({"device": CPU}, "device", "unknown field; possible are: family"),
        ({"set": "../x"}, "set", "unknown field"),
        ({"family": "cpy"}, "family", "families:"),
        ({"dtype": "fp3"}, "dtype", "dtypes:"),
        ({"sizes": {"rows": 64}}, "sizes.cols", "needs cols"),
        ({"sizes": {"rows": 0, "cols": 1}}, "sizes.rows", "between 1 and"),
        ({"config": {"tile_m": 1}}, "config.tile_m", "has no config"),
        ({"threads": -1}, "threads", "between 1 and"),
        ({"cache_state": "warm"}, "cache_state", "hot, cold"),
    ],
)
def test_what_like_refuses(browse: Any, changes: dict[str, Any], field: str, said: str) -> None:
    result = problem(like(browse, **changes), 422)
    assert result["errors"][0]["field"] == field
    assert said in result["detail"]


@pytest.mark.parametrize(
    ("content", "media_type", "status", "said"),
    [
        (b"{", "application/json", 400, "not valid JSON"),
        (b"", "application/json", 400, 'the body is empty; send {"family"'),
        (b"[]", "application/json", 422, "must be a JSON object, not a list"),
        (b'{"dim":"m","dim":"n"}', "application/json", 422, "given twice"),
        (b"{" + b" " * 20000 + b"}", "application/json", 413, "longer than 16384 bytes"),
        (b"{}", "text/plain", 415, "content-type: application/json"),
    ],
)
def test_bodies_that_cannot_be_read(browse: Any, content: bytes, media_type: str, status: int, said: str) -> None:
    answer = browse.request("POST", LIKE_PATH, content=content, headers={"content-type": media_type})
    assert said in problem(answer, status)["detail"]


def test_the_document_describes_the_routes_and_its_examples_hold(browse: Any) -> None:
    document = browse.get("/openapi.json").json()
    components = {"components": document["components"]}
    for path, answer in (
        (SETS_PATH, browse.get(SETS_PATH).json()),
        (PATH, browse.get(f"{PATH}?family=copy").json()),
        (PATH, browse.get(f"{PATH}?limit=200").json()),
        (LIKE_PATH, like(browse).json()),
    ):
        operation = document["paths"][path]["post" if path == LIKE_PATH else "get"]
        content = operation["responses"]["200"]["content"]["application/json"]
        for value in (answer, content["example"]):
            Draft202012Validator(content["schema"] | components).validate(value)
        for parameter in operation.get("parameters", ()):
            Draft202012Validator(parameter["schema"]).validate(parameter["example"])
            assert browse.request("GET", path, params={parameter["name"]: parameter["example"]}).status_code == 200
    request = document["paths"][LIKE_PATH]["post"]["requestBody"]["content"]["application/json"]
    Draft202012Validator(request["schema"] | components).validate(request["example"])
    result = browse.request("POST", LIKE_PATH, json=request["example"])
    assert result.status_code == 200


def nearest(client: Any, **changes: Any) -> httpx.Response:
    body = QUESTION | changes
    result: httpx.Response = client.request("POST", f"{PATH}/nearest", json=body)
    return result


def test_the_nearest_case_is_the_one_whose_most_different_size_differs_least(browse: Any) -> None:
    names = ("batch", "m", "n", "k")
    rows = [
        row for row in read_shipped("gemm").to_pylist()
        if row["status"] == "ok" and row["device"] == GPU and row["dtype"] == "bf16" and row["impl"] == "torch"
        and not row["variant"] and row["cache_state"] != "cold" and row["timing"] != "call"
    ]  # fmt: skip
    knobs = [
        name for name in rows[0] if name.startswith(("tile", "inner", "warps", "stages", "group", "split_", "data_t"))
    ]
    sizes = [{name: row[name] or 1 for name in names} for row in rows if all(row[knob] is None for knob in knobs)]
    wanted = {"batch": 1, "m": 700, "n": 3000, "k": 1500}
    spec = {"family": "gemm", "dtype": "bf16", "impl": "torch", "threads": None, "devices": [GPU, "gb200"]}
    (case,) = nearest(browse, **spec, sizes=wanted).json()["cases"]
    away = min(max(abs(log2(one[name] / wanted[name])) for name in names) for one in sizes)
    assert case["doublings"] == pytest.approx(away)
    assert case["device"] == GPU
    (same,) = nearest(browse, **spec, sizes=case["sizes"]).json()["cases"]
    assert same["doublings"] == 0
    assert same["latency_s"] == case["latency_s"]


def test_a_nearest_case_has_no_dimension(browse: Any) -> None:
    assert "dim" in problem(nearest(browse, dim="cols"), 422)["detail"]
    assert nearest(browse, dtype="fp64").json()["cases"] == []
