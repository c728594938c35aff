"""Measuring for `kernelcast tune`: configurations of kernels, which go to the store, and whole compiled modules."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..features.errors import SpecError
from ..features.tuning.kind import get_kind

if TYPE_CHECKING:
    from ..datasets.schema import Measurement, Provenance
    from ..datasets.store import Store
    from ..features.device import Catalogue
    from ..features.kernel import KernelSpec
    from ..features.tuning.kind import Candidates
    from ..plugins.iree.tuning import Measure, Race
    from .console import Progress

_CHUNK_CASES = 24
"""Cases that take turns: enough for the configurations of a kernel to be measured side by side."""


@contextmanager
def measuring(
    text: str, program: str, device: str, threads: int, known: Catalogue, progress: Progress, *, keep: bool = True
) -> Iterator[tuple[Measure, Race]]:
    """What times configurations and whole modules of `text` on this machine, while its lock is held; `keep` stores rows.

    Raises:
        SpecError: another campaign holds the machine, or measuring failed as a whole.
    """
    from ..collectors.campaign import CampaignError
    from ..collectors.pipe import WorkerStartError
    from ..datasets.checks import catalogue_bounds
    from ..datasets.store import Store, StoreError

    store = Store(lower_bounds=partial(catalogue_bounds, known=known))
    try:
        with store.lock(device):
            yield (
                lambda tried: _measured(tried, store if keep else None, device, progress),
                lambda modules: _raced(text, program, device, threads, modules, progress),
            )
    except (CampaignError, StoreError, WorkerStartError) as error:
        raise SpecError(str(error)) from error


def _measured(tried: Sequence[Candidates], store: Store | None, device: str, progress: Progress) -> list[list[float]]:
    """Seconds of the candidates of several tasks, NaN where one could not be measured; every row goes to the store given."""
    from ..collectors.campaign import run_campaign, store_sink
    from ..collectors.chunking import Pace

    specs = [[_spec(one, i) for i in range(len(one))] for one in tried]
    wanted = list({spec.case_id: spec for row in specs for spec in row if spec is not None}.values())
    found: dict[str, float] = {}
    into_store = None if store is None else store_sink(store)

    def sink(rows: list[Measurement], provenance: Provenance) -> Sequence[Measurement] | None:
        stored = None if into_store is None else into_store(rows, provenance)
        for row in rows if stored is None else stored:
            if row.status == "ok" and row.latency_s is not None:
                found[row.spec.case_id] = row.latency_s
        return stored

    done = run_campaign(
        wanted, device=device, sink=sink, pace=Pace(chunk_cases=_CHUNK_CASES), sentinels=(),
        progress=lambda at, total: progress("measuring configurations", at, total),
        note={"source": "kernelcast tune: interleaved, without sentinels"},
    )  # fmt: skip
    if done.interrupted:
        raise KeyboardInterrupt
    return [[math.nan if spec is None else found.get(spec.case_id, math.nan) for spec in row] for row in specs]


def _spec(candidates: Candidates, i: int) -> KernelSpec | None:
    return get_kind(candidates.task.kind).spec_of(candidates.task, candidates.config(i))


def _raced(
    text: str, program: str, device: str, threads: int, modules: Mapping[str, Path], progress: Progress
) -> dict[str, float]:
    """Seconds of one call of every compiled module that ran, measured side by side."""
    from ..collectors.mlir.dialect import main_dialect
    from ..collectors.mlir.process import ModuleWorker
    from ..collectors.mlir.runner import Job
    from ..collectors.mlir.worker import ModuleWorkerOptions
    from ..datasets.modules import ModuleText

    dialect = main_dialect(text)
    # Modules are told apart by their text.
    texts = {name: ModuleText(f"{text}\n// {name}\n", program, "file", dialect) for name in modules}
    jobs = [Job(texts[name], "iree", threads, path) for name, path in modules.items()]
    cores = tuple(sorted(os.sched_getaffinity(0))[-threads:])
    progress("timing whole modules", 0, len(jobs))
    with TemporaryDirectory(prefix="kernelcast-tune-") as dump:
        worker = ModuleWorker(ModuleWorkerOptions("iree", "cpu", threads, device, cores, dump))
        try:
            rows = {one.row.module_id: one.row for one in worker.collect(jobs)}
        finally:
            worker.close()
    found = {name: rows[one.module_id].latency_s for name, one in texts.items() if one.module_id in rows}
    return {name: latency_s for name, latency_s in found.items() if latency_s is not None}
