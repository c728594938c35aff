"""Do the answers stay the same? Records what the service, a calibration and the code model answer, and compares two records.

Run `.venv/bin/python -P benchmarks/answers.py record before.json` before a change, and `... compare before.json` after it. The
record holds the requests as well, so that both runs answer the same ones. Every number must agree to a relative 1e-9 and every
field must be present in both; the words of notes and warnings are compared only with `--words`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import http.client
import json
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import kernelcast
import numpy as np
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelFamily, KernelSpec, families

PROGRAM = str(Path(sys.executable).with_name("kernelcast"))
CORPUS = Path(__file__).parents[1] / "tests" / "features" / "mlir"
N_SPECS, BATCH, SEED = 3000, 100, 20_261_122
TOLERANCE = 1e-9
WORDS = {
    "notes",
    "warnings",
    "detail",
    "title",
    "message",
    "reason",
    "refusal",
    "label",
    "description",
    "not_understood",
}
"""Fields that hold sentences."""

CHANGING = {"model", "model_version", "version", "artifact", "created", "request_id", "instance"}
"""Fields that name the run rather than answer the question."""

DTYPES = ("fp32", "bf16", "fp16", "fp8_e4m3", "int8", "tf32", "fp64")
CALIBRATION_DEVICE = "nvidia-l4"


def main() -> None:
    """Record answers, or compare today's with a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--words", action="store_true", help="Compare sentences as well.")
    options = parser.parse_args()
    if options.action == "record":
        requests = drawn_requests()
        options.file.write_bytes(gzip.compress(json.dumps(answered(requests)).encode(), mtime=0))
        print(f"{len(requests)} requests recorded in {options.file}")
        return
    before = json.loads(gzip.decompress(options.file.read_bytes()))
    after = answered([(path, body) for path, body, *_ in before["requests"]])
    skipped = CHANGING | (set() if options.words else WORDS)
    differences = list(differing(before, after, "", skipped))
    for place, old, new in differences[:40]:
        print(f"{place}: {old!r} -> {new!r}")
    print(f"{count_numbers(before)} numbers compared, {len(differences)} differences")
    sys.exit(1 if differences else 0)


def drawn_requests() -> list[tuple[str, Any]]:
    """Paths and bodies: batches of specs, whole models, sweeps, comparisons, rankings and MLIR texts, drawn by a fixed seed."""
    draw = random.Random(SEED)
    specs = [drawn_spec(draw) for _ in range(N_SPECS)]
    devices = catalogue().names()
    requests: list[tuple[str, Any]] = [
        ("/v1/predict", {"requests": specs[i : i + BATCH]}) for i in range(0, N_SPECS, BATCH)
    ]
    for _ in range(40):
        device = draw.choice(devices)
        kernels = [drawn_spec(draw, device) | {"count": draw.randint(1, 40)} for _ in range(draw.randint(1, 12))]
        kernels = [{name: value for name, value in kernel.items() if name != "device"} for kernel in kernels]
        requests.append(("/v1/predict/model", {"devices": [device], "kernels": kernels}))
    for spec in specs[:60]:
        bare, device = {name: value for name, value in spec.items() if name != "device"}, spec["device"]
        dim = draw.choice(sorted(spec["sizes"]))
        requests.append(("/v1/compare", bare | {"devices": draw.sample(devices, 4)}))
        requests.append(("/v1/roofline", bare | {"devices": [device]}))
        requests.append(("/v1/sweep", bare | {"devices": [device], "sweep": {"dim": dim, "values": [16, 32, 64, 128]}}))
    for dims in families()["gemm"].model_shapes[:20]:
        for impl, device, dtype in (("triton", "h200", "bf16"), ("iree", "amd-epyc-9005-vm-2c", "fp32")):
            spec = {"family": "gemm", "device": device, "dtype": dtype, "impl": impl, "sizes": dict(dims), "top": 8}
            requests.append(("/v1/rank", spec))
    for name, column in (("gemm", "m"), ("softmax", "rows"), ("attention", "kv_len")):
        family = families()[name]
        values = [round(16 * 1.05**i) for i in range(200)]
        columns: dict[str, Any] = {dim: [size] * len(values) for dim, size in family.model_shapes[0].items()}
        columns[column] = values
        columns = {"sizes": columns, "device": ["h200"] * len(values), "dtype": ["bf16"] * len(values)}
        requests.append(("/v1/predict/columns", {"family": name, "columns": columns}))
    for kind in ("corpus", "costed", "exported"):
        for path in sorted((CORPUS / kind).glob("*.mlir")):
            text = path.read_text(encoding="utf-8")
            requests += [(f"/v1/predict/mlir?device={name}", text) for name in ("h100-sxm", "amd-epyc-9005-vm-2c")]
    return requests


@cache
def shipped_predictor() -> Any:
    """The predictor of the shipped model."""
    return kernelcast.load()


def drawn_spec(draw: random.Random, only_device: str | None = None) -> dict[str, Any]:
    """A spec that can be answered, of any family on any device; some sizes lie far outside what was measured."""
    known, predictor = families(), shipped_predictor()
    while True:
        family = known[draw.choice(sorted(known))]
        sizes = drawn_sizes(draw, family)
        device = only_device or draw.choice(catalogue().names())
        spec: dict[str, Any] = {"family": family.name, "device": device, "dtype": draw.choice(DTYPES), "sizes": sizes}
        if draw.random() < 0.6:
            spec["variant"] = draw.choice(family.variants)
        if draw.random() < 0.4:
            spec["impl"] = draw.choice(("torch", "triton", "cutlass", "iree", "vllm-0.24.0", "cupy"))
        if draw.random() < 0.2:
            spec["cache_state"] = "cold"
        if draw.random() < 0.2 and family.config:
            spec["config"] = {
                name: draw.choice((1, 2, 4, 16, 32, 64, 128)) for name in family.config if draw.random() < 0.5
            }
        if catalogue().get(device).kind == "cpu" and draw.random() < 0.5:
            spec["threads"] = draw.choice((1, 2))
        extra = {name: value for name, value in spec.items() if name not in ("family", "device", "dtype", "sizes")}
        try:
            predictor.predict([KernelSpec.of(family.name, spec["dtype"], **extra, **sizes)], [device])
        except SpecError:
            continue
        return spec


def drawn_sizes(draw: random.Random, family: KernelFamily) -> dict[str, int]:
    """Sizes of a model, or log-uniform ones within the family's ranges, at times far beyond them."""
    if draw.random() < 0.3:
        return dict(draw.choice(list(family.model_shapes)))
    beyond = 16 if draw.random() < 0.07 else 1
    sizes = {
        name: round(math.exp(draw.uniform(math.log(low), math.log(high * beyond))))
        for name, (low, high) in family.ranges.items()
    }
    return family.finish(sizes)


def answered(requests: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The requests with their status and answer, and what needs no service: calibrated predictions, tiles, compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "requests": list(served(requests)),
            "calibrated": calibrated(Path(folder)),
            "tiles": tiles(),
            "code": code(),
        }


def served(requests: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any, int, Any]]:
    """Each request with the status and the answer of a server of the shipped model."""
    command = [PROGRAM, "serve", "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=120)
        for path, body in requests:
            is_text = isinstance(body, str)
            sent = body.encode() if is_text else json.dumps(body).encode()
            connection.request("POST", path, sent, {"Content-Type": "text/plain" if is_text else "application/json"})
            response = connection.getresponse()
            yield path, body, response.status, json.loads(response.read())
    finally:
        server.terminate()
        server.wait()


def calibrated(folder: Path) -> list[Any]:
    """Predictions after calibrating with 24 made-up rows that are 1.4 times slower than today's answers."""
    draw = random.Random(SEED)
    predictor = shipped_predictor()
    gemm = families()["gemm"]
    specs = [KernelSpec.of("gemm", "bf16", impl="torch", **drawn_sizes(draw, gemm)) for _ in range(48)]
    rows = predictor.predict(specs[:24], [CALIBRATION_DEVICE] * 24)
    table = folder / "rows.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["family", "device", "dtype", "impl", "variant", *(name for name, _ in specs[0].dims), "latency_s"]
        )
        for spec, row in zip(specs, rows, strict=False):
            sizes = [size for _, size in spec.dims]
            writer.writerow(
                ["gemm", CALIBRATION_DEVICE, "bf16", "torch", spec.variant, *sizes, repr(1.4 * row.latency_s.value)]
            )
    out = folder / "calibrated"
    subprocess.run([PROGRAM, "calibrate", "--data", str(table), "--out", str(out)], check=True, capture_output=True)
    answers = kernelcast.load(out).predict(specs, [CALIBRATION_DEVICE] * len(specs))
    return [interval_triple(answer.latency_s) for answer in answers]


def interval_triple(interval: Any) -> list[float]:
    """Value, lower and upper end."""
    return [interval.value, interval.lower, interval.upper]


def tiles() -> list[Any]:
    """Predicted seconds of configurations of four tasks by every shipped model of tile configurations."""
    from kernelcast.features.tuning.kind import Task, get_kind
    from kernelcast.plugins.cost_model import SHIPPED, CostModel

    draw = random.Random(SEED)
    answers: list[Any] = []
    for path in sorted(SHIPPED.glob("*.kcm")):
        kind = get_kind(path.stem)
        device = "h200" if kind.compiler == "triton" else "amd-epyc-9005-vm-2c"
        model = CostModel.load(kind.name, device, path)
        for _ in range(4):
            sizes = {name: drawn_tuning_size(draw, name) for name in kind.sizes}
            candidates = kind.space(Task(kind.name, sizes, "fp16" if device == "h200" else "fp32", model.device))
            answers.append([kind.name, sizes, model.predict(candidates).tolist(), model.rank(candidates, 5).tolist()])
    return answers


def drawn_tuning_size(draw: random.Random, name: str) -> int:
    """A size of a tuning problem: flags are 0 or 1, the rest within what the problem's operations have."""
    flags = {"a_transposed", "b_transposed", "layout", "variant", "causal"}
    small = {
        "batch": (1, 2),
        "stride": (1, 2),
        "kernel_h": (3,),
        "kernel_w": (3,),
        "kernel": (3,),
        "padding": (1,),
        "threads": (1, 2),
    }
    if name in flags:
        return draw.choice((0, 1))
    return draw.choice(small.get(name, (64, 128, 256)))


def code() -> list[Any]:
    """What the Triton functions of the tests' corpus are predicted to compile to."""
    answers = []
    for path in sorted((CORPUS / "corpus").glob("triton*.mlir")):
        command = [PROGRAM, "predict-code", str(path), "--target", "sm_90", "--json"]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        answers.append(json.loads(result.stdout) if result.returncode == 0 else result.returncode)
    return answers


def differing(before: Any, after: Any, place: str, skipped: set[str]) -> Iterator[tuple[str, Any, Any]]:
    """Places where two records differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after} - skipped):
            if name in before and name in after:
                yield from differing(before[name], after[name], f"{place}/{name}", skipped)
            else:
                yield f"{place}/{name}", before.get(name, "absent"), after.get(name, "absent")
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            yield place, f"{len(before)} entries", f"{len(after)} entries"
        for i, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from differing(old, new, f"{place}[{i}]", skipped)
    elif isinstance(before, bool) or not isinstance(before, int | float) or not isinstance(after, int | float):
        if before != after:
            yield place, before, after
    elif not math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=0.0):
        yield place, before, after


def count_numbers(record: Any) -> int:
    """How many numbers a record holds."""
    if isinstance(record, dict):
        return sum(map(count_numbers, record.values()))
    if isinstance(record, list | tuple):
        return sum(map(count_numbers, record))
    return int(isinstance(record, int | float | np.floating) and not isinstance(record, bool))


if __name__ == "__main__":
    main()
