"""A training step to estimate without a GPU: `kernelcast estimate examples/train.py:step --device h100-sxm`. Needs PyTorch."""

from __future__ import annotations

import torch

layer = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 6)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(32, 512, 1024)


def step() -> None:
    """One training step in mixed precision."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
