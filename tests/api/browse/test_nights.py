"""Nights as the service shows them: what is there, as it is; what is not, or should not be read, in one sentence."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.browse import nights_folder
from kernelcast.api.browse.nights import KINDS, STATUSES, page_policy
from kernelcast.api.browse.nights_folder import FORMAT_VERSION as READ
from kernelcast.api.browse.nights_folder import LEVELS, NIGHT_ID, OUTCOMES
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.datasets.rows.schema import STATUSES as MEASURED
from kernelcast.features.device import catalogue
from kernelcast.nightly.record import folders, record
from kernelcast.nightly.record.record import FORMAT_VERSION, STAGES, Finding, NightRecord, StageRecord
from kernelcast.nightly.report_page import report_page

NIGHT = "20261122T220000Z-rack"
FACTS: dict[str, Any] = {
    "collect": {"rows": {"ok": 630, "failed": 10, "odd": 2}},
    "check": {"model_drift": {"gemm": {"n": 300, "mean_ape_pct": 6.0}, "copy": {"n": 100, "mean_ape_pct": 2.0}}},
}

NIGHT_GAUGES = (
    "kernelcast_nights_unreadable", "kernelcast_night_running", "kernelcast_night_running_since_seconds",
    "kernelcast_night_end_seconds", "kernelcast_night_outcome", "kernelcast_night_rows", "kernelcast_night_findings",
    "kernelcast_night_champion_error_ratio", "kernelcast_nights_kept_in_a_row", "kernelcast_nights_failed_in_a_row",
)  # fmt: skip


def night(day: int = 22, outcome: Any = "promoted", *findings: Finding, **changes: Any) -> NightRecord:
    began = f"2026-11-{day:02d}T22:00:00+00:00"
    stages = tuple(
        StageRecord(name, "done", began, 1.0, "", FACTS.get(name, {}), findings if name == "gate" else ())
        for name in STAGES
    )
    ended = None if outcome == "running" else f"2026-11-{day:02d}T23:00:00+00:00"
    result = NightRecord(f"202611{day:02d}T220000Z-rack", "rack", "h200", outcome, f"2026-11-{day:02d}T22:00:00+00:00", ended,
                        3600.0, "v12", "v13", stages)  # fmt: skip
    return replace(result, **changes)


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    folder = tmp_path / "nights"
    folder.mkdir()
    return folder


@pytest.fixture
def client(serve: Any, fake: Any, nights: Path) -> Iterator[Any]:
    with serve(FixedSource(fake, catalogue()), Settings(nights=nights)) as it:
        yield it


def put(nights: Path, one: NightRecord, name: str = "report.json") -> Path:
    one.write(nights / one.id / name)
    return nights / one.id / name


def test_both_sides_know_the_same_words() -> None:
    assert READ == FORMAT_VERSION
    assert set(OUTCOMES) == set(record.Outcome.__args__)
    assert set(LEVELS) == set(record.Level.__args__)
    assert STATUSES == MEASURED
    names = (nights_folder.STATE, nights_folder.REPORT, nights_folder.PAGE)
    assert names == (folders.STATE, folders.REPORT_JSON, folders.REPORT_HTML)
    longest = f"20261122T220000Z-{'x' * 40}"
    assert folders.NIGHT_ID.fullmatch(longest)
    assert NIGHT_ID.fullmatch(longest)
    # Every kind of finding that a night's record tells of has a series of its own.
    messages = re.findall(r"`([a-z-]+)`", (Finding.__doc__ or "").partition("`subject`")[0])
    assert set(messages) - {"kind"} <= set(KINDS)


def test_nights_are_listed_newest_first_a_page_at_a_time(client: Any, nights: Path) -> None:
    assert client.get("/v1/nights").json() == {"total": 0, "offset": 0, "nights": []}
    query = Finding("gate", "needs-person", "gemm", "Look at it.")
    for day in (3, 1, 2):
        put(nights, night(day, "kept", query, Finding("rows", "info", "x", "Fine.")))
    (nights / "20261101T220000Z-rack" / "report.html").write_text("<html></html>")
    for name in ("ledger.jsonl", ".lock", "20261104T220000Z-rack", "../outside", "not-a-night"):
        (nights / name).write_text("x")
    answer = client.get("/v1/nights")
    client.validator("NightsAnswer").validate(answer.json())
    assert [one["id"][:8] for one in answer.json()["nights"]] == ["20261103", "20261102", "20261101"]
    assert answer.json()["nights"][2] == {
        "id": "20261101T220000Z-rack", "plan": "rack", "device": "h200", "outcome": "kept",
        "began": "2026-11-01T22:00:00+00:00", "ended": "2026-11-01T23:00:00+00:00", "champion_before": "v12",
        "champion_after": "v13", "stage": "report",
        "rows": {"ok": 630, "failed": 10, "odd": 2}, "findings": {"info": 1, "warning": 0, "needs-person": 1},
        "needs_person": ["Look at it."], "champion_error": pytest.approx(0.05), "has_page": True, "problem": None,
    }  # fmt: skip
    second = client.get("/v1/nights?offset=1&limit=1").json()
    assert (second["total"], second["offset"], [one["id"][:8] for one in second["nights"]]) == (3, 1, ["20261102"])
    assert client.get("/v1/nights?offset=7").json()["nights"] == []


def test_a_report_is_answered_as_it_is(client: Any, nights: Path) -> None:
    path = put(nights, night())
    answer = client.get(f"/v1/nights/{NIGHT}")
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == "application/json"
    client.validator("NightReport").validate(answer.json())
    assert NightRecord.from_json(answer.text) == night()


def test_what_a_night_came_to_is_read_again_when_it_changes(client: Any, nights: Path) -> None:
    state = put(nights, night(outcome="running"), "state.json")
    assert client.get(f"/v1/nights/{NIGHT}").content == state.read_bytes()
    (one,) = client.get("/v1/nights").json()["nights"]
    assert (one["outcome"], one["has_page"], one["ended"]) == ("running", False, None)
    report = put(nights, night(outcome="interrupted"))
    os.utime(state, (1e9, 1e9))
    assert client.get("/v1/nights").json()["nights"][0]["outcome"] == "interrupted"
    # It is gone on with: the state is newer than the report of the interruption.
    os.utime(report, (1e8, 1e8))
    assert client.get("/v1/nights").json()["nights"][0]["outcome"] == "running"
    put(nights, night(), "state.json")
    put(nights, night())
    os.utime(report, (1e8, 1e8))
    assert client.get(f"/v1/nights/{NIGHT}").json()["outcome"] == "promoted"


def test_a_page_has_a_policy_for_itself_alone(client: Any, nights: Path) -> None:
    put(nights, night())
    html = report_page(night())
    (nights / NIGHT / "report.html").write_text(html, encoding="utf-8")
    answer = client.get(f"/nights/{NIGHT}")
    assert (answer.text, answer.headers["content-type"]) == (html, "text/html; charset=utf-8")
    style = html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert answer.headers["content-security-policy"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("html", ["", "<p>none", "<!-- <style>x</style> -->", "<style", "\0", "<script>x</script>" * 3])
def test_a_page_without_a_style_sheet_gets_none(html: str) -> None:
    assert "style-src 'none'" in page_policy(html)
    assert "script" not in page_policy(html)


def damaged(text: str) -> Any:
    def spoil(nights: Path) -> None:
        path = nights / NIGHT / "report.json"
        path.parent.mkdir()
        path.write_text(text)

    return spoil


def linked(name: str) -> Any:
    """A night whose file is a link to a fine one that lies outside."""

    def spoil(nights: Path) -> None:
        outside = nights.parent / "outside" / NIGHT
        night().write(outside / "report.json")
        (outside / "report.html").write_text("secret")
        if not name:
            (nights / NIGHT).symlink_to(outside)
            return
        (nights / NIGHT).mkdir()
        (nights / NIGHT / name).symlink_to(outside / name)

    return spoil


def pipe(nights: Path) -> None:
    (nights / NIGHT).mkdir()
    for name in ("report.json", "report.html"):
        os.mkfifo(nights / NIGHT / name)


def closed(nights: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    put(nights, night()).chmod(0)


def huge(nights: Path) -> None:
    path = put(nights, night())
    with path.open("ab") as file:
        file.truncate((8 << 20) + 1)


def folders_for_files(nights: Path) -> None:
    for name in ("report.json", "report.html"):
        (nights / NIGHT / name).mkdir(parents=True)


DAMAGE: dict[str, tuple[Any, str]] = {
    "half": (damaged(night().to_json()[:900]), "is damaged or no report of a night"),
    "empty": (damaged(""), "is damaged"),
    "not text": (lambda nights: put(nights, night()).write_bytes(b"\xff\xfe\0"), "is damaged"),
    "deep": (damaged('{"format_version": 1, "stages": ' + "[" * 50_000), "is damaged"),
    "other form": (damaged('{"format_version": 1, "id": 7}'), "is damaged or no report of a night: Expected `str`, got `int`"),
    "newer": (lambda nights: put(nights, night(format_version=2)), "has format version 2; this kernelcast reads 1"),
    "another": (lambda nights: (put(nights, night()).replace(nights / "x") and (nights / NIGHT).rmdir())
                or damaged((nights / "x").read_text().replace(NIGHT, "20261122T220000Z-other"))(nights), "is of another night"),
    "link": (linked("report.json"), "report.json of the night 20261122T220000Z-rack is a link, which is not followed"),
    "folder link": (linked(""), "links are not followed"),
    "pipe": (pipe, "is no file"),
    "closed": (closed, "cannot be read: Permission denied"),
    "huge": (huge, "is longer than 8 MiB and is not read"),
    "folder": (folders_for_files, "report.json of the night 20261122T220000Z-rack is no file"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_night_says_so_and_hides_no_other(client: Any, nights: Path, spoil: Any, said: str) -> None:
    put(nights, night(21))
    spoil(nights)
    answer = client.get(f"/v1/nights/{NIGHT}")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert said in answer.json()["detail"]
    assert "secret" not in answer.text
    one, other = client.get("/v1/nights").json()["nights"]
    assert (one["id"], one["outcome"], other["outcome"]) == (NIGHT, None, "promoted")
    assert said in one["problem"]
    assert "kernelcast_nights_unreadable 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("spoil", [linked("report.html"), linked(""), pipe, folders_for_files])
def test_a_page_that_is_none_is_not_sent(client: Any, nights: Path, spoil: Any) -> None:
    spoil(nights)
    answer = client.get(f"/nights/{NIGHT}")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text


def test_a_page_that_cannot_be_shown_says_why(client: Any, nights: Path) -> None:
    put(nights, night(outcome="running"), "state.json")
    assert f"GET /v1/nights/{NIGHT} reports its progress" in client.get(f"/nights/{NIGHT}").json()["detail"]
    page = nights / NIGHT / "report.html"
    page.write_bytes(b"\xff\xff")
    assert "is not UTF-8" in client.get(f"/nights/{NIGHT}").json()["detail"]
    with page.open("ab") as file:
        file.truncate((16 << 20) + 1)
    assert "is longer than 16 MiB" in client.get(f"/nights/{NIGHT}").json()["detail"]


HOSTILE = ["%2e%2e", "..%2f..%2fetc%2fpasswd", "20261122T220000Z-..%2F..", "20261122T220000Z-%00", "20261122T220000Z-",
           "x" * 5000, "20261122T220000Z-rack%0A", ".lock", "ledger.jsonl", "%ff", "<script>", "20261122T220000Z-nowhere",
           "٢٠261122T220000Z-rack"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/v1/nights/", "/nights/"])
def test_hostile_names_find_nothing(client: Any, nights: Path, path: str, name: str) -> None:
    put(nights, night())
    answer = client.get(path + name)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 1000


REFUSED = {
    "/v1/nights?limit=0": ("limit", "must be a whole number between 1 and 200, got '0'"),
    "/v1/nights?limit=201": ("limit", "must be a whole number between 1 and 200"),
    "/v1/nights?offset=-1": ("offset", "must be a whole number between 0 and 1000000000, got '-1'"),
    "/v1/nights?offset=1&offset=2": ("offset", "is given more than once"),
    "/v1/nights?limit=%D9%A3": ("limit", "must be a whole number"),
    "/v1/nights?device=x": ("device", "unknown parameter; possible are: offset, limit"),
    f"/v1/nights/{NIGHT}?x=1": ("x", "unknown parameter; this address takes none"),
    f"/nights/{NIGHT}?x=1": ("x", "unknown parameter; this address takes none"),
}


@pytest.mark.parametrize(("address", "said"), REFUSED.items(), ids=REFUSED)
def test_questions_that_cannot_be_meant_are_refused(client: Any, address: str, said: tuple[str, str]) -> None:
    answer = client.get(address)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == said[0]
    assert said[1] in error["detail"]


def test_a_folder_that_cannot_be_read_is_one_sentence(serve: Any, fake: Any, tmp_path: Path) -> None:
    place = tmp_path / "nights"
    place.write_text("x")
    with serve(FixedSource(fake, catalogue()), Settings(nights=place)) as client:
        answer = client.get("/v1/nights")
        assert (answer.status_code, answer.json()["detail"]) == (
            500,
            "the folder of nights cannot be read: Not a directory",
        )
        assert "cannot be read" in client.get(f"/v1/nights/{NIGHT}").json()["detail"]
        assert client.get(f"/nights/{NIGHT}").status_code == 500
        assert "kernelcast_nights_unreadable -1.0" in client.get("/metrics").text


def test_nights_are_in_the_users_home_unless_said(
    serve: Any, fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    put(tmp_path / "nights", night())
    with serve(FixedSource(fake, catalogue()), Settings.from_env({})) as client:
        assert client.get("/v1/nights").json()["total"] == 1
    assert Settings.from_env({"KERNELCAST_NIGHTS": "/srv/nights"}).nights == Path("/srv/nights")


def gauges(client: Any) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("kernelcast_night")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_tell_of_the_newest_ended_night(client: Any, nights: Path) -> None:
    assert gauges(client) == {}
    result = (Finding("device-drift", "needs-person", "h200", "!"), Finding("made-up{}", "info", "x", "?"))
    for day, outcome in ((17, "promoted"), (18, "failed"), (19, "interrupted"), (20, "rolled-back")):
        put(nights, night(day, outcome, *result))
    put(nights, night(21, "running"), "state.json")
    said = gauges(client)
    assert said["kernelcast_night_end_seconds"] == 1795215600.0  # 2026-11-20T23:00:00Z
    assert said["kernelcast_night_running"] == 1
    assert said["kernelcast_night_running_since_seconds"] == 1795298400.0
    assert said['kernelcast_night_outcome{outcome="rolled-back"}'] == 1
    assert sum(value for name, value in said.items() if name.startswith("kernelcast_night_outcome")) == 1
    assert said['kernelcast_night_rows{status="ok"}'] == 630
    assert said['kernelcast_night_rows{status="other"}'] == 2
    assert said['kernelcast_night_findings{kind="device-drift",level="needs-person"}'] == 1
    assert said['kernelcast_night_findings{kind="other",level="info"}'] == 1
    assert said["kernelcast_night_champion_error_ratio"] == pytest.approx(0.05)
    assert (said["kernelcast_nights_failed_in_a_row"], said["kernelcast_nights_kept_in_a_row"]) == (3, 0)
    assert {name.partition("{")[0] for name in said} == set(NIGHT_GAUGES)
    (nights / "20261121T220000Z-rack" / "state.json").unlink()
    put(nights, night(21, "kept"))
    put(nights, night(22, "kept"))
    said = gauges(client)
    assert (said["kernelcast_nights_failed_in_a_row"], said["kernelcast_nights_kept_in_a_row"]) == (0, 2)
    assert (said["kernelcast_night_running"], said["kernelcast_night_running_since_seconds"]) == (0, 0)


def test_a_time_that_is_none_breaks_no_metric(client: Any, nights: Path) -> None:
    put(nights, night(21, "kept", began="yesterday", ended="9" * 300))
    put(nights, night(22, "running", began="2026-11-22T22:00:00"))
    said = gauges(client)
    assert said["kernelcast_night_end_seconds"] == 0
    assert said["kernelcast_night_running_since_seconds"] == 1795384800.0


def test_the_error_of_the_served_model_is_that_of_the_drift_check() -> None:
    import msgspec
    from kernelcast.api.browse.nights_folder import NightReport, champion_error

    for one, wanted in (
        (night(), 5.0),
        (night().with_stage(StageRecord("check", facts={"model_drift": {"all": {"n": 1, "mean_ape_pct": 3.0},
                                                                        "gemm": {"n": 9, "mean_ape_pct": 7.0}}})), 3.0),
        (night().with_stage(StageRecord("check")), None),
    ):  # fmt: skip
        served = champion_error(msgspec.json.decode(one.to_json(), type=NightReport))
        assert (None if served is None else served * 100) == (None if wanted is None else pytest.approx(wanted))
