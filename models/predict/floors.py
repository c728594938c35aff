"""Times below which no answer of a category falls, beside the bounds on paper: of its calls, its bytes, and the block of a row.

A LayerNorm's row is the work of one block of threads, whatever else the GPU has to do. Tables with rows of up to some thousand
columns do not show it: 16 rows of four million (KernelBench, six GPUs) take up to five times as long as was said.
"""

from __future__ import annotations

import math

import numpy as np

from ...features.batch.cases import Cases, Floats
from ...features.cost.bounds import Work
from ...features.cost.device_limits import call_floor_s
from ...features.vector.extract import CategoryFeatures
from ..family_model.device_transfer import STREAM_SHARES

_ROWS_OF_BLOCKS = ("layernorm", "layernorm")
"""The family and variant whose rows are a block's."""
_COLUMNS_PER_CLOCK = 0.46
"""Most columns of a row that a block normalises in a clock: 0.28 to 0.46 in the seven LayerNorms of at most 108 rows and at
least 12,928 columns on kernelcast's own H200, in fp32, bf16 and fp16."""


def log_call_s(features: CategoryFeatures, is_seen: bool) -> float:
    """Ln of the least time of the category's calls that its device file says, -inf where it says none.

    What launches a call is the host's business, and no other device tells it: vLLM's block-scaled fp8 products take at least
    50 µs beside an H200's host, 150 beside a B200's, 257 beside a Grace. Where the like was measured on the device (`is_seen`),
    rows say it.
    """
    read = features.read
    if read.timing != "call" or is_seen:
        return -math.inf
    floor_s = call_floor_s(features.device, read.impl, read.dtype)
    return math.log(floor_s) if floor_s else -math.inf


def log_column_s(family: str, features: CategoryFeatures) -> float:
    """Ln of the least time that a block takes for a column of its row; -inf where rows are not a block's."""
    clock_hz = features.device.fact("boost_clock_hz")
    if (family, features.read.variant) != _ROWS_OF_BLOCKS or features.device.kind != "gpu" or clock_hz is None:
        return -math.inf
    return -math.log(_COLUMNS_PER_CLOCK * clock_hz)


_NOT_ALL_READ = ("attention", "moe")
"""Families some of whose public rows take less than their bytes: uneven routers leave experts out, windows keys."""


def log_stream(family: str, features: CategoryFeatures) -> float:
    """Ln of the least time of a GPU's kernel over that of its bytes at the peak bandwidth, -inf where it may be less.

    Public streams of 14 GPUs reach 0.98 of the peak at most.
    """
    if features.device.kind != "gpu" or family in _NOT_ALL_READ:
        return -math.inf
    return -math.log(STREAM_SHARES[2])


def log_streamed_s(work: Work, log_share: Floats) -> Floats:
    """Ln of the least time of kernels that move at least twice what the last cache holds, shape `(n,)`; -inf of others.

    Run over and over, they find nothing of it there: of 90,000 rows of ten GPUs, own ones and NeuSight's, none takes less. The
    bound on paper grants them a whole cache.
    """
    return np.where(work.bounds_s["dram"] >= 0.5 * work.dram_all_s, log_share + np.log(work.dram_all_s), -np.inf)


def log_rows_s(cases: Cases, log_column: Floats, most_columns: Floats) -> Floats | None:
    """Ln of the least time of the rows' blocks, shape `(n,)`; None for families whose rows are not a block's.

    Args:
        cases: Cases of one family.
        log_column: The `log_column_s` of each.
        most_columns: Most columns measured, which say it themselves; inf where nothing was measured.
    """
    if cases.family.name != _ROWS_OF_BLOCKS[0]:
        return None
    columns = cases.sizes["cols"]
    is_beyond = (columns > most_columns) | np.isinf(most_columns)
    return np.where(is_beyond, log_column + np.log(columns), -np.inf)
