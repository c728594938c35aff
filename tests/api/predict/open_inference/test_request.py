"""What the inference protocol's addresses refuse, in which words; and bodies made to do harm."""

from __future__ import annotations

import importlib.util
import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import Catalogue, catalogue

GEMM: dict[str, tuple[str, list[Any]]] = {
    "device": ("BYTES", ["h100-sxm", "l40s"]), "dtype": ("BYTES", ["bf16", "fp16"]),
    "m": ("INT64", [64, 128]), "n": ("INT64", [4096, 4096]), "k": ("INT64", [4096, 512]),
}  # fmt: skip


def request(**changed: Any) -> dict[str, Any]:
    """A good request with tensors changed: a dict's members replace a tensor's, None drops one."""
    known = {name: {"name": name, "datatype": kind, "shape": [2], "data": data} for name, (kind, data) in GEMM.items()}
    for name, change in changed.items():
        if change is None:
            del known[name]
        else:
            known[name] = known.get(name, {"name": name, "datatype": "INT64", "shape": [2]}) | change
            known[name] = {member: value for member, value in known[name].items() if value is not ...}
    return {"inputs": list(known.values())}


def infer(client: Any, body: Any, header: str | None = None, path: str = "/v2/models/gemm/infer") -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | (
        {} if header is None else {"inference-header-content-length": header}
    )
    return client.request("POST", path, content=content, headers=headers)


def refused(answer: Any, status: int, field: str | None, words: str) -> None:
    result = answer.json()
    assert answer.status_code == status, result
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in result["detail"], result["detail"]
    assert result["error"] == result["detail"]
    assert "Traceback" not in answer.text
    if field is not None:
        assert result["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"m": None}, "inputs", "m is missing; gemm needs device, dtype, m, n, k"),
        ({"device": None}, "inputs", "device is missing"),
        ({"z": {"data": [1, 2]}}, "inputs[5].name", "gemm has no input 'z'; inputs: device, dtype, variant"),
        ({"m": {"shape": [3], "data": [1, 2, 3]}}, "inputs[0].shape", "device has 2 rows, others have 3"),
        ({"m": {"shape": [3]}}, "inputs[2].data", "the shape of m says 3 rows, its data has 2"),
        ({"m": {"shape": [-1]}}, "inputs[2].shape", "with at least one row"),
        ({"m": {"shape": [0], "data": []}}, "inputs[2].shape", "with at least one row"),
        ({"m": {"shape": [1, 2]}}, "inputs[2].shape", "the shape of m is [1, 2]; it must be [n] or [n, 1]"),
        ({"m": {"shape": [2, 1, 1]}}, "inputs[2].shape", "must be [n] or [n, 1]"),
        ({"m": {"shape": []}}, "inputs[2].shape", "must be [n] or [n, 1]"),
        ({"m": {"shape": [2.0]}}, "inputs[2].shape", "must be [n] or [n, 1]"),
        ({"m": {"shape": [True]}}, "inputs[2].shape", "must be [n] or [n, 1]"),
        ({"m": {"shape": "2"}}, "inputs[2].shape", "m needs a shape, a list such as [3]; it is 2"),
        ({"m": {"shape": ...}}, "inputs[2].shape", "it is missing"),
        ({"m": {"datatype": "INT32"}}, "inputs[2].datatype", "m needs the datatype INT64; it is INT32"),
        ({"m": {"datatype": "FP64", "data": [1.5, 2.0]}}, "inputs[2].datatype", "m needs the datatype INT64; it is FP64"),
        ({"m": {"datatype": "int64"}}, "inputs[2].datatype", "m needs the datatype INT64; it is int64"),
        ({"m": {"datatype": ...}}, "inputs[2].datatype", "it is missing"),
        ({"m": {"data": ...}}, "inputs[2].data", "m has neither data nor the parameter binary_data_size"),
        ({"m": {"data": "64,128"}}, "inputs[2].data", "the data of m must be a list, not text"),
        ({"m": {"data": [64, None]}}, "inputs[2].data[1]", "m[1] must be a whole number, got null"),
        ({"m": {"data": [64, 1.5]}}, "inputs[2].data[1]", "m[1] must be a whole number, got 1.5"),
        ({"m": {"data": [True, 64]}}, "inputs[2].data[0]", "m[0] must be a whole number, got true or false"),
        ({"m": {"data": ["64", 64]}}, "inputs[2].data[0]", "m[0] must be a whole number, got text"),
        ({"m": {"data": [[64, 1], [2, 3]]}}, "inputs[2].data", "every row of m must hold one element"),
        ({"m": {"data": [64, [2]]}}, "inputs[2].data[1]", "m[1] must be a whole number, got a list"),
        ({"m": {"data": [64, 2**63]}}, "inputs[2].data[1]", "m[1] does not fit an INT64"),
        ({"m": {"data": [64, 10**400]}}, None, ""),
        ({"m": {"data": [0, 64]}}, "inputs[2].data[0]", "m must be between 1 and 1099511627776, got 0"),
        ({"m": {"data": [64, -(2**63)]}}, "inputs[2].data[1]", "m must be a whole number, got a number beyond 2^53"),
        ({"m": {"data": [64, 2**41]}}, "inputs[2].data[1]", "m must be between 1 and"),
        ({"threads": {"data": [0, 1]}}, "inputs[5].data[0]", "threads must be between 1 and 4096, got 0"),
        ({"tile_m": {"data": [16, -2]}}, "inputs[5].data[1]", "tile_m must be between 0 and"),
        ({"device": {"data": ["h900", "h100"]}}, "inputs[0].data[0]", "no device 'h900' (close:"),
        ({"device": {"data": ["", "h100"]}}, "inputs[0].data[0]", "no device ''"),
        ({"device": {"data": [5, 6]}}, "inputs[0].data[0]", "device[0] must be text, got a number"),
        ({"device": {"data": ["h100", "x" * 200]}}, "inputs[0].data[1]", "is 200 characters long; names have at most 128"),
        ({"device": {"data": ["h\0", "h100"]}}, "inputs[0].data[0]", "holds a zero byte"),
        ({"dtype": {"data": ["bf16", "bf17"]}}, "inputs[1].data[1]", "no dtype 'bf17'; dtypes:"),
        ({"variant": {"datatype": "BYTES", "data": ["", "odd"]}}, "inputs[5].data[1]", "gemm has no variant 'odd'"),
        ({"impl": {"datatype": "BYTES", "data": ["a b", ""]}}, "inputs[5].data[0]", "impl is 'a b'; it is a name"),
        ({"cache_state": {"datatype": "BYTES", "data": ["", "warm"]}}, "inputs[5].data[1]", "cache_state is 'warm'"),
        ({"m": {"parameters": {"binary_data_size": 16}}}, "inputs[2].data", "m has data and the parameter binary_data_size"),
        ({"m": {"parameters": {"shared_memory_region": "r"}}}, "inputs[2].parameters", "m is in shared memory"),
        ({"m": {"parameters": [1]}}, "inputs[2].parameters", "the parameters of m must be an object"),
        ({"m": {"data": ..., "parameters": {"binary_data_size": -1}}}, None, "it must be a whole number of bytes"),
        ({"m": {"data": ..., "parameters": {"binary_data_size": 16}}}, None, "says it has 16 bytes after the JSON, and 0 are"),
        ({"m": {"dims": 3}}, "inputs[2]", "unknown field 'dims'; a tensor takes name, shape"),
    ],
)  # fmt: skip
def test_tensors_that_are_refused(client, changed, field, words):
    answer = infer(client, request(**changed))
    if not words:
        assert answer.status_code in (400, 422)
        return
    refused(answer, 422, field, words)


@pytest.mark.parametrize(
    ("extra", "field", "words"),
    [
        ({"inputs": []}, "inputs", "must be a list of at least one tensor"),
        ({"inputs": {}}, "inputs", "must be a list of at least one tensor"),
        ({"inputs": [5]}, "inputs[0]", "a tensor is a JSON object, not a number"),
        ({"inputs": [{"name": 5}]}, "inputs[0].name", "gemm has no input a number"),
        ({"inputs": [{}] * 500}, "inputs", "500 tensors; gemm takes at most"),
        ({"inputs": request()["inputs"] + request()["inputs"][:1]}, "inputs[5].name", "device is given twice"),
        ({"outputs": [{"name": "cost"}]}, "outputs[0].name", "no output 'cost'; outputs: latency_s, latency_s_lower"),
        ({"outputs": [{"name": "bound"}] * 2}, "outputs[1].name", "bound is asked for twice"),
        ({"outputs": ["bound"]}, "outputs[0]", "must be an object with a name, not text"),
        ({"outputs": "bound"}, "outputs", "must be a list of at most 12 outputs"),
        ({"outputs": [{"name": "bound", "parameters": {"classification": 2}}]}, "outputs[0].parameters.classification",
         "unknown parameter; those known here: binary_data"),
        ({"outputs": [{"name": "bound", "parameters": {"binary_data": 1}}]}, "outputs[0].parameters.binary_data",
         "must be true or false, not a number"),
        ({"parameters": {"covrage": 0.9}}, "parameters.covrage", "unknown parameter; those known here: coverage"),
        ({"parameters": {"coverage": 2}}, "parameters.coverage", "must be a number between 0.5 and 0.99"),
        ({"parameters": {"coverage": 0.4}}, "parameters.coverage", "coverage must be between 0.5 and 0.99, got 0.4"),
        ({"parameters": {"coverage": True}}, "parameters.coverage", "must be a number between 0.5 and 0.99"),
        ({"parameters": 5}, "parameters", "must be an object, not a number"),
        ({"parameters": {"binary_data_output": "yes"}}, "parameters.binary_data_output", "must be true or false, not text"),
        ({"id": 7}, "id", "must be text of at most 128 characters"),
        ({"id": "x" * 200}, "id", "must be text of at most 128 characters"),
        ({"model_name": "softmax"}, "model_name", "is 'softmax', and the address names 'gemm'"),
        ({"rows": 2}, "rows", "unknown field; a request takes id, model_name"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(client, extra, field, words):
    refused(infer(client, request() | extra), 422, field, words)


@pytest.mark.parametrize(
    ("body", "header", "status", "words"),
    [
        (b"", None, 400, "the body is empty; send an inference request"),
        (b"{", None, 400, "the body is not valid JSON"),
        (b"\xff\xfe", None, 400, "not valid"),
        (b"[]", None, 422, "the request must be a JSON object, not a list"),
        (b'{"inputs": [NaN]}', None, 400, "not valid JSON"),
        (b"[" * 100_000, None, 400, "nested too deeply"),
        (b'{"id": "a", "id": "b", "inputs": []}', None, 422, "id: is given twice in one object"),
        (b'{"inputs": [{"name": "m", "name": "n"}]}', None, 422, "name: is given twice in one object"),
        (b"{}", "two", 400, "Inference-Header-Content-Length is 'two'; it is the number of bytes of the JSON"),
        (b"{}", "-2", 400, "Inference-Header-Content-Length is '-2'"),
        (b"{}", "1e1", 400, "Inference-Header-Content-Length is '1e1'"),
        (b"{}", "9" * 30, 400, "it is the number of bytes"),
        (b"{}", "3", 400, "Inference-Header-Content-Length is 3, and the body has 2 bytes"),
        (b"{}", "0", 400, "Inference-Header-Content-Length is 0"),
        (b"{}", "1", 400, "the body is not valid JSON"),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(client, body, header, status, words):
    refused(infer(client, body, header), status, None, words)


def binary(raw: dict[str, bytes], rows: int = 2, sizes: dict[str, int] | None = None) -> tuple[bytes, str]:
    """A body whose inputs are these bytes, and its header; `sizes` are claimed instead of the real ones."""
    claimed = {name: len(data) for name, data in raw.items()} | (sizes or {})
    inputs = [{"name": name, "datatype": GEMM[name][0], "shape": [rows], "parameters": {"binary_data_size": claimed[name]}}
              for name in raw]  # fmt: skip
    text = json.dumps({"inputs": inputs}).encode()
    return text + b"".join(raw.values()), str(len(text))


def words_b(*words: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(word)) + word for word in words)


GOOD = {
    "device": words_b(b"h100", b"l40s"), "dtype": words_b(b"bf16", b"bf16"), "m": struct.pack("<2q", 64, 128),
    "n": struct.pack("<2q", 4096, 4096), "k": struct.pack("<2q", 4096, 512),
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "sizes", "status", "words"),
    [
        ({"k": b"\1" * 15}, {}, 422, "k has 15 bytes; 2 rows of INT64 are 16"),
        ({"k": b"\1" * 8}, {"k": 16}, 422, "k says it has 16 bytes after the JSON, and 8 are left"),
        ({"k": GOOD["k"] + b"more"}, {"k": 16}, 400, "4 bytes after the JSON belong to no input"),
        ({"device": words_b(b"h100")}, {}, 422, "the shape of device says 2 rows, its bytes hold 1"),
        ({"device": words_b(b"h100", b"l40s", b"l40s")}, {}, 422, "says 2 rows, its bytes hold more"),
        ({"device": words_b(b"h100") + b"\4\0"}, {}, 422, "device[1] ends within its length"),
        ({"device": words_b(b"h100") + b"\xff\xff\xff\xff"}, {}, 422, "device[1] says it has 4294967295 bytes, and 0 are left"),
        ({"device": words_b(b"h100") + struct.pack("<I", 9) + b"l40s"}, {}, 422, "says it has 9 bytes, and 4 are left"),
        ({"device": b""}, {}, 422, "the shape of device says 2 rows, its bytes hold 0"),
        ({"device": words_b(b"h100", b"\xff")}, {}, 422, "device[1] is not UTF-8"),
        ({"device": words_b(b"h100", b"h\0")}, {}, 422, "device[1] holds a zero byte"),
        ({"device": words_b(b"h100", b"x" * 1000)}, {}, 422, "device[1] is 1000 characters long"),
        ({"m": struct.pack("<2q", 64, -5)}, {}, 422, "m must be between 1 and 1099511627776, got -5"),
        ({"m": struct.pack("<2d", 64.0, float("nan"))}, {}, 422, "m must be a whole number, got a number beyond 2^53"),
    ],
)  # fmt: skip
def test_binary_tensors_that_are_refused(client, raw, sizes, status, words):
    body, header = binary(GOOD | raw, sizes=sizes)
    refused(infer(client, body, header), status, None, words)


def test_good_bytes_are_taken_and_the_same_bytes_without_the_header_are_not(client):
    body, header = binary(GOOD)
    assert infer(client, body, header).status_code == 200
    refused(infer(client, body), 400, None, "the body is not")


@pytest.mark.parametrize("rows", [2**31, 2**62, 2**63, 2**64, 10**30])
def test_shapes_that_overflow_are_refused(client, rows):
    for item in (request(m={"shape": [rows]}), request(m={"shape": [rows, 1]}), request(m={"shape": [rows, rows]})):
        assert infer(client, item).status_code in (413, 422)
    body, header = binary(GOOD, rows=rows)
    assert infer(client, body, header).status_code in (413, 422)


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/v2/models/gem", 404, "no model 'gem'; models: attention, causal_conv1d"),
        ("GET", "/v2/models/gemm/versions/1", 404, "gemm has no version '1'; the one served is"),
        ("GET", "/v2/models/gemm/versions/1/ready", 404, "gemm has no version '1'"),
        ("POST", "/v2/models/gem/infer", 404, "no model 'gem'"),
        ("POST", "/v2/models/gemm/versions/1/infer", 404, "gemm has no version '1'"),
        ("GET", "/v2/models/gemm/infer", 405, "takes POST"),
        ("POST", "/v2", 405, "GET"),
        ("GET", "/v2/repository/index", 405, "takes POST"),
        ("GET", "/v2/models", 404, "no such address"),
        ("POST", "/v2/repository/models/gemm/load", 404, "no such address"),
    ],
)  # fmt: skip
def test_addresses_that_are_refused(client, method, path, status, words):
    body = {"json": request()} if path.endswith("infer") and method == "POST" else {}
    refused(client.request(method, path, **body), status, None, words)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"[]", 422, "the body must be a JSON object, not a list"),
        (b'{"ready": 1}', 422, "ready: must be true or false, not a number"),
        (b'{"name": "gemm"}', 422, "name: unknown field; an index request takes ready"),
        (b"{", 400, "not valid JSON"),
        (b" " * 5000, 413, "the body is longer than 4096 bytes"),
    ],
)  # fmt: skip
def test_index_requests_that_are_refused(client, body, status, words):
    refused(client.request("POST", "/v2/repository/index", content=body), status, None, words)
    assert client.request("POST", "/v2/repository/index", content=b'{"ready": true}').status_code == 200


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "text/plain"}, "application/json or application/octet-stream (got 'text/plain')"),
        ({"content-type": "application/json; charset=latin-1"}, "bodies are UTF-8"),
        ({"content-type": "application/json", "content-encoding": "br"}, "br"),
    ],
)  # fmt: skip
def test_media_types_that_are_refused(client, headers, words):
    answer = client.request("POST", "/v2/models/gemm/infer", content=json.dumps(request()), headers=headers)
    refused(answer, 415, None, words)


def fake() -> Any:
    result = importlib.util.spec_from_file_location("fakes", Path(__file__).parents[2] / "conftest.py")
    assert result is not None
    assert result.loader is not None
    fakes = importlib.util.module_from_spec(result)
    result.loader.exec_module(fakes)
    return fakes.FakePredictor()


def test_more_rows_and_more_bytes_than_the_service_takes(serve):
    with serve(FixedSource(fake(), catalogue()), Settings(max_columns_rows=2, max_columns_b=2048)) as small:
        assert infer(small, request()).status_code == 200
        three = {name: {"shape": [3], "data": [*data, data[0]]} for name, (_, data) in GEMM.items()}
        refused(infer(small, request(**three)), 413, None, "device has 3 rows; at most 2 are allowed in one request")
        refused(infer(small, b" " * 3000), 413, None, "the body is longer than 2048 bytes; send the rows in parts")


def test_no_more_implementations_than_in_columns(client):
    tensors = {name: {"shape": [1], "data": data[:1]} for name, (_, data) in GEMM.items()}
    body = request(**tensors, impl={"datatype": "BYTES", "shape": [101], "data": [f"mine-{i}" for i in range(101)]})
    refused(infer(client, body), 422, "inputs[5]", "names 101 different implementations; at most 100")


def test_a_dtype_the_device_has_no_peak_for(serve):
    bare = replace(catalogue().get("h100-sxm"), name="bare", aliases=(), matrix_flops_per_s={}, vector_flops_per_s={})
    with serve(FixedSource(fake(), Catalogue((bare,))), Settings()) as client:
        answer = infer(client, request(device={"data": ["h100-sxm", "bare"]}))
        refused(answer, 422, "inputs[1].data[1]", "bare has no")


def test_a_family_the_model_does_not_know_is_refused_in_its_words(client):
    sizes = {"batch": 1, "in_channels": 3, "out_channels": 8, "height": 32, "width": 32, "kernel": 3}
    inputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [size]} for name, size in sizes.items()]
    inputs += [{"name": name, "datatype": "BYTES", "shape": [1], "data": [word]}
               for name, word in (("device", "h100"), ("dtype", "bf16"))]  # fmt: skip
    refused(infer(client, {"inputs": inputs}, path="/v2/models/conv2d/infer"), 422, "inputs",
            "the model was not trained on conv2d")  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_mutated_bytes_are_answered_or_refused(client, seed):
    rng = random.Random(seed)
    body, header = binary(GOOD)
    for _ in range(60):
        result = bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(result))
            change = rng.randrange(4)
            if change == 0:
                result[at] = rng.randrange(256)
            elif change == 1:
                del result[at : at + rng.randrange(1, 9)]
            elif change == 2:
                result[at:at] = rng.randbytes(rng.randrange(1, 9))
            else:
                result[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
        length = header if rng.random() < 0.8 else str(rng.randrange(2 * len(body)))
        answer = infer(client, bytes(result), length)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (answer.text, bytes(result))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    ),
    where=st.sampled_from(["inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data", "tensor"]),
)
def test_any_json_in_any_place_is_answered_or_refused(client, value, where):
    query = request()
    if where in ("inputs", "outputs", "parameters", "id"):
        query[where] = value
    elif where == "tensor":
        query["inputs"][2] = value
    else:
        query["inputs"][2][where] = value
    answer = infer(client, query)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text
