"""Speed of two versions of kernelcast side by side: single requests, rows in columns, and specs in JSON batches.

Run `.venv/bin/python benchmarks/speed_ratio.py --against FOLDER`, where FOLDER holds the other version's package
`kernelcast`. Both servers run at once and answer in turns, so that other work on the machine slows both alike. The best round
of every figure counts; the ratio is that of this version to the other. Without `--against` only this version is measured.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from serving_load import core_s

ROUNDS, SINGLES, BATCHES, SPECS, ROWS = 8, 400, 8, 1_000, 10_000
CASES = {
    "measured CPU": {"family": "gemm", "device": "amd-epyc-9005-vm-2c", "dtype": "fp32"},
    "measured GPU": {"family": "gemm", "device": "nvidia-h200-sxm-141gb", "dtype": "bf16"},
    "unmeasured GPU": {"family": "gemm", "device": "nvidia-l4", "dtype": "bf16"},
}


@dataclass
class Server:
    """A running server.

    Attributes:
        pid: Process id, for its processor time.
        connection: A kept connection to it.
    """

    pid: int
    connection: http.client.HTTPConnection

    def post(self, path: str, body: bytes) -> None:
        """Send one request and read its answer."""
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        content = response.read()
        if response.status != 200:
            sys.exit(f"{path} answered {response.status}: {content[:400]!r}")

    def single_ms(self, body: bytes) -> float:
        """Median milliseconds of one request."""
        waits = []
        for _ in range(SINGLES):
            start = time.perf_counter()
            self.post("/v1/predict", body)
            waits.append(time.perf_counter() - start)
        return sorted(waits)[SINGLES // 2] * 1e3

    def rows_per_core_s(self, path: str, body: bytes, rows: int) -> float:
        """Rows answered per second of the server's processor time."""
        self.post(path, body)
        start = core_s(self.pid)
        for _ in range(BATCHES):
            self.post(path, body)
        return BATCHES * rows / max(core_s(self.pid) - start, 0.01)


@contextmanager
def started(package: Path | None) -> Iterator[Server]:
    """A server of the package in a folder, or of the one installed."""
    env = os.environ | ({} if package is None else {"PYTHONPATH": str(package)})
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"].removeprefix("http://")
        yield Server(process.pid, http.client.HTTPConnection(address))
    finally:
        process.terminate()
        process.wait()


def bodies(case: dict[str, str]) -> tuple[bytes, bytes, bytes]:
    """A single spec, a batch of specs and a table in columns; sizes drawn by a fixed seed."""
    rng = Random(7)
    drawn = [{name: rng.randint(16, 4096) for name in ("m", "n", "k")} for _ in range(ROWS)]
    words: dict[str, Any] = {name: word for name, word in case.items() if name != "family"}
    table = words | {"sizes": {name: [size[name] for size in drawn] for name in ("m", "n", "k")}}
    single = case | {"sizes": drawn[0]}
    batch = {"requests": [case | {"sizes": size} for size in drawn[:SPECS]]}
    return tuple(json.dumps(body).encode() for body in (single, batch, {"family": case["family"], "columns": table}))  # type: ignore[return-value]


def measured(server: Server, case: dict[str, str]) -> tuple[float, float, float]:
    """One round: milliseconds of a request, specs and rows per core-second."""
    single, batch, table = bodies(case)
    return (
        server.single_ms(single),
        server.rows_per_core_s("/v1/predict", batch, SPECS),
        server.rows_per_core_s("/v1/predict/columns", table, ROWS),
    )


def main() -> None:
    """Measure in turns and print a line per case and figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, help="Folder that holds the other version's package.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with ExitStack() as stack:
        packages = [None] if options.against is None else [None, options.against]
        servers = [stack.enter_context(started(package)) for package in packages]
        for title, case in CASES.items():
            rounds = [[measured(server, case) for server in servers] for _ in range(options.rounds)]
            for place, (name, best) in enumerate((("ms per request", min), ("specs per core-second, JSON", max),
                                                  ("rows per core-second, columns", max))):  # fmt: skip
                figures = [best(turn[i][place] for turn in rounds) for i in range(len(servers))]
                other = f", other {figures[1]:11.2f}, ratio {figures[0] / figures[1]:.2f}" if len(figures) > 1 else ""
                print(f"{title:16} {name:32} {figures[0]:11.2f}{other}", flush=True)


if __name__ == "__main__":
    main()
