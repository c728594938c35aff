"""26 small PyTorch programs of many kinds, each a step to run, in the sizes of a CPU and in sizes that keep a GPU busy.

A program is built on the device in force (`with torch.device(...)`) and runs outside that context: there an optimiser would put
the counts of its steps on the device too, which it then waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

Step = Callable[[], object]
Times = Callable[[int], int]
"""A factor in large programs, 1 in small ones."""


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


def conv_net(wider: int = 1) -> nn.Sequential:
    """A small ResNet-like stem and head."""
    few, some, many = 32 * wider, 64 * wider, 128 * wider
    return nn.Sequential(
        nn.Conv2d(3, few, 3, padding=1), nn.BatchNorm2d(few), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(few, some, 3, padding=1),
        nn.BatchNorm2d(some), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(some, many, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(many, 10),
    )  # fmt: skip


def mlp_step(x: Times, *, train: bool, compiled: bool = False) -> Step:
    """Digits to classes."""
    width = 1024 * x(4)
    first, second = (nn.GELU(), nn.SiLU()) if compiled else (nn.ReLU(), nn.ReLU())
    layers = nn.Linear(784, width), first, nn.Linear(width, width), second, nn.Linear(width, 10)
    model: Any = nn.Sequential(*layers)
    if compiled:
        model = torch.compile(model)
    digits, classes = torch.randn(128 * x(64), 784), torch.randint(0, 10, (128 * x(64),))
    return _step(model, lambda: model(digits), lambda y: F.cross_entropy(y, classes), train=train)


def tiny_step(x: Times) -> Step:
    """Training of a very small MLP."""
    model = nn.Sequential(nn.Linear(32 * x(16), 64 * x(16)), nn.Tanh(), nn.Linear(64 * x(16), 8 * x(16)))
    few = torch.randn(4 * x(16384), 32 * x(16))
    return _step(model, lambda: model(few), mean_square, train=True)


def conv_step(x: Times, *, train: bool, half: bool = False) -> Step:
    """Images to classes."""
    model = _in_format(conv_net(x(2)), half=half)
    images, labels = torch.randn(16 * x(256), 3, 32, 32), torch.randint(0, 10, (16 * x(256),))
    return _step(model, lambda: model(_cast(images, half=half)), lambda y: F.cross_entropy(y, labels), train=train)


def block_step(x: Times, *, train: bool, half: bool = False, compiled: bool = False) -> Step:
    """A causal transformer block."""
    model: Any = _in_format(Block(512 * x(4), 8 * x(4), causal=True), half=half)
    if compiled:
        model = torch.compile(model)
    tokens = torch.randn(2 * x(8 if half else 2), 256 * x(4), 512 * x(4))
    return _step(model, lambda: model(_cast(tokens, half=half)), mean_square, train=train)


def vision_step(x: Times) -> Step:
    """A transformer block over the patches of images."""
    model, patches = Block(384 * x(4), 6 * x(4), causal=False), torch.randn(4 * x(8), 197, 384 * x(4))
    return inference(lambda: model(patches))


def gpt_step(x: Times, *, half: bool = False) -> Step:
    """Training of a GPT."""
    words = 8000 * x(4)
    model = _in_format(Gpt(words, 256 * x(4), 4 * x(4), 4, 128 * x(4)), half=half)
    ids = torch.randint(0, words, (4 * x(4 if half else 1), 128 * x(4)))
    return _step(model, lambda: model(ids), lambda y: F.cross_entropy(y.flatten(0, 1), ids.flatten()), train=True)


def token_step(x: Times) -> Step:
    """One token through a GPT."""
    model, word = Gpt(8000 * x(4), 512 * x(8), 8 * x(8), 4 * x(3), 256), torch.randint(0, 8000 * x(4), (1, 1))
    return inference(lambda: model(word))


def recommender_step(x: Times, *, train: bool, compiled: bool = False) -> Step:
    """Clicks from numbers and categories."""
    rows, samples = 20000 * x(4), 256 * x(128)
    model: Any = Recommender(8, rows, 32 * x(8))
    if compiled:
        model = torch.compile(model)
    dense, chosen = torch.randn(samples, 13), torch.randint(0, rows, (samples, 8))
    click = torch.rand(samples, 1).round()
    return _step(model, lambda: model(dense, chosen), lambda y: F.binary_cross_entropy(y, click), train=train)


def graph_step(x: Times, *, train: bool) -> Step:
    """States of a graph's nodes."""
    model, nodes = Graph(64 * x(4)), torch.randn(4000 * x(64), 64 * x(4))
    source, target = torch.randint(0, 4000 * x(64), (2, 20000 * x(64)))
    return _step(model, lambda: model(nodes, source, target), mean_square, train=train)


def unet_step(x: Times, *, train: bool, half: bool = False) -> Step:
    """A block of a diffusion model."""
    model = _in_format(UnetBlock(64 * x(4), 256 * x(4)), half=half)
    noise, text = torch.randn(2 * x(16), 64 * x(4), 32 * x(2), 32 * x(2)), torch.randn(2 * x(16), 77, 256 * x(4))
    return _step(model, lambda: model(_cast(noise, half=half), _cast(text, half=half)), mean_square, train=train)


def norms_step(x: Times) -> Step:
    """Two kinds of norms around a linear layer."""
    width = 1024 * x(4)
    model = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width))
    rows = torch.randn(512 * x(16), width)
    return inference(lambda: model(rows))


def encoder_step(x: Times) -> Step:
    """Sentences through four transformer blocks."""
    width = 384 * x(4)
    blocks = (Block(width, 6 * x(4), causal=False) for _ in range(4))
    model, sentences = nn.Sequential(nn.Embedding(8000, width), *blocks), torch.randint(0, 8000, (4 * x(4), 128))
    return inference(lambda: model(sentences))


def mean_square(y: torch.Tensor) -> torch.Tensor:
    """A loss without labels."""
    return y.square().mean()


def _step(
    model: nn.Module, call: Callable[[], torch.Tensor], loss: Callable[[torch.Tensor], torch.Tensor], *, train: bool
) -> Step:
    return training(model, lambda: loss(call())) if train else inference(call)


def _in_format(model: nn.Module, *, half: bool) -> nn.Module:
    return model.bfloat16() if half else model


def _cast(x: torch.Tensor, *, half: bool) -> torch.Tensor:
    return x.bfloat16() if half else x


def programs(*, large: bool = False) -> Mapping[str, Callable[[], Step]]:
    """What builds each program, by its name: with its own weights and data, drawn from one seed. Compiled ones come last.

    Args:
        large: in sizes with which a step keeps an H200 busy for 2 to 30 ms.
    """

    def x(factor: int) -> int:
        return factor if large else 1

    builders: Mapping[str, Callable[[], Step]] = {
        "MLP, inference": partial(mlp_step, x, train=False),
        "MLP, training": partial(mlp_step, x, train=True),
        "tiny MLP, training": partial(tiny_step, x),
        "conv net, inference": partial(conv_step, x, train=False),
        "conv net, training": partial(conv_step, x, train=True),
        "transformer block, inference": partial(block_step, x, train=False),
        "transformer block, training": partial(block_step, x, train=True),
        "transformer block bf16, inference": partial(block_step, x, train=False, half=True),
        "vision block, not causal, inference": partial(vision_step, x),
        "GPT, training": partial(gpt_step, x),
        "GPT, one token": partial(token_step, x),
        "recommender, inference": partial(recommender_step, x, train=False),
        "recommender, training": partial(recommender_step, x, train=True),
        "graph network, inference": partial(graph_step, x, train=False),
        "graph network, training": partial(graph_step, x, train=True),
        "UNet block, inference": partial(unet_step, x, train=False),
        "UNet block, training": partial(unet_step, x, train=True),
        "norms and a linear layer, inference": partial(norms_step, x),
        "text encoder, inference": partial(encoder_step, x),
        "transformer block bf16, training": partial(block_step, x, train=True, half=True),
        "GPT bf16, training": partial(gpt_step, x, half=True),
        "conv net bf16, inference": partial(conv_step, x, train=False, half=True),
        "UNet block bf16, inference": partial(unet_step, x, train=False, half=True),
        "MLP compiled, training": partial(mlp_step, x, train=True, compiled=True),
        "transformer block compiled, inference": partial(block_step, x, train=False, compiled=True),
        "recommender compiled, inference": partial(recommender_step, x, train=False, compiled=True),
    }
    return {name: partial(_seeded, build) for name, build in builders.items()}


def _seeded(build: Callable[[], Step]) -> Step:
    torch.manual_seed(0)
    return build()


def is_compiled(name: str) -> bool:
    """Whether a program is compiled by `torch.compile`."""
    return " compiled" in name


def is_training(name: str) -> bool:
    """Whether a program's step trains; the others compute without gradients."""
    return name.endswith(", training")
