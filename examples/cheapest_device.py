"""The device on which a kernel costs least, by what an hour of each costs. Usage: cheapest_device.py [address]."""

import sys

from kernelcast.client import Client

# What you pay, in any one currency; these are made up.
PRICE_PER_HOUR = {"h200": 4.0, "h100-sxm": 3.0, "a100-sxm-80gb": 1.8, "l40s": 0.9}

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
with Client(address) as client:
    answers = client.compare(
        "gemm", dtype="bf16", m=2048, n=8192, k=8192, devices=list(PRICE_PER_HOUR), price_per_hour=PRICE_PER_HOUR
    ).answers

for answer in answers:
    if answer.prediction is None:
        print(f"{answer.device}: {answer.refusal}")
priced = [answer for answer in answers if answer.prediction and answer.cost_per_million_calls]
for answer in sorted(priced, key=lambda one: one.cost_per_million_calls.value):
    cost, time = answer.cost_per_million_calls, answer.prediction.latency_s
    print(
        f"{answer.device:28} {cost.value:8.2f} a million calls ({cost.lower:.2f} to {cost.upper:.2f}), "
        f"{time.value * 1e3:.3f} ms a call{'' if answer.prediction.in_domain else ', outside what was measured'}"
    )
