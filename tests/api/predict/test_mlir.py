"""POST /v1/predict/mlir: MLIR text over the wire, that of strangers included."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import httpx
import jsonschema
import pytest
from kernelcast.api.model_source import DirectorySource, FixedSource
from kernelcast.api.predict import mlir as mlir_route
from kernelcast.api.settings import MAX_MLIR_B, Settings
from kernelcast.features.device import catalogue
from kernelcast.features.mlir.parse.text_limits import MAX_DEPTH, MAX_TEXT_B
from kernelcast.models.family_model.artifact import default_model_dir

PATH = "/v1/predict/mlir"
MLP = """\
func.func @main(%x: tensor<64x1024xf32>, %w: tensor<1024x512xf32>) -> tensor<64x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %z = stablehlo.tanh %y : tensor<64x512xf32>
  return %z : tensor<64x512xf32>
}
"""
DYNAMIC = MLP.replace("64x", "?x")
TWO = MLP.replace("@main", "@first") + MLP.replace("@main", "@second")
FLOPS = 2 * 64 * 1024 * 512


def post(
    client: Any, text: str | bytes = MLP, query: str = "device=h100-sxm", kind: str = "text/plain"
) -> httpx.Response:
    content = text if isinstance(text, bytes) else text.encode()
    return client.request("POST", f"{PATH}?{query}", content=content, headers={"content-type": kind})


def post_json(client: Any, **body: Any) -> httpx.Response:
    return client.request("POST", PATH, json=body)


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    return response.json()


def test_a_text_is_predicted_with_everything_that_is_known_of_it(client):
    response = post(client)
    assert response.status_code == 200, response.text
    result = response.json()
    (answer,) = result["answers"]
    assert result["functions"] == ["main"]
    assert answer["function"] == "main"
    assert answer["device"] == "nvidia-h100-sxm-80gb"
    assert answer["flops"] >= FLOPS
    assert answer["latency_s"]["lower"] <= answer["latency_s"]["value"] <= answer["latency_s"]["upper"]
    assert answer["footprint_b"] == 4 * (64 * 1024 + 1024 * 512 + 64 * 512)
    assert sum(group["time_share"] for group in answer["groups"]) == pytest.approx(1)
    assert "stablehlo.dot_general" in [op for group in answer["groups"] for op in group["ops"]]
    assert answer["not_understood"] == []


@pytest.mark.parametrize(
    "query",
    [
        "device=amd-epyc-9005-vm-2c",
        "device=amd-epyc-9005-vm-2c&threads=1&compiler=iree&coverage=0.5",
        "device=h100-sxm",
        "device=amd-epyc-9005-vm-2c&threads=64",
    ],
)
@pytest.mark.parametrize("sizes", ["4096x4096x", "1073741824x", "1x", "3x1000003x", "1048576x1024x"])
def test_ordinary_large_modules_are_answered(client, sizes, query):
    for element in ("f32", "bf16", "i32"):
        kind = f"tensor<{sizes}{element}>"
        body = f"%0 = stablehlo.add %a, %b : {kind}\n  return %0 : {kind}"
        text = f"func.func @main(%a: {kind}, %b: {kind}) -> {kind} {{\n  {body}\n}}"
        response = post(client, text, query)
        assert response.status_code == 200, response.text[:300]
        (answer,) = response.json()["answers"]
        assert 0.0 < answer["latency_s"]["lower"] <= answer["latency_s"]["value"] <= answer["latency_s"]["upper"]


@pytest.mark.parametrize("kind", ["text/plain; charset=utf-8", "text/x-mlir", "application/mlir"])
def test_json_and_text_say_the_same(client, kind):
    query = "device=h100&device=l40s&function=main&bind=dim0:64&coverage=0.8"
    as_text = post(client, DYNAMIC, query, kind)
    as_json = post_json(
        client, text=DYNAMIC, devices=["h100", "l40s"], function="main", bind={"dim0": 64}, compiler=None, coverage=0.8
    )
    assert as_text.status_code == as_json.status_code == 200
    assert as_text.json() == as_json.json()
    assert [item["device"] for item in as_json.json()["answers"]] == [catalogue().get("h100").name, "nvidia-l40s"]
    assert as_json.json()["answers"][0]["coverage"] == 0.8


def test_bound_sizes_and_written_sizes_are_the_same_program(client):
    written = post(client).json()["answers"][0]
    bound = post(client, DYNAMIC, "device=h100-sxm&bind=dim0:64").json()["answers"][0]
    assert bound["latency_s"] == written["latency_s"]
    assert bound["flops"] == written["flops"]
    half = post(client, DYNAMIC, "device=h100-sxm&bind=dim0%3D32").json()["answers"][0]
    assert half["flops"] < bound["flops"]


def test_one_of_several_functions_is_asked_for_by_name(client):
    assert post(client, TWO, "device=h100&function=second").json()["answers"][0]["function"] == "second"
    result = problem(post(client, TWO), 422)
    assert [error["field"] for error in result["errors"]] == ["function"]
    assert "first" in result["detail"]
    assert "second" in result["detail"]


def test_threads_and_compiler_are_those_asked_for(client):
    (answer,) = post(client, MLP, "device=amd-epyc-9005-vm-2c&threads=1&compiler=iree").json()["answers"]
    assert answer["threads"] == 1
    assert answer["compiler"] == "iree"
    cpu, gpu = post(client, MLP, "device=amd-epyc-9005-vm-2c&device=h100&threads=1").json()["answers"]
    assert (cpu["threads"], gpu["threads"]) == (1, None)


def test_operations_that_are_not_understood_are_listed_and_widen(client):
    strange = MLP.replace("%z = stablehlo.tanh %y : tensor<64x512xf32>",
                          '%z = "mine.swirl"(%y) : (tensor<64x512xf32>) -> tensor<64x512xf32>')  # fmt: skip
    known, guessed = (post(client, text).json()["answers"][0] for text in (MLP, strange))
    assert [item["op"] for item in guessed["not_understood"]] == ["mine.swirl"]
    assert guessed["in_domain"] is False

    def width(answer: dict[str, Any]) -> float:
        return answer["latency_s"]["upper"] / answer["latency_s"]["lower"]

    assert width(guessed) > width(known)


# What is wrong: body, media type, query.
BAD: dict[str, tuple[str | bytes, str, str]] = {
    "no text": ("", "text/plain", "device=h100"),
    "only a comment": ("// nothing\n", "text/plain", "device=h100"),
    "not UTF-8": (b"func.func @f() \xff", "text/plain", "device=h100"),
    "bytecode": (b"ML\xefR\x06", "text/plain", "device=h100"),
    "no MLIR": ("Dear Sir or Madam", "text/plain", "device=h100"),
    "nested too deep": ("(" * (MAX_DEPTH + 1), "text/plain", "device=h100"),
    "a word too long": ("a" * 5000, "text/plain", "device=h100"),
    "too large": ("//" + " " * MAX_TEXT_B, "text/plain", "device=h100"),
    "an unknown function": (MLP, "text/plain", "device=h100&function=g"),
    "several functions, none asked for": (TWO, "text/plain", "device=h100"),
    "a size left open": (DYNAMIC, "text/plain", "device=h100"),
    "a size that is not there": (MLP, "text/plain", "device=h100&bind=dim0:4"),
    "a size that is none": (DYNAMIC, "text/plain", "device=h100&bind=dim0:x"),
    "a size of nothing": (DYNAMIC, "text/plain", "device=h100&bind=dim0:0"),
    "a size named twice": (DYNAMIC, "text/plain", "device=h100&bind=dim0:4&bind=dim0:8"),
    "an unknown device": (MLP, "text/plain", "device=h900"),
    "no device": (MLP, "text/plain", ""),
    "an unknown compiler": (MLP, "text/plain", "device=h100&compiler=gcc"),
    "threads on a GPU": (MLP, "text/plain", "device=h100&threads=2"),
    "threads that are none": (MLP, "text/plain", "device=h100&threads=two"),
    "an impossible coverage": (MLP, "text/plain", "device=h100&coverage=2"),
    "an unknown parameter": (MLP, "text/plain", "device=h100&colour=red"),
    "a parameter given twice": (MLP, "text/plain", "device=h100&function=a&function=b"),
    "another media type": (MLP, "image/png", "device=h100"),
    "another charset": (MLP, "text/plain; charset=utf-16", "device=h100"),
    "JSON that is none": (b'{"text": ', "application/json", ""),
    "JSON without text": ('{"device": "h100"}', "application/json", ""),
    "JSON whose text is no text": ('{"device": "h100", "text": 3}', "application/json", ""),
    "JSON with an unknown field": ('{"device": "h100", "text": "", "size": 3}', "application/json", ""),
    "JSON with device and devices": ('{"device": "h100", "devices": ["h100"], "text": "x"}', "application/json", ""),
    "JSON with a query": ('{"device": "h100", "text": ""}', "application/json", "device=h100"),
    "JSON that binds to no number": (json.dumps({"device": "h100", "text": DYNAMIC, "bind": {"dim0": "4"}}),
                                     "application/json", ""),
}  # fmt: skip


# Status, field and words of the refusal.
REFUSALS: dict[str, tuple[int, str, str]] = {
    "no text": (422, "text", "the MLIR text is empty"),
    "only a comment": (422, "text", "there is no operation in the MLIR text"),
    "not UTF-8": (422, "text", "MLIR text must be UTF-8"),
    "bytecode": (422, "text", "this is MLIR bytecode, not text"),
    "no MLIR": (422, "text", "there is no operation in the MLIR text"),
    "nested too deep": (422, "text", "the MLIR text nests"),
    "a word too long": (422, "text", "a word of more than 4,096 characters"),
    "too large": (413, "", "print weights short"),
    "an unknown function": (422, "function", "no function 'g' in the module"),
    "several functions, none asked for": (422, "function", "the module has several functions; name one of"),
    "a size left open": (422, "bind", "dynamic sizes must be bound: dim0"),
    "a size that is not there": (422, "bind", "no dynamic size 'dim0'"),
    "a size that is none": (422, "bind", "bind must be a whole number"),
    "a size of nothing": (422, "bind", "a size is from 1 to"),
    "a size named twice": (422, "bind", "bind names dim0 twice"),
    "an unknown device": (422, "device", "no device 'h900'"),
    "no device": (422, "device", "is missing; name a device"),
    "an unknown compiler": (422, "compiler", "no compiler 'gcc'; compilers: iree, xla"),
    "threads on a GPU": (422, "threads", "is no CPU; leave threads out"),
    "threads that are none": (422, "threads", "threads must be a whole number"),
    "an impossible coverage": (422, "coverage", "coverage must be between 0.5 and 0.99"),
    "an unknown parameter": (422, "colour", "unknown parameter; possible are: device"),
    "a parameter given twice": (422, "function", "is given twice"),
    "another media type": (415, "", "send the header content-type"),
    "another charset": (415, "", "bodies are UTF-8"),
    "JSON that is none": (400, "", "the body is not valid JSON"),
    "JSON without text": (422, "text", "is missing"),
    "JSON whose text is no text": (422, "text", "must be MLIR text, not a number"),
    "JSON with an unknown field": (422, "size", "unknown field; MLIR takes text"),
    "JSON with device and devices": (422, "device", "give either device or devices"),
    "JSON with a query": (422, "", "a JSON body contains its settings"),
    "JSON that binds to no number": (422, "bind.dim0", "must be a whole number, not text"),
}


def test_every_refusal_has_a_case():
    assert sorted(REFUSALS) == sorted(BAD)


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused_is_refused_in_these_words(client, what):
    status, field, words = REFUSALS[what]
    text, kind, query = BAD[what]
    result = problem(post(client, text, query, kind), status)
    assert words in result["detail"]
    assert [error["field"] for error in result["errors"]] == ([field] if field else [])


def test_the_largest_text_is_read_and_longer_bodies_are_not(client):
    padding = MAX_TEXT_B - len(MLP)
    full = MLP + "//" + " " * (padding - 2)
    assert post(client, full).status_code == 200
    assert post_json(client, text=full, device="h100").status_code == 200
    problem(post_json(client, text=full + " ", device="h100"), 413)
    problem(post(client, b" " * 10_000_000), 413)
    problem(post_json(client, text=" " * 10_000_000, device="h100"), 413)
    # Other routes keep their own, smaller limit.
    assert client.post(b" " * 300_000).status_code == 413


def test_the_limit_is_that_of_reading():
    assert MAX_MLIR_B == MAX_TEXT_B


def test_a_smaller_limit_can_be_set(serve):
    settings = Settings.from_env({"KERNELCAST_MAX_MLIR_B": "1024"})
    with serve(FixedSource(object(), catalogue(), programs=object()), settings) as small:
        result = problem(post(small, " " * 1025), 413)
        assert "1024 bytes" in result["detail"]


def test_without_a_model_it_is_not_ready(serve):
    for source in (FixedSource(None, catalogue()), FixedSource(object(), catalogue())):
        with serve(source, Settings()) as client:
            response = post(client)
            problem(response, 503)
            assert response.headers["retry-after"]


def test_the_shipped_model_answers_for_programs(serve, monkeypatch):
    monkeypatch.setenv("KERNELCAST_HOME", "/nowhere")
    with serve(DirectorySource(default_model_dir, catalogue()), Settings()) as client:
        response = post(client, MLP, "device=amd-epyc-9005-vm-2c&threads=1")
        assert response.status_code == 200, response.text
        (answer,) = response.json()["answers"]
        assert 1e-5 < answer["latency_s"]["value"] < 1
        assert answer["bound_s"] <= answer["latency_s"]["value"]


def test_texts_are_counted_by_their_reader(client):
    reader = post(client).json()["reader"]
    text = client.get("/metrics").text
    assert re.search(rf'kernelcast_mlir_texts_total{{reader="{reader}"}} [1-9]', text)
    assert 'family="mlir"' in text


def test_others_are_answered_while_texts_are_worked_on_and_texts_that_wait_too_long_are_sent_away(client, monkeypatch):
    go, busy = threading.Event(), threading.Semaphore(0)
    read = mlir_route.read

    def slow(*args: Any, **options: Any) -> Any:
        busy.release()
        go.wait(120)
        return read(*args, **options)

    monkeypatch.setattr(mlir_route, "read", slow)
    monkeypatch.setattr(mlir_route, "WAIT_S", 0.1)
    answers: list[httpx.Response] = []
    asking = [threading.Thread(target=lambda: answers.append(post(client))) for _ in range(mlir_route.AT_ONCE)]
    try:
        for item in asking:
            item.start()
            assert busy.acquire(timeout=120)
        sent_away = [post(client)]
        monkeypatch.setattr(mlir_route, "WAIT_S", 120)
        monkeypatch.setattr(mlir_route, "MAX_WAITING", 0)
        sent_away.append(post(client))
        for response in sent_away:
            assert "try again" in problem(response, 503)["detail"]
            assert response.headers["retry-after"] == "5"
        assert client.get("/healthz").status_code == 200
    finally:
        go.set()
        for item in asking:
            item.join(120)
    assert [item.status_code for item in answers] == [200] * mlir_route.AT_ONCE
    monkeypatch.setattr(mlir_route, "MAX_WAITING", 16)
    assert post(client).status_code == 200


def test_the_document_describes_the_route_and_its_examples_are_taken(client):
    document = client.get("/openapi.json").json()
    operation = document["paths"][PATH]["post"]
    whole = {"components": document["components"]}
    content = operation["requestBody"]["content"]
    body = content["application/json"]
    jsonschema.Draft202012Validator(body["schema"] | whole).validate(body["example"])
    schema = operation["responses"]["200"]["content"]["application/json"]
    validator = jsonschema.Draft202012Validator(schema["schema"] | whole)
    result = post_json(client, **body["example"])
    assert result.status_code == 200, result.text
    validator.validate(result.json())
    validator.validate(schema["example"])
    query = "&".join(
        f"{item['name']}={value}"
        for item in operation["parameters"]
        for value in (item["example"] if isinstance(item["example"], list) else [item["example"]])
    )
    for kind in mlir_route.TEXT:
        validator.validate(post(client, content[kind]["example"], query, kind).json())
    fields = set(document["components"]["schemas"]["ProgramRequest"]["properties"])
    from kernelcast.api.predict.mlir import FIELDS, PARAMETERS

    assert fields == set(FIELDS)
    assert {item["name"] for item in operation["parameters"]} == set(PARAMETERS)
    assert {"400", "413", "415", "422", "500", "503"} <= set(operation["responses"])
