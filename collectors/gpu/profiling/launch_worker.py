"""The child process that traces a model's launches: a stack of GPT-2-like blocks under torch.profiler, a trace per batch.

Lines are JSON objects. The parent asks `{"batches": [...], "folder": path}`; the child sends `{"ready": {...}}` once; for every
batch `{"at": batch}` and then `{"trace": path, "batch": batch}` or `{"failed": why, "batch": batch}`; and `{"done": true}`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ....process import die_with_parent, private_stdout, send
from ..characterize.probes import reason
from ..measure.torch_gpu import enter_inference, need_cuda
from .launch_trace import ANNOTATION

_WARM_UPS = 5
_PASSES = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """The traced model: GPT-2 small's sizes (Radford et al., 2019).

    Attributes:
        hidden: Width.
        heads: Heads.
        layers: Depth.
        tokens: Tokens of a sequence.
    """

    hidden: int = 768
    heads: int = 12
    layers: int = 12
    tokens: int = 128


class Blocks:
    """Pre-norm transformer blocks with random weights, without a class of modules around them: operators alone."""

    def __init__(self, torch: Any, shape: Shape, device: str, dtype: Any) -> None:
        self._torch, self._shape = torch, shape
        width = shape.hidden
        generator = torch.Generator(device).manual_seed(1)

        def weights(*size: int) -> Any:
            return torch.randn(size, generator=generator, device=device, dtype=dtype) / size[-1] ** 0.5

        self._layers = [
            {"qkv": weights(3 * width, width), "out": weights(width, width), "up": weights(4 * width, width),
             "down": weights(width, 4 * width), "norm1": weights(width), "norm2": weights(width)}
            for _ in range(shape.layers)
        ]  # fmt: skip

    def __call__(self, x: Any) -> Any:
        """One pass over `x`, shape `(batch, tokens, hidden)`."""
        for layer in self._layers:
            x = self._block(layer, x)
        return x

    def _block(self, layer: dict[str, Any], x: Any) -> Any:
        functional, shape = self._torch.nn.functional, self._shape
        batch, width = x.shape[0], shape.hidden
        normed = functional.layer_norm(x, (width,), layer["norm1"])
        qkv = functional.linear(normed, layer["qkv"]).view(batch, -1, 3, shape.heads, width // shape.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.linear(attended.transpose(1, 2).reshape(batch, -1, width), layer["out"])
        normed = functional.layer_norm(x, (width,), layer["norm2"])
        return x + functional.linear(functional.gelu(functional.linear(normed, layer["up"])), layer["down"])


def main(argv: list[str]) -> None:
    """Trace on the GPU whose number is `argv[1]`, until the parent closes the pipe."""
    die_with_parent()
    replies = private_stdout()
    import torch

    need_cuda(torch)
    torch.cuda.set_device(int(argv[1]))
    enter_inference(torch)
    shape = Shape()
    model = Blocks(torch, shape, "cuda", torch.bfloat16)
    facts = {"gpu": torch.cuda.get_device_name(), "torch": version("torch"), "cuda": str(torch.version.cuda)}
    send(replies, {"ready": facts})
    for line in sys.stdin:
        request = json.loads(line)
        for batch in request["batches"]:
            send(replies, {"at": batch})
            path = Path(request["folder"]) / f"batch-{batch}.json"
            try:
                x = torch.randn(batch, shape.tokens, shape.hidden, device="cuda", dtype=torch.bfloat16)
                trace(torch, lambda x=x: model(x), path, torch.cuda.synchronize)
            except Exception as error:  # noqa: BLE001  a batch too large for the memory ends that batch alone
                send(replies, {"failed": reason(error), "batch": batch})
            else:
                send(replies, {"trace": str(path), "batch": batch})
        send(replies, {"done": True})


def trace(torch: Any, one_pass: Any, path: Path, synchronize: Any) -> None:
    """Profile passes one by one, the device idle before each, and export the trace."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    for _ in range(_WARM_UPS):
        one_pass()
    synchronize()
    with profile(activities=activities) as profiler:
        # The first pass under a profiler pays for its buffers.
        one_pass()
        synchronize()
        for _ in range(_PASSES):
            with record_function(ANNOTATION):
                one_pass()
            synchronize()
    profiler.export_chrome_trace(str(path))


if __name__ == "__main__":
    main(sys.argv)
