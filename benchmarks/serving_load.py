"""Load on an HTTP server over kept connections, and what it costs the server: waiting times, processor seconds, memory."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and what they hold: `bodies` are sent in turn, `rows` predictions are asked for in each."""

    port: int
    path: str
    bodies: Sequence[bytes]
    rows: int = 1

    def request(self, body: bytes) -> bytes:
        """The bytes of one request."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a stretch of load gave. `per_core_s` are requests, `rows_per_core_s` rows, per second of the server's own time."""

    connections: int
    requests: int
    rate: float
    per_core_s: float
    rows_per_core_s: float
    p50_ms: float
    p99_ms: float

    def to_json(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)


def processes(root: int) -> list[int]:
    """A process and everything it started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            # It ended meanwhile.
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    result, waiting = [], [root]
    while waiting:
        result.append(waiting.pop())
        waiting += children.get(result[-1], [])
    return result


def core_s(root: int) -> float:
    """Processor seconds a server and everything it started have used so far."""
    total = 0
    for pid in processes(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def resident_mb(root: int) -> float:
    """Resident memory of a server and everything it started, in units of 10^6 bytes; shared pages count once a process."""
    total = 0
    for pid in processes(root):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        total += pages * os.sysconf("SC_PAGE_SIZE")
    return total / 1e6


def load(pid: int, target: Target, connections: int, seconds: float, rate: float | None = None) -> LoadedModel:
    """Requests as fast as they are answered, or `rate` of them a second over all connections.

    Raises:
        RuntimeError: an answer was not 200.
    """
    return asyncio.run(_load(pid, target, connections, seconds, rate))


async def _load(pid: int, target: Target, connections: int, seconds: float, rate: float | None) -> LoadedModel:
    bodies = itertools.cycle([target.request(body) for body in target.bodies])
    await _all(target.port, bodies, connections, min(1.0, seconds / 4), rate)
    before, started = core_s(pid), time.perf_counter()
    waits = sorted(await _all(target.port, bodies, connections, seconds, rate))
    took, used = time.perf_counter() - started, max(core_s(pid) - before, 1.0 / _TICKS)
    return LoadedModel(
        connections, len(waits), len(waits) / took, len(waits) / used, len(waits) * target.rows / used,
        waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3,
    )  # fmt: skip


async def _all(port: int, bodies: Iterator[bytes], connections: int, seconds: float, rate: float | None) -> list[float]:
    end = time.perf_counter() + seconds
    apart_s = None if rate is None else connections / rate
    # At a given rate the connections take turns, as clients that know nothing of each other do on average.
    starts = [0.0 if rate is None else i / rate for i in range(connections)]
    each = await asyncio.gather(*(_connection(port, bodies, end, apart_s, start) for start in starts))
    return [wait for waits in each for wait in waits]


async def _connection(
    port: int, bodies: Iterator[bytes], end: float, apart_s: float | None, start: float
) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waits: list[float] = []
    due = time.perf_counter() + start
    try:
        while (now := time.perf_counter()) < end:
            if apart_s is not None:
                # A request that could not be sent in time has been waiting since it was due.
                due += apart_s
                await asyncio.sleep(max(due - now, 0.0))
            sent = time.perf_counter() if apart_s is None else due
            writer.write(next(bodies))
            await _answer(reader)
            waits.append(time.perf_counter() - sent)
    finally:
        writer.close()
    return waits


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, rest = head.partition(b"content-length:")
    body = await reader.readexactly(int(rest.split(b"\r\n")[0]))
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(f"{head!r} {body[:500]!r}")
