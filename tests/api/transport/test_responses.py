"""Catalogues, the document and the page's files: ETag, 304, HEAD, both forms, made once."""

from __future__ import annotations

import gzip

import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.transport.responses import CachedContent
from kernelcast.features.device import catalogue
from starlette.requests import Request

PATHS = ["/v1/devices", "/v1/devices/h100-sxm", "/v1/kernels", "/v1/kernels/gemm", "/openapi.json", "/", "/docs/api",
         "/docs/api/swagger-ui.css", "/docs/api/page.js", "/favicon.ico"]  # fmt: skip


def get(client, path, method="GET", **headers):
    return client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("path", PATHS)
def test_what_a_client_has_is_not_sent_again(client, path):
    for accept in ("gzip", "identity"):
        first = get(client, path, accept_encoding=accept)
        tag = first.headers["etag"]
        assert first.status_code == 200
        assert tag.startswith('W/"')
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers.get("vary") == ("Accept-Encoding" if len(first.content) >= 1024 else None)
        for named in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            again = get(client, path, accept_encoding=accept, if_none_match=named)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert again.headers["cache-control"] == "no-cache"
            assert again.headers["vary"] == "Accept-Encoding"
        for other in ('"x"', tag[3:-1], '""', "", "W/*", f"w/{tag[2:]}"):
            assert get(client, path, accept_encoding=accept, if_none_match=other).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_a_head_has_the_headers_of_a_get_and_both_forms_one_tag(client, path):
    forms = {accept: get(client, path, accept_encoding=accept) for accept in ("gzip", "identity")}
    for accept, result in forms.items():
        head = get(client, path, "HEAD", accept_encoding=accept)
        for name in ("etag", "content-length", "content-type", "content-security-policy"):
            assert head.headers[name] == result.headers[name]
    packed, plain = forms["gzip"], forms["identity"]
    assert packed.content == plain.content
    if len(plain.content) >= 1024:
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["etag"] == plain.headers["etag"]
        assert int(packed.headers["content-length"]) < len(plain.content) / 2


def test_an_alias_and_the_name_are_one_content(client):
    assert (
        get(client, "/v1/devices/H100-SXM").headers["etag"]
        == get(client, "/v1/devices/nvidia-h100-sxm-80gb").headers["etag"]
    )


def test_a_refusal_has_no_tag(client):
    response = get(client, "/v1/devices/h900", if_none_match="*")
    assert response.status_code == 404
    assert "etag" not in response.headers


def test_the_document_is_the_same_whoever_asks_first(serve, client):
    source = FixedSource(None, catalogue())
    with serve(source, Settings()) as other:
        other.request("GET", "/openapi.json", headers={"x-request-id": "told-by-the-first"})
        assert get(other, "/openapi.json").text == get(client, "/openapi.json").text
        assert "told-by-the-first" not in get(other, "/openapi.json").text


def test_under_a_prefix_the_document_names_its_server(serve):
    with serve(FixedSource(None, catalogue()), Settings(root_path="/costs")) as other:
        assert get(other, "/costs/openapi.json").json()["servers"] == [{"url": "/costs"}]


def test_an_application_without_a_model_has_its_catalogue():
    app = create_app(FixedSource(None, catalogue()))
    assert app.url_path_for("list_devices") == "/v1/devices"


def test_files_are_packed_once_and_small_ones_not_at_all() -> None:
    body = b"kernelcast " * 1000
    content = CachedContent(body, "text/plain")
    asked = Request({"type": "http", "headers": [(b"accept-encoding", b"br, gzip")]})
    packed = content.answer(asked)
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.body) == body
    assert packed.body is content.answer(asked).body
    assert content.answer(Request({"type": "http", "headers": []})).body == body
    assert "content-encoding" not in CachedContent(b"small", "text/plain").answer(asked).headers
