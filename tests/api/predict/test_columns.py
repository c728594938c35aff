"""POST /v1/predict/columns: answers and refusals are those of single specs, whatever is in the columns."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.predict import columns_request as columns_read
from kernelcast.api.predict.columns_request import read_columns
from kernelcast.api.settings import Settings
from kernelcast.api.transport.problems import ProblemError
from kernelcast.features.batch.cases import Cases
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import families
from kernelcast.features.spec_io.reading import read_spec

from ..conftest import FakePredictor

PATH = "/v1/predict/columns"
TEXT = ("device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "timing")


def gemm(n: int = 3, **changes: Any) -> dict[str, Any]:
    columns = {"device": "h100-sxm", "dtype": "bf16", "sizes": {"m": list(range(1, n + 1)), "n": 64, "k": 32}}
    return {"family": "gemm", "columns": columns | changes}


def _needs_variant(family: Any) -> bool:
    return "" not in family.variants and family.variant_of is None and not family.default_variant


def drawn(family: Any, rng: random.Random) -> dict[str, Any]:
    """A spec of the family that is possible."""
    sizes = dict(family.model_shapes[rng.randrange(len(family.model_shapes))])
    return {
        "family": family.name,
        "device": rng.choice(["h100-sxm", "NVIDIA-L40S", "amd-epyc-9005-vm-2c"]),
        "dtype": rng.choice(["bf16", "float32", "fp16"]),
        "sizes": sizes,
        "variant": rng.choice(family.variants if _needs_variant(family) else [*family.variants, ""]),
        "impl": rng.choice(["", "torch", None]),
        "kv_dtype": rng.choice([None, "bf16", "fp16"]),
        "threads": rng.choice([None, 1, 2.0]),
        "cache_state": rng.choice(["hot", "cold"]),
        "timing": rng.choice(["", None, "device", "call"]),
        "config": {name: rng.choice([None, 0, 16]) for name in family.config},
    }


def in_columns(specs: list[dict[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: [spec[name] for spec in specs] for name in specs[0] if name not in ("family", "sizes", "config")
    }
    for group in ("sizes", "config"):
        columns[group] = {name: [spec[group][name] for spec in specs] for name in specs[0][group]}
    return {"family": specs[0]["family"], "columns": columns}


def without_nulls(spec: dict[str, Any]) -> dict[str, Any]:
    return spec | {"config": {name: value for name, value in spec["config"].items() if value is not None}}


@pytest.mark.parametrize("name", list(families()))
def test_the_cases_are_those_of_single_specs(name):
    rng, family = random.Random(name), families()[name]
    specs = [drawn(family, rng) for _ in range(40)]
    result = read_columns(json.dumps(in_columns(specs)).encode(), catalogue(), 40)[0]
    singles = [read_spec(without_nulls(spec), catalogue()) for spec in specs]
    wanted = Cases.from_specs([spec for spec, _ in singles], [device for _, device in singles])
    for column in TEXT:
        assert getattr(result, column).tolist() == getattr(wanted, column).tolist(), column
        assert result.coded(column).strings().tolist() == getattr(wanted, column).tolist(), column
    np.testing.assert_array_equal(result.threads, wanted.threads)
    for group in ("sizes", "config"):
        ours, theirs = getattr(result, group), getattr(wanted, group)
        assert list(ours) == list(theirs)
        for column in theirs:
            np.testing.assert_array_equal(ours[column], theirs[column], err_msg=column)


def refusal_of(spec: dict[str, Any]) -> SpecError | None:
    try:
        read_spec(spec, catalogue())
    except SpecError as error:
        return error
    return None


ODD = {
    "device": ["h900", None, 3, "", "x" * 200, "h100", ["h100"]],
    "dtype": ["bf17", None, 1.5, "FP32", {}, "nvfp4"],
    "variant": ["glu", 0, None, "bias", "prefill", []],
    "impl": ["a b", "v" + "9" * 100, False, None, "iree"],
    "kv_dtype": ["int3", 7, None, "fp8", True],
    "threads": [0, -1, 4097, 1.5, True, "2", None, 4096, 10**30, [], 1e300],
    "cache_state": ["warm", None, 1, "cold"],
    "timing": ["host", None, 1, "call", ""],
    "size": [0, -1, 1.5, 4096.0, True, None, "3", 2**40, 2**40 + 1, 2**53 + 1, 10**400, 1e308, [], {}, 7],
    "knob": [-1, 0, 2.5, 2**41, False, "8", [], 10**30, 64.0],
}


@pytest.mark.parametrize("name", ["gemm", "attention", "moe", "conv2d"])
@pytest.mark.parametrize("seed", range(60))
def test_one_odd_value_is_taken_or_refused_as_in_a_single_spec(name, seed):
    rng, family = random.Random(f"{name} {seed}"), families()[name]
    specs = [drawn(family, rng) for _ in range(5)]
    row, field = rng.randrange(5), rng.choice(list(ODD))
    if field == "size":
        specs[row]["sizes"] = specs[row]["sizes"] | {rng.choice(family.dim_names): rng.choice(ODD[field])}
        missing = {dim.name: dim.default for dim in family.dims} | dict.fromkeys(family.dim_names, 1)
        specs = [spec | {"sizes": missing | spec["sizes"]} for spec in specs]
    elif field == "knob" and family.config:
        specs[row]["config"] = specs[row]["config"] | {rng.choice(family.config): rng.choice(ODD[field])}
    else:
        field = "threads" if field == "knob" else field
        specs[row][field] = rng.choice(ODD[field])
    body = json.dumps(in_columns(specs)).encode()
    refusal = refusal_of(without_nulls(specs[row]))
    if refusal is None:
        assert len(read_columns(body, catalogue(), 5)[0]) == 5
        return
    with pytest.raises(ProblemError) as caught:
        read_columns(body, catalogue(), 5)
    assert caught.value.status == 422
    (result,) = caught.value.errors
    assert result.detail == str(refusal)
    assert result.field == f"columns.{refusal.field}[{row}]"


@pytest.mark.parametrize("name", [name for name in families() if name != "conv2d"])
def test_columns_batches_and_single_specs_have_equal_answers(client, name):
    rng, family = random.Random(name), families()[name]
    specs = [without_nulls(drawn(family, rng)) for _ in range(6)]
    for spec in specs:
        spec["variant"] = "relu" if spec["variant"] == "tanh" else spec["variant"]
    table = in_columns([spec | {"config": dict.fromkeys(family.config) | spec["config"]} for spec in specs])
    result = client.request("POST", PATH, json=table | {"coverage": 0.8})
    assert result.status_code == 200, result.text
    answer = result.json()
    batch = client.post({"requests": specs, "coverage": 0.8}).json()["predictions"]
    for i, item in enumerate(batch):
        assert client.post(specs[i] | {"coverage": 0.8}).json() == item
        assert answer["coverage"] == item["coverage"]
        assert answer["bound"]["words"][answer["bound"]["codes"][i]] == item["bound"]
        assert answer["method"]["words"][answer["method"]["codes"][i]] == item["method"]
        assert answer["in_domain"][i] == item["in_domain"]
        for target in ("latency_s", "power_w", "energy_j"):
            mine = answer[target] and {end: answer[target][end][i] for end in ("value", "lower", "upper")}
            assert mine == item[target] or (item[target] is None and set((mine or {0: None}).values()) == {None})


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"family": "gem"}, "family", "families: attention"),
        ({"family": 3}, "family", "must be text, not a number"),
        ({"family": None}, "family", "must be text, not null"),
        ({"spec": 1}, "spec", "unknown field; a request in columns takes family, columns, coverage"),
        ({"columns": []}, "columns", "must be an object of columns, not a list"),
        ({"columns": {"m": [1]}}, "columns.m", "unknown column 'm'; columns are device, dtype"),
        ({"columns": {"device": "h100", "dtype": "bf16"}}, "columns.sizes", "sizes is missing"),
        ({"coverage": 2}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": 0.999}, "coverage", "between 0.5 and 0.99"),
        (gemm(sizes=[1, 2]), "columns.sizes", "an object of whole numbers"),
        (gemm(sizes={"m": [1, 2], "n": 2}), "columns.sizes.k", "needs k"),
        (gemm(sizes={"m": [1, 2], "n": 2, "k": 3, "q": 4}), "columns.sizes.q", "has no sizes 'q'"),
        (gemm(sizes={"m": [1, 2], "n": [2], "k": 3}), "columns.sizes.n", "has 1 values where columns.sizes.m has 2"),
        (gemm(device=["h100"]), "columns.sizes.m", "has 3 values where columns.device has 1"),
        (gemm(sizes={"m": [], "n": 2, "k": 3}), "columns.sizes.m", "is an empty list"),
        (gemm(sizes={"m": [4, 5, 0], "n": 2, "k": 3}), "columns.sizes.m[2]", "between 1 and"),
        (gemm(sizes={"m": [4, None, 5], "n": 2, "k": 3}), "columns.sizes.m[1]", "got null"),
        (gemm(sizes={"m": [4, 5, 6], "n": 0, "k": 3}), "columns.sizes.n", "between 1 and"),
        (gemm(sizes={"m": None, "n": 2, "k": 3}), "columns.sizes.m", "got null"),
        (gemm(device=["h100", "h100", "h900"]), "columns.device[2]", "are known"),
        (gemm(device="h900"), "columns.device", "are known"),
        (gemm(dtype=["bf16", "bf16", "bf17"]), "columns.dtype[2]", "dtypes: fp64"),
        (gemm(variant=["", "bias", "glu"]), "columns.variant[2]", "variants:"),
        (gemm(cache_state=["hot", "warm", "hot"]), "columns.cache_state[1]", "hot, cold"),
        (gemm(cache_state=None), "columns.cache_state", "must be text, not null"),
        (gemm(config={"tile_m": [1, -1, None]}), "columns.config.tile_m[1]", "between 0 and"),
        (gemm(config={"tile_q": 1}), "columns.config.tile_q", "has no config"),
        (gemm(config={"tile_q": [None, 1, 2]}), "columns.config.tile_q", "has no config"),
        (gemm(config=[1]), "columns.config", "an object of whole numbers"),
        (gemm(101, impl=[f"mine-{i}" for i in range(101)]), "columns.impl", "101 different implementations; at most 100"),
        (gemm(threads=[1, 2, 0]), "columns.threads[2]", "between 1 and 4096"),
        ({"family": "conv2d", "columns": {"device": "h100", "dtype": "bf16", "sizes": {
            "batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1, "kernel": 1}}},
         "family", "not trained on conv2d"),
        ({"family": "attention", "columns": {"device": "h100", "dtype": "bf16", "sizes": {
            "batch": 1, "heads": [4, 3], "kv_heads": 2, "q_len": 1, "kv_len": 1, "head_dim": 8}}},
         "columns.sizes.heads[1]", "multiple of kv_heads"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(client, change, field, said):
    response = client.request("POST", PATH, json=gemm() | change)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["field"] == field
    assert said in error["detail"]


@pytest.mark.parametrize("missing", ["family", "columns"])
def test_what_is_missing_is_named(client, missing):
    body = gemm()
    del body[missing]
    (error,) = client.request("POST", PATH, json=body).json()["errors"]
    assert error["field"] == missing
    assert "is missing" in error["detail"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body is empty; send {"),
        (b"{", 400, "not valid JSON"),
        (b"[]", 422, "must be a JSON object, not a list"),
        (b'{"columns": {"device": [' + b"[]," * 500 + b"[]]}}", 422, "504 lists and objects; a request in columns has"),
        (b'{"family": "gemm", "columns": {"device": "h100", "device": "l4", "sizes": {}}}', 422, "device: is given twice"),
        (b'{"family": "gemm", "columns": {"device": "h100", "dtype": "bf16", "sizes": {"m": 1, "m": 2, "n": 1, "k": 1}}}', 422,
         "m: is given twice"),
    ],
)  # fmt: skip
def test_bodies_that_cannot_be_meant(client, body, status, said):
    response = client.request("POST", PATH, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert said in response.json()["detail"]


def test_rows_whose_device_lacks_their_dtype_are_named(odd_client):
    body = gemm(4, device=["h100", "odd-one", "odd-one", "h100"], dtype=["fp64", "fp32", "fp64", "fp64"])
    body["columns"]["sizes"]["m"] = 64
    errors = odd_client.request("POST", PATH, json=body).json()["errors"]
    single = {"family": "gemm", "device": "odd-one", "dtype": "fp64", "sizes": {"m": 64, "n": 64, "k": 32}}
    (said,) = odd_client.post(single).json()["errors"]
    assert errors == [said | {"field": "columns.dtype[2]"}]


def test_every_bad_row_is_named_up_to_twenty(client):
    sizes = {"m": [0] * 30 + [1], "n": 1, "k": 1}
    errors = client.request("POST", PATH, json=gemm(sizes=sizes)).json()["errors"]
    assert [error["field"] for error in errors] == [f"columns.sizes.m[{i}]" for i in range(20)]


def test_a_thousand_unknown_names_are_refused_at_once(client):
    response = client.request("POST", PATH, json=gemm(1000, device=[f"device-{i}" for i in range(1000)]))
    assert response.status_code == 422
    assert len(response.json()["errors"]) == 20


def test_no_more_names_are_looked_up_than_are_named():
    # Looking for names like an unknown one takes a third of a millisecond; a body has room for 100,000.
    query = []

    def read(name: str | None) -> str:
        query.append(name)
        raise SpecError("none")

    _, unfit = columns_read.text_column([f"device-{i}" for i in range(1000)], 1000, read)
    assert unfit.all()
    assert len(query) == 20


def test_scalars_alone_are_one_row_and_power_is_null_where_none_is_known(client):
    body = gemm(device="amd-epyc-9005-vm-2c", dtype="fp32", sizes={"m": 4, "n": 4.0, "k": 4})
    answer = client.request("POST", PATH, json=body).json()
    assert answer["n"] == 1
    assert answer["power_w"] is None
    assert answer["energy_j"] is None
    mixed = client.request("POST", PATH, json=gemm(2, device=["amd-epyc-9005-vm-2c", "h100"], dtype="fp32")).json()
    assert mixed["power_w"]["value"] == [None, 350.0]


def test_limits_of_rows_and_bytes(serve):
    settings = Settings(max_columns_rows=5, max_columns_b=2048)
    with serve(FixedSource(FakePredictor(), catalogue()), settings) as client:
        assert client.request("POST", PATH, json=gemm(5)).status_code == 200
        rows = client.request("POST", PATH, json=gemm(6))
        assert rows.status_code == 413
        assert "6 rows in one request; at most 5" in rows.json()["detail"]
        long = client.request("POST", PATH, json=gemm(2000))
        assert long.status_code == 413
        assert "longer than 2048 bytes" in long.json()["detail"]


def test_predictions_are_counted_by_device(client):
    client.request("POST", PATH, json=gemm(2, device=["l40s", "h100-sxm"]))
    text = client.get("/metrics").text
    assert 'kernelcast_predictions_total{device="nvidia-l40s",family="gemm",in_domain="true"}' in text


def test_a_failure_of_the_predictor_is_a_problem_that_tells_nothing(client):
    sizes = dict(families()["elementwise"].model_shapes[0])
    columns = {"device": "h100", "dtype": "bf16", "variant": "tanh", "sizes": sizes}
    response = client.request("POST", PATH, json={"family": "elementwise", "columns": columns})
    assert response.status_code == 500
    assert "secret" not in response.text


def test_the_schema_takes_what_is_answered(client):
    document = client.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/ColumnsRequest", "components": document["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    for name, family in families().items():
        spec = without_nulls(drawn(family, random.Random(0)))
        validator.validate(in_columns([spec, spec]))
        assert not validator.is_valid({"family": name, "columns": {"device": "h100"}})


def test_boards_of_all_rows_may_be_set(client):
    usual, same, slow = (
        client.request("POST", PATH, json=gemm(sizes={"m": 512, "n": 4096, "k": 4096}) | setting).json()
        for setting in ({}, {"power_limit_w": 700}, {"clock_hz": 0.9e9})
    )
    assert same == usual
    assert slow["latency_s"]["value"][0] > 1.2 * usual["latency_s"]["value"][0]
    for change, words in (
        ({"power_limit_w": 9}, "give 117 to 700 W"),
        ({"clock_hz": "fast"}, "must be a positive number"),
    ):
        (problem,) = client.request("POST", PATH, json=gemm() | change).json()["errors"]
        assert problem["field"] in change
        assert words in problem["detail"]
