"""BERT-large and GPT-2-large as PyTorch programs against public end-to-end times, PyTorch's estimator and NeuSight's tables.

.venv/bin/python -P benchmarks/torch_networks.py TABLES

TABLES is a folder with `model_e2e.parquet`. The models are written here as transformers ran them then: attention by products,
softmax and a mask, GPT-2's GELU in single operators. They are on the meta device, in fp32, as the measured ones were. Training
is the forward and backward pass with dropout. BERT classifies sequences in inference and predicts words in training, as the
operators of `model_ops.parquet` show. The shipped model has seen single operators of some of the GPUs, no whole model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kernelcast
import numpy as np
import pyarrow.parquet as pq
import torch
from kernelcast.features.device import Device, catalogue
from kernelcast.torch import estimate
from torch import nn
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it
from torch.utils._python_dispatch import TorchDispatchMode

PEERS = ("pytorch", "neusight", "habitat", "roofline")
_DROPOUT = 0.1


class Gelu(nn.Module):
    """GPT-2's GELU, an operator at a time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activation."""
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Layer(nn.Module):
    """A layer of either model; GPT-2 normalises before and masks what comes later, BERT normalises after."""

    def __init__(self, width: int, heads: int, tokens: int, *, gpt: bool) -> None:
        super().__init__()
        self.heads, self.gpt = heads, gpt
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        if gpt:
            self.qkv: nn.Module = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Gelu() if gpt else nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(_DROPOUT)
        self.register_buffer("mask", torch.ones(tokens, tokens, dtype=torch.bool).tril())

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Attention by products."""
        batch, tokens, width = x.shape
        parts = self.qkv(x).split(width, dim=2) if self.gpt else (self.q(x), self.k(x), self.v(x))
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(width // self.heads)
        if self.gpt:
            scores = torch.where(self.mask, scores, torch.finfo(scores.dtype).min)
        else:
            scores = scores + torch.zeros(batch, 1, 1, tokens, device=x.device)
        mixed = torch.matmul(self.drop(F.softmax(scores, dim=-1)), value)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        first, second = self.norms
        if self.gpt:
            x = x + self.drop(self.attend(first(x)))
            return x + self.drop(self.mlp(second(x)))
        x = first(x + self.drop(self.attend(x)))
        return second(x + self.drop(self.mlp(x)))


class Network(nn.Module):
    """Embeddings, layers, and a head: a projection to all words, or of BERT's first position to two classes."""

    def __init__(
        self, words: int, width: int, heads: int, layers: int, tokens: int, *, gpt: bool, classifies: bool = False
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.kinds = None if gpt else nn.Embedding(2, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(_DROPOUT)
        self.layers = nn.Sequential(*(Layer(width, heads, tokens, gpt=gpt) for _ in range(layers)))
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)) if classifies else None
        self.transform = None if gpt else nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, words, bias=not gpt)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A number for each word, or for each class."""
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        if self.kinds is None or self.transform is None:
            return self.head(self.norm(self.layers(self.drop(x))))
        x = self.layers(self.drop(self.norm(x + self.kinds(torch.zeros_like(ids)))))
        return self.head(self.transform(x)) if self.pooler is None else self.pooler(x[:, 0])


class _Estimator(TorchDispatchMode):
    """Adds up what `RuntimeEstimator`'s cost model says of each operator, without its fake tensors and its GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.total_s = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, time_ms = RuntimeEstimator._roofline_estimate(func, args, kwargs)
        self.total_s += time_ms * 1e-3
        return result


def pytorch_s(step: Callable[[], object], device: Device, share: float = 1.0) -> float:
    """What PyTorch's own estimator says of a step, in seconds, for a share of a device's peaks, of which it is told."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

    def tflops(dtype: torch.dtype) -> float:
        return device.peak_flops_per_s(names[dtype], "matrix")[0] * share * 1e-12

    memory_gb_per_s = device.required("memory_bandwidth_b_per_s") * 1e-9
    facts = "torch.utils._runtime_estimation"
    with (
        patch("torch.cuda.is_available", lambda: True),
        patch(f"{facts}.get_device_tflops", tflops),
        patch(f"{facts}.get_gpu_dram_gbps", lambda: memory_gb_per_s),
        _Estimator() as estimator,
    ):
        step()
    return estimator.total_s


_NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "bert_large": {"words": 30522, "width": 1024, "heads": 16, "layers": 24, "gpt": False},
    "gpt2_large": {"words": 50257, "width": 1280, "heads": 20, "layers": 36, "gpt": True},
}


def answers(row: Mapping[str, Any], predictor: Any) -> tuple[Any, float]:
    """Our estimate of one row of the table, and PyTorch's own in seconds."""
    train = row["mode"] == "train"
    sizes = _NETWORKS[row["model"]]
    with torch.device("meta"):
        network = Network(**sizes, tokens=row["seq_len"], classifies=not (sizes["gpt"] or train))
    ids = torch.zeros(row["batch"], row["seq_len"], dtype=torch.int64, device="meta")
    network.train(train)

    def step() -> None:
        logits = network(ids)
        if train:
            F.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()

    with torch.set_grad_enabled(train):
        with estimate(row["device"], model=predictor) as run:
            step()
        return run.totals[row["device"]], pytorch_s(step, catalogue().get(row["device"]))


def main() -> None:
    """Estimate every row, print errors beside the peers'."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", type=Path)
    args = parser.parse_args()
    predictor = kernelcast.load()
    rows = [row for row in pq.read_table(args.tables / "model_e2e.parquet").to_pylist() if not row["option"]]
    rows = [row for row in rows if row["model"] in _NETWORKS]
    errors: dict[str, list[tuple[float, bool, Sequence[float]]]] = {"inf": [], "train": []}
    for row in sorted(rows, key=lambda row: (row["mode"], row["model"], row["device"], row["batch"])):
        (ours, pytorch), label_s = answers(row, predictor), row["label_e2e_ms"] * 1e-3
        answers_ms = [pytorch * 1e3, *(row[f"pred_{peer}_e2e_ms"] for peer in PEERS[1:])]
        peers = [abs(value_ms / row["label_e2e_ms"] - 1) if value_ms else math.nan for value_ms in answers_ms]
        error, latency = ours.latency_s.value / label_s - 1, ours.latency_s
        inside = latency.lower <= label_s <= latency.upper
        errors[row["mode"]].append((abs(error), inside, peers))
        print(
            f"{row['mode']:5s} {row['model']:10s} {row['device']:23s} batch {row['batch']:2d}  {label_s * 1e3:7.1f} ms  "
            f"estimate {latency.value * 1e3:7.1f} ms {error:+6.1%}  inside {'yes' if inside else 'no':3s}  "
            + "  ".join(f"{peer} {value:.1%}" for peer, value in zip(PEERS, peers, strict=True))
        )
    for mode, results in errors.items():
        ours_all, inside_all, peers_all = zip(*results, strict=True)
        means_of_peers = np.nanmean(np.array(peers_all), axis=0)
        means = "  ".join(f"{peer} {value:.1%}" for peer, value in zip(PEERS, means_of_peers, strict=True))
        print(
            f"{mode}: {len(results)} rows, mean error {np.mean(ours_all):.1%}, median {np.median(ours_all):.1%}, "
            f"inside the 90 % interval {np.mean(inside_all):.0%}; {means}"
        )


if __name__ == "__main__":
    main()
