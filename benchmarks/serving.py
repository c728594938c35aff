"""`make bench-serve`: kernelcast beside MLServer and `mlflow models serve`, one after the other in one go, as ratios.

kernelcast is sent specs and answers latency, power and energy with intervals; the others are sent rows of ready-made features
and answer one number from one forest. Run it on an otherwise idle machine; the load is made by a process of its own, so two
cores are needed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from kernelcast.features.kernel import families
from serving_load import LoadedModel, Target, core_s, load, resident_mb
from serving_others import OTHERS, Other, prepare, rows

PROGRAM = str(Path(sys.executable).with_name("kernelcast"))
DEVICES = ("nvidia-h200-sxm-141gb", "amd-epyc-9005-vm-2c", "nvidia-h100-sxm-80gb")
MIXED_FAMILIES = ("attention", "conv2d", "elementwise", "gemm", "layernorm", "reduction", "softmax")
MIXED_DEVICES = (*DEVICES, "nvidia-l4")
BATCH = 1_000
COLUMNS = 10_000
TARGETS = {
    "single requests per core-second": 2_000.0, "rows per core-second": 250_000.0,
    "requests of one client per core-second": 1_500.0, "p50 of one client, ms": 1.0,
    "p99 at half load, ms": 10.0, "resident memory, MB": 300.0, "start to ready, s": 2.0,
}  # fmt: skip
"""What kernelcast is held to: at least the first three, at most the others."""


def main() -> None:
    """Measure every server and print what each does and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each stretch of load")
    parser.add_argument("--only", choices=("kernelcast",), help="leave the others out")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-serve"), help="where the others are installed")
    parser.add_argument("--json", type=Path, help="also write everything as JSON")
    args = parser.parse_args()
    result = {f"kernelcast, {device}": _kernelcast(device, args.seconds) for device in DEVICES}
    if args.only is None:
        args.folder.mkdir(parents=True, exist_ok=True)
        programs = prepare(args.folder.resolve())
        for other in OTHERS:
            result[other.name] = _other(other, programs, args.folder.resolve() / "model", args.seconds)
    _print(result)
    result["a mix"] = _mix(args.seconds)
    print(
        "".join(
            f"a mix of seven families on four devices, {name}: {value:,.4g}\n"
            for name, value in result["a mix"].items()
        )
    )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def _kernelcast(device: str, seconds: float) -> dict[str, Any]:
    rng = Random(7)
    item = {"family": "gemm", "device": device, "dtype": "fp32" if "epyc" in device else "bf16"}
    singles = [json.dumps(item | {"sizes": _sizes(rng)}).encode() for _ in range(2000)]
    batch = [json.dumps({"requests": [item | {"sizes": _sizes(rng)} for _ in range(BATCH)]}).encode() for _ in range(8)]
    columns = []
    for _ in range(4):
        drawn = [_sizes(rng) for _ in range(COLUMNS)]
        sizes = {name: [size[name] for size in drawn] for name in ("m", "n", "k")}
        words = {"device": device, "dtype": item["dtype"], "sizes": sizes}
        columns.append(json.dumps({"family": "gemm", "columns": words}).encode())
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        env = os.environ | {"KERNELCAST_HOME": home}
        with _started([PROGRAM, "serve", "--port", str(port)], port, "/readyz", env) as (pid, ready_s):
            stretches = _stretches(pid, seconds, Target(port, "/v1/predict", singles))
            stretches["rows, JSON specs"] = load(pid, Target(port, "/v1/predict", batch, BATCH), 2, seconds)
            stretches["rows"] = load(pid, Target(port, "/v1/predict/columns", columns, COLUMNS), 2, seconds)
            return _summary(stretches, ready_s, resident_mb(pid))


def _mix(seconds: float) -> dict[str, float]:
    """Single requests of seven families on four devices: the first of each kind, then many at full load."""
    rng, bodies, port = Random(3), [], free_port()
    for _ in range(2000):
        family, device = families()[rng.choice(MIXED_FAMILIES)], rng.choice(MIXED_DEVICES)
        drawn = {name: round(low * (high / low) ** rng.random()) for name, (low, high) in family.ranges.items()}
        dtype = "fp32" if "epyc" in device else rng.choice(("bf16", "fp16"))
        sizes = family.finish(drawn)
        variant = rng.choice(family.variants) if family.variant_of is None else family.variant_of(sizes)
        bodies.append({"family": family.name, "device": device, "dtype": dtype, "variant": variant, "sizes": sizes})
    first = {(body["family"], body["device"]): json.dumps(body).encode() for body in bodies}
    with tempfile.TemporaryDirectory() as home:
        env = os.environ | {"KERNELCAST_HOME": home}
        with _started([PROGRAM, "serve", "--port", str(port)], port, "/readyz", env) as (pid, _):
            before_s = core_s(pid)
            for body in first.values():
                _post(port, body)
            first_ms = (core_s(pid) - before_s) / len(first) * 1e3
            target = Target(port, "/v1/predict", [json.dumps(body).encode() for body in bodies])
            many = load(pid, target, 32, seconds)
            return {
                "single requests per core-second": many.per_core_s,
                "first request of a kind, mean processor ms": first_ms,
                "resident memory after it, MB": resident_mb(pid),
            }


def _post(port: int, body: bytes) -> None:
    """One request over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/predict", body, {"Content-Type": "application/json"})
    connection.getresponse().read()
    connection.close()


def _sizes(rng: Random) -> dict[str, int]:
    return {"m": rng.randint(1, 4096), "n": rng.randint(16, 4096), "k": rng.randint(16, 4096)}


def _other(other: Other, programs: Path, model: Path, seconds: float) -> dict[str, Any]:
    singles = [json.dumps(other.body([row])).encode() for row in rows(500, 1)]
    batch = [json.dumps(other.body(rows(BATCH, seed))).encode() for seed in range(4)]
    port = free_port()
    command = other.command(programs, model, port)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with _started(command, port, other.ready, env) as (pid, ready_s):
        stretches = _stretches(pid, seconds, Target(port, other.path, singles))
        stretches["rows"] = load(pid, Target(port, other.path, batch, BATCH), 2, seconds)
        return _summary(stretches, ready_s, resident_mb(pid))


def _stretches(pid: int, seconds: float, target: Target) -> dict[str, LoadedModel]:
    """One client alone, many at full load, and half of that load."""
    full = load(pid, target, 32, seconds)
    half = load(pid, target, 32, seconds, rate=full.rate / 2)
    return {"one client": load(pid, target, 1, seconds), "full load": full, "half load": half}


def _summary(found: dict[str, LoadedModel], ready_s: float, memory_mb: float) -> dict[str, Any]:
    figures = {
        "single requests per core-second": found["full load"].per_core_s,
        "requests of one client per core-second": found["one client"].per_core_s,
        "rows per core-second": found["rows"].rows_per_core_s,
        "p50 of one client, ms": found["one client"].p50_ms,
        "p99 at half load, ms": found["half load"].p99_ms,
        "resident memory, MB": memory_mb,
        "start to ready, s": ready_s,
    }
    return {"figures": figures, "stretches": {name: item.to_json() for name, item in found.items()}}


@contextmanager
def _started(command: Sequence[str], port: int, ready: str, env: dict[str, str]) -> Iterator[tuple[int, float]]:
    """A server in a process group of its own, once it answers: its process, and the seconds that took."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as message:
        server = subprocess.Popen(command, stdout=message, stderr=message, env=env, start_new_session=True)
        try:
            while not _answers(port, ready):
                if server.poll() is not None or time.perf_counter() - start > 120:
                    message.seek(0)
                    raise SystemExit(f"{command[0]} did not start:\n{message.read().decode(errors='replace')[-3000:]}")
                time.sleep(0.01)
            yield server.pid, time.perf_counter() - start
        finally:
            os.killpg(server.pid, 15)
            server.wait(timeout=30)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    """A port of the loopback that nothing listens on, nor on the two after it most likely."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _print(found: dict[str, Any]) -> None:
    names = list(found)
    print("| | " + " | ".join(names) + " | target |\n|---|" + "---|" * (len(names) + 1))
    for figure, target in TARGETS.items():
        values = [found[name]["figures"][figure] for name in names]
        print(f"| {figure} | " + " | ".join(f"{value:,.4g}" for value in values) + f" | {target:,g} |")
    first = found[names[0]]["figures"]
    for name in names[len(DEVICES) :]:
        other = found[name]["figures"]
        single, many = (first[figure] / other[figure] for figure in list(TARGETS)[:2])
        print(f"{names[0]} against {name}: {single:.1f}x the single requests, {many:.1f}x the rows per core-second")


if __name__ == "__main__":
    main()
