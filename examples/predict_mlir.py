"""What a function in a file of MLIR costs, kernel by kernel. Usage: predict_mlir.py [address] [file]."""

import sys
from pathlib import Path

from kernelcast.client import Client

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("mlp.mlir")
with Client(address) as client:
    prediction = client.predict_mlir(path.read_text(), ["h200", "amd-epyc-9005-vm-2c"])

for answer in prediction.answers:
    time = answer.latency_s
    print(f"{answer.device}: {time.value * 1e6:.0f} µs ({time.lower * 1e6:.0f} to {time.upper * 1e6:.0f})")
    for group in answer.groups:
        print(f"  {group.time_share:4.0%}  {group.title}, bound by {group.bound}")
    for unknown in answer.not_understood:
        print(f"  not understood: {unknown.op}: {unknown.reason}")
