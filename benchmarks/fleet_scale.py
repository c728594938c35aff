"""What breaks first when a fleet grows: a discrete-event simulation of one driver, or several, and many devices.

Run `.venv/bin/python benchmarks/fleet_scale.py` (some ten seconds of one core); `--measure` measures the driver's costs first,
with the real code, `--ray HOST:PORT` those of an actor call too. It prints the tables of docs/scale.md, and `--svg` draws its
chart. Equal seeds give equal results.

    device: measures a block -> waits for its driver -> driver turns it into files (one processor) -> puts them -> next block
"""

from __future__ import annotations

import argparse
import heapq
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

GATHERED, UNGATHERED = 1.3, 8.3
"""Files of a block."""
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Costs:
    """What things cost, in seconds. The driver's were measured on one core of the development machine (`--measure`).

    `row_s`, `file_s` and `block_s` are a straight line through measured blocks: reading, checking and writing a row; opening
    another family's file; provenance. `call_s` is processor time of one actor call. `read_file_s` is processor time of reading
    the case ids of one stored file, as a resumed driver does.

    `put_s`, `list_page_s`, `get_s` are latencies of an object store, the lower end of "100-200 milliseconds for small objects"
    (Amazon S3 User Guide, "Best practices design patterns: optimizing Amazon S3 performance"). A page lists `page` keys (API
    ListObjectsV2, at most 1,000). The store reads one file after the other, each by `requests` requests: its size, its content.
    """

    row_s: float = 65e-6
    file_s: float = 4.0e-3
    block_s: float = 2.0e-3
    call_s: float = 0.5e-3
    read_file_s: float = 1.1e-3
    put_s: float = 0.1
    get_s: float = 0.1
    list_page_s: float = 0.1
    page: int = 1000
    requests: int = 2

    def driver_s(self, rows: int, files: float, calls: float) -> float:
        """Processor time of the driver for a block."""
        return self.block_s + rows * self.row_s + files * self.file_s + calls * self.call_s


@dataclass(frozen=True, slots=True)
class Failures:
    """Rates per device-second and what they cost; zero for never.

    A device is lost for the rest of the campaign. 419 unexpected interruptions in 54 days of 16,384 GPUs are the default (The
    Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4), all counted as a lost device. Of the 23,168 shipped rows none has
    the status timeout or crashed; the default rate of hangs is Jeffreys' estimate for none in so many, 0.5 / 23,169. A hang
    costs its deadline twice, in the chunk and alone.
    """

    lost_per_s: float = 419 / (54 * DAY * 16384)
    hang_per_row: float = 0.5 / 23169
    hang_s: float = 2 * 40.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign: devices, rows, and how it is organised.

    `pace_s` is a row on a device, all included: 0.069 s on the shipped GPU campaign, 0.30 s on the CPU's. `rows_per_block` is
    those campaigns' mean. A file is one family's rows: `files_per_block` is what the driver makes of a plan of 20,000 cases
    (`fleet_files.py`); the shipped campaigns, whose cases were not grouped by family, have 8.3.
    """

    devices: int
    rows: float = 1e8
    pace_s: float = 0.069
    rows_per_block: int = 55
    files_per_block: float = GATHERED
    chunk_rows: int = 10
    drivers: int = 1
    label: str = ""

    @property
    def calls(self) -> float:
        """Actor calls of a block: its chunks, the sentinels, the state before and after."""
        return math.ceil(self.rows_per_block / self.chunk_rows) + 3


@dataclass(frozen=True, slots=True)
class Result:
    """How a campaign went.

    `busy` is the share of the devices' time that they measured, `driver` that of the busiest driver's processor.
    """

    plan: Plan
    seconds: float
    busy: float
    driver: float
    puts_per_s: float
    files: float
    lost: int
    hangs: int
    finished: bool


def simulate(plan: Plan, costs: Costs, failures: Failures, seed: int = 0) -> Result:
    """Block by block; devices are split evenly over the drivers, and each driver serves blocks in the order they come.

    A device asks for its next block when the last one is stored, as `collectors.fleet` does.
    """
    shares = [plan.devices // plan.drivers + (i < plan.devices % plan.drivers) for i in range(plan.drivers)]
    parts = [_one_driver(plan, devices, plan.rows * devices / plan.devices, costs, failures, seed + i)
             for i, devices in enumerate(shares) if devices]  # fmt: skip
    seconds = max(part[0] for part in parts)
    blocks = sum(part[3] for part in parts)
    return Result(
        plan, seconds, busy=sum(part[1] for part in parts) / (seconds * plan.devices),
        driver=max(part[2] / part[0] for part in parts), puts_per_s=blocks * plan.files_per_block / seconds,
        files=blocks * plan.files_per_block, lost=sum(part[4] for part in parts), hangs=sum(part[5] for part in parts),
        finished=all(part[6] for part in parts),
    )  # fmt: skip


def _one_driver(
    plan: Plan, devices: int, rows: float, costs: Costs, failures: Failures, seed: int
) -> tuple[float, float, float, int, int, int, bool]:
    """Seconds, seconds measured, of the driver's processor, blocks, devices lost, hangs, whether all was measured."""
    rng = np.random.default_rng(seed)
    measure_s = plan.rows_per_block * plan.pace_s
    service_s = costs.driver_s(plan.rows_per_block, plan.files_per_block, plan.calls)
    # What a block waits for once the driver is done with it: its files are put one after the other (`datasets.roots`).
    put_s = plan.files_per_block * costs.put_s
    blocks = math.ceil(rows / plan.rows_per_block)
    hangs = rng.binomial(plan.rows_per_block, failures.hang_per_row, blocks) if failures.hang_per_row else None
    dies = rng.exponential(1 / failures.lost_per_s, devices) if failures.lost_per_s else np.full(devices, math.inf)
    queue = [(measure_s, i) for i in range(min(devices, blocks))]
    begun, done, lost, hung = len(queue), 0, 0, 0
    idle = list(range(begun, devices))
    measured = free = last = 0.0
    ends = dies.tolist()
    while queue:
        now, device = heapq.heappop(queue)
        if now > ends[device]:
            # What it held goes back to the pool, for one that had nothing left to do or for the next that asks.
            lost, begun = lost + 1, begun - 1
            if idle:
                begun += 1
                heapq.heappush(queue, (now + measure_s, idle.pop()))
            continue
        free = max(now, free) + service_s
        last = free + put_s
        measured += measure_s
        done += 1
        if begun < blocks:
            extra = 0.0
            if hangs is not None and hangs[begun]:
                hung += int(hangs[begun])
                extra = hangs[begun] * failures.hang_s
            begun += 1
            heapq.heappush(queue, (last + measure_s + extra, device))
        else:
            idle.append(device)
    return last, measured, done * service_s, done, lost, hung, done >= blocks


def resume_s(files: float, costs: Costs) -> dict[str, float]:
    """How long a driver that starts again needs to know what is stored, by part: it lists all files and reads each."""
    return {
        "LIST": math.ceil(files / costs.page) * costs.list_page_s,
        "GET": files * costs.requests * costs.get_s,
        "processor": files * costs.read_file_s,
    }


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def duration(seconds: float) -> str:
    """For people."""
    for unit, size in (("days", DAY), ("h", HOUR), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def campaigns(rows: float) -> list[Plan]:
    """What docs/scale.md compares."""
    gpu = Plan(0, rows)
    small = [replace(gpu, devices=count) for count in (10, 100, 1000, 10_000)]
    cpu = replace(gpu, pace_s=0.30, rows_per_block=59, chunk_rows=12, devices=1000, label="1 driver, CPUs")
    mixed = replace(gpu, files_per_block=UNGATHERED, label="1 driver, cases not grouped")
    wide = replace(gpu, devices=1000, rows_per_block=550)
    return [
        *small, replace(mixed, devices=100), replace(mixed, devices=1000), cpu,
        replace(gpu, devices=1000, drivers=8, label="8 drivers"), replace(wide, label="1 driver, blocks of 550 rows"),
        replace(wide, drivers=4, label="4 drivers, blocks of 550 rows"),
        replace(wide, devices=10_000, drivers=32, label="32 drivers, blocks of 550 rows"),
    ]  # fmt: skip


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--measure", action="store_true", help="measure the driver's costs rather than take those noted here"
    )
    parser.add_argument("--ray", metavar="HOST:PORT", help="measure an actor call on this cluster too")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the chart")
    args = parser.parse_args()
    costs = Costs()
    if args.measure or args.ray:
        from fleet_costs import measured_costs

        costs = measured_costs(costs, args.ray)
        print(costs, "\n")
    began = time.perf_counter()
    results = [simulate(plan, costs, Failures(), args.seed) for plan in campaigns(args.rows)]
    print(table(*report(results)), "\n")
    print(table(*resuming(results, costs)))
    if args.svg:
        from fleet_chart import chart

        args.svg.write_text(chart(lines(costs, args.seed)))
    print(f"\nsimulated in {time.perf_counter() - began:.0f} s")


def lines(costs: Costs, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Rows a second over devices for the chart: thirty blocks of every device, in which nothing fails.

    In so few blocks a single hang would look like a rate of its own.
    """
    counts = (10, 30, 100, 300, 1000, 3000, 10_000)
    gpu = Plan(0)
    wide = replace(gpu, rows_per_block=550)
    ways = {
        "1 driver, not grouped": replace(gpu, files_per_block=UNGATHERED), "1 driver": gpu,
        "1 driver, blocks of 550": wide, "16 drivers, blocks of 550": replace(wide, drivers=16),
    }  # fmt: skip
    never = Failures(lost_per_s=0, hang_per_row=0)
    result = {"devices alone": [(float(count), count / gpu.pace_s) for count in counts]}
    for name, way in ways.items():
        plans = [replace(way, devices=count, rows=30.0 * count * way.rows_per_block) for count in counts]
        done = [simulate(plan, costs, never, seed) for plan in plans]
        result[name] = [(float(item.plan.devices), item.plan.rows / item.seconds) for item in done]
    return result


def report(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Time, utilisation and load of every campaign."""
    header = [
        "devices",
        "organised",
        "time",
        "without limits",
        "devices busy",
        "driver's core",
        "files/s",
        "lost",
        "hangs",
    ]
    return header, [[
        f"{run.plan.devices:,}", run.plan.label or "1 driver", duration(run.seconds) + ("" if run.finished else " (not all)"),
        duration(run.plan.rows * run.plan.pace_s / run.plan.devices), f"{100 * run.busy:.0f} %", f"{100 * run.driver:.0f} %",
        f"{run.puts_per_s:,.0f}", f"{run.lost:,}", f"{run.hangs:,}",
    ] for run in results]  # fmt: skip


def resuming(results: Sequence[Result], costs: Costs) -> tuple[list[str], list[list[str]]]:
    """Files and what they cost a driver that starts again, by the sizes of blocks that occur, and in few large ones."""
    header = ["files", "of rows each", "LIST", "GET", "processor"]
    sizes = sorted({round(result.files): result.plan.rows / result.files for result in results}.items(), reverse=True)
    rows = results[0].plan.rows
    remaining = {round(math.log10(files), 1): (files, each) for files, each in [*sizes, (rows / 1e6, 1e6)]}
    return header, [[
        f"{files:,.0f}", f"{each:,.0f}", *(duration(part) for part in resume_s(files, costs).values()),
    ] for files, each in remaining.values()]  # fmt: skip


if __name__ == "__main__":
    main()
