"""Communication between devices, and with the host, as what goes over links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ....features.device import Device
from ...serving.engine.collectives import most_ranks
from ..operation import Operation, TensorInfo
from .kernel_use import ALIKE, BETWEEN_MACHINES, HOST, Exchange, Uses, by_bytes, host_link_b_per_s, small_kernels

_EXCHANGES: Mapping[str, str] = {
    "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce", "all_reduce": "all_reduce", "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce", "all_reduce_coalesced_": "all_reduce", "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather", "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "broadcast_": "send", "broadcast": "send", "send": "send", "recv_": "send", "reduce_": "send",
    "allgather_": "all_gather", "gather_": "all_gather", "reduce_scatter_": "reduce_scatter", "scatter_": "reduce_scatter",
    "alltoall_": "all_to_all", "barrier": "all_reduce",
}  # fmt: skip
"""By operator of `c10d` and `_c10d_functional`, what is done. A broadcast, or a sum on one rank, moves each byte once over a
link: a send. A rank that gathers or scatters alone has as much on its link as each has where all do."""

_SENT = ("input_tensors", "input_tensor", "inputs", "input")
"""Arguments that say what a rank sends; where there is none of these, it is all tensors."""


def collective(operation: Operation, kind: str) -> Uses:
    """Communication between devices: by its law where the group's size and the links are known, else what memory moves. A group
    of one copies what is not in place.
    """
    ranks: Any = operation.arguments.get("ranks")
    if ranks == 1:
        is_new = {tensor.storage for tensor in operation.outputs} - {tensor.storage for tensor in operation.inputs}
        return by_bytes(operation, kind, widening=ALIKE) if is_new else []
    uses = by_bytes(operation, kind, widening=100.0)
    done = _EXCHANGES.get(operation.name.partition(".")[2])
    if done is None or not isinstance(ranks, int) or ranks < 2 or not uses:
        return uses
    named = operation.arguments
    sent = next((named[name] for name in _SENT if name in named), operation.inputs)
    size_b = sum(tensor.nbytes for tensor in _tensors(sent))
    exchange = Exchange(done, ranks, size_b, bool(operation.arguments.get("overlaps")))
    return [replace(use, exchange=exchange) for use in uses]


def host_copy(operation: Operation, kind: str) -> Uses:
    """A copy between host and device, over the link between them. A CPU is its own host, and has next to nothing to do."""
    if kind == "cpu":
        return small_kernels(1.0, "a copy that a CPU does not need")
    uses = by_bytes(operation, kind, widening=ALIKE)
    return [replace(use, exchange=Exchange(HOST, 1, operation.bytes_in), stand_in="") for use in uses]


def link_notes(exchanges: Iterable[Exchange], device: Device) -> Iterator[str]:
    """What to know of the times of a program's exchanges on a device."""
    exchanges = tuple(exchanges)
    ranks = max((exchange.ranks for exchange in exchanges), default=1)
    if ranks > 1:
        yield (
            f"collectives of up to {ranks} devices of one machine take NCCL's times; those of DDP and FSDP run beside the "
            "kernels of their pass, but for one of each pass, others one after the other with kernels"
        )
    if ranks > most_ranks(device):
        yield (
            f"{ranks} devices are more than one machine's {most_ranks(device)}: taken as in one machine, networks between "
            f"machines take up to {BETWEEN_MACHINES:g} times as long"
        )
    if any(exchange.kind == HOST for exchange in exchanges):
        is_known = host_link_b_per_s(device) is not None
        yield (
            "copies between host and device run one after the other with kernels, over "
            f"{'PCI Express' if is_known else 'a link of which nothing is known, taken as PCI Express 4.0'}; the least is from "
            "pinned memory, the most from memory that the system may move"
        )


def _tensors(value: Any) -> Iterator[TensorInfo]:
    """A tensor, or those of a list or of lists for each device of the process."""
    if isinstance(value, TensorInfo):
        yield value
    else:
        for each in value:
            yield from _tensors(each)
