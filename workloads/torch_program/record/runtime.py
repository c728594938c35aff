"""Stands for the runtime of a GPU that is not here: devices, streams, events, memory in use. Needs torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.nn.utils import parametrizations

from ....features.errors import SpecError
from ..operation import UnknownValueError
from .stand_ins import line
from .substitutes import UnknownNumber

_NOTHING = (
    "set_device", "set_device_index", "set_stream", "synchronize", "empty_cache", "ipc_collect", "init",
    "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats", "get_rng_state", "set_rng_state",
    "set_per_process_memory_fraction",
)  # fmt: skip
"""What arranges for a device has nothing to arrange for."""
_MEMORY = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
)  # fmt: skip
_NO_CAPTURE = (
    "captures a CUDA graph, and an estimate runs nothing that could be captured; leave the capture out and call the step "
    "itself: run.answers.savings says what a graph would save"
)
_NO_DEVICE = (
    "asks what its GPU is, and one run is priced on any number of them; leave it out, or write down what you expect"
)
_REFUSED = {
    "CUDAGraph": _NO_CAPTURE, "graph": _NO_CAPTURE, "make_graphed_callables": _NO_CAPTURE, "get_device_properties": _NO_DEVICE,
    "get_device_capability": _NO_DEVICE,
}  # fmt: skip
_WRAP_BEFORE = (
    "builds a DistributedDataParallel inside the run, whose reducer reads memory; build it before the `with` block"
)
_ONE_PROCESS = (
    "spreads one process over several GPUs (DataParallel), and one of them is priced; take the module itself, or "
    "DistributedDataParallel"
)
_NEEDS_GPU = "builds a FullyShardedDataParallel, which needs an accelerator; take fully_shard, which does not"
_EXPORTS = "exports a program, which traces it in a way of its own; export it before, and run what that gives"
_NO_NESTED = "makes a nested tensor, and only those of one size are priced; pad to the longest, or take one length"
_NEEDS_VALUES: Mapping[tuple[Any, str], str] = {
    (torch.nn.DataParallel, "__init__"): _ONE_PROCESS,
    (torch.export, "export"): _EXPORTS,
    (torch, "save"): "saves tensors, and those of an estimate hold no values; leave it out, or save outside the block",
    **{(torch.nested, name): _NO_NESTED for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged")},
}


class _LossOfRows(NamedTuple):
    """What `AdaptiveLogSoftmaxWithLoss` gives."""

    output: torch.Tensor
    loss: torch.Tensor


class Event:
    """A point of a stream. No time passes between two."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Any options are taken."""

    def record(self, _: Any = None) -> None:
        """Nothing to wait for."""

    wait = record

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Everything is done."""
        return True

    def elapsed_time(self, _: Any) -> UnknownNumber:
        """A number that can be printed, as one read of a tensor."""
        return _unknown("measures time, and none passes in an estimate; leave it out: run.totals has the time")


class Stream(nullcontext[None]):
    """A queue of work. All of a program is taken to run one after the other."""

    cuda_stream = priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Any options are taken."""
        super().__init__()

    def wait_event(self, _: Any) -> None:
        """Nothing to wait for."""

    wait_stream = wait_event

    def record_event(self, event: Event | None = None) -> Event:
        """The event, a new one where none is given."""
        return event or Event()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Everything is done."""
        return True


@contextmanager
def runtime(n_devices: int) -> Iterator[None]:
    """Calls of `torch.cuda`, `torch.xpu` and `torch.accelerator` find a device, where there is no accelerator."""
    if torch.accelerator.is_available():
        yield
        return
    move = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        words: list[Any] = [f"cuda:{word}" if type(word) is int else word for word in args]
        return move(self, *words, **kwargs)

    takes_place = {
        **dict.fromkeys(_NOTHING, _give(None)),
        **dict.fromkeys(("current_device", "current_device_index"), _give(0)),
        "device_count": _give(n_devices), "get_device_name": _give("a GPU that is not here"), "Event": Event, "Stream": Stream,
        **dict.fromkeys(("stream", "device", "device_of"), nullcontext),
        **dict.fromkeys(("current_stream", "default_stream"), Stream),
        **dict.fromkeys(_MEMORY, _memory_in_use), "mem_get_info": lambda *_: (_memory_in_use(), _memory_in_use()),
        **{name: _refuse(reason) for name, reason in _REFUSED.items()},
    }  # fmt: skip
    if not issubclass(torch.cuda.Stream, Stream):
        # A reset of Dynamo forgets its table of functions, and one made in the block would be of what stands in for them.
        torch._dynamo.trace_rules.get_torch_obj_rule_map()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", to))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _give(None)))
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            stack.enter_context(mock.patch.object(torch.cuda.nvtx, name, _give(None)))
        for module in (torch.cuda, torch.xpu, torch.accelerator):
            for name, stand_in in takes_place.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, stand_in))
        yield


@contextmanager
def triton_launches(note_launch: Callable[[str, Sequence[Any]], None]) -> Iterator[None]:
    """Kernels written in Triton are told of where they are launched, with their arguments, and neither compiled nor run."""
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:
        yield
        return

    def launcher(kernel: Any, _: Any) -> Callable[..., None]:
        function = kernel
        while hasattr(function, "fn"):
            # Tuners and heuristics wrap kernels, and those functions.
            function = function.fn
        return lambda *args, **kwargs: note_launch(f"triton.{function.__name__}", (*args, *kwargs.values()))

    with mock.patch.object(KernelInterface, "__getitem__", launcher):
        yield


_ALL_CLUSTERS = (
    "AdaptiveLogSoftmaxWithLoss is taken with every cluster for every row, the most there can be; it takes less, also less "
    "than the interval says"
)


@contextmanager
def without_values(note: Callable[[str], None]) -> Iterator[None]:
    """Functions that take what a tensor holds, or sizes that differ within one, refuse, or take the most there can be."""
    adaptive = torch.nn.AdaptiveLogSoftmaxWithLoss

    def forward(self: Any, input_: Any, target_: Any) -> Any:
        note(_ALL_CLUSTERS)
        rows = self.log_prob(input_.reshape(-1, self.in_features))
        output = rows.gather(1, target_.reshape(-1, 1)).reshape(target_.shape)
        return _LossOfRows(output, (-output).mean())

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(adaptive, "forward", forward))
        # Whether a weight has orthogonal columns already: one that does not is given them.
        stack.enter_context(mock.patch.object(parametrizations, "_is_orthogonal", _give(False)))
        for (place, name), reason in {**_NEEDS_VALUES, **_distributed()}.items():
            stack.enter_context(mock.patch.object(place, name, _refuse(reason)))
        yield


def _distributed() -> Mapping[tuple[Any, str], str]:
    """What of `torch.distributed` cannot be built inside a run; a launched file has a `DistributedDataParallel` of its own."""
    if not torch.distributed.is_available():
        return {}
    refused: dict[tuple[Any, str], str] = {}
    if not torch.accelerator.is_available():
        refused[torch.distributed.fsdp.FullyShardedDataParallel, "__init__"] = _NEEDS_GPU
    wrapper = torch.nn.parallel.DistributedDataParallel
    return refused | (
        {(wrapper, "__init__"): _WRAP_BEFORE} if wrapper.__init__.__module__ == wrapper.__module__ else {}
    )


@contextmanager
def note_threads(note: Callable[[str], None]) -> Iterator[None]:
    """Threads that the program starts run, and a note says that what they call is not recorded."""
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        note(f"the program starts threads, and what these call is not recorded: {line()}")
        start(self)

    with mock.patch.object(threading.Thread, "start", started):
        yield


def _give(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _unknown(reason: str) -> UnknownNumber:
    return UnknownNumber(UnknownValueError(f"{line()} {reason}", field="program"))


def _memory_in_use(*_: Any, **__: Any) -> UnknownNumber:
    return _unknown("asks for the memory in use, and an estimate uses none; leave it out: run.memory has the peak")


def _refuse(reason: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise SpecError(f"{line()} {reason}", field="program")

    return call
