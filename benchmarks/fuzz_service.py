"""Asks a real server what its OpenAPI document allows, and much that it does not, and checks every answer against it.

`make fuzz` (or `python -P benchmarks/fuzz_service.py --requests 10000`) starts `kernelcast serve` on a free port and has
schemathesis generate requests: the document's examples, the borders of every schema, then random ones, valid and not. An answer
fails that is a server error, has a status, header, media type or body the document does not name, or accepts what the document
forbids. What the document cannot say (a device that is not in the catalogue) may be refused, so valid data is not checked to be
accepted. It ends with status 1 when any answer failed, or the server did not outlive it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelcast.api.middleware.api_keys import new_key

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
    "missing_required_header",
)  # fmt: skip
PHASES = ("examples", "coverage", "fuzzing")
_PATHS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
SLOWEST_S = 20.0
"""Longest answer. Generous, since the machine does two things at once; an endless one is what this finds."""

_HOOKS = """
import schemathesis

@schemathesis.serializer("application/mlir", "application/x-mlir")
def text(context, value):
    return value.encode() if isinstance(value, str) else bytes(str(value), "utf-8")
"""
"""What the generator imports: MLIR text goes out as it is, in its own media types."""

_CONFIGURATION = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 422, 428, 429, 431]
"""
"""What counts as a refusal of what the document forbids: the generator's own list, with heads and bodies that are too long."""

_PER_ROUND = 100
"""Random requests of each operation in one round of the generator; rounds have seeds of their own."""


def main() -> None:
    """Fuzz and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="at least so many requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--phases", default=",".join(PHASES), help="phases of the first round; the others are random only"
    )
    parser.add_argument("--out", type=Path, help="also write the report there, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (address, token, server):
        report = fuzz(address, token, Path(folder), args.requests, args.seed, args.phases.split(","))
        report["server_alive"] = server.poll() is None
        report["tracebacks"] = (Path(folder) / "log").read_text().count("Traceback")
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    sys.exit(
        0
        if report["server_alive"] and not report["failures"] and not report["errors"] and not report["tracebacks"]
        else 1
    )


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """A server of the shipped model that asks for a key, its address and that key; its log is `folder/log`."""
    token, key = new_key("fuzz", "admin")
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env | {"KERNELCAST_HOME": str(folder / "home"), "KERNELCAST_API_KEYS": key.line()},
        )
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line:
            sys.exit(f"the server did not start: {(folder / 'log').read_text()}")
        yield json.loads(line)["address"], token, server
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


def fuzz(address: str, token: str, folder: Path, requests: int, seed: int, phases: list[str]) -> dict[str, Any]:
    """At least `requests` requests in rounds, the first with `phases`; what they came to."""
    started = time.monotonic()
    total: dict[str, Any] = {"requests": 0, "operations": 0, "rounds": 0, "failures": [], "errors": []}
    while total["requests"] < requests:
        operations = total["operations"] or 30
        examples = max(1, min(_PER_ROUND, -(-(requests - total["requests"]) // operations)))
        result = one_round(
            address, token, folder, examples, seed + total["rounds"], phases if not total["rounds"] else ["fuzzing"]
        )
        total["rounds"] += 1
        total["requests"] += result["test_cases"]["generated"]
        total["operations"] = result["operations"]["tested"]
        total["failures"] += result["failures"]
        total["errors"] += result["errors"]
        if not result["test_cases"]["generated"]:
            sys.exit("the generator made no request")
    return total | {"seed": seed, "minutes": round((time.monotonic() - started) / 60, 1), "checks": list(CHECKS)}


def one_round(address: str, token: str, folder: Path, examples: int, seed: int, phases: list[str]) -> dict[str, Any]:
    """One run of the generator; its own report."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    program = str(Path(sys.executable).with_name("schemathesis"))
    options = {
        "--header": f"Authorization: Bearer {token}", "--checks": ",".join(CHECKS), "--phases": ",".join(phases),
        "--max-examples": str(examples), "--seed": str(seed), "--request-timeout": str(SLOWEST_S),
        "--suppress-health-check": "all", "--generation-database": "none", "--report": "json",
        "--report-json-path": str(report),
    }  # fmt: skip
    words = [word for option in options.items() for word in option]
    (folder / "hooks.py").write_text(_HOOKS)
    (folder / "schemathesis.toml").write_text(_CONFIGURATION)
    done = subprocess.run(
        [program, "--no-color", "run", f"{address}/openapi.json", "--no-shrink", "--continue-on-failure", *words],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": os.pathsep.join([str(folder), *_PATHS])},
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    if not report.exists():
        sys.exit(f"the generator failed with status {done.returncode}")
    document: dict[str, Any] = json.loads(report.read_text())
    return document


if __name__ == "__main__":
    main()
