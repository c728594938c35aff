"""What is written down of a collective beside its tensors: how many ranks take part, and whether kernels run meanwhile.

Needs torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

_OWN_STREAM = (
    str(Path(torch.__file__).parent / "distributed" / "fsdp"),
    str(Path(__file__).with_name("data_parallel.py")),
)
"""Where `fully_shard`, `FullyShardedDataParallel` and `DistributedDataParallel` communicate in a stream of their own."""


def of_collective(func: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a collective with the number of processes of its group as `ranks`, and whether it `overlaps` with kernels;
    of other operators as they are.
    """
    if not func.namespace.startswith(("c10d", "_c10d")):
        return arguments
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
