"""PyTorch programs on this machine's CPU: measured, against `kernelcast.torch.estimate`, PyTorch's estimator and the roofline.

.venv/bin/python benchmarks/torch_programs.py --device intel-xeon-emerald-rapids-vm-2c

With one thread its processor time is taken, which leaves out what others on the machine run meanwhile; with `--threads 2` that
of the clock, on a machine that runs nothing else. Of several rounds over all programs, the one with the least median counts,
since what remains of the others only adds. All 26 programs take some two minutes a run, and two more to compile three of them,
which needs a C++ compiler. Roots of zeros, such as those of an embedding's rows that no sample touches, take MKL fifteen times
as long; shapes do not tell.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import kernelcast
import numpy as np
import torch
from kernelcast.features.device import catalogue
from kernelcast.torch import estimate
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it
from torch_networks import pytorch_s

ROUND_S = 0.6
Step = Callable[[], object]


class Block(nn.Module):
    """A transformer block with pre-normalisation."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        batch, tokens, width = x.shape
        heads = self.qkv(self.ln1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=self.causal)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, words: int, width: int, heads: int, layers: int, tokens: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Recommender(nn.Module):
    """Embedding tables, their pairwise products, and an MLP."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear((tables + 1) ** 2 + width, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """A score for each sample."""
        bottom = self.bottom(dense)
        features = torch.stack([bottom, *(table(ids[:, i]) for i, table in enumerate(self.tables))], dim=1)
        pairs = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([pairs, bottom], dim=1)).sigmoid()


class Graph(nn.Module):
    """Two layers of a graph network: gather along edges, add up at nodes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """States of the nodes."""
        for layer in self.layers:
            messages = x.index_select(0, source)
            summed = torch.zeros_like(x).index_add(0, target, messages)
            x = F.relu(layer(torch.cat([x, summed], dim=1)))
        return x


class UnetBlock(nn.Module):
    """Two residual convolutions with GroupNorm, then attention over positions and cross-attention to a text."""

    def __init__(self, channels: int, text: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, channels) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.q, self.kv, self.out = (
            nn.Linear(channels, channels),
            nn.Linear(text, 2 * channels),
            nn.Linear(channels, channels),
        )

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """The image's features."""
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = x + conv(F.silu(norm(x)))
        batch, channels, height, width = x.shape
        places = self.norms[2](x).flatten(2).transpose(1, 2)
        query = self.q(places).view(batch, -1, 4, channels // 4).transpose(1, 2)
        key, value = self.kv(text).view(batch, -1, 2, 4, channels // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, -1, channels)
        return x + self.out(mixed).transpose(1, 2).view(batch, channels, height, width)


def training(model: nn.Module, loss: Callable[[], torch.Tensor], **options: float) -> Step:
    """A step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def inference(call: Callable[[], object]) -> Step:
    """A call without gradients."""
    return torch.no_grad()(call)


def conv_net() -> nn.Sequential:
    """A small ResNet-like stem and head."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def programs() -> Mapping[str, Step]:
    """Small programs of many kinds, each a step to run."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    digits, classes = torch.randn(128, 784), torch.randint(0, 10, (128,))
    tiny = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
    few = torch.randn(4, 32)
    net, images, labels = conv_net(), torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    block, encoder = Block(512, 8, causal=True), Block(384, 6, causal=False)
    tokens, patches = torch.randn(2, 256, 512), torch.randn(4, 197, 384)
    gpt, ids = Gpt(8000, 256, 4, 4, 128), torch.randint(0, 8000, (4, 128))
    decoder, word = Gpt(8000, 512, 8, 4, 256), torch.randint(0, 8000, (1, 1))
    recommender = Recommender(8, 20000, 32)
    dense, chosen = torch.randn(256, 13), torch.randint(0, 20000, (256, 8))
    graph, nodes = Graph(64), torch.randn(4000, 64)
    source, target = torch.randint(0, 4000, (2, 20000))
    unet, noise, text = UnetBlock(64, 256), torch.randn(2, 64, 32, 32), torch.randn(2, 77, 256)
    half = Block(512, 8, causal=True).bfloat16()
    norm = nn.Sequential(nn.RMSNorm(1024), nn.Linear(1024, 1024), nn.SiLU(), nn.LayerNorm(1024))
    rows = torch.randn(512, 1024)
    click = torch.rand(256, 1).round()
    half_trained, half_gpt = Block(512, 8, causal=True).bfloat16(), Gpt(8000, 256, 4, 4, 128).bfloat16()
    half_net, half_unet = conv_net().bfloat16(), UnetBlock(64, 256).bfloat16()
    compiled_mlp = torch.compile(
        nn.Sequential(nn.Linear(784, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.SiLU(), nn.Linear(1024, 10))
    )
    compiled_block, compiled_ranker = (
        torch.compile(Block(512, 8, causal=True)),
        torch.compile(Recommender(8, 20000, 32)),
    )
    words = nn.Sequential(nn.Embedding(8000, 384), *(Block(384, 6, causal=False) for _ in range(4)))
    sentences = torch.randint(0, 8000, (4, 128))
    return {
        "MLP, inference": inference(lambda: mlp(digits)),
        "MLP, training": training(mlp, lambda: F.cross_entropy(mlp(digits), classes)),
        "tiny MLP, training": training(tiny, lambda: tiny(few).square().mean()),
        "conv net, inference": inference(lambda: net(images)),
        "conv net, training": training(net, lambda: F.cross_entropy(net(images), labels)),
        "transformer block, inference": inference(lambda: block(tokens)),
        "transformer block, training": training(block, lambda: block(tokens).square().mean()),
        "transformer block bf16, inference": inference(lambda: half(tokens.bfloat16())),
        "vision block, not causal, inference": inference(lambda: encoder(patches)),
        "GPT, training": training(gpt, lambda: F.cross_entropy(gpt(ids).flatten(0, 1), ids.flatten())),
        "GPT, one token": inference(lambda: decoder(word)),
        "recommender, inference": inference(lambda: recommender(dense, chosen)),
        "recommender, training": training(
            recommender, lambda: F.binary_cross_entropy(recommender(dense, chosen), click)
        ),
        "graph network, inference": inference(lambda: graph(nodes, source, target)),
        "graph network, training": training(graph, lambda: graph(nodes, source, target).square().mean()),
        "UNet block, inference": inference(lambda: unet(noise, text)),
        "UNet block, training": training(unet, lambda: unet(noise, text).square().mean()),
        "norms and a linear layer, inference": inference(lambda: norm(rows)),
        "text encoder, inference": inference(lambda: words(sentences)),
        "transformer block bf16, training": training(
            half_trained, lambda: half_trained(tokens.bfloat16()).square().mean()
        ),
        "GPT bf16, training": training(half_gpt, lambda: F.cross_entropy(half_gpt(ids).flatten(0, 1), ids.flatten())),
        "conv net bf16, inference": inference(lambda: half_net(images.bfloat16())),
        "UNet block bf16, inference": inference(lambda: half_unet(noise.bfloat16(), text.bfloat16())),
        "MLP compiled, training": training(compiled_mlp, lambda: F.cross_entropy(compiled_mlp(digits), classes)),
        "transformer block compiled, inference": inference(lambda: compiled_block(tokens)),
        "recommender compiled, inference": inference(lambda: compiled_ranker(dense, chosen)),
    }


@dataclass(frozen=True, slots=True)
class Judged:
    """A program with its time, its estimate, the roofline and PyTorch's own estimate, in seconds."""

    name: str
    measured_s: float
    value_s: float
    lower_s: float
    upper_s: float
    roofline_s: float
    pytorch_s: float
    operators: int


def measured_s(step: Step, clock: Callable[[], float]) -> float:
    """The median time of one round by a clock."""
    times, end = [], time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < 3:
        start = clock()
        step()
        times.append(clock() - start)
    return float(np.median(times))


def main() -> None:
    """Measure, estimate, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="intel-xeon-emerald-rapids-vm-2c")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--show", action="store_true", help="print the whole answers too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.threads == 1 else time.perf_counter
    predictor, device = kernelcast.load(), catalogue().get(args.device)
    share = min(1.0, args.threads / device.required("compute_units"))
    steps = {name: step for name, step in programs().items() if args.only in name}
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(args.rounds):
        for name, step in steps.items():
            step()
            least[name] = min(least[name], measured_s(step, clock))
    rows = []
    for name, step in steps.items():
        with estimate(args.device, threads=args.threads, model=predictor) as run:
            step()
        (answer,) = run.totals.values()
        if answer.latency_s is None or answer.bound_s is None:
            raise SystemExit(f"{name} has no answer: {answer.unanswered}")
        latency, operators = answer.latency_s, len(run.recording.operations)
        bounds = (answer.bound_s, pytorch_s(step, device, share))
        rows.append(Judged(name, least[name], latency.value, latency.lower, latency.upper, *bounds, operators))
        if args.show:
            print(f"{name}: measured {least[name] * 1e3:.3f} ms\n{run}\n")
    print(
        f"{'program':38s} {'operators':>9s} {'measured':>11s} {'estimate':>11s} {'error':>7s} {'inside':>6s} {'roofline':>9s} "
        f"{'PyTorch':>8s}"
    )
    for row in rows:
        error, roofline, pytorch = (
            value / row.measured_s - 1 for value in (row.value_s, row.roofline_s, row.pytorch_s)
        )
        inside = "yes" if row.lower_s <= row.measured_s <= row.upper_s else "no"
        print(
            f"{row.name:38s} {row.operators:9d} {row.measured_s * 1e3:8.3f} ms {row.value_s * 1e3:8.3f} ms {error:+7.0%} "
            f"{inside:>6s} {roofline:+9.0%} {pytorch:+8.0%}"
        )
    errors = np.array([abs(row.value_s / row.measured_s - 1) for row in rows])
    roofline = np.array([abs(row.roofline_s / row.measured_s - 1) for row in rows])
    pytorch = np.array([abs(row.pytorch_s / row.measured_s - 1) for row in rows])
    covered = np.mean([row.lower_s <= row.measured_s <= row.upper_s for row in rows])
    print(
        f"{len(rows)} programs: mean error {errors.mean():.1%}, median {np.median(errors):.1%}, inside the 90 % interval "
        f"{covered:.0%}; roofline {roofline.mean():.1%} / {np.median(roofline):.1%}; "
        f"PyTorch's estimator {pytorch.mean():.1%} / {np.median(pytorch):.1%}"
    )


if __name__ == "__main__":
    main()
