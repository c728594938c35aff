"""`kernelcast collect`: measure kernels on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..features.errors import SpecError, listed
from .collected import tell
from .console import DeviceFiles, Json, need_extra, read_catalogue
from .this_machine import this_device

if TYPE_CHECKING:
    from ..features.kernel import KernelSpec

_TILED_CONFIGS_PER_SHAPE = 20
_TILED_FAMILIES = ("gemm", "conv2d")
CASES_PER_MINUTE = 130
"""What `--minutes` plans for: two cores measure 2,000 small cases in about 15 minutes."""


def collect(
    families: Annotated[str, typer.Option(help="Kernel families with commas between; default: all.")] = "",
    rows: Annotated[int | None, typer.Option(min=1, help="Cases to measure (default: 2000).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="Cases for about this many minutes instead.")] = None,
    threads: Annotated[str, typer.Option(help="Thread counts with commas between; default: 1 and all cores.")] = "",
    dtypes: Annotated[str, typer.Option(help="Number formats with commas between.")] = "fp32,bf16",
    seed: Annotated[int, typer.Option(help="Equal seeds give equal plans, so a stopped campaign can go on.")] = 0,
    store: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="Where rows go; default: KERNELCAST_HOME/measurements.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine; default: by its CPU's name.")
    ] = None,
    tiled: Annotated[
        bool, typer.Option("--tiled", help="Measure IREE's tiled gemm and conv2d with their tuning knobs instead.")
    ] = False,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Measure kernels on this machine's CPU and store every row; run again to go on where it stopped."""
    if rows is not None and minutes is not None:
        raise SpecError("give --rows or --minutes, not both")
    if tiled and (other := sorted(set(_words(families)) - set(_TILED_FAMILIES))):
        raise SpecError(f"--tiled measures {listed(_TILED_FAMILIES)}, not {other[0]}", field="families")
    known = read_catalogue(device_file)
    name = this_device(device, known)
    wanted = rows or (math.ceil(minutes * CASES_PER_MINUTE) if minutes else 2000)
    try:
        from ..collectors.campaign import CampaignError, run_campaign, store_sink
        from ..collectors.progress import progress_bar
        from ..datasets.checks import catalogue_bounds
        from ..datasets.store import Store, StoreError

        counts = _counts(threads)
        specs = (
            _tiled(families, wanted, seed, counts) if tiled else _plan(families, wanted, seed, _words(dtypes), counts)
        )
        measured = Store(store, lower_bounds=partial(catalogue_bounds, known=known))
        with measured.lock(name), progress_bar(f"measuring {name}") as progress:
            done = run_campaign(
                specs, device=name, sink=store_sink(measured), skip=measured.case_ids(name), progress=progress
            )
    except ImportError as error:
        raise need_extra("collect", "collect", error) from error
    except (CampaignError, StoreError) as error:
        raise SpecError(str(error)) from error
    tell(done, measured.root_name, as_json)


def _plan(families: str, rows: int, seed: int, dtypes: Sequence[str], threads: Sequence[int]) -> list[KernelSpec]:
    from ..collectors.plan import plan
    from ..features.kernel import families as all_families

    try:
        return plan(_words(families) or list(all_families()), rows, seed, dtypes=dtypes, threads=threads)
    except SpecError:
        raise
    except ValueError as error:
        raise SpecError(str(error), field="rows") from error


def _tiled(families: str, rows: int, seed: int, threads: Sequence[int]) -> list[KernelSpec]:
    from ..collectors.tiled import tiled_gemm_plan
    from ..collectors.tiled_conv import tiled_conv_plan

    plans = {"gemm": tiled_gemm_plan, "conv2d": tiled_conv_plan}
    chosen = [plans[name] for name in _words(families) or _TILED_FAMILIES]
    each = rows / (len(chosen) * len(threads))
    n_shapes = math.ceil(each / _TILED_CONFIGS_PER_SHAPE)
    return [
        spec for plan in chosen for count in threads for spec in plan(n_shapes, math.ceil(each / n_shapes), seed, count)
    ]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _counts(text: str) -> list[int]:
    import os

    cores = len(os.sched_getaffinity(0))
    if not _words(text):
        return sorted({1, cores})
    try:
        counts = [int(word) for word in _words(text)]
    except ValueError:
        counts = [0]
    if any(not 1 <= count <= cores for count in counts):
        raise SpecError(
            f"--threads is {text!r}; thread counts on this machine: {listed(map(str, range(1, cores + 1)))}"
        )
    return counts
