"""The other routes, the OpenAPI document, and the page."""

from __future__ import annotations

import base64
import hashlib
import re
import urllib.request

import jsonschema
import pytest
from kernelcast.api.routes import ROUTES
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import families
from kernelcast.features.spec_io.json_schema import standalone_schema

DRAFT = jsonschema.Draft202012Validator


TABLES = ("facts", "matrix_flops_per_s", "vector_flops_per_s", "measured")


def test_the_page_of_a_device_has_the_sources_that_the_list_leaves_out(client):
    devices = client.get("/v1/devices").json()["devices"]
    assert [device["name"] for device in devices] == catalogue().names()
    for device in devices:
        facts = [fact for table in TABLES for fact in device[table].values()]
        assert all(fact["value"] > 0 and "source" not in fact for fact in facts)
    page = client.get("/v1/devices/h100-sxm").json()
    (line,) = [device for device in devices if device["name"] == page["name"]]
    for table in TABLES:
        assert {name: fact["value"] for name, fact in page[table].items()} == {
            name: fact["value"] for name, fact in line[table].items()
        }
        assert all(fact["source"] for fact in page[table].values())


def test_every_operation_stands_in_one_group_and_every_group_is_described(client):
    document = client.get("/openapi.json").json()
    groups = [tag["name"] for tag in document["tags"]]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert {tuple(operation["tags"]) for operation in operations} == {(name,) for name in groups}
    assert all(tag["description"] and "operations" not in tag for tag in document["tags"])


MOST_B = 200_000


@pytest.mark.parametrize("path", [
    *sorted(route.path for route in ROUTES if route.method == "GET" and route.path.startswith("/v1") and "{" not in route.path),
    "/v1/devices/h100-sxm", "/v1/kernels/gemm", "/v1/measurements?limit=200",
])  # fmt: skip
def test_an_answer_that_is_read_is_short(address, path):
    with urllib.request.urlopen(address + path, timeout=60) as answer:
        assert len(answer.read()) < MOST_B


def test_a_device_is_found_by_alias(client):
    assert client.get("/v1/devices/H100-SXM").json()["name"] == "nvidia-h100-sxm-80gb"


@pytest.mark.parametrize("family", list(families()))
def test_family_schemas_are_valid_and_agree_with_the_service(client, family):
    schema = client.get(f"/v1/kernels/{family}").json()
    assert schema == client.get("/v1/kernels").json()["kernels"][family] == standalone_schema(families()[family])
    assert schema["$schema"] == DRAFT.META_SCHEMA["$id"]
    DRAFT.check_schema(schema)
    validator = DRAFT(schema)
    for example in schema["examples"]:
        validator.validate(example)
    example = schema["examples"][0]
    # What the schema does not require may be left out (the fake model knows no conv2d).
    least = {name: example[name] for name in schema["required"]}
    validator.validate(least)
    assert client.post(least).status_code == (422 if family == "conv2d" else 200)
    for change in ({"device": 1}, {"sizes": {}}, {"x": 1}, {"dtype": "bf17"}, {"threads": 0}, {"cache_state": "warm"}):
        bad = example | change
        assert not validator.is_valid(bad)
        assert client.post(bad).status_code == 422


def test_models_say_what_is_loaded(client):
    (model,) = client.get("/v1/models").json()["models"]
    assert model["name"] == "fixed"
    assert model["problem"] is None


def test_health_readiness_and_heads(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.request("HEAD", "/healthz").status_code == 200


def test_metrics_count_routes_without_growing_by_what_is_asked(client, gemm):
    client.post(gemm)
    client.get("/v1/devices/h100")
    client.get("/some/path/no/one/made")
    client.request("BREW", "/healthz")
    text = client.get("/metrics").text
    assert 'kernelcast_http_requests_total{method="POST",route="/v1/predict",status="200"}' in text
    assert 'route="/v1/devices/{name}"' in text
    assert 'method="other"' in text
    assert "no/one/made" not in text
    assert "BREW" not in text
    assert 'kernelcast_http_request_seconds_bucket{le="0.0015",route="/v1/predict"}' in text
    assert "kernelcast_model_loaded 1.0" in text


PLAIN = {
    "/v1/devices",
    "/v1/devices/{name}",
    "/v1/kernels",
    "/v1/kernels/{family}",
    "/v1/models",
    "/healthz",
    "/readyz",
    "/metrics",
}
ASKED = (
    "predict", "predict/model", "predict/mlir", "predict/columns", "estimate", "rank", "compare", "sweep", "roofline",
    "predict/colocated", "llm/predict", "llm/plan", "llm/fleet", "best-cap",
)  # fmt: skip


def test_no_two_routes_are_one_route():
    assert len({(route.path, route.method) for route in ROUTES}) == len({route.name for route in ROUTES}) == len(ROUTES)


def test_the_document_describes_every_route(client):
    document = client.get("/openapi.json").json()
    routes = {(route.path, route.method.lower()) for route in ROUTES}
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    assert routes <= described
    assert set(document["paths"]) == PLAIN | {path for path, _ in routes}
    assert {f"/v1/{name}" for name in ASKED} <= set(document["paths"])
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path
            for status, response in operation["responses"].items():
                for media, content in response["content"].items():
                    assert content["schema"], (path, status)
                    assert "example" in content or "examples" in content, (path, status, media)
            assert "500" in operation["responses"], path


def test_every_reference_of_the_document_leads_somewhere(client):
    text = client.get("/openapi.json").text
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert used <= set(schemas)
    for schema in schemas.values():
        DRAFT.check_schema(schema)


@pytest.mark.parametrize("name", ASKED)
def test_the_examples_of_requests_and_answers_are_valid_and_answered(client, name):
    document = client.get("/openapi.json").json()
    operation = document["paths"][f"/v1/{name}"]["post"]
    whole = {"components": document["components"]}
    query = operation["requestBody"]["content"]["application/json"]
    answered = operation["responses"]["200"]["content"]["application/json"]
    validator = DRAFT(answered["schema"] | whole)
    for example in _examples(answered):
        validator.validate(example)
    for example in _examples(query):
        DRAFT(query["schema"] | whole).validate(example)
        response = client.request("POST", f"/v1/{name}", json=example)
        assert response.status_code == 200, response.text
        validator.validate(response.json())


def _examples(content):
    return [content["example"]] if "example" in content else [item["value"] for item in content["examples"].values()]


def test_plain_answers_are_as_described(client):
    document = client.get("/openapi.json").json()
    whole = {"components": document["components"]}
    for path in ("/v1/devices", "/v1/devices/h100", "/v1/models", "/healthz", "/readyz", "/v1/kernels"):
        described = document["paths"][path.replace("h100", "{name}")]["get"]["responses"]["200"]["content"]
        DRAFT(described["application/json"]["schema"] | whole).validate(client.get(path).json())


def test_the_page_is_self_contained_under_a_strict_policy(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    linked = [link for link in re.findall(r'(?:src|href)="([^"]+)"', page.text) if not link.startswith("#")]
    assert any(link.endswith(".js") for link in linked)
    assert any(link.endswith(".css") for link in linked)
    assert "style=" not in page.text
    inline = re.findall(r"<script>(.*?)</script>", page.text, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
    assert len(inline) == 1
    assert all(f"'sha256-{known}'" in policy for known in hashes)
    assert len(inline) == len(re.findall(r"<script(?![^>]*src=)", page.text))
    for path in linked:
        assert not path.startswith(("http", "//", "/"))
        answer = client.request("GET", "/" + path, follow_redirects=True)
        assert answer.status_code == 200, path
        assert "nosniff" in answer.headers["x-content-type-options"]
        if path.endswith((".js", ".css")):
            assert not re.search(r"https?://(?!www\.w3\.org)", answer.text)
