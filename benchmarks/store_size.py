"""A made-up store of many rows, and what asking it costs: seconds and peak memory of every question, each in a fresh process.

    .venv/bin/python -P benchmarks/store_size.py --rows 1e6 --dir made-up-store
    .venv/bin/python -P benchmarks/store_size.py --rows 5e7 --dir made-up-store --page docs/storage.md

Rows are drawn from the shipped tables: their words, sizes and latencies, sizes scattered around and latencies scaled to further
devices; a case is measured under two softwares and, one in five, again. `case_id` is a hash of the made-up case, not of a spec.
The files are as the store writes them, of `FILE_ROWS` rows or fewer. The folder is removed afterwards unless `--keep`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kernelcast.datasets.rows.schema import arrow_schema
from kernelcast.datasets.rows.splits import column_hashes, mixed
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.location import Location, digest_of, folder_name, location_of, new_name
from kernelcast.datasets.store.parquet_files import WRITE_OPTIONS, file_metadata
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import get_family

FILE_ROWS = 1_000_000
BLOCK_ROWS = 500
SHARES = {
    "gemm": 0.40,
    "attention": 0.20,
    "moe": 0.15,
    "conv2d": 0.10,
    "softmax": 0.05,
    "layernorm": 0.05,
    "elementwise": 0.05,
}
GPUS = (
    "nvidia-h200-sxm-141gb",
    "nvidia-h100-sxm-80gb",
    "nvidia-a100-sxm-80gb",
    "nvidia-l40s",
    "nvidia-t4",
    "amd-mi300x",
)
CPU = "amd-epyc-9005-vm-2c"
SOFTWARE = ("driver=570.124.06; torch=2.8.0", "driver=580.65.06; torch=2.9.0")
MEASURED_AGAIN = 0.2
START, END = "<!-- store_size begins -->", "<!-- store_size ends -->"

Column = Any
"""A numpy array of shape `(n,)`."""


def build(location: Location, rows: int, seed: int = 0) -> int:
    """Write about `rows` made-up rows under `location`; returns how many."""
    written = 0
    for number, (family, share) in enumerate(SHARES.items()):
        for place, device in enumerate((*GPUS, CPU)):
            rng = np.random.default_rng([seed, number, place])
            wanted = max(1, round(rows * share / (len(GPUS) + 1)))
            for part, first in enumerate(range(0, wanted, FILE_ROWS)):
                table = made_up(family, device, min(FILE_ROWS, wanted - first), rng, first // BLOCK_ROWS)
                content = _parquet(table)
                name = new_name(digest_of([content]), stamp=f"20260101T{part:06d}.000000Z")
                location.write([(f"{folder_name(family, device)}/{name}", content)])
                written += table.num_rows
    return written


def _parquet(table: pa.Table) -> bytes:
    """As the store writes it, but compressed in a third of the time, for files a tenth larger."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS | {"compression_level": 3})
    return bytes(sink.getvalue())


def made_up(family: str, device: str, n: int, rng: np.random.Generator, first_block: int) -> pa.Table:
    """`n` rows of one family and device, each case under both softwares, with the provenance of their blocks."""
    schema = arrow_schema(family)
    shipped = read_shipped(family, [CPU if device == CPU else GPUS[0]])
    cases = max(1, round(n / (2 + MEASURED_AGAIN)))
    drawn = rng.integers(shipped.num_rows, size=cases)
    sizes, growth = _scattered(family, shipped, drawn, rng)
    again = rng.integers(cases, size=n - 2 * cases) if n > 2 * cases else np.empty(0, np.int64)
    of_case = np.concatenate([np.arange(cases), np.arange(cases), again])[:n]
    newer = np.concatenate([np.zeros(cases, np.int64), np.ones(cases, np.int64), rng.integers(2, size=len(again))])[:n]
    table = shipped.replace_schema_metadata(None).take(pa.array(drawn[of_case]))
    raw = {name: pa.array(column[of_case], pa.int64()) for name, column in sizes.items()}
    scale = growth[of_case] * _slower(device) * np.exp(rng.normal(0, 0.03, n) + 0.02 * newer)
    for name in ("latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s", "energy_j"):
        raw[name] = pc.multiply(table[name], pa.array(scale))
    blocks = first_block + np.arange(n) // BLOCK_ROWS
    names = pa.array([f"{device}-{family}-{block:06d}" for block in range(int(blocks[0]), int(blocks[-1]) + 1)])
    raw["block"] = names.take(pa.array(blocks - blocks[0]))
    raw["device"] = pa.array([device]).take(pa.array(np.zeros(n, np.int64)))
    raw["software"] = pa.array(SOFTWARE).take(pa.array(newer))
    raw["case_id"] = _hex(_case_hashes(family, drawn, sizes)).take(pa.array(of_case))
    columns = [raw[name] if name in raw else table[name] for name in schema.names]
    facts = {name: {"device": device, "host": "made up", "load": float(rng.random()), "block": i}
             for i, name in enumerate(names.to_pylist())}  # fmt: skip
    cast = pa.table(columns, names=schema.names).cast(schema)
    return cast.replace_schema_metadata(file_metadata(facts))


def _scattered(
    family: str, shipped: pa.Table, drawn: Column, rng: np.random.Generator
) -> tuple[dict[str, Column], Column]:
    """Sizes of the cases drawn, the large ones scattered by a third, and how much longer that makes each case."""
    sizes, growth = {}, np.ones(len(drawn))
    for name in get_family(family).dim_names:
        before = np.array(shipped[name].to_pylist(), dtype=np.float64)[drawn]
        scattered = np.maximum(1, np.rint(before * np.exp(rng.normal(0, 0.3, len(drawn)))))
        sizes[name] = np.where(before >= 64, scattered, before).astype(np.int64)
        growth *= (sizes[name] / np.maximum(before, 1)) ** 0.8
    return sizes, growth


def _slower(device: str) -> float:
    """Times as long as on the measured device of its kind, by the memories' bandwidth."""
    if device == CPU:
        return 1.0
    fact = "memory_bandwidth_b_per_s"
    return catalogue().get(GPUS[0]).required(fact) / catalogue().get(device).required(fact)


def _case_hashes(family: str, drawn: Column, sizes: dict[str, Column]) -> Column:
    return mixed(
        column_hashes([drawn.astype(np.float64), *(s.astype(np.float64) for s in sizes.values())], len(drawn), family)
    )


def _hex(hashes: Column) -> pa.Array:
    """64-bit numbers as 16 hex digits each."""
    nibbles = np.empty((len(hashes), 16), dtype=np.uint8)
    for place in range(16):
        nibbles[:, place] = (hashes >> np.uint64(60 - 4 * place)).astype(np.uint8) & 15
    letters = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[nibbles]
    offsets = np.arange(0, 16 * len(hashes) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(hashes), pa.py_buffer(offsets), pa.py_buffer(letters.tobytes()))


def _sql(text: str) -> Callable[[Path, Path], int]:
    def ask(root: Path, scratch: Path) -> int:  # noqa: ARG001 - every question has this signature
        from kernelcast.datasets.store.sql import open_query

        with open_query(Store(root)) as query:
            return sum(batch.num_rows for batch in query.ask(text).batches)

    return ask


def _case_ids(root: Path, scratch: Path) -> int:  # noqa: ARG001
    return len(Store(root).case_ids(GPUS[0]))


def _export(root: Path, scratch: Path) -> int:
    from kernelcast.datasets.form.export import export

    return export(Store(root), scratch / "gemm.parquet", families=["gemm"]).rows


def _to_train(root: Path, scratch: Path) -> int:  # noqa: ARG001
    from kernelcast.models.training.store_rows import labelled_store

    return sum(len(rows) for rows in labelled_store(Store(root)))


QUESTIONS: dict[str, Callable[[Path, Path], int]] = {
    "rows by family and device": _sql("SELECT family, device, count(*) AS rows FROM measurements GROUP BY ALL"),
    "medians by device, impl and dtype": _sql(
        "SELECT family, device, impl, dtype, median(latency_s) FROM measurements WHERE status = 'ok' GROUP BY ALL"
    ),
    "percentiles by family": _sql(
        "SELECT family, quantile_cont(latency_s, [0.05, 0.5, 0.95]) FROM measurements GROUP BY family"
    ),
    "every column of one device and dtype": _sql(f"SELECT * FROM gemm WHERE device = '{GPUS[1]}' AND dtype = 'bf16'"),
    "two softwares joined by case": _sql(
        "SELECT a.device, count(*), median(b.latency_s / a.latency_s) FROM gemm a JOIN gemm b "
        "ON a.device = b.device AND a.case_id = b.case_id "
        f"WHERE a.software = '{SOFTWARE[0]}' AND b.software = '{SOFTWARE[1]}' GROUP BY ALL"
    ),
    "cases to skip on one device": _case_ids,
    "export of one family to Parquet": _export,
    "rows to train on": _to_train,
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What one question cost: rows of the answer, wall seconds, and the process's largest resident memory in bytes."""

    question: str
    rows: int
    seconds: float
    peak_b: float


def answer(question: str, root: Path) -> Answered:
    """Ask in this process, which should have done nothing before."""
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        began = time.perf_counter()
        rows = QUESTIONS[question](root, Path(scratch))
        seconds = time.perf_counter() - began
    return Answered(question, rows, seconds, peak_b())


def peak_b() -> float:
    """The largest resident memory of this process, bytes: VmHWM, since ru_maxrss begins with that of the parent."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def answers(root: Path, questions: list[str]) -> Iterator[Answered]:
    """Every question in a process of its own."""
    for question in questions:
        command = [sys.executable, "-P", __file__, "--dir", str(root), "--ask", question]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{question}: {done.stderr}")
        yield Answered(**json.loads(done.stdout.splitlines()[-1]))


def page_of(found: list[Answered], rows: int, files: int, size_b: int) -> str:
    """The figures as Markdown."""
    lines = [f"{rows:,} rows in {files} files, {size_b / 1e9:.1f} GB on disk:", "",
             "| question | rows of the answer | seconds | peak memory |", "|---|---:|---:|---:|"]  # fmt: skip
    lines += [
        f"| {item.question} | {item.rows:,} | {item.seconds:.1f} | {item.peak_b / 1e9:.2f} GB |" for item in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Build, ask, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument(
        "--dir", type=Path, required=True, help="where the made-up store goes; must not exist unless --keep"
    )
    parser.add_argument("--keep", action="store_true", help="leave the store there, and take it as it is the next time")
    parser.add_argument("--build-only", action="store_true", help="build, ask nothing")
    parser.add_argument("--questions", nargs="*", choices=list(QUESTIONS), default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--page", type=Path, help="write the table into this page, between its markers")
    parser.add_argument("--ask", choices=list(QUESTIONS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        print(json.dumps(asdict(answer(args.ask, args.dir))))
        return
    if args.dir.exists() and not args.keep:
        raise SystemExit(f"{args.dir} exists; name a folder to be made, or add --keep to ask the store that is there")
    try:
        if not args.dir.exists():
            began = time.perf_counter()
            print(
                f"{build(location_of(args.dir), int(args.rows)):,} rows written in {time.perf_counter() - began:.0f} s",
                flush=True,
            )
        if args.build_only:
            return
        files = list(args.dir.rglob("*.parquet"))
        rows, size_b = sum(pq.read_metadata(f).num_rows for f in files), sum(f.stat().st_size for f in files)
        items = []
        for item in answers(args.dir, args.questions):
            print(f"{item.question}: {item.rows:,} rows, {item.seconds:.1f} s, {item.peak_b / 1e9:.2f} GB", flush=True)
            items.append(item)
        text = page_of(items, rows, len(files), size_b)
        if args.page:
            before, _, rest = args.page.read_text().partition(START)
            args.page.write_text(before + START + "\n" + text + "\n" + END + rest.partition(END)[2])
        else:
            print(text)
    finally:
        if not args.keep:
            shutil.rmtree(args.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
