"""Functions that a device runs as one kernel and the host as many: attention, norms, recurrent layers. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import flex_attention
from torch.nn.modules import transformer
from torch.utils._python_dispatch import _disable_current_modes

from .value_sizes import sizes_of, unpacked

_PLAIN_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_PLAIN_DROPOUT = torch.nn.functional.dropout
_FUSED_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_EFFICIENT_ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention
_LSTM = 2
_PLAIN_LAYERS: Mapping[int, Callable[..., Any]] = {
    0: torch._VF.rnn_relu,
    1: torch._VF.rnn_tanh,
    _LSTM: torch._VF.lstm,
    3: torch._VF.gru,
}
"""By the number that PyTorch has for their kind. LSTM's layers are one operator on the host as well, unless packed."""

_CAUSAL = "_kernelcast_is_causal"
"""Attribute of a mask that PyTorch made as the causal one."""


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention as the kernel that PyTorch takes on a GPU (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).

    Values of another size than keys, and masks with gradients, are of the memory-efficient kernel alone.
    """
    cuda: Any = torch.backends.cuda
    plain = query.dim() != 4
    if (attn_mask is not None and attn_mask.requires_grad) or query.shape[-1] != value.shape[-1]:
        if plain or not cuda.mem_efficient_sdp_enabled() or query.shape[1] != key.shape[1]:
            return _PLAIN_ATTENTION(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        mask = attn_mask
        if mask is not None:
            mask = mask.expand(*query.shape[:-1], key.shape[-2])
        trains = any(tensor.requires_grad for tensor in (query, key, value))
        return _EFFICIENT_ATTENTION(query, key, value, mask, trains, 0.0, is_causal, scale=scale)[0]
    if plain or not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled()):
        return _PLAIN_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return _FUSED_ATTENTION(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: tuple[Any, ...], *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """FlexAttention as the one kernel that it is compiled to, with the share of blocks that its mask leaves."""
    result, sums = _flex(query, key, value, _share_of_blocks(block_mask))
    return result, sums, sums


def _share_of_blocks(block_mask: tuple[Any, ...]) -> float:
    """The share of blocks of queries and keys that a mask leaves; 1 where it was made of fake tensors, which have no values."""
    lists = [tensor for tensor in (block_mask[2], block_mask[4]) if tensor is not None]
    if any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in lists):
        return 1.0
    with _disable_current_modes():
        left = sum(int(tensor.sum().item()) for tensor in lists)
    return min(1.0, left / max(1, int(block_mask[3].numel())))


@torch.library.custom_op("kernelcast::flex_attention", mutates_args=())
def _flex(query: Tensor, key: Tensor, value: Tensor, share: float) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("kernelcast::flex_attention is recorded, not run")


@_flex.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, share: float) -> tuple[Tensor, Tensor]:
    return query.new_empty((*query.shape[:-1], value.shape[-1])), query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("kernelcast::flex_attention_backward", mutates_args=())
def _flex_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    raise NotImplementedError("kernelcast::flex_attention_backward is recorded, not run")


@_flex_backward.register_fake
def _(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, share: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep_flex(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.share = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate_flex(context: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return (*_flex_backward(grad_out, *context.saved_tensors, context.share), None)


_flex.register_autograd(_differentiate_flex, setup_context=_keep_flex)


@torch.library.custom_op("kernelcast::recurrent_layer", mutates_args=())
def _layer(
    input: Tensor, hidden: Tensor, weights: list[Tensor], mode: int, hidden_size: int, batch_sizes: list[int]
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("kernelcast::recurrent_layer is recorded, not run")


@_layer.register_fake
def _(
    input: Tensor, hidden: Tensor, weights: list[Tensor], mode: int, hidden_size: int, batch_sizes: list[int]
) -> tuple[Tensor, Tensor]:
    return input.new_empty((*input.shape[:-1], hidden_size)), torch.empty_like(hidden)


@torch.library.custom_op("kernelcast::recurrent_layer_backward", mutates_args=())
def _layer_backward(
    grad_out: Tensor, input: Tensor, hidden: Tensor, output: Tensor, weights: list[Tensor], mode: int, hidden_size: int,
    batch_sizes: list[int],
) -> list[Tensor]:  # fmt: skip
    raise NotImplementedError("kernelcast::recurrent_layer_backward is recorded, not run")


@_layer_backward.register_fake
def _(
    grad_out: Tensor, input: Tensor, hidden: Tensor, output: Tensor, weights: list[Tensor], mode: int, hidden_size: int,
    batch_sizes: list[int],
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(tensor) for tensor in (input, hidden, *weights)]


def _keep_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensor, hidden, weights, *ctx.sizes = inputs
    ctx.save_for_backward(tensor, hidden, output[0], *weights)


def _differentiate_layer(context: Any, grad_out: Tensor, _: Tensor) -> tuple[Any, ...]:
    tensor, hidden, output, *weights = context.saved_tensors
    grads = _layer_backward(grad_out, tensor, hidden, output, weights, *context.sizes)
    # An empty list counts as one of tensors.
    return grads[0], grads[1], grads[2:], None, None, None if context.sizes[-1] else []


_layer.register_autograd(_differentiate_layer, setup_context=_keep_layer)


def _recurrent(mode: int) -> Callable[..., Any]:
    """GRU, plain RNN or an LSTM of packed sequences as cuDNN runs it: for each layer and direction all inputs at once, then
    step by step.
    """
    plain = _PLAIN_LAYERS[mode]

    def run(x: Tensor, *arguments: Any) -> Any:
        is_packed, rest, batch_sizes = not isinstance(arguments[2], bool), arguments, list[int]()
        if is_packed:
            batch_sizes, rest = sizes_of(arguments[0]), (*arguments[1:], False)
        hidden, weights, has_biases, layers, dropout, train, both_ways, batch_first = rest
        start = hidden[0] if mode == _LSTM else hidden
        each, ways = (4 if has_biases else 2), (2 if both_ways else 1)
        if mode == _LSTM and (not is_packed or len(weights) != each * ways * layers):
            return plain(x, *arguments)
        x = x.transpose(0, 1) if batch_first else x
        ends = []
        for layer in range(layers):
            outputs = []
            for at in range(layer * ways, layer * ways + ways):
                parameters = list(weights[at * each : at * each + each])
                output, end = _layer(x, start[at], parameters, mode, start.shape[-1], batch_sizes)
                outputs.append(output)
                ends.append(end)
            x = torch.cat(outputs, -1) if both_ways else outputs[0]
            if dropout and train and layer < layers - 1:
                x = _dropout(x, dropout, train)
        last = torch.stack(ends)
        # The cells of an LSTM have the same size.
        states = (last, last.view_as(last)) if mode == _LSTM else (last,)
        return x.transpose(0, 1) if batch_first else x, *states

    return run


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout as GPUs run it (`is_fused_kernel_acceptable` in aten/src/ATen/native/Dropout.cpp)."""
    if not training or not 0 < p < 1 or inplace or not input.numel():
        return _PLAIN_DROPOUT(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """PyTorch's own layers call attention and dropout out of reach of function modes; they find the fused ones here.
    FlexAttention has a backward, as on GPUs.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", attention))
        stack.enter_context(mock.patch.object(torch.nn.functional, "dropout", _dropout))
        stack.enter_context(mock.patch.object(flex_attention, "_validate_device"))
        yield


@contextmanager
def causal_masks() -> Iterator[None]:
    """`torch.nn.Transformer` compares a mask with the causal one: of fake tensors, whether PyTorch made it as such."""
    make, detect = transformer._generate_square_subsequent_mask, transformer._detect_is_causal_mask

    def make_noted(*args: Any, **kwargs: Any) -> Any:
        mask = make(*args, **kwargs)
        setattr(mask, _CAUSAL, True)
        return mask

    def detect_noted(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or mask is None:
            return is_causal is True
        if not isinstance(mask, FakeTensor) and not mask.is_meta:
            with _disable_current_modes():
                return detect(mask, is_causal, size)
        return hasattr(mask, _CAUSAL) and size in (None, mask.shape[-1])

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(transformer, "_generate_square_subsequent_mask", make_noted))
        stack.enter_context(mock.patch.object(transformer, "_detect_is_causal_mask", detect_noted))
        yield


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


def _alignments(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of CTC with lengths in tensors, as which they may be read."""

    def run(
        log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any, **named: Any
    ) -> Any:
        lengths = (torch.as_tensor(each) for each in (input_lengths, target_lengths))
        return plain(log_probs, targets, *lengths, *rest, **named)

    return run


def _one_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """`torch.nn.functional.rms_norm` as one operator."""
    return _rms_norm(input, list(normalized_shape), weight)[0]


FUSED: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.rms_norm: _one_norm, torch.rms_norm: _one_norm, torch._VF._pad_packed_sequence: unpacked,
    torch.ops.higher_order.flex_attention: _flex_attention,
    **{plain: _alignments(plain) for plain in (torch.ctc_loss, torch.nn.functional.ctc_loss)},
}  # fmt: skip
"""What is one kernel on GPUs, and was measured as one on CPUs; and what reads values itself."""

FUSED_ON_GPUS: Mapping[Any, Callable[..., Any]] = {
    _PLAIN_ATTENTION: attention,
    _PLAIN_DROPOUT: _dropout,
    torch.dropout: _dropout,
    **{plain: _recurrent(mode) for mode, plain in _PLAIN_LAYERS.items()},
}
"""What is one on GPUs alone."""
