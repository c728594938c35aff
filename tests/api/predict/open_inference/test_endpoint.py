"""The Open Inference Protocol in this process: what is served, and rows as tensors in JSON and in bytes."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from kernelcast import __version__
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import families

GEMM: dict[str, tuple[str, list[Any]]] = {
    "device": ("BYTES", ["h100-sxm", "l40s", "h100-sxm"]),
    "dtype": ("BYTES", ["bf16", "fp16", "bf16"]),
    "m": ("INT64", [64, 128, 4096]),
    "n": ("INT64", [4096, 4096, 4096]),
    "k": ("INT64", [4096, 512, 4096]),
}


def tensors(columns: dict[str, tuple[str, list[Any]]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": kind, "shape": [len(data)], "data": data} for name, (kind, data) in columns.items()
    ]


def packed(kind: str, data: list[Any]) -> bytes:
    if kind == "INT64":
        return np.array(data, dtype="<i8").tobytes()
    return b"".join(struct.pack("<I", len(word.encode())) + word.encode() for word in data)


def binary(columns: dict[str, tuple[str, list[Any]]], **extra: Any) -> tuple[bytes, dict[str, str]]:
    """A body with every input as bytes, and its headers."""
    raw = {name: packed(kind, data) for name, (kind, data) in columns.items()}
    inputs = [
        {"name": name, "datatype": kind, "shape": [len(data)], "parameters": {"binary_data_size": len(raw[name])}}
        for name, (kind, data) in columns.items()
    ]
    text = json.dumps({"inputs": inputs, **extra}).encode()
    return text + b"".join(raw.values()), {"inference-header-content-length": str(len(text))}


def outputs(answer: Any) -> dict[str, list[Any]]:
    """Output name → values of an answer, whether they came in the JSON or after it."""
    length = answer.headers.get("inference-header-content-length")
    head = json.loads(answer.content[: int(length)] if length else answer.content)
    rest, result = answer.content[int(length) :] if length else b"", {}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            result[output["name"]] = output["data"]
            continue
        raw, rest = rest[:size], rest[size:]
        if output["datatype"] == "BYTES":
            words = []
            while raw:
                (n,) = struct.unpack_from("<I", raw)
                words.append(raw[4 : 4 + n].decode())
                raw = raw[4 + n :]
            result[output["name"]] = words
        else:
            kind = {"FP64": "<f8", "BOOL": "?"}[output["datatype"]]
            result[output["name"]] = np.frombuffer(raw, dtype=kind).tolist()
        assert output["shape"] == [len(result[output["name"]])]
    assert not rest
    return result


def infer(client: Any, body: Any, model: str = "gemm", headers: dict[str, str] | None = None) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.request("POST", f"/v2/models/{model}/infer", content=content,
                          headers={"content-type": "application/octet-stream", **(headers or {})})  # fmt: skip


def test_the_server_says_what_it_is(client):
    assert client.get("/v2").json() == {
        "name": "kernelcast", "version": __version__, "extensions": ["binary_tensor_data", "parameters"],
    }  # fmt: skip
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_every_family_is_a_model_with_its_tensors(client):
    index = client.request("POST", "/v2/repository/index").json()
    assert [item["name"] for item in index] == list(families())
    for item in index:
        result = client.get(f"/v2/models/{item['name']}").json()
        assert result["versions"] == [item["version"]]
        family = families()[item["name"]]
        inputs = {tensor["name"]: tensor for tensor in result["inputs"]}
        assert {*family.dim_names, *family.config, "device", "dtype", "threads"} <= set(inputs)
        assert {tensor["datatype"] for tensor in result["inputs"]} == {"BYTES", "INT64"}
        assert all(tensor["shape"] == [-1] for tensor in (*result["inputs"], *result["outputs"]))
        needed = [name for name, tensor in inputs.items() if "optional" not in tensor["parameters"]]
        assert needed == ["device", "dtype", *(dim.name for dim in family.dims if dim.default is None)]
        versioned = f"/v2/models/{item['name']}/versions/{item['version']}"
        assert client.get(versioned).json() == result
        assert client.get(f"{versioned}/ready").json() == {"name": item["name"], "ready": True}
        assert client.get(f"/v2/models/{item['name']}/ready").status_code == 200


def test_rows_are_answered_as_single_specs_are(client):
    answer = infer(client, {"id": "a-42", "inputs": tensors(GEMM)})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["model_name"], body["id"], body["parameters"]) == ("gemm", "a-42", {"coverage": 0.9})
    result = outputs(answer)
    assert len(result) == 12
    specs = [
        {"family": "gemm", "device": GEMM["device"][1][i], "dtype": GEMM["dtype"][1][i],
         "sizes": {name: GEMM[name][1][i] for name in "mnk"}}
        for i in range(3)
    ]  # fmt: skip
    for i, item in enumerate(client.post({"requests": specs}).json()["predictions"]):
        for target in ("latency_s", "power_w", "energy_j"):
            ends = [result[f"{target}{end}"][i] for end in ("", "_lower", "_upper")]
            assert ends == [item[target][end] for end in ("value", "lower", "upper")]
        assert [result[name][i] for name in ("bound", "method", "in_domain")] == [
            item[name] for name in ("bound", "method", "in_domain")
        ]


@pytest.mark.parametrize("coverage", [0.5, 0.8])
def test_bytes_say_the_same_as_json(client, coverage):
    plain = infer(client, {"inputs": tensors(GEMM), "parameters": {"coverage": coverage}})
    body, headers = binary(GEMM, parameters={"coverage": coverage, "binary_data_output": True})
    packed_answer = infer(client, body, headers=headers)
    assert packed_answer.headers["content-type"] == "application/octet-stream"
    assert outputs(packed_answer) == outputs(plain)


def test_inputs_may_be_mixed_and_outputs_chosen(client):
    columns = {name: GEMM[name] for name in ("device", "m")}
    body, headers = binary(columns)
    length = int(headers["inference-header-content-length"])
    head, raw = json.loads(body[:length]), body[length:]
    head["inputs"] += tensors({name: GEMM[name] for name in ("dtype", "n", "k")})
    head["outputs"] = [{"name": "bound"}, {"name": "latency_s", "parameters": {"binary_data": True}}]
    text = json.dumps(head).encode()
    answer = infer(client, text + raw, headers={"inference-header-content-length": str(len(text))})
    result = outputs(answer)
    assert list(result) == ["bound", "latency_s"]
    everything = outputs(infer(client, {"inputs": tensors(GEMM)}))
    assert result == {name: everything[name] for name in result}


def test_one_value_stands_for_all_rows_and_columns_may_be_upright(client):
    short = {**GEMM, "device": ("BYTES", ["h100"]), "dtype": ("BYTES", ["bf16"]), "n": ("INT64", [4096])}
    long = {**short, **{name: (kind, data * 3) for name, (kind, data) in short.items() if len(data) == 1}}
    upright = tensors(long)
    for tensor in upright:
        tensor |= {"shape": [3, 1], "data": [[value] for value in tensor["data"]]}
    flat = tensors(long)
    for tensor in flat:
        tensor["shape"] = [3, 1]
    answers = [outputs(infer(client, {"inputs": item})) for item in (tensors(short), tensors(long), upright, flat)]
    assert answers[0] == answers[1] == answers[2] == answers[3]
    body, headers = binary(short)
    assert outputs(infer(client, body, headers=headers)) == answers[0]


def test_what_is_not_set_is_as_if_it_were_left_out(client):
    optional = {
        "batch": ("INT64", [1] * 3), "variant": ("BYTES", [""] * 3), "impl": ("BYTES", [""] * 3),
        "kv_dtype": ("BYTES", [""] * 3), "cache_state": ("BYTES", [""] * 3), "threads": ("INT64", [-1] * 3),
        "timing": ("BYTES", [""] * 3), "tile_m": ("INT64", [-1] * 3),
    }  # fmt: skip
    plain = outputs(infer(client, {"inputs": tensors(GEMM)}))
    assert outputs(infer(client, {"inputs": tensors(GEMM | optional)})) == plain


def test_unknown_power_is_null_in_json_and_nan_in_bytes(client):
    cpu = {**GEMM, "device": ("BYTES", ["amd-epyc-9005-vm-2c"])}
    assert outputs(infer(client, {"inputs": tensors(cpu)}))["power_w"] == [None] * 3
    body, headers = binary(cpu, parameters={"binary_data_output": True})
    result = outputs(infer(client, body, headers=headers))
    assert np.isnan(result["power_w"] + result["energy_j"]).all()
    assert np.isfinite(result["latency_s"]).all()


def test_variants_that_sizes_imply(client):
    sizes = {
        "batch": [2, 2],
        "heads": [8, 8],
        "kv_heads": [8, 8],
        "q_len": [1, 256],
        "kv_len": [512, 512],
        "head_dim": [64, 64],
    }
    columns = {"device": ("BYTES", ["h100"]), "dtype": ("BYTES", ["bf16"]),
               **{name: ("INT64", values) for name, values in sizes.items()}}  # fmt: skip
    result = outputs(infer(client, {"inputs": tensors(columns)}, "attention"))
    specs = [{"family": "attention", "device": "h100", "dtype": "bf16",
              "sizes": {name: values[i] for name, values in sizes.items()}} for i in range(2)]  # fmt: skip
    single = client.post({"requests": specs}).json()["predictions"]
    assert result["latency_s"] == [item["latency_s"]["value"] for item in single]


def test_a_thousand_rows_on_a_thread_are_counted(client):
    rows = {name: (kind, data * 300) for name, (kind, data) in GEMM.items()}
    body, headers = binary(rows, parameters={"binary_data_output": True})
    result = outputs(infer(client, body, headers=headers))
    assert result["latency_s"] == outputs(infer(client, {"inputs": tensors(GEMM)}))["latency_s"] * 300
    counts = [
        line for line in client.get("/metrics").text.splitlines() if line.startswith("kernelcast_predictions_total")
    ]
    assert any('device="nvidia-l40s"' in line and float(line.split()[-1]) >= 300 for line in counts)


def test_no_model_is_503_everywhere_but_alive(serve):
    source = FixedSource(None, catalogue())
    with serve(source, Settings()) as client:
        assert client.get("/v2/health/live").status_code == 200
        for path in ("/v2/health/ready", "/v2/models/gemm", "/v2/models/gemm/ready"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.json()["error"] == answer.json()["detail"] == "no model is loaded: no predictor was given"
        assert infer(client, {"inputs": tensors(GEMM)}).status_code == 503
        assert client.request("POST", "/v2/repository/index").status_code == 503


def test_the_document_describes_it_truly(client):
    document = client.get("/openapi.json").json()
    whole = {"components": document["components"]}
    example = document["paths"]["/v2/models/{name}/infer"]["post"]
    request = example["requestBody"]["content"]["application/json"]
    Draft202012Validator(request["schema"] | whole).validate(request["example"])
    answer = infer(client, msgspec.json.encode(request["example"]))
    assert answer.status_code == 200, answer.text
    described = example["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator(described | whole).validate(answer.json())
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready"):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        result = client.get(path.replace("{name}", "gemm")).json()
        Draft202012Validator(content["schema"] | whole).validate(result)
        Draft202012Validator(content["schema"] | whole).validate(content["example"])
        assert set(content["example"]) == set(result)
