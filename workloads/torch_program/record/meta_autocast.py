"""Autocast on the meta device, for which PyTorch has none: arguments are cast as on the host. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_LOWER = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addbmm", "baddbmm", "chain_matmul", "einsum",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention",
    "lstm", "gru", "rnn_tanh", "rnn_relu", "prelu",
})  # fmt: skip
"""Functions that run in the lower precision."""
_FULL = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "nll_loss_nd", "cross_entropy_loss", "cross_entropy",
    "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss",
    "margin_ranking_loss", "hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "ctc_loss", "avg_pool3d", "cdist", "prod", "trace",
})  # fmt: skip
"""Functions that run in fp32. Source of both: the host's lists in PyTorch's aten/src/ATen/autocast_mode.h."""


class MetaAutocast(TorchFunctionMode):
    """Casts floating tensors on the meta device where autocast is on; elsewhere PyTorch does it itself.

    Casts of parameters are made once as long as autocast stays on, as PyTorch's cache has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._casts: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function, with its arguments cast where autocast would."""
        kwargs = kwargs or {}
        if not torch.is_autocast_enabled("cpu"):
            self._casts.clear()
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _LOWER or name in _FULL:
            dtype = torch.get_autocast_dtype("cpu") if name in _LOWER else torch.float32
            args = tuple(self._cast(each, dtype) for each in args)
            kwargs = {key: self._cast(each, dtype) for key, each in kwargs.items()}
            return func(*args, **kwargs)
        if isinstance(func, FunctionType) and func.__module__ == functional.__name__:
            return self._inside(func, args, kwargs)
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._cast(each, dtype) for each in value)
        if not isinstance(value, torch.Tensor) or value.device.type != "meta" or not value.is_floating_point():
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        if not (value.is_leaf and value.requires_grad):
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self._casts:
            # The parameter is kept with its cast, so that its address is not another's.
            self._casts[key] = (value, value.to(dtype))
        return self._casts[key][1]

    def _inside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of `torch.nn.functional` that is made of others, which come here in turn.

        It would hand itself to this mode again before it starts, unless it sees no mode.
        """
        with ExitStack() as stack:
            for check in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                stack.enter_context(mock.patch.object(functional, check, return_value=False))
            stack.enter_context(self)
            return func(*args, **kwargs)
