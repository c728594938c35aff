"""What one matrix product costs on one device. Usage: predict_one.py [address]."""

import sys

from kernelcast.client import Client, ClientError

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with Client(address) as client:
    try:
        found = client.predict("gemm", device="h200", dtype="bf16", m=512, n=4096, k=4096)
    except ClientError as error:
        sys.exit(f"no prediction: {error}")

time = found.latency_s
print(
    f"{found.device}: {time.value * 1e6:.1f} µs ({time.lower * 1e6:.1f} to {time.upper * 1e6:.1f}), bound by {found.bound}"
)
if found.energy_j is not None:
    print(f"{found.energy_j.value * 1e3:.2f} mJ a run")
for note in found.notes:
    print("note:", note)
