"""What is written down of a call beside its tensors: its arguments by name, of a collective also its ranks. Needs torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..operation import TensorInfo

_OWN_STREAM = (
    str(Path(torch.__file__).parent / "distributed" / "fsdp"),
    str(Path(__file__).with_name("data_parallel.py")),
)
"""Where `fully_shard`, `FullyShardedDataParallel` and `DistributedDataParallel` communicate in a stream of their own."""


def named_arguments(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: Mapping[int, TensorInfo]
) -> dict[str, Any]:
    """The arguments of a call by the names of the schema, tensors as what is written down of them (`inputs`, by address)."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(plain(item) for item in value)
        return inputs[id(value)] if isinstance(value, torch.Tensor) else value

    named = {name: plain(value) for name, value in [*zip(_names(func), args, strict=False), *kwargs.items()]}
    return _of_collective(named) if func.namespace.startswith(("c10d", "_c10d")) else named


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments)


def _of_collective(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a collective with the processes of its group as `ranks`, and whether it `overlaps` with kernels."""
    arguments = arguments | {"overlaps": _is_of_data_parallelism()}
    if "group_size" in arguments:
        return arguments | {"ranks": int(arguments["group_size"])}
    if "group_name" in arguments:
        group = torch._C._distributed_c10d._resolve_process_group(arguments["group_name"])
        return arguments | {"ranks": group.size()}
    if "process_group" in arguments:
        return arguments | {"ranks": torch.distributed.ProcessGroup.unbox(arguments["process_group"]).size()}
    return arguments


def _is_of_data_parallelism() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN_STREAM):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
