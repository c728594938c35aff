"""A thousand kernels as tensors, with the client of Triton Inference Server. Usage: triton_infer.py [address].

Needs `pip install "tritonclient[http]"`; any client of the Open Inference Protocol, version 2, will do.
"""

import os
import sys

import numpy as np
import tritonclient.http as triton

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
key = os.environ.get("KERNELCAST_API_KEY")
headers = {"authorization": f"Bearer {key}"} if key else None

rows = np.arange(1, 1001)
columns = {"device": np.array(["h200"], dtype=np.object_), "dtype": np.array(["bf16"], dtype=np.object_),
           "m": 8 * rows, "n": np.full(1000, 4096), "k": np.full(1000, 4096)}  # fmt: skip
inputs = []
for name, column in columns.items():
    inputs.append(triton.InferInput(name, list(column.shape), "BYTES" if column.dtype == object else "INT64"))
    inputs[-1].set_data_from_numpy(column)

client = triton.InferenceServerClient(address.removeprefix("http://"))
outputs = [triton.InferRequestedOutput("latency_s"), triton.InferRequestedOutput("bound")]
answer = client.infer("gemm", inputs, outputs=outputs, headers=headers)
latency_s, bound = answer.as_numpy("latency_s"), answer.as_numpy("bound")
for row in (0, 9, 99, 999):
    print(f"m={columns['m'][row]}: {latency_s[row] * 1e6:.1f} µs, bound by {bound[row].decode()}")
client.close()
