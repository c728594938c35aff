"""Many requests at a time from asyncio: a client is shared by threads. Usage: many_at_once.py [address] [requests]."""

import asyncio
import sys
import time

from kernelcast.client import Client

AT_ONCE = 8


async def main(address: str, n: int) -> None:
    """Ask for `n` predictions, a few at a time, and say how long they took."""
    slots = asyncio.Semaphore(AT_ONCE)
    request_s: list[float] = []
    with Client(address) as client:

        async def ask(m: int) -> float:
            async with slots:
                began = time.perf_counter()
                prediction = await asyncio.to_thread(
                    client.predict, "gemm", device="h200", dtype="bf16", m=m, n=4096, k=4096
                )
                request_s.append(time.perf_counter() - began)
                return prediction.latency_s.value

        began = time.perf_counter()
        latencies_s = await asyncio.gather(*(ask(m) for m in range(1, n + 1)))
        whole_s = time.perf_counter() - began
    request_s.sort()
    print(f"{len(latencies_s)} predictions in {whole_s:.2f} s, {AT_ONCE} at a time")
    print(f"half took at most {request_s[n // 2] * 1e3:.1f} ms, 99 % at most {request_s[n * 99 // 100] * 1e3:.1f} ms")


asyncio.run(
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000", int(sys.argv[2]) if len(sys.argv) > 2 else 200)
)
