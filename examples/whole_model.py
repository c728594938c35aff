"""One token of a small decoder on two devices, and where its time goes. Usage: whole_model.py [address]."""

import sys

from kernelcast.client import Client

LAYERS, HIDDEN, INNER, CONTEXT, BATCH = 28, 3584, 18944, 2048, 8
ATTENTION = {"batch": BATCH, "heads": 28, "kv_heads": 4, "q_len": 1, "kv_len": CONTEXT, "head_dim": 128}
GEMM = {"family": "gemm", "dtype": "bf16", "m": BATCH, "count": LAYERS}
KERNELS = [
    {**GEMM, "name": "qkv", "n": 4608, "k": HIDDEN},
    {"family": "attention", "dtype": "bf16", "count": LAYERS, "name": "attention", **ATTENTION},
    {**GEMM, "name": "out", "n": HIDDEN, "k": HIDDEN},
    {**GEMM, "name": "up and gate", "n": 2 * INNER, "k": HIDDEN},
    {**GEMM, "name": "down", "n": HIDDEN, "k": INNER},
]

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with Client(address) as client:
    for whole in client.predict_model(KERNELS, ["h200", "l40s"], queued=True):
        time = whole.latency_s
        print(f"{whole.device}: {time.value * 1e3:.2f} ms a token ({time.lower * 1e3:.2f} to {time.upper * 1e3:.2f})")
        for part in sorted(whole.kernels, key=lambda one: -one.time_share):
            print(f"  {part.time_share:4.0%}  {part.name}: {part.count} runs of {part.latency_s.value * 1e6:.1f} µs")
