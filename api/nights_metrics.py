"""What the newest nights came to, as gauges: what alerts ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import takewhile

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .nights_folder import NightError, NightsFolder
from .nights_wire import LEVELS, OUTCOMES, NightReport, NightSummary

LOOKED_AT = 30
"""Nights that are looked at; a row of alike outcomes is counted no further."""

KINDS = ("device-drift", "data-drift", "model-drift", "regime", "sensor", "storage", "registry", "device", "rows", "gate",
         "rollback", "budget", "lock", "usage", "stage")  # fmt: skip
"""Kinds of findings that have a series of their own; another counts as `other`, so that no file can make series."""
STATUSES = ("ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed")

NIGHT_GAUGES = (
    "kernelcast_nights_unreadable", "kernelcast_night_running", "kernelcast_night_running_since_seconds",
    "kernelcast_night_end_seconds", "kernelcast_night_outcome", "kernelcast_night_rows", "kernelcast_night_findings",
    "kernelcast_night_champion_error_ratio", "kernelcast_nights_kept_in_a_row", "kernelcast_nights_failed_in_a_row",
)  # fmt: skip
"""Names of all gauges here."""

_BAD = ("failed", "interrupted", "rolled-back")


class NightsState(Collector):
    """The gauges, looked up whenever metrics are read; without any night there are none."""

    def __init__(self, nights: NightsFolder) -> None:
        self._nights = nights

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        try:
            ids = self._nights.ids()[:LOOKED_AT]
        except NightError:
            yield _gauge("kernelcast_nights_unreadable", "Nights whose report cannot be read; -1: their folder", -1)
            return
        if not ids:
            return
        found = [self._nights.summary(one) for one in ids]
        readable = [one for one in found if one.problem is None]
        yield _gauge(
            "kernelcast_nights_unreadable", "Nights whose report cannot be read; -1: their folder",
            len(found) - len(readable),
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
        ended = [one for one in readable if one.outcome != "running"]
        if ended:
            yield from self._of_newest(ended)

    def _of_newest(self, ended: list[NightSummary]) -> Iterator[Metric]:
        newest = ended[0]
        yield _gauge("kernelcast_night_end_seconds", "When the newest ended night ended, Unix time",
                     _time(newest.ended) or _time(newest.began) or 0)  # fmt: skip
        outcome = GaugeMetricFamily(
            "kernelcast_night_outcome", "1 for the outcome of the newest ended night", labels=["outcome"]
        )
        for one in OUTCOMES[:-1]:
            outcome.add_metric([one], newest.outcome == one)
        yield outcome
        rows = GaugeMetricFamily("kernelcast_night_rows", "Rows the newest ended night measured", labels=["status"])
        for status in STATUSES:
            rows.add_metric([status], newest.rows.get(status, 0))
        rows.add_metric(["other"], sum(count for status, count in newest.rows.items() if status not in STATUSES))
        yield rows
        yield self._findings(newest)
        if newest.champion_error is not None:
            yield _gauge("kernelcast_night_champion_error_ratio", "Mean error of the served model on the newest night's rows",
                         newest.champion_error)  # fmt: skip
        for name, what, is_like in _STREAKS:
            yield _gauge(f"kernelcast_nights_{name}_in_a_row", f"Newest nights in a row that {what}",
                         sum(1 for _ in takewhile(is_like, ended)))  # fmt: skip

    def _findings(self, newest: NightSummary) -> Metric:
        found = GaugeMetricFamily(
            "kernelcast_night_findings", "Findings of the newest ended night", labels=["kind", "level"]
        )
        try:
            report: NightReport | None = self._nights.report(newest.id)[1]
        except NightError:
            report = None  # gone or replaced since its line was read; the next scrape tells
        counts = {(kind, level): 0 for kind in (*KINDS, "other") for level in LEVELS}
        for one in () if report is None else report.findings():
            counts[one.kind if one.kind in KINDS else "other", one.level] += 1
        for (kind, level), count in counts.items():
            found.add_metric([kind, level], count)
        return found


_STREAKS: tuple[tuple[str, str, Callable[[NightSummary], bool]], ...] = (
    ("kept", "kept the model", lambda one: one.outcome == "kept"),
    ("failed", "failed, were interrupted or rolled back", lambda one: one.outcome in _BAD),
)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value=value)


def _time(text: str | None) -> float | None:
    """Unix time of an ISO 8601 time, None where it is none."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
        return None if found is None else (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
