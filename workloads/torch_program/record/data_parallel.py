"""Data parallelism under fake tensors: gradients summed in buckets, gathered parameters that come and go. Needs torch."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel

from .recorder import Recorder

_PROPAGATE = "_propagate_tensor_meta_non_cached"


class _Buckets:
    """Gradients of the parameters of one wrapped module that wait to be summed.

    The buckets stay from step to step: as much memory again as gradients, unless these are views of their buckets.
    """

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self._group = wrapper.process_group
        self._most_b = wrapper.bucket_bytes_cap
        self._waiting: dict[tuple[torch.dtype, torch.device], int] = {}
        self._left = 0
        self._parameters = [each for each in wrapper.module.parameters() if each.requires_grad]
        self._memory: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        if not wrapper.gradient_as_bucket_view:
            sizes: Counter[tuple[torch.dtype, torch.device]] = Counter()
            for each in self._parameters:
                sizes[each.dtype, each.device] += each.numel()
            self._memory = {kind: torch.empty(n, dtype=kind[0], device=kind[1]) for kind, n in sizes.items()}

    def start(self) -> list[Any]:
        """Wait for the gradients of one backward; returns the hooks that do."""
        self._left = len(self._parameters)
        return [each.register_post_accumulate_grad_hook(self._add) for each in self._parameters]

    def _add(self, parameter: torch.Tensor) -> None:
        kind = (parameter.dtype, parameter.device)
        self._left -= 1
        self._waiting[kind] = self._waiting.get(kind, 0) + parameter.numel()
        for each, numel in list(self._waiting.items()):
            if numel and (not self._left or numel * each[0].itemsize >= self._most_b):
                self._waiting[each] = 0
                memory = self._memory.get(each)
                bucket = torch.empty(numel, dtype=each[0], device=each[1]) if memory is None else memory[:numel]
                torch.distributed.all_reduce(bucket, group=self._group)


@contextmanager
def resized_storages(recorder: Recorder) -> Iterator[None]:
    """`fully_shard` frees and fills gathered parameters in place: the recorder is told of it."""
    resize = torch.UntypedStorage.resize_

    def followed(self: torch.UntypedStorage, size: int) -> Any:
        recorder.resized(self)
        return resize(self, size)

    with mock.patch.object(torch.UntypedStorage, "resize_", followed):
        yield


@contextmanager
def without_propagation(recorder: Recorder) -> Iterator[None]:
    """A DTensor finds the shape of a result by calling the operator on its whole shape, which is no work: not recorded."""
    module = sys.modules.get("torch.distributed.tensor._sharding_prop")
    propagator = getattr(module, "ShardingPropagator", None)
    if not hasattr(propagator, _PROPAGATE):
        yield
        return
    propagate = getattr(propagator, _PROPAGATE)

    def paused(self: Any, *args: Any) -> Any:
        before, recorder.is_paused = recorder.is_paused, True
        try:
            return propagate(self, *args)
        finally:
            recorder.is_paused = before

    with mock.patch.object(propagator, _PROPAGATE, paused):
        yield


@contextmanager
def data_parallel() -> Iterator[None]:
    """`DistributedDataParallel` sums gradients bucket by bucket, as its reducer does with real ones.

    The reducer itself, which is C++ and works on memory, is left alone: it ignores gradients of a forward it did not see.
    """
    buckets: dict[int, _Buckets] = {}
    hooks: list[Any] = []

    def forward(self: DistributedDataParallel, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            if id(self) not in buckets:
                buckets[id(self)] = _Buckets(self)
            while hooks:
                hooks.pop().remove()
            hooks.extend(buckets[id(self)].start())
        return self.module(*inputs, **options)

    with mock.patch.object(DistributedDataParallel, "forward", forward):
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
