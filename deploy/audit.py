#!/usr/bin/env python3
"""`make audit`: are there known vulnerabilities in the pinned packages? Asks pip-audit and judges what it says.

pip-audit's own exit status is not enough where machines differ in what they can reach: without a network it fails as if
something were wrong with the packages, and behind a mirror without advisories it finds nothing and says that all is well. Its
answer therefore counts only for the packages it really looked up.

Exit status: 0 no known vulnerability, or nothing could be looked up, which is said plainly; 1 a known vulnerability;
2 pip-audit is not installed, or the pins cannot be read; 3 with --strict, not every package could be looked up.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"
NO_VULNERABILITY, VULNERABLE, CANNOT_RUN, NOT_ALL = 0, 1, 2, 3

_LIMIT_S = 300
_ANSWER_S = "15"
_SHOWN = 10


@dataclass(frozen=True)
class Verdict:
    """What the audit found: the exit status, whether every package was looked up, and the words."""

    status: int
    is_complete: bool
    words: str


def judge(answer: str, complaint: str) -> Verdict:
    """The verdict on what pip-audit wrote: `answer` is its JSON (empty where it failed), `complaint` its messages."""
    try:
        result: list[dict[str, Any]] = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Verdict(
            NO_VULNERABILITY, False, f"not audited: no advisories could be asked for ({_last_line(complaint)})"
        )
    looked_up = [item for item in result if "skip_reason" not in item]
    if not looked_up:
        why = result[0]["skip_reason"] if result else "the list of packages is empty"
        return Verdict(NO_VULNERABILITY, False, f"not audited: no package could be looked up ({why})")
    skipped = [item["name"] for item in result if "skip_reason" in item]
    share = f"{len(looked_up)} of {len(result)} pinned packages looked up"
    if skipped:
        more = f" and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        share += f" (not: {', '.join(skipped[:_SHOWN])}{more})"
    lines = [_vulnerability(item, vulnerability) for item in looked_up for vulnerability in item.get("vulns", ())]
    if lines:
        return Verdict(VULNERABLE, not skipped, "\n".join([*lines, f"{len(lines)} known vulnerabilities; {share}"]))
    return Verdict(NO_VULNERABILITY, not skipped, f"no known vulnerability; {share}")


def _vulnerability(package: dict[str, Any], vulnerability: dict[str, Any]) -> str:
    fixes = ", ".join(vulnerability.get("fix_versions", ())) or "no version yet"
    names = " ".join([vulnerability["id"], *vulnerability.get("aliases", ())])
    return f"{package['name']} {package['version']}: {names}, fixed in {fixes}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "pip-audit gave no answer"


def ask(pins: Path, further: Sequence[str]) -> tuple[str, str]:
    """What pip-audit writes about the pins: its answer and its messages; `further` are more options for it."""
    command = [sys.executable, "-P", "-m", "pip_audit", "--requirement", str(pins), "--no-deps", "--disable-pip",
               "--progress-spinner", "off", "--timeout", _ANSWER_S, "--format", "json", *further]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603 - our own words
    except subprocess.TimeoutExpired:
        return "", f"there was no answer within {_LIMIT_S} s"
    return done.stdout, done.stderr


def main(arguments: Sequence[str]) -> int:
    """Audit the pins, say what was found, and return the exit status."""
    parser = argparse.ArgumentParser(description="Looks pinned packages up among known vulnerabilities.")
    parser.add_argument("--strict", action="store_true", help="fail where not every package could be looked up")
    parser.add_argument("--pins", type=Path, default=PINS, help="file of name==version lines")
    help_accept = "a vulnerability that is known and does not matter here"
    parser.add_argument("--accept", action="append", default=[], metavar="ID", help=help_accept)
    args = parser.parse_args(arguments)
    if importlib.util.find_spec("pip_audit") is None:
        sys.stderr.write("pip-audit is not installed; run: pip install 'kernelcast[dev]'\n")
        return CANNOT_RUN
    if not args.pins.is_file():
        sys.stderr.write(f"there is no file of pins at {args.pins}\n")
        return CANNOT_RUN
    further = [word for name in args.accept for word in ("--ignore-vuln", name)]
    verdict = judge(*ask(args.pins, further))
    sys.stdout.write(f"{verdict.words}\n")
    if args.strict and verdict.status == NO_VULNERABILITY and not verdict.is_complete:
        return NOT_ALL
    return verdict.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
