"""Everything that can be wrong with a request, and that each answer is a problem of RFC 9457."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The answer, which must be a whole problem of that status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    result = response.json()
    assert set(result) == {"type", "title", "status", "detail", "errors", "request_id"}
    assert result["type"].startswith("urn:kernelcast:problem:")
    assert result["status"] == status
    assert result["title"]
    assert result["detail"]
    assert "Traceback" not in response.text
    return result


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"family": "gem"}, "family", "families: attention"),
        ({"family": 3}, "family", "must be text"),
        ({"device": "h900"}, "device", "are known"),
        ({"device": None}, "device", "must be text, not null"),
        ({"device": "x" * 200}, "device", "200 characters"),
        ({"dtype": "bf17"}, "dtype", "dtypes: fp64"),
        ({"variant": "glu"}, "variant", "variants:"),
        ({"impl": "a b"}, "impl", "name such as"),
        ({"impl": "v" + "9" * 100}, "impl", "name such as"),
        ({"kv_dtype": "int3"}, "kv_dtype", "dtypes:"),
        ({"cache_state": "warm"}, "cache_state", "hot, cold"),
        ({"threads": 0}, "threads", "between 1 and 4096"),
        ({"threads": True}, "threads", "whole number"),
        ({"sizes": [1, 2]}, "sizes", "an object of whole numbers"),
        ({"sizes": {"m": 1, "n": 2}}, "sizes.k", "needs k"),
        ({"sizes": {"m": 0, "n": 2, "k": 3}}, "sizes.m", "between 1 and"),
        ({"sizes": {"m": -1, "n": 2, "k": 3}}, "sizes.m", "between 1 and"),
        ({"sizes": {"m": 2**50, "n": 2, "k": 3}}, "sizes.m", "between 1 and"),
        ({"sizes": {"m": 10**25, "n": 2, "k": 3}}, "sizes.m", "beyond 2^53"),
        ({"sizes": {"m": 1.5, "n": 2, "k": 3}}, "sizes.m", "whole number"),
        ({"sizes": {"m": "1", "n": 2, "k": 3}}, "sizes.m", "whole number, got text"),
        ({"sizes": {"m": True, "n": 2, "k": 3}}, "sizes.m", "whole number"),
        ({"sizes": {"m": None, "n": 2, "k": 3}}, "sizes.m", "got null"),
        ({"sizes": {"m": [1], "n": 2, "k": 3}}, "sizes.m", "got a list"),
        ({"sizes": {"m": 1, "n": 2, "k": 3, "cls": 4}}, "sizes.cls", "has no sizes 'cls'"),
        ({"sizes": {"m": 1, "n": 2, "k": 3, "variant": 4}}, "sizes.variant", "has no sizes"),
        ({"config": {"tile_m": -1}}, "config.tile_m", "between 0 and"),
        ({"config": {"tile_q": 1}}, "config.tile_q", "has no config"),
        ({"config": 5}, "config", "an object of whole numbers"),
        ({"config": []}, "config", "an object of whole numbers"),
        ({"variant": 0}, "variant", "must be text"),
        ({"impl": False}, "impl", "must be text"),
        ({"size": {}}, "size", "unknown field 'size'"),
        ({"coverage": 2}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": "0.9"}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": 0.001}, "coverage", "between 0.5 and 0.99"),
        ({"family": "conv2d", "sizes": {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 1, "width": 1,
                                        "kernel": 1}}, "family", "not trained on conv2d"),
        ({"family": "attention", "sizes": {"batch": 1, "heads": 3, "kv_heads": 2, "q_len": 1, "kv_len": 1,
                                           "head_dim": 8}}, "sizes.heads", "multiple of kv_heads"),
        ({"family": "attention", "sizes": {"batch": 1}}, "sizes.heads", "needs heads"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_what_is_possible(client, gemm, change, field, said):
    response = client.post(gemm | change)
    result = problem(response, 422)
    assert [error["field"] for error in result["errors"]] == [field]
    assert said in result["errors"][0]["detail"]
    assert "index" not in result["errors"][0]


@pytest.mark.parametrize("missing", ["family", "device", "dtype", "sizes"])
def test_a_missing_field_is_named(client, gemm, missing):
    gemm.pop(missing)
    assert problem(client.post(gemm), 422)["errors"][0]["field"] == missing


def test_all_bad_specs_of_a_batch_are_named_by_index(client, gemm):
    batch = [gemm, gemm | {"dtype": "x"}, 7, gemm, gemm | {"sizes": {"m": 0, "n": 1, "k": 1}}]
    errors = problem(client.post({"requests": batch}), 422)["errors"]
    assert [(error["index"], error["field"]) for error in errors] == [
        (1, "requests[1].dtype"), (2, "requests[2]"), (4, "requests[4].sizes.m"),
    ]  # fmt: skip


def test_at_most_twenty_are_listed(client, gemm):
    assert len(problem(client.post({"requests": [gemm | {"dtype": "x"}] * 50}), 422)["errors"]) == 20


def test_specs_the_model_refuses_are_named_by_index(client, gemm):
    conv = {"family": "conv2d", "device": "l4", "dtype": "fp32",
            "sizes": {"batch": 1, "in_channels": 1, "out_channels": 1, "height": 9, "width": 9, "kernel": 3}}  # fmt: skip
    errors = problem(client.post({"requests": [gemm, conv, gemm, conv]}), 422)["errors"]
    assert [error["field"] for error in errors] == ["requests[1].family", "requests[3].family"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "empty"),
        (b" \n", 400, "empty"),
        (b"{", 400, "not valid JSON"),
        (b'{"family": NaN}', 400, "not valid JSON"),
        (b'{"sizes": {"m": Infinity}}', 400, "not valid JSON"),
        (b'{"sizes": {"m": 1e999}}', 400, "not valid JSON"),
        (b'{"sizes": {"m": ' + b"9" * 5000 + b"}}", 400, "not valid JSON"),
        (b'{"family": "\xff\xfe"}', 400, "UTF-8"),
        (b'{"family": "\\ud800"}', 400, "not valid JSON"),
        (b'{"family": "gemm"} x', 400, "not valid JSON"),
        (b"[" * 50_000, 400, "nested too deeply"),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, 400, "nested too deeply"),
        (b"null", 422, "must be a JSON object, not null"),
        (b"[]", 422, "must be a JSON object, not a list"),
        (b'"gemm"', 422, "must be a JSON object, not text"),
        (b"{}", 422, "family is missing"),
        (b'{"requests": []}', 422, "at least one spec"),
        (b'{"requests": {}}', 422, "at least one spec"),
        (b'{"requests": [{}], "x": 1}', 422, "unknown field"),
        (b'{"requests": [[[[[]]]]]}', 422, "a spec is a JSON object"),
        (b'{"family": "gemm", "family": "softmax"}', 422, "given twice"),
        (
            b'{"family": "gemm", "device": "l4", "dtype": "fp32", "sizes": {"m": 1, "m": 2, "n": 1, "k": 1}}',
            422,
            "twice",
        ),
        (b'{"family": "gemm", "f\\u0061mily": "gemm"}', 422, "given twice"),
    ],
)
def test_a_body_that_makes_no_sense(client, body, status, said):
    assert said in problem(client.post(body), status)["detail"]


def test_a_long_body_is_refused_by_its_length(client):
    result = client.post(b" " * 10_000_000)
    assert "200000 bytes" in problem(result, 413)["detail"]


def test_too_many_specs_are_refused(client, gemm):
    small = {"requests": [{}] * 1001}
    assert "at most 1000" in problem(client.post(small), 413)["detail"]


@pytest.mark.parametrize(
    "given", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_a_body_that_is_not_said_to_be_json(client, gemm, given):
    headers = {} if given is None else {"content-type": given}
    response = client.request("POST", "/v1/predict", content=json.dumps(gemm).encode(), headers=headers)
    assert "application/json" in problem(response, 415)["detail"] or "charset" in response.text


def test_a_charset_of_utf8_is_fine(client, gemm):
    headers = {"content-type": "Application/JSON; Charset=UTF-8"}
    response = client.request("POST", "/v1/predict", content=json.dumps(gemm).encode(), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/predict/", "/v1/devices/h900", "/v1/kernels/gem", "/static/../app.py"]
)
def test_what_is_not_there(client, path):
    problem(client.get(path), 404)


def test_an_unknown_device_names_close_ones_and_where_all_are(client):
    said = problem(client.get("/v1/devices/h900"), 404)["detail"]
    assert "close: h200, h100" in said
    assert "/v1/devices" in said
    assert "close: nvidia-rtx-3090, nvidia-rtx-3090-ti" in problem(client.get("/v1/devices/rtx-309"), 404)["detail"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/predict"), ("PUT", "/v1/predict"), ("POST", "/healthz"), ("DELETE", "/")]
)
def test_a_wrong_method_says_which_is_right(client, method, path):
    response = client.request(method, path)
    problem(response, 405)
    assert response.headers["allow"]


def test_a_failure_inside_shows_nothing_of_it(client, gemm, caplog):
    bad = gemm | {"family": "elementwise", "variant": "tanh", "sizes": {"rows": 1, "cols": 1}}
    response = client.post(bad)
    assert "secret" not in json.dumps(problem(response, 500))
    assert "secret" in caplog.text
    assert client.post(gemm).status_code == 200


def test_without_a_model_the_service_is_alive_but_not_ready(serve, gemm):
    with serve(FixedSource(None, catalogue()), Settings()) as client:
        assert client.get("/healthz").status_code == 200
        problem(client.get("/readyz"), 503)
        assert problem(client.post(gemm), 503)
        assert client.get("/v1/models").json() == {"models": []}
        assert "kernelcast_model_loaded 0.0" in client.get("/metrics").text
