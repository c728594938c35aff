"""Twenty minutes of mixed requests at half of what the service can do, with changes of the model: does anything grow or fail?

`make soak` (`python -P benchmarks/soak.py --minutes 20`) starts `kernelcast serve`, measures for some seconds how many requests
per second the mix reaches, then sends half of that at fixed times, whatever the answers take, so that a slow answer is not
hidden by the requests it holds up. Client and server share the machine. Per minute: requests, errors, median and 99th
percentile of the time from when a request was due to the end of its answer, and the least resident memory of all the service's
processes. The least, as a change of model holds two for a moment.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernelcast

SHIPPED = Path(kernelcast.__file__).parent / "models" / "pretrained" / "kernels"
GEMM = {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}}
COLUMNS = {"family": "gemm", "columns": {
    "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": list(range(1, 1001)), "n": 4096, "k": 4096}}}  # fmt: skip

MIX: tuple[tuple[str, float, str, str, Any], ...] = (
    ("single", 0.85, "POST", "/v1/predict", GEMM),
    ("batch of 50", 0.05, "POST", "/v1/predict", {"requests": [GEMM] * 50}),
    ("columns, 1000 rows", 0.03, "POST", "/v1/predict/columns", COLUMNS),
    ("devices", 0.04, "GET", "/v1/devices", None),
    ("kernels", 0.03, "GET", "/v1/kernels", None),
)
"""What is asked: a name, its share, and the request."""

CLIENTS = 8
MEASURE_S = 10.0
SWAP_S = 180.0
WARM_MINUTES = 2
"""Minutes that the slope of memory leaves out: caches and allocators fill."""

LEAST_MINUTES = 6
"""Minutes behind those without which nothing is said about memory."""

GROWTH_SHARE_PER_H = 0.10
"""Memory is flat when its slope comes to less than this share of it in an hour."""


@dataclass
class Minute:
    """What happened in one minute of the soak. Latencies in seconds, memory in bytes."""

    latencies_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    resident_b: list[int] = field(default_factory=list)


def main() -> None:
    """Soak and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--swap-s", type=float, default=SWAP_S, help="seconds between changes of the model")
    parser.add_argument("--out", type=Path, default=Path("build/soak.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak(Path(folder), args.minutes, args.workers, args.swap_s)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "minutes"}, indent=1))
    sys.exit(1 if report["flat"] is False or report["errors"] else 0)


def soak(folder: Path, minutes: int, workers: int, swap_s: float) -> dict[str, Any]:
    """The whole run; its report."""
    places = [Path(shutil.copytree(SHIPPED, folder / name)) for name in ("a", "b")]
    point_at(folder, places[0])
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json", "--workers", str(workers)],
        stdout=subprocess.PIPE, text=True, env=env | {"KERNELCAST_HOME": str(folder)},
    )  # fmt: skip
    assert server.stdout is not None
    try:
        port = int(json.loads(server.stdout.readline())["address"].rsplit(":", 1)[1])
        capacity_per_s = sent(port, MEASURE_S, None, lambda *_: None) / MEASURE_S
        print(f"{capacity_per_s:.0f} requests per second at most; half of that for {minutes} minutes", flush=True)
        result = watched(port, server.pid, folder, places, minutes, capacity_per_s / 2, swap_s)
    finally:
        server.terminate()
        server.wait(60)
        server.stdout.close()
    return summary(result, capacity_per_s, workers)


def watched(
    port: int, pid: int, folder: Path, places: list[Path], minutes: int, rate_per_s: float, swap_s: float
) -> list[Minute]:
    """Send requests while memory is read every second and the champion moves to and fro; what each minute came to."""
    results = [Minute() for _ in range(minutes)]
    started = time.monotonic()
    stop = threading.Event()

    def note(name: str, latency_s: float, failure: str | None) -> None:
        minute = results[min(minutes - 1, int((time.monotonic() - started) / 60))]
        minute.latencies_s.append(latency_s)
        if failure:
            minute.errors[f"{name}: {failure}"] += 1

    def look() -> None:
        swaps = itertools.cycle(reversed(places))
        next_swap = started + swap_s
        while not stop.wait(1.0):
            results[min(minutes - 1, int((time.monotonic() - started) / 60))].resident_b.append(resident_b(pid))
            if time.monotonic() > next_swap:
                next_swap += swap_s
                point_at(folder, next(swaps))

    looking = threading.Thread(target=look)
    looking.start()
    sent(port, minutes * 60.0, rate_per_s, note)
    stop.set()
    looking.join()
    return results


def sent(port: int, seconds: float, rate_per_s: float | None, note: Callable[[str, float, str | None], None]) -> int:
    """Send the mix for so long, at a fixed rate or, without one, as fast as `CLIENTS` clients go; how many were answered."""
    turn, numbers, answered = threading.Lock(), itertools.count(), [0] * CLIENTS
    bodies = [(name, method, path, None if body is None else json.dumps(body)) for name, _, method, path, body in MIX]
    draw = random.Random(1)
    order = draw.choices(bodies, [share for _, share, *_ in MIX], k=10_000)
    started = time.monotonic()

    def client(index: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            with turn:
                number = next(numbers)
            due = time.monotonic() if rate_per_s is None else started + number / rate_per_s
            if due - started > seconds:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            name, method, path, body = order[number % len(order)]
            failure = asked(connection, method, path, body)
            note(name, time.monotonic() - due, failure)
            answered[index] += failure is None
        connection.close()

    threads = [threading.Thread(target=client, args=(index,)) for index in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


def asked(connection: http.client.HTTPConnection, method: str, path: str, body: str | None) -> str | None:
    """Send one request and read its answer; what went wrong, None where nothing did."""
    try:
        if connection.sock is None:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return repr(error)
    return None if answer.status == 200 else f"status {answer.status}"


def point_at(home: Path, model: Path) -> None:
    """Make `model` the champion, as a promotion does in its last step."""
    (home / "new.json").write_text(json.dumps({"artifact": str(model), "version": model.name, "promoted_at": "now"}))
    (home / "new.json").replace(home / "champion.json")


def resident_b(pid: int) -> int:
    """Resident memory of a process and all below it, bytes; what they share is counted for each."""
    return sum(_resident_b(each) for each in family(pid))


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def _resident_b(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def summary(found: list[Minute], capacity_per_s: float, workers: int) -> dict[str, Any]:
    """The report: totals, the verdict on memory, and every minute."""
    least = [min(minute.resident_b, default=0) for minute in found]
    warm = min(WARM_MINUTES, max(0, len(least) - 2))
    slope = (
        statistics.linear_regression(range(len(least) - warm), least[warm:]).slope * 60
        if len(least) - warm > 1
        else 0.0
    )
    errors = sum((minute.errors for minute in found), Counter())
    every = [latency for minute in found for latency in minute.latencies_s]
    return {
        "requests": len(every), "errors": dict(errors), "workers": workers, "capacity_per_s": round(capacity_per_s, 1),
        "rate_per_s": round(capacity_per_s / 2, 1), **quantiles(every), "resident_mib_first": least[warm] >> 20,
        "resident_mib_last": least[-1] >> 20, "slope_mib_per_h": round(slope / 2**20, 1),
        "flat": None if len(least) - warm < LEAST_MINUTES else slope < GROWTH_SHARE_PER_H * statistics.median(least[warm:]),
        "minutes": [
            {"requests": len(minute.latencies_s), "errors": sum(minute.errors.values()), **quantiles(minute.latencies_s),
             "resident_mib": resident >> 20}
            for minute, resident in zip(found, least, strict=True)
        ],
    }  # fmt: skip


def quantiles(latencies_s: list[float]) -> dict[str, float]:
    """Median and 99th percentile, milliseconds."""
    if len(latencies_s) < 2:
        return {}
    cuts = statistics.quantiles(latencies_s, n=100)
    return {"p50_ms": round(cuts[49] * 1e3, 2), "p99_ms": round(cuts[98] * 1e3, 2)}


if __name__ == "__main__":
    main()
