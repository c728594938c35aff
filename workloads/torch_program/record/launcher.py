"""Stands for `torchrun`, the GPU's runtime and the loaders of data around a script that is loaded without them. Needs torch."""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader
from torch.utils.data import distributed as distributed_data
from torch.utils.data import sampler as samplers

from ....features.errors import SpecError
from .recorder import Recorder
from .runtime import runtime

_SAMPLERS = (
    samplers.RandomSampler, samplers.SubsetRandomSampler, samplers.WeightedRandomSampler, distributed_data.DistributedSampler,
)  # fmt: skip
_IN_PROCESS = {
    "num_workers": 0,
    "pin_memory": False,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
}
"""Processes beside this one would take real tensors from each other."""

_SCALER_OFF = (
    "a GradScaler that is off costs nothing, and so is one made before the run on a machine without CUDA: where it is on, it "
    "passes once more over the gradients"
)

_MOST_PROCESSES = 65_536
"""A fake process group takes a list of its ranks."""


def with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose tensors are real ones: their values are read, and they are not the program's."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


@contextmanager
def launcher() -> Iterator[None]:
    """A script inside finds what its launcher and a GPU would give it.

    * The environment's `WORLD_SIZE` and `RANK` are those of `torchrun`, of one process where they are not set, and the
      process group is a fake one of that size, whatever backend is named.
    * Meshes of devices are made of real numbers, on the host.
    * The runtime of CUDA finds as many devices where there is no accelerator (`runtime.py`).
    * Loaders of data draw real indices and work in this process.

    Raises:
        SpecError: `WORLD_SIZE` or `RANK` is no such number.
    """
    with ExitStack() as stack:
        size = _whole_number("WORLD_SIZE", 1, 1, _MOST_PROCESSES)
        rank = _whole_number("RANK", 0, 0, size - 1)
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        words = {name: os.environ.get(name) or str(number) for name, number in environment.items()}
        stack.enter_context(mock.patch.dict(os.environ, words))
        if torch.distributed.is_available():
            stack.enter_context(_process_group(rank, size))
        stack.enter_context(runtime(size))
        for kind in _SAMPLERS:
            stack.enter_context(mock.patch.object(kind, "__iter__", _indices(kind.__iter__)))
        iterator, loader = dataloader._BaseDataLoaderIter, dataloader.DataLoader
        stack.enter_context(mock.patch.object(iterator, "__init__", with_real_tensors(iterator.__init__)))
        stack.enter_context(mock.patch.object(loader, "__init__", _in_process(loader.__init__)))
        yield


@contextmanager
def data_not_recorded(recorder: Recorder) -> Iterator[None]:
    """What a loader does to give the next batch is the host's, beside the program."""
    iterator = dataloader._BaseDataLoaderIter
    following = iterator.__next__

    def next_batch(self: Any) -> Any:
        before, recorder.is_paused = recorder.is_paused, True
        try:
            return following(self)
        finally:
            recorder.is_paused = before

    with mock.patch.object(iterator, "__next__", next_batch):
        yield


@contextmanager
def scalers_work(recorder: Recorder | None) -> Iterator[None]:
    """A `GradScaler` made inside scales on a machine without CUDA too, and no gradient overflows.

    One made before is off there; the recording says so, None where nothing is recorded.
    """
    kind: Any = torch.amp.grad_scaler.GradScaler
    step = kind.step

    def step_noted(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder is not None and not self.is_enabled():
            recorder.note(_SCALER_OFF)
        return step(self, optimizer, *args, **kwargs)

    def step_always(_: Any, optimizer: Any, __: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False)
        )
        stack.enter_context(mock.patch.object(kind, "step", step_noted))
        stack.enter_context(mock.patch.object(kind, "_maybe_opt_step", step_always))
        yield


def _whole_number(name: str, default: int, least: int, most: int) -> int:
    """The number in a variable of the environment.

    Raises:
        SpecError: it is none, or outside `least` to `most`.
    """
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SpecError(
            f"{name} in the environment must be a whole number from {least} to {most}, got {text!r}", field=name
        )
    return int(text)


def _indices(draw: Callable[..., Any]) -> Callable[..., Any]:
    def iterate(self: Any) -> Iterator[int]:
        with _disable_current_modes():
            return iter(list(draw(self)))

    return iterate


def _in_process(init: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(init)

    def init_in_process(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        init(**arguments | {name: value for name, value in _IN_PROCESS.items() if name in arguments})

    return init_in_process


@contextmanager
def _process_group(rank: int, size: int) -> Iterator[None]:
    from torch import distributed
    from torch.distributed import device_mesh, distributed_c10d, fsdp  # noqa: F401 - of fsdp that it is loaded
    from torch.testing._internal.distributed.fake_pg import FakeStore

    start, mesh_of = distributed_c10d.init_process_group, device_mesh.init_device_mesh

    def init_fake(*_: Any, **__: Any) -> None:
        start("fake", store=FakeStore(), rank=rank, world_size=size)

    def mesh(_: str, mesh_shape: tuple[int, ...], **kwargs: Any) -> Any:
        if (wanted := math.prod(mesh_shape)) > size:
            raise SpecError(
                f"a mesh of {wanted} devices needs as many processes, and this run has {size}: set WORLD_SIZE={wanted} in the "
                "environment, as torchrun does",
                field="WORLD_SIZE",
            )
        return with_real_tensors(mesh_of)("cpu", mesh_shape, **kwargs)

    init_wrapper = DistributedDataParallel.__init__

    signature = inspect.signature(init_wrapper)

    def wrap(*args: Any, **kwargs: Any) -> None:
        # Its reducer works on memory; `data_parallel` sums gradients instead.
        arguments = signature.bind(*args, **kwargs).arguments
        init_wrapper(**arguments | {"device_ids": None, "output_device": None, "init_sync": False})

    with ExitStack() as stack:
        for module in (distributed, distributed_c10d, device_mesh):
            stack.enter_context(mock.patch.object(module, "init_process_group", init_fake))
        # Modules that took the function over, such as that of `fully_shard` without a mesh.
        takers = [module for module in list(sys.modules.values()) if vars(module).get("init_device_mesh") is mesh_of]
        for module in takers:
            stack.enter_context(mock.patch.object(module, "init_device_mesh", mesh))
        for name, function in list(vars(device_mesh.DeviceMesh).items()):
            if inspect.isfunction(function):
                stack.enter_context(mock.patch.object(device_mesh.DeviceMesh, name, with_real_tensors(function)))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", wrap))
        stack.enter_context(mock.patch.object(DistributedDataParallel, "_ddp_init_helper"))
        before = distributed.is_initialized()
        try:
            yield
        finally:
            if not before and distributed.is_initialized():
                distributed.destroy_process_group()
