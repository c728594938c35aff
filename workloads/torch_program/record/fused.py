"""Operators that are one kernel on GPUs, and several on this machine, by shape alone. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("kernelcast::rms_norm", mutates_args=())
def _rms_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("kernelcast::rms_norm is recorded, not run")


@_rms_norm.register_fake
def _(input: Tensor, normalized_shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = input.shape[: input.dim() - len(normalized_shape)]
    return torch.empty_like(input), input.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("kernelcast::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad_out: Tensor, input: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, output_mask: list[bool]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    raise NotImplementedError("kernelcast::rms_norm_backward is recorded, not run")


@_rms_norm_backward.register_fake
def _(
    grad_out: Tensor, input: Tensor, normalized_shape: list[int], rstd: Tensor, weight: Tensor | None, output_mask: list[bool]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(input), input.new_empty(0) if weight is None else torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensor, ctx.normalized_shape, weight = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(tensor, output[1], weight)


def _differentiate(context: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    tensor, rstd, weight = context.saved_tensors
    wanted = [context.needs_input_grad[0], context.needs_input_grad[2]]
    by_input, by_weight = _rms_norm_backward(grad_out, tensor, context.normalized_shape, rstd, weight, wanted)
    return by_input if wanted[0] else None, None, by_weight if wanted[1] else None


_rms_norm.register_autograd(_differentiate, setup_context=_keep)


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """`torch.nn.functional.rms_norm` as one operator."""
    return _rms_norm(input, list(normalized_shape), weight)[0]
