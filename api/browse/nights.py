"""Nightly reports over HTTP: gauges of the newest nights for alerts, and the three routes that show reports.

The routes are GET /v1/nights, /v1/nights/{id} and /nights/{id}.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from ..transport.bodies import integer_parameter, parameters
from ..transport.problems import ProblemError
from ..transport.responses import Endpoint
from .nights_folder import LEVELS, OUTCOMES, NightError, NightReport, NightsAnswer, NightsFolder, NightSummary

MAX_NIGHTS = 30
"""Newest nights that the gauges are computed from; a row of equal outcomes is counted no further."""

KINDS = ("device-drift", "data-drift", "model-drift", "software", "regime", "sensor", "storage", "registry", "device",
         "rows", "gate", "rollback", "budget", "lock", "usage", "stage")  # fmt: skip
"""Kinds of findings that have a series of their own; another counts as `other`, so that no file can make series."""
STATUSES = ("ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed")

_BAD = ("failed", "interrupted", "rolled-back")


class NightsState(Collector):
    """The gauges, looked up whenever metrics are read; without any night there are none."""

    def __init__(self, nights: NightsFolder) -> None:
        self._nights = nights

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        try:
            ids = self._nights.ids()[:MAX_NIGHTS]
        except NightError:
            yield _gauge("kernelcast_nights_unreadable", "Nights whose report cannot be read; -1: their folder", -1)
            return
        if not ids:
            return
        summaries = [self._nights.summary(night) for night in ids]
        readable = [summary for summary in summaries if summary.problem is None]
        yield _gauge(
            "kernelcast_nights_unreadable", "Nights whose report cannot be read; -1: their folder",
            len(summaries) - len(readable),
        )  # fmt: skip
        running = readable[0] if readable and readable[0].outcome == "running" else None
        yield _gauge(
            "kernelcast_night_running",
            "1 while a night runs, or one was killed and no other began",
            running is not None,
        )
        began = _time(None if running is None else running.began)
        yield _gauge(
            "kernelcast_night_running_since_seconds",
            "When the night that runs began, Unix time; 0: none runs",
            began or 0,
        )
        ended = [summary for summary in readable if summary.outcome != "running"]
        if ended:
            yield from self._of_newest(ended)

    def _of_newest(self, ended: list[NightSummary]) -> Iterator[Metric]:
        newest = ended[0]
        yield _gauge("kernelcast_night_end_seconds", "When the newest ended night ended, Unix time",
                     _time(newest.ended) or _time(newest.began) or 0)  # fmt: skip
        yield _labelled(
            "kernelcast_night_outcome", "1 for the outcome of the newest ended night", ["outcome"],
            {(name,): newest.outcome == name for name in OUTCOMES[:-1]},
        )  # fmt: skip
        rows = {(status,): newest.rows.get(status, 0) for status in STATUSES}
        rows["other",] = sum(newest.rows.values()) - sum(rows.values())
        yield _labelled("kernelcast_night_rows", "Rows the newest ended night measured", ["status"], rows)
        yield self._findings(newest)
        if newest.champion_error is not None:
            yield _gauge("kernelcast_night_champion_error_ratio", "Mean error of the served model on the newest night's rows",
                         newest.champion_error)  # fmt: skip
        for name, what, is_like in _STREAKS:
            yield _gauge(f"kernelcast_nights_{name}_in_a_row", f"Newest nights in a row that {what}",
                         sum(1 for _ in takewhile(is_like, ended)))  # fmt: skip

    def _findings(self, newest: NightSummary) -> Metric:
        try:
            report: NightReport | None = self._nights.report(newest.id)[1]
        except NightError:
            report = None  # gone or replaced since its line was read; the next scrape tells
        counts = {(kind, level): 0 for kind in (*KINDS, "other") for level in LEVELS}
        for finding in () if report is None else report.findings():
            counts[finding.kind if finding.kind in KINDS else "other", finding.level] += 1
        return _labelled("kernelcast_night_findings", "Findings of the newest ended night", ["kind", "level"], counts)


_STREAKS: tuple[tuple[str, str, Callable[[NightSummary], bool]], ...] = (
    ("kept", "kept the model", lambda night: night.outcome == "kept"),
    ("failed", "failed, were interrupted or rolled back", lambda night: night.outcome in _BAD),
)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _labelled(name: str, what: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    gauge = GaugeMetricFamily(name, what, labels=labels)
    for words, value in values.items():
        gauge.add_metric(words, value)
    return gauge


def _time(text: str | None) -> float | None:
    """Unix time of an ISO 8601 time, None where it is none."""
    try:
        time = None if text is None else datetime.fromisoformat(text)
        return None if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


MAX_LIMIT = 200
"""Most nights of one page."""
DEFAULT_LIMIT = 30
_MAX_OFFSET = 10**9


def list_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/v1/nights`."""

    def answer(offset: int, limit: int) -> bytes:
        ids = nights.ids()
        return msgspec.json.encode(
            NightsAnswer(len(ids), offset, [nights.summary(night) for night in ids[offset : offset + limit]])
        )

    async def listed(request: Request) -> Response:
        values = parameters(request.scope["query_string"], ("offset", "limit"))
        offset = integer_parameter(values, "offset", 0, 0, _MAX_OFFSET)
        limit = integer_parameter(values, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        return Response(await _on_thread(answer, offset, limit), media_type="application/json")

    return listed


def night_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/v1/nights/{id}`."""

    async def night(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        content, _ = await _on_thread(nights.report, request.path_params["id"])
        return Response(content, media_type="application/json")

    return night


def page_endpoint(nights: NightsFolder) -> Endpoint:
    """What answers `/nights/{id}`."""

    async def page(request: Request) -> Response:
        parameters(request.scope["query_string"], ())
        html, policy = await _on_thread(_page, nights, request.path_params["id"])
        return Response(html, media_type="text/html", headers={"content-security-policy": policy})

    return page


def page_policy(html: str) -> str:
    """Content-Security-Policy of a report: its own style sheets by their hash, and nothing else whatever."""
    shown = re.sub(r"<!--.*?-->", "", html, flags=re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", shown, re.DOTALL | re.IGNORECASE)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in styles]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; style-src {allowed}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _page(nights: NightsFolder, night: str) -> tuple[str, str]:
    html = nights.page(night)
    return html, page_policy(html)


async def _on_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of work that reads files, on a thread; what is wrong with them as a problem."""
    try:
        return await run_sync(work, *arguments)
    except NightError as error:
        raise ProblemError(error.status, str(error)) from error
