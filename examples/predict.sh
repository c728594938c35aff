#!/bin/sh
# One prediction and a small batch, with curl. Usage: predict.sh [address]; a key is taken from KERNELCAST_API_KEY.
set -eu
address=${1:-http://127.0.0.1:8000}

post() {
    curl --silent --show-error --fail-with-body --max-time 60 \
        --header 'content-type: application/json' \
        ${KERNELCAST_API_KEY:+--header "authorization: Bearer $KERNELCAST_API_KEY"} \
        --data-binary "$2" "$address$1"
    echo
}

post /v1/predict '{"family": "gemm", "device": "h200", "dtype": "bf16", "sizes": {"m": 512, "n": 4096, "k": 4096}}'

post /v1/predict '{"coverage": 0.8, "requests": [
    {"family": "softmax", "device": "h200", "dtype": "bf16", "sizes": {"rows": 16384, "cols": 512}},
    {"family": "gemm", "device": "l40s", "dtype": "fp16", "sizes": {"m": 64, "n": 4096, "k": 4096}}]}'
