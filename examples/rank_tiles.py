"""The tile configurations worth trying first for a Triton matrix product. Usage: rank_tiles.py [address]."""

import sys

from kernelcast.client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with Client(address) as client:
    ranking = client.rank("gemm", device="h200", dtype="bf16", impl="triton", m=4096, n=4096, k=4096, top=5)

print(f"{ranking.considered} configurations by {ranking.method}; the first {ranking.tied} cannot be told apart")
for one in ranking.ranked:
    knobs = " ".join(f"{name}={value}" for name, value in one.config.items())
    print(f"{one.latency_s.value * 1e6:9.1f} µs  +{one.slower_than_best:.0%}  {knobs}")
