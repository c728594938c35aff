"""OpenTelemetry: spans where they are asked for, nothing where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.telemetry.tracing import Tracing, tracing_from_settings
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError

sdk = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402 - after the look whether it is there
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def traced(fake, serve_app, spans) -> Iterator[Any]:
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with serve_app(create_app(FixedSource(fake, catalogue()), tracing=Tracing(provider, lambda: "0123456789ab"))) as it:
        yield it


@pytest.fixture(autouse=True)
def nothing_before(spans) -> None:
    spans.clear()


def test_a_span_tells_what_was_asked_in_the_caller_s_trace(traced, spans, gemm):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    traced.request("POST", "/v1/predict", json={"requests": [gemm, gemm | {"device": "nvidia-l40s"}]}, headers=headers)
    (span,) = spans.get_finished_spans()
    assert span.name == "POST /v1/predict"
    assert span.kind is SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert dict(span.attributes) == {
        "http.request.method": "POST", "http.route": "/v1/predict", "http.response.status_code": 200,
        "kernelcast.request_id": "mine", "kernelcast.model_version": "0123456789ab",
        "kernelcast.predictions": 2, "kernelcast.families": 1, "kernelcast.devices": 2,
    }  # fmt: skip
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("given", ["", "x", f"00-{TRACE}", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_a_traceparent_that_is_none_begins_a_trace(traced, spans, given):
    traced.request("GET", "/v1/devices/h100", headers={"traceparent": given})
    (span,) = spans.get_finished_spans()
    assert span.parent is None
    assert span.attributes["http.route"] == "/v1/devices/{name}"


def test_what_the_caller_does_not_sample_is_not_recorded(traced, spans):
    traced.request("GET", "/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert spans.get_finished_spans() == ()


def test_a_failure_is_marked_and_a_refusal_is_none(traced, spans, gemm):
    traced.post(gemm | {"family": "elementwise", "variant": "tanh", "sizes": {"rows": 1, "cols": 1}})
    traced.post(gemm | {"sizes": {}})
    failed, refused = spans.get_finished_spans()
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["http.response.status_code"] == 500
    assert refused.status.status_code is StatusCode.UNSET
    assert refused.attributes["http.response.status_code"] == 422


def test_health_checks_and_scrapes_are_not_traced(traced, spans):
    for path in ("/healthz", "/readyz", "/metrics"):
        traced.get(path)
    assert spans.get_finished_spans() == ()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("asked", "env", "is_on"),
    [(None, {}, False), (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False), (False, ENDPOINT, False), (None, ENDPOINT, True),
     (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, True), (True, {}, True)],
)  # fmt: skip
def test_when_traces_are_sent(asked, env, is_on):
    result = tracing_from_settings(asked, lambda: "", env)
    assert (result is not None) is is_on
    if result is not None:
        result.close()


def test_asked_for_and_not_installed_is_one_sentence(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SpecError, match=r"KERNELCAST_TRACING asks .* pip install 'kernelcast\[otel\]'"):
        create_app(FixedSource(None, catalogue()), Settings(tracing=True))
    assert tracing_from_settings(None, lambda: "", ENDPOINT) is None
    assert "no traces are sent" in caplog.text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_says_it_in_one_sentence(tmp_path, workers):
    # An empty part of the name space hides the exporter; the framework needs the rest.
    (tmp_path / "opentelemetry" / "exporter").mkdir(parents=True)
    (tmp_path / "opentelemetry" / "exporter" / "__init__.py").write_text("")
    env = os.environ | {"KERNELCAST_TRACING": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "kernelcast", "serve", "--port", "0", "--workers", workers]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=env, timeout=240)
    assert done.returncode == 2
    assert done.stderr.startswith("error: KERNELCAST_TRACING asks for traces, but opentelemetry.")
    assert done.stderr.count("\n") == 1


def test_without_traces_nothing_that_makes_them_is_imported():
    code = (
        "import sys, json; from pathlib import Path; from kernelcast.api.app import build; "
        "from kernelcast.api.settings import Settings; build(Settings(model=Path('/nowhere'))); "
        "print(json.dumps([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]))"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/", env=env)
    assert json.loads(done.stdout) == []
