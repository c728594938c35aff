"""The audit's verdicts on answers of pip-audit: with a vulnerability, without, and where it could look up nothing."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "audit.py"
CLEAN = {"name": "fastapi", "version": "0.165.0", "vulns": []}
BAD = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [
        {"id": "PYSEC-2021-66", "fix_versions": ["2.11.3"], "aliases": ["CVE-2020-28493"], "description": "ReDoS"},
        {"id": "GHSA-0000", "fix_versions": [], "aliases": [], "description": "none yet"},
    ],
}
SKIPPED = {"name": "triton", "skip_reason": "Dependency not found and could not be audited: triton (3.6.0)"}
OFFLINE = "Traceback\n  File\nrequests.exceptions.ConnectionError: Failed to resolve 'advisories.example'\n"


def answer(*packages: dict) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


@pytest.fixture(scope="module")
def audit() -> dict:
    return runpy.run_path(str(SCRIPT))


VERDICTS = [
    pytest.param(answer(CLEAN), "", 0, True, "no known vulnerability; 1 of 1 pinned packages looked up", id="clean"),
    pytest.param(answer(CLEAN, BAD), "", 1, True, "jinja2 2.4.1: PYSEC-2021-66 CVE-2020-28493, fixed in 2.11.3", id="bad"),
    pytest.param(answer(BAD), "", 1, True, "GHSA-0000, fixed in no version yet", id="not fixed"),
    pytest.param(answer(BAD, SKIPPED), "", 1, False, "2 known vulnerabilities; 1 of 2 pinned packages looked up (not: triton)",
                 id="bad, one skipped"),
    pytest.param(answer(CLEAN, SKIPPED), "", 0, False, "1 of 2 pinned packages looked up (not: triton)", id="one skipped"),
    pytest.param(answer(CLEAN, *[SKIPPED] * 12), "", 0, False, "and 2 more)", id="many skipped"),
    pytest.param(answer(SKIPPED, SKIPPED), "No known vulnerabilities found", 0, False,
                 "not audited: no package could be looked up (Dependency not found", id="a mirror without advisories"),
    pytest.param("", OFFLINE, 0, False, "no advisories could be asked for (requests.exceptions.ConnectionError: Failed",
                 id="no network"),
    pytest.param("", "", 0, False, "pip-audit gave no answer", id="nothing at all"),
    pytest.param("<html>", "", 0, False, "not audited", id="no JSON"),
    pytest.param("[]", "", 0, False, "not audited", id="another form"),
    pytest.param(answer(), "", 0, False, "the list of packages is empty", id="no packages"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "complaint", "status", "complete", "words"), VERDICTS)
def test_verdicts(audit, said, complaint, status, complete, words):
    verdict = audit["judge"](said, complaint)
    assert (verdict.status, verdict.is_complete) == (status, complete)
    assert words in verdict.words


@pytest.mark.parametrize(
    ("said", "arguments", "status"),
    [
        (answer(CLEAN), ["--strict"], 0),
        (answer(CLEAN, SKIPPED), [], 0),
        (answer(CLEAN, SKIPPED), ["--strict"], 3),
        (answer(BAD, SKIPPED), ["--strict"], 1),
        ("", [], 0),
        ("", ["--strict"], 3),
        (answer(BAD), ["--pins", "/no/where"], 2),
    ],
)
def test_the_exit_status(audit, monkeypatch, capsys, said, arguments, status):
    monkeypatch.setitem(audit["main"].__globals__, "ask", lambda pins, further: (said, ""))
    assert audit["main"](arguments) == status
    assert capsys.readouterr().out or status == 2


def test_what_is_accepted_is_left_to_pip_audit(audit, monkeypatch):
    query = []
    said = answer(CLEAN), ""
    monkeypatch.setitem(audit["main"].__globals__, "ask", lambda pins, further: query.extend(further) or said)
    assert audit["main"](["--accept", "PYSEC-2021-66", "--accept", "GHSA-0000"]) == 0
    assert query == ["--ignore-vuln", "PYSEC-2021-66", "--ignore-vuln", "GHSA-0000"]


def test_pip_audit_takes_the_options_it_is_given():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip_audit", "--help"], capture_output=True, text=True, timeout=60
    )
    for option in (
        "--requirement",
        "--no-deps",
        "--disable-pip",
        "--progress-spinner",
        "--timeout",
        "--format",
        "--ignore-vuln",
    ):
        assert option in done.stdout


def test_every_pin_is_exact():
    lines = [
        line for line in (SCRIPT.parents[1] / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    ]
    assert all(line.count("==") == 1 for line in lines)
