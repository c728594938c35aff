"""What is told about requests: ids, the log's lines, metrics; and what never is."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kernelcast.api.middleware.error_boundary import ErrorBoundary
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.api.telemetry.metrics import REFUSALS, Metrics
from kernelcast.api.telemetry.request_log import install
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError

MADE = re.compile(r"[0-9a-f]{32}")


def get(client: Any, path: str, method: str = "GET", **headers: str) -> Any:
    return client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("given", ["a", "4bf92f35-77b3-4da6", "Root=1-6789:0/x+y@z._", "x" * 128])
def test_a_well_formed_id_is_kept(client, given):
    assert get(client, "/healthz", x_request_id=given).headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x" * 129,
        "a b",
        "a\tb",
        "é",
        "<script>",
        "a;b",
        'a"b',
        "a,b",
        "a\\n",
        "${x}",
        "a%0a",
        "kc_" + "x" * 43,
        "a:kc_x",
    ],
)
def test_another_id_is_replaced(client, given):
    response = client.request("GET", "/healthz", headers={"x-request-id": given.encode()})
    assert MADE.fullmatch(response.headers["x-request-id"])


def test_every_answer_has_an_id_of_its_own_and_problems_tell_it(client, gemm):
    answers = [get(client, path) for path in ("/healthz", "/", "/nothing", "/v1/devices/x", "/v1/predict")]
    answers += [client.post(gemm), client.post(gemm | {"sizes": {}}), client.post(gemm | {"dtype": 1})]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    problems = [answer for answer in answers if answer.status_code >= 400]
    assert len(problems) == 5
    for answer in problems:
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_a_failure_in_a_thread_tells_the_id_too(client, gemm):
    body = {"requests": [gemm | {"family": "elementwise", "variant": "gelu", "sizes": {"rows": 64, "cols": 64}}] * 200}
    body["requests"][-1] = body["requests"][-1] | {"sizes": {"rows": -1, "cols": 1}}
    answer = client.post(body)
    assert len(json.dumps(body)) > 8192
    assert answer.status_code == 422
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


class Written:
    """All that was written to stderr so far."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self._text = ""

    def getvalue(self) -> str:
        self._text += self._captured.readouterr().err
        return self._text


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What the installed log writes; the process's own set-up comes back afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), logging.getLogger("kernelcast").level
    yield Written(capsys)
    root.handlers[:] = before
    logging.getLogger("kernelcast").setLevel(level)


def lines(out: Written) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def talking(serve, fake) -> Iterator[Any]:
    """A client of a service that logs its requests."""
    with serve(FixedSource(fake, catalogue()), Settings(access_log=True)) as it:
        yield it


def test_one_line_per_request_with_what_was_asked_for(talking, logged, gemm):
    install("json", "info")
    gemms = [gemm, gemm | {"device": "nvidia-l40s"}, gemm | {"dtype": "fp16"}]
    sent = talking.post({"requests": [*gemms, gemm | {"family": "softmax", "sizes": {"rows": 8, "cols": 8}}]})
    assert sent.status_code == 200
    get(talking, "/v1/devices/h100-sxm", "HEAD", x_request_id="mine")
    get(talking, "/secret/place?key=kc_1", authorization="Bearer kc_hidden")
    first, second, third = lines(logged)
    assert first.items() >= {
        "level": "info", "logger": "kernelcast.access", "message": "request", "method": "POST", "route": "/v1/predict",
        "status": 200, "client": "127.0.0.1",
        "predictions": 4, "families": 2, "devices": 2, "request_id": sent.headers["x-request-id"],
    }.items()  # fmt: skip
    assert 0 < first["seconds"] < 5
    assert first["bytes"] > 100
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert second.items() >= {"method": "HEAD", "route": "/v1/devices/{name}", "bytes": 0, "request_id": "mine"}.items()
    assert "path" not in second
    assert third.items() >= {"route": "other", "path": "/secret/place", "status": 404}.items()
    assert "kc_" not in logged.getvalue()


def test_the_key_is_told_by_its_name(fake, logged):
    install("json", "info")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["key_name"] = "ci"
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def nothing(*_: Any) -> Any: ...

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "state": {}}
    asyncio.run(ErrorBoundary(app, Metrics(), ["/x"], log_requests=True)(scope, nothing, nothing))
    assert lines(logged)[0]["key_name"] == "ci"


def test_a_failure_is_one_line_with_its_traceback(talking, logged, gemm):
    install("json", "info")
    answer = talking.post(gemm | {"family": "elementwise", "variant": "tanh", "sizes": {"rows": 1, "cols": 1}})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    failure, request = lines(logged)
    assert failure["level"] == "error"
    assert failure["message"] == "POST /v1/predict failed"
    assert failure["traceback"].startswith("Traceback (most recent call last)")
    assert "RuntimeError" in failure["traceback"]
    assert failure["request_id"] == request["request_id"] == answer.headers["x-request-id"]


HOSTILE = "/a%0d%0a2026-01-01 ERROR forged%1b[31m%00%7f%c2%9b%e2%80%a8\u202e"


@pytest.mark.parametrize("style", ["json", "text"])
def test_nothing_sent_can_begin_a_line_or_reach_a_terminal(talking, logged, style):
    install(style, "info")
    get(talking, HOSTILE)
    get(talking, "/" + "x" * 5000)
    logging.getLogger("kernelcast.api").error("said by a client: %s", "one\ntwo\x1b[2J\x7f\x9b")
    text = logged.getvalue()
    assert len(text.splitlines()) == text.count("\n") == 3
    assert re.fullmatch(r"[ -~\n]*", text)
    assert "forged" in text
    assert len(text) < 2000


def test_text_lines_are_for_people_and_tracebacks_are_indented(talking, logged, gemm):
    install("text", "info")
    get(talking, "/healthz", x_request_id="mine")
    talking.post(gemm | {"family": "elementwise", "variant": "tanh", "sizes": {"rows": 1, "cols": 1}})
    first, second, *rest = logged.getvalue().splitlines()
    assert re.match(
        r"\S+Z INFO kernelcast.access: request method=GET route=/healthz status=200 .* request_id=mine$", first
    )
    assert " ERROR kernelcast.api: POST /v1/predict failed request_id=" in second
    assert all(line.startswith("    ") for line in rest[:-1])


def test_the_level_and_a_second_set_up(talking, logged):
    install("json", "info")
    install("text", "warning")
    get(talking, "/healthz")
    logging.getLogger("kernelcast.api").warning("heard once")
    assert logged.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("KERNELCAST_LOG_FORMAT", "xml", "it must be one of text, json"),
        ("KERNELCAST_LOG_LEVEL", "loud", "it must be one of debug, info, warning, error, critical"),
        ("KERNELCAST_TRACING", "maybe", "it must be true or false"),
    ],
)
def test_settings_that_are_refused(variable, value, said):
    with pytest.raises(SpecError, match=said) as refused:
        Settings.from_env({variable: value})
    assert refused.value.field == variable


def test_settings_that_are_taken():
    env = {"KERNELCAST_LOG_FORMAT": "JSON", "KERNELCAST_LOG_LEVEL": "Warning", "KERNELCAST_TRACING": "0",
           "KERNELCAST_METRICS_DIR": "/run/x"}  # fmt: skip
    result = Settings.from_env(env)
    assert (result.log_format, result.log_level, result.tracing, str(result.metrics_dir)) == (
        "json",
        "warning",
        False,
        "/run/x",
    )


def series(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_tell_the_model_sizes_and_what_is_in_flight(talking, gemm):
    before = series(get(talking, "/metrics").text)
    sent = json.dumps(gemm).encode()
    answer = talking.post(sent)
    now = series(get(talking, "/metrics").text)
    assert now['kernelcast_model_info{name="fixed",version="unversioned"}'] == 1
    assert now["kernelcast_http_requests_in_flight"] == 1

    def more(name: str) -> float:
        return now[f'{name}{{route="/v1/predict"}}'] - before.get(f'{name}{{route="/v1/predict"}}', 0)

    assert more("kernelcast_http_request_body_bytes_sum") == len(sent)
    assert more("kernelcast_http_response_body_bytes_sum") == int(answer.headers["content-length"])
    assert more("kernelcast_http_request_seconds_count") == 1


def test_without_a_model_there_is_no_version(serve):
    with serve(FixedSource(None, catalogue()), Settings()) as other:
        text = get(other, "/metrics").text
    assert series(text)["kernelcast_model_loaded"] == 0
    assert "kernelcast_model_info{" not in text


def test_nothing_a_client_sends_becomes_a_label(talking):
    get(talking, "/metrics")
    names = set(series(get(talking, "/metrics").text))
    for number in range(30):
        get(talking, f"/nothing/{number}")
        get(talking, f"/v1/devices/none-{number}")
        get(talking, "/healthz", f"VERB{number}")
        get(talking, "/healthz", x_request_id=f"id-{number}")
    added = set(series(get(talking, "/metrics").text)) - names
    assert not [name for name in added if re.search(r"none-|VERB|id-|nothing", name)]
    assert len(added) < 150


def test_a_lie_about_a_body_s_length_is_not_counted(talking):
    headers = {"content-type": "application/json", "content-length": "99999999999999999999"}
    talking.request("POST", "/v1/predict", content=b"x", headers=headers)
    total = series(get(talking, "/metrics").text)['kernelcast_http_request_body_bytes_sum{route="/v1/predict"}']
    assert total < 1e6


def test_refusals_are_counted_by_reason():
    metrics = Metrics()
    for reason in (*REFUSALS, "made up"):
        metrics.count_refusal(reason)
    result = series(metrics.text().decode())
    assert all(result[f'kernelcast_http_refusals_total{{reason="{reason}"}}'] == 1 for reason in REFUSALS[:-1])
    assert result['kernelcast_http_refusals_total{reason="other"}'] == 2


def test_a_model_that_is_not_taken_is_counted_once(serve):
    looked_often = threading.Event()

    class Failing(FixedSource):
        looks = 0

        def refresh(self) -> bool:
            self.problem = "no manifest.json"
            self.looks += 1
            if self.looks > 5:
                looked_often.set()
            return False

    source = Failing(None, catalogue())
    with serve(source, Settings(reload_s=0.05)) as other:
        assert looked_often.wait(60)
        result = series(get(other, "/metrics").text)
    assert result["kernelcast_model_refusals_total"] == 1
