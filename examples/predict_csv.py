"""A CSV of kernels in, the same with predictions out. Usage: predict_csv.py [address] < kernels.csv > costs.csv.

A column for each field of a spec (family, device, dtype …); every other column is a size. Empty cells are left out.
"""

import csv
import sys

from kernelcast.client import Client, ClientError

WORDS = {"family", "device", "dtype", "variant", "impl", "kv_dtype", "cache_state", "timing"}

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
rows = list(csv.DictReader(sys.stdin))
specs = [{name: cell if name in WORDS else int(cell) for name, cell in row.items() if cell} for row in rows]
with Client(address) as client:
    try:
        predictions = client.predict_many(specs)
    except ClientError as error:
        # `index` counts rows from 0; line 1 of the file is its head.
        lines = [f"line {problem.index + 2}: {problem.detail}" for problem in error.errors if problem.index is not None]
        sys.exit("\n".join(lines or [str(error)]))

answers = ("latency_s", "latency_s_lower", "latency_s_upper", "energy_j", "bound", "in_domain")
out = csv.DictWriter(sys.stdout, [*(rows[0] if rows else ()), *answers], lineterminator="\n")
out.writeheader()
for row, prediction in zip(rows, predictions, strict=True):
    time, energy = prediction.latency_s, prediction.energy_j
    cost = (
        time.value,
        time.lower,
        time.upper,
        None if energy is None else energy.value,
        prediction.bound,
        prediction.in_domain,
    )
    out.writerow(row | dict(zip(answers, cost, strict=True)))
