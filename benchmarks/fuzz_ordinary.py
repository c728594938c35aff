"""Asks a real server for ordinary large kernels and programs: every family and operation, dtype and device, on every route.

`python -P benchmarks/fuzz_ordinary.py --requests 20000` starts `kernelcast serve` on a free port. Nothing in the requests is
odd: each is answered, or refused with what is not possible (a dtype the device lacks). Anything else fails: a server error, a
number that is not finite, an end of an interval on the wrong side. It ends with status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernelcast.features.device import catalogue
from kernelcast.features.dtypes import DTYPES
from kernelcast.features.kernel import KernelFamily, families

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_service import served

Request = tuple[str, dict[str, Any]]

_MLIR_TYPES = ("f64", "f32", "f16", "bf16", "f8E4M3FN", "i64", "i32", "i8", "i1")
_UNARY = ("abs", "cbrt", "ceil", "cosine", "exponential", "floor", "log", "logistic", "negate", "rsqrt", "sqrt", "tanh")
_BINARY = ("add", "and", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract", "xor")
_SIDES = (64, 1000, 1024, 4096, 16384)
_T = "tensor<{a}x{b}x{t}>"
_PROGRAMS = {
    **{name: (f"stablehlo.{name} %x : {_T}", _T) for name in _UNARY},
    **{name: (f"stablehlo.{name} %x, %y : {_T}", _T) for name in _BINARY},
    "transpose": (f"stablehlo.transpose %x, dims = [1, 0] : ({_T}) -> tensor<{{b}}x{{a}}x{{t}}>", "tensor<{b}x{a}x{t}>"),
    "reshape": (f"stablehlo.reshape %x : ({_T}) -> tensor<{{ab}}x{{t}}>", "tensor<{ab}x{t}>"),
    "reverse": (f"stablehlo.reverse %x, dims = [0] : {_T}", _T),
    "convert": (f"stablehlo.convert %x : ({_T}) -> tensor<{{a}}x{{b}}xf32>", "tensor<{a}x{b}xf32>"),
    "concatenate": (f"stablehlo.concatenate %x, %y, dim = 1 : ({_T}, {_T}) -> tensor<{{a}}x{{bb}}x{{t}}>",
                    "tensor<{a}x{bb}x{t}>"),
    "slice": (f"stablehlo.slice %x [0:{{half}}, 0:{{b}}] : ({_T}) -> tensor<{{half}}x{{b}}x{{t}}>", "tensor<{half}x{b}x{t}>"),
    "iota": (f"stablehlo.iota dim = 0 : {_T}", _T),
    "dot": (f"stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : ({_T}, {_T}) -> tensor<{{a}}x{{a}}x{{t}}>",
            "tensor<{a}x{a}x{t}>"),
    "linalg.matmul": (f"linalg.matmul ins(%x, %z : {_T}, tensor<{{b}}x{{a}}x{{t}}>) outs(%w : tensor<{{a}}x{{a}}x{{t}}>) "
                      "-> tensor<{a}x{a}x{t}>", "tensor<{a}x{a}x{t}>"),
    "unknown": (f'"new.operation"(%x, %y) : ({_T}, {_T}) -> {_T}', _T),
}  # fmt: skip
"""An operation on `%x` and `%y`, and its result."""


def program(name: str, rows: int, cols: int, element: str) -> str:
    """A module of one operation."""
    call, result = (
        text.format(a=rows, b=cols, t=element, ab=rows * cols, bb=2 * cols, half=max(rows // 2, 1))
        for text in _PROGRAMS[name]
    )
    kind, turned, square = (f"tensor<{a}x{b}x{element}>" for a, b in ((rows, cols), (cols, rows), (rows, rows)))
    return (
        f"func.func @main(%x: {kind}, %y: {kind}, %z: {turned}, %w: {square}) -> {result} {{\n"
        f"  %0 = {call}\n  return %0 : {result}\n}}\n"
    )


def spec(family: KernelFamily, dtype: str, rng: random.Random) -> dict[str, Any]:
    """A kernel of ordinary sizes, the larger ones more often."""
    if rng.random() < 0.4:
        sizes = dict(rng.choice(family.model_shapes))
    else:
        sizes = {name: max(low, high >> rng.choice((0, 0, 1, 2, 5))) for name, (low, high) in family.ranges.items()}
        sizes = family.finish(sizes)
    item: dict[str, Any] = {"family": family.name, "dtype": dtype, "sizes": sizes}
    if family.variant_of is None:
        item["variant"] = rng.choice(family.variants)
    if rng.random() < 0.3:
        item["cache_state"] = "cold"
    return item


def ordinary_requests(seed: int) -> Iterator[Request]:
    """Requests without end; each round asks for every family and dtype on every device, and for every operation."""
    rng = random.Random(seed)
    devices = [device.name for device in catalogue()]
    names = list(families().values())
    while True:
        pairs = [(family, dtype) for family in names for dtype in DTYPES]
        programs = [(name, element) for name in _PROGRAMS for element in _MLIR_TYPES]
        rng.shuffle(pairs)
        rng.shuffle(programs)
        for place in range(max(len(pairs), len(programs))):
            name, element = programs[place % len(programs)]
            text = program(name, rng.choice(_SIDES), rng.choice(_SIDES), element)
            some = rng.sample(devices, 5)
            yield "/v1/predict/mlir", {"text": text, "devices": devices}
            yield (
                "/v1/predict/mlir",
                {"text": text, "device": some[0], "coverage": 0.5, "compiler": rng.choice(("xla", "iree"))},
            )
            yield from _kernel_requests(*pairs[place % len(pairs)], devices, some, rng)


def _kernel_requests(
    family: KernelFamily, dtype: str, devices: list[str], some: list[str], rng: random.Random
) -> Iterator[Request]:
    item = spec(family, dtype, rng)
    dim = rng.choice(sorted(item["sizes"]))
    low, high = max(family.ranges.get(dim, (1, 4))[0], 1), family.ranges.get(dim, (1, 4))[1]
    for device in devices:
        yield "/v1/predict", {**item, "device": device}
    for device in some:
        yield "/v1/predict", {"requests": [{**item, "device": device}, {**spec(family, dtype, rng), "device": device}]}
        yield (
            "/v1/predict/model",
            {"devices": [device], "kernels": [{**item, "count": 3}], "queued": rng.random() < 0.5},
        )
        yield "/v1/sweep", {**item, "devices": [device], "sweep": {"dim": dim, "from": low, "to": max(high, low + 1)}}
        yield "/v1/roofline", {**item, "devices": [device]}
        yield f"/v2/models/{family.name}/infer", _tensors(item, device)
        if family.config:
            configs = [dict.fromkeys(family.config, size) for size in (32, 64)]
            yield "/v1/rank", {**item, "device": device, "configs": configs}
    yield "/v1/compare", {**item, "devices": some}


def _tensors(item: dict[str, Any], device: str) -> dict[str, Any]:
    texts = {"device": device, "dtype": item["dtype"], "variant": item.get("variant", "")}
    inputs = [{"name": name, "shape": [1], "datatype": "BYTES", "data": [word]} for name, word in texts.items() if word]
    sizes = item["sizes"].items()
    return {"inputs": [*inputs, *({"name": n, "shape": [1], "datatype": "INT64", "data": [size]} for n, size in sizes)]}


def problem(status: int, raw: bytes) -> str | None:
    """What is wrong with an answer; None where nothing is."""
    if status not in (200, 422):
        return f"status {status}: {raw[:300]!r}"
    if b"Infinity" in raw or b"NaN" in raw:
        return "a number that is not finite"
    return next(_wrong(json.loads(raw)), None) if status == 200 else None


def _wrong(answer: Any) -> Iterator[str]:
    """The intervals in an answer that do not hold their value, and numbers that are none."""
    if isinstance(answer, dict):
        if {"value", "lower", "upper"} <= set(answer):
            low, value, high = (answer[name] for name in ("lower", "value", "upper"))
            if isinstance(value, int | float) and not 0 <= low <= value <= high:
                yield f"an interval {low} to {high} around {value}"
        answer = list(answer.values())
    if isinstance(answer, list):
        for part in answer:
            yield from _wrong(part)


def ask_all(address: str, token: str, requests: Iterator[Request]) -> dict[str, Any]:
    """Send requests; how many were answered with which status, by route, and what failed."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    counts: dict[str, int] = {}
    failures: list[str] = []
    for path, body in requests:
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        raw = answer.read()
        route = f"{'/v2/models/infer' if path.startswith('/v2') else path} {answer.status}"
        counts[route] = counts.get(route, 0) + 1
        if (wrong := problem(answer.status, raw)) is not None:
            failures.append(f"{path} {json.dumps(body)[:600]}: {wrong}")
    connection.close()
    return {"requests": sum(counts.values()), "answers": dict(sorted(counts.items())), "failures": failures}


def main() -> None:
    """Ask and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (address, token, server):
        report = ask_all(address, token, islice(ordinary_requests(args.seed), args.requests))
        report["server_alive"] = server.poll() is None
        report["tracebacks"] = (Path(folder) / "log").read_text().count("Traceback")
    report["minutes"] = round((time.monotonic() - started) / 60, 1)
    print(json.dumps(report | {"failures": report["failures"][:20]}, indent=1))
    sys.exit(0 if report["server_alive"] and not report["failures"] and not report["tracebacks"] else 1)


if __name__ == "__main__":
    main()
