"""`kernelcast count-traffic`: bytes and flops that hardware counters count, beside what families say on paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError
from ..features.kernel import get_family
from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue
from .out_place import check_file
from .this_gpu import this_gpu
from .units import num_bytes, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..datasets.traces import CountedCase


def count_traffic(
    out_file: Annotated[Path, typer.Option("--out", metavar="PARQUET", help="Where the rows go.")],
    families: Annotated[str, typer.Option(help="Kernel families with commas between; default: all.")] = "",
    per_family: Annotated[int, typer.Option(min=1, max=3, help="Cases of each family.")] = 3,
    dtype: Annotated[str, typer.Option(help="Dtype of the cases.")] = "bf16",
    index: Annotated[int, typer.Option(min=0, help="Which GPU, as CUDA counts.")] = 0,
    device: Annotated[str | None, typer.Option(help="Catalogue name of the GPU; default: by its own name.")] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Count memory traffic and arithmetic of a few cases of every family with Nsight Compute (ncu)."""
    wanted = [get_family(word.strip()).name for word in families.split(",") if word.strip()]
    check_file(out_file)
    found, _ = this_gpu(device, index, read_catalogue(device_file))
    try:
        from ..collectors.environment import utc_now
        from ..collectors.gpu.count import CountersUnavailableError, count_cases
        from ..collectors.gpu.counter_cases import counted_cases
        from ..collectors.gpu.counters import METRICS, CounterOutputError
        from ..datasets.traces import CountedCase, as_dicts, write_records
    except ImportError as error:
        raise need_extra("count-traffic", "gpu", error) from error
    try:
        with progress_bar() as progress:
            counted = count_cases(counted_cases(wanted, per_family, dtype), found.name, index=index, progress=progress)
    except (CountersUnavailableError, CounterOutputError) as error:
        raise SpecError(f"traffic cannot be counted here: {error}") from error
    facts = {"device": found.name, "utc": utc_now(), "metrics": list(METRICS), "caches": "flushed before every kernel"}
    write_records(counted, CountedCase, out_file, facts)
    for case in counted:
        if case.status != "ok":
            note(f"{case.spec}: {case.status}: {case.message}")
    if as_json:
        print_json(as_dicts(counted))
    else:
        _show(counted)
    note(f"written to {out_file}")


def _show(counted: Sequence[CountedCase]) -> None:
    from rich.table import Table

    table = Table("case", "kernels", "time", "memory", "of paper", "L2", "flops of paper", "tensor", "SM")
    for case in counted:
        if case.status == "ok":
            table.add_row(
                case.spec, str(case.kernels), _or_dash(seconds, case.time_s), _or_dash(num_bytes, case.dram_b),
                _or_dash("{:.2f}".format, case.traffic_ratio), _or_dash(num_bytes, case.l2_b),
                _or_dash("{:.2f}".format, case.flops_ratio), _or_dash("{:.0%}".format, case.tensor_utilisation),
                _or_dash("{:.0%}".format, case.sm_utilisation),
            )  # fmt: skip
    out().print(table)


def _or_dash(show: Callable[[float], str], value: float | None) -> str:
    return "-" if value is None else show(value)
