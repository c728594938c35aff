"""What one matrix product costs on one device. Usage: predict_one.py [address]."""

import sys

from kernelcast.client import Client, ClientError

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with Client(address) as client:
    try:
        prediction = client.predict("gemm", device="h200", dtype="bf16", m=512, n=4096, k=4096)
    except ClientError as error:
        sys.exit(f"no prediction: {error}")

time = prediction.latency_s
interval = f"{time.lower * 1e6:.1f} to {time.upper * 1e6:.1f}"
print(f"{prediction.device}: {time.value * 1e6:.1f} µs ({interval}), bound by {prediction.bound}")
if prediction.energy_j is not None:
    print(f"{prediction.energy_j.value * 1e3:.2f} mJ a run")
for note in prediction.notes:
    print("note:", note)
