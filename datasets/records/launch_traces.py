"""Records that are no measurements of one case: launches of kernels as a profiler saw them, and what counters counted.

They stand beside the rows of `datasets.rows.schema`, in Parquet files of their own whose columns are the fields of the
record, with where they come from in the file's metadata. SI units, missing is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...files import whole_file
from ..rows.schema import record_columns

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TRACE_FORMAT_VERSION = 1
"""Version of these records, kept in every file's metadata. History: 1, the first."""

_FACTS, _KIND, _VERSION = b"kernelcast.facts", b"kernelcast.record", b"kernelcast.trace_format"


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel of one traced pass of a model; times in seconds.

    Attributes:
        device: Catalogue name of the GPU.
        batch: Batch size of the pass.
        index: Position in the pass, from 0.
        operator: The framework's operator that the model called.
        inner: The operator that launched the kernel.
        kernel: The kernel's name.
        start_s: Start, counted from the pass's first launch.
        launch_s: Time the host spent in the launching call, until the call returned or the kernel began.
        queue_s: Time the kernel then waited for its turn.
        duration_s: Time the kernel ran.
        graph: Whether a call that launches a whole graph launched it; such a call is counted for the graph's first kernel.
    """

    device: str
    batch: int
    index: int
    operator: str
    inner: str
    kernel: str
    start_s: float
    launch_s: float
    queue_s: float
    duration_s: float
    graph: bool = False


@dataclass(frozen=True, slots=True)
class LaunchSummary:
    """One traced pass at one batch size; times in seconds.

    Attributes:
        device: Catalogue name of the GPU.
        batch: Batch size of the pass.
        kernels: Kernels launched.
        launch_s: Sum of the launch times.
        queue_s: Sum of the queue times.
        tklqt_s: Total kernel launch and queue time.
        busy_s: Sum of the kernels' durations.
        span_s: From the first launch to the end of the last kernel.
        unmatched: Kernels whose launch the trace does not show.
        bound: `host` where the GPU waits for launches, `gpu` where launches wait for the GPU.
    """

    device: str
    batch: int
    kernels: int
    launch_s: float
    queue_s: float
    tklqt_s: float
    busy_s: float
    span_s: float
    unmatched: int
    bound: str


@dataclass(frozen=True, slots=True)
class CountedCase:
    """What hardware counters counted over all kernels of one call of a case, beside the family's analytic counts.

    Utilisations are shares of the peak, weighted by the kernels' times. None is a value that no counter gives.

    Attributes:
        device: Catalogue name of the GPU.
        family: Kernel family.
        case_id: Identity of the case.
        spec: The case as text.
        status: `ok`, or why there are no counts, as in `datasets.rows.schema`.
        kernels: Kernels of the call.
        time_s: Sum of their times, in seconds.
        dram_read_b: Bytes read from memory.
        dram_write_b: Bytes written to memory.
        l2_b: Bytes through L2.
        flops: Floating-point operations that counters see.
        tensor_utilisation: Utilisation of the tensor units, 0 to 1.
        sm_utilisation: Utilisation of the multiprocessors, 0 to 1.
        paper_b: Bytes by the family's formula.
        paper_flops: Floating-point operations by the family's formula.
        message: Why there are no counts.
    """

    device: str
    family: str
    case_id: str
    spec: str
    status: str
    kernels: int = 0
    time_s: float | None = None
    dram_read_b: float | None = None
    dram_write_b: float | None = None
    l2_b: float | None = None
    flops: float | None = None
    tensor_utilisation: float | None = None
    sm_utilisation: float | None = None
    paper_b: float | None = None
    paper_flops: float | None = None
    message: str | None = None

    @property
    def dram_b(self) -> float | None:
        """Bytes to and from memory."""
        if self.dram_read_b is None or self.dram_write_b is None:
            return None
        return self.dram_read_b + self.dram_write_b

    @property
    def traffic_ratio(self) -> float | None:
        """Bytes to and from memory over those on paper."""
        return None if self.dram_b is None or not self.paper_b else self.dram_b / self.paper_b

    @property
    def flops_ratio(self) -> float | None:
        """Flops counted over those on paper."""
        return None if self.flops is None or not self.paper_flops else self.flops / self.paper_flops


def write_records(
    records: Sequence[DataclassInstance], kind: type[DataclassInstance], path: Path, facts: Mapping[str, Any]
) -> None:
    """Write records of one kind to a Parquet file, whole or not at all; `facts` is plain JSON about where they come from.

    Raises:
        OSError: it cannot be written.
    """
    note = {_FACTS: json.dumps(dict(facts)), _KIND: kind.__name__, _VERSION: str(TRACE_FORMAT_VERSION)}
    table = pa.Table.from_pylist(list(map(asdict, records)), pa.schema(record_columns(kind), note))
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
