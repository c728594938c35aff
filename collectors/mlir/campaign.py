"""A campaign over modules: compiles and measures chunk by chunk, stores a block per chunk.

    iree-compile               m1 m2 m3 ...                    (on all cores, while nothing is measured)
    measuring      xla chunk |              iree chunk | xla chunk | ...   (one process per compiler and thread count)
    storing                    counts machine code, compares results, stores a block ...

What is stored is never touched again; a campaign stopped at any point goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...datasets.records.mlir_modules import ModuleRun, ModuleText, append_runs, append_texts, measured_keys
from ...datasets.store.errors import StoreError
from ...process import ChildStartError
from ..campaign import Campaign, CampaignError, CampaignSummary, Progress, new_block_name, terminate_as_interrupt
from ..host import machine_facts, memory_b, state_facts, utc_now
from ..runner import UnsupportedCaseError
from .compiler import Job, ModuleRunner
from .compilers.iree import TARGET_FLAGS, Compiled, compile_module
from .measure.bench import REFERENCES, RULE, Measured, Sample, finished
from .measure.worker import ModuleWorker, ModuleWorkerOptions
from .operands import BELOW, signature

CHUNK = 24
"""Modules measured together: blocks of one are then some seconds apart."""

CHUNK_B = 2**30
"""Operands of a chunk together, in bytes."""

DRIFT = 0.1
"""A chunk during which the references took longer by more than this share is measured once more; the better try is kept."""

_NICENESS = 5
"""Niceness of what stores and counts in the background: measuring processes go first."""

_UNSTORED = 3
"""Blocks that may be waiting to be stored while the next are measured."""

Compile = Callable[[Job, Path], Compiled]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign measures and with what.

    Attributes:
        texts: The modules.
        runners: The compilers.
        device: The name rows carry.
        target: `cpu` or `cuda`.
        threads: Thread counts, the first of which is measured on all modules; (None,) on a GPU.
        until: A time of `time.monotonic()` after which no chunk is begun.
        source: Where the texts come from.
    """

    texts: Sequence[ModuleText]
    runners: Sequence[ModuleRunner]
    device: str
    target: str = "cpu"
    threads: Sequence[int | None] = (1,)
    until: float = float("inf")
    source: str = ""


def run_modules(
    plan: Plan, root: Path, *, progress: Progress | None = None,
    collector_for: Callable[[ModuleWorkerOptions], ModuleWorker] = ModuleWorker, compile_: Compile | None = None,
) -> CampaignSummary:  # fmt: skip
    """Measure what `plan` names and `root` does not have, and store every row, good or bad, under `root`.

    Ctrl-C and SIGTERM end it in order: what is measured is stored, workers are killed.

    Args:
        plan: What is measured, and with what.
        root: Where rows are stored.
        progress: Called with modules finished and modules in all.
        collector_for: Makes the worker of a compiler and thread count.
        compile_: Compiles a module into a file; None is `iree-compile`.

    Raises:
        CampaignError: a worker cannot start, or rows cannot be stored. Blocks stored before stay.
    """
    interrupted = False
    done = measured_keys(root, plan.device)
    wanted = ordered(plan.texts, plan.runners, plan.threads)
    jobs = [job for job in wanted if job.key not in done]
    with tempfile.TemporaryDirectory(prefix="kernelcast-mlir-") as folder:
        run = _ModuleCampaign(
            device=plan.device, until=plan.until, plan=plan, root=root, folder=Path(folder), collector_for=collector_for,
            compile_=compile_ or _compile_for(plan.target), progress=progress, total=len(jobs),
        )  # fmt: skip
        try:
            with terminate_as_interrupt(), _kept_to(run.cores[:-1] or run.cores):
                append_texts(root, plan.texts, machine_facts(plan.device) | {"texts": plan.source})
                run.all(jobs)
        except KeyboardInterrupt:
            interrupted = True
        except (ChildStartError, StoreError) as error:
            raise CampaignError(f"{error}. What was stored stays; fix this and run the same command again.") from error
        finally:
            run.close()
        run.await_stored(0)
    return run.summary(wanted=len(wanted), todo=len(jobs), interrupted=interrupted)


def _compile_for(target: str) -> Compile:
    return lambda job, path: compile_module(job.module, path, target)


@dataclass(slots=True, kw_only=True)
class _ModuleCampaign(Campaign[tuple[str, int | None], ModuleWorker]):
    """A campaign over modules under way."""

    plan: Plan
    root: Path
    folder: Path
    collector_for: Callable[[ModuleWorkerOptions], ModuleWorker]
    compile_: Compile
    progress: Progress | None
    total: int
    cores: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    machine: Mapping[str, Any] = field(init=False)
    references: dict[str, list[Job]] = field(default_factory=dict)
    compiled: dict[str, Compiled] = field(default_factory=dict)
    samples: dict[str, tuple[str, Sample]] = field(default_factory=dict)
    storing: deque[Future[list[ModuleRun]]] = field(default_factory=deque)
    storer: ThreadPoolExecutor = field(init=False)
    compilers: ThreadPoolExecutor = field(init=False)
    best: dict[tuple[str, int | None, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.plan
        self.machine = machine_facts(plan.device) | {
            "target": plan.target, "iree_flags": list(TARGET_FLAGS[plan.target]), "stopping_rule": asdict(RULE),
            "input_distribution": f"floats seeded standard normal, integers in [0, {BELOW})", "texts": plan.source,
        }  # fmt: skip
        self.storer = ThreadPoolExecutor(1, "storing", initializer=_give_way)
        self.compilers = ThreadPoolExecutor(
            len(self.cores), "compiling", initializer=os.sched_setaffinity, initargs=(0, self.cores)
        )

    def all(self, jobs: Sequence[Job]) -> None:
        """Measure all of `jobs`, thread count by thread count."""
        for threads in self.plan.threads:
            self._group([job for job in jobs if job.threads == threads])

    def await_stored(self, most: int) -> None:
        """Wait until at most `most` blocks are still being stored; what went wrong with one is raised here."""
        while len(self.storing) > most:
            self.stored.update(row.status for row in self.storing.popleft().result())
            self.blocks += 1
            if self.progress is not None:
                self.progress(sum(self.stored.values()), self.total)

    def close(self) -> None:
        """Kill the workers, and let blocks that are being stored get there."""
        # Not super(): a data class with slots is another class than the one that super() sees.
        Campaign.close(self)
        self.compilers.shutdown(cancel_futures=True)
        self.storer.shutdown()

    def _group(self, jobs: Sequence[Job]) -> None:
        """Measure jobs of one thread count, a chunk of each compiler in turn."""
        by_compiler = ([job for job in jobs if job.compiler == runner.name] for runner in self.plan.runners)
        for chunks in zip_longest(*map(by_size, by_compiler), fillvalue=()):
            for chunk in chunks:
                if self.out_of_time():
                    return
                if ready := self._compiled(chunk):
                    self._measure(ready)

    def _compiled(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs that compiled, with binaries; others are rows at once. What that compiles when it loads is left alone."""
        if not jobs or not self._is_ahead(jobs[0]):
            return list(jobs)
        ready, failed = [], []
        for job, outcome in zip(jobs, self._outcomes(jobs), strict=True):
            if outcome.path is not None:
                self.compiled[job.module.module_id] = outcome
                ready.append(replace(job, binary=outcome.path))
                continue
            failed.append(ModuleRun(
                job.module.module_id, job.compiler, self.plan.device, job.threads, outcome.status, "", message=outcome.message,
                compile_s=outcome.compile_s, measured_at=utc_now(),
            ))  # fmt: skip
        if failed:
            self._store([(Measured(row), None) for row in failed], {"utc": utc_now()})
        return ready

    def _is_ahead(self, job: Job) -> bool:
        """Whether its modules are compiled before they are loaded."""
        return next(runner for runner in self.plan.runners if runner.name == job.compiler).ahead

    def _outcomes(self, jobs: Sequence[Job]) -> list[Compiled]:
        """What compiling them gave, one compiler on each core; nothing is measured meanwhile."""
        paths = [self.folder / f"{job.compiler}-{job.threads}-{job.module.module_id}.vmfb" for job in jobs]
        return list(self.compilers.map(self.compile_, jobs, paths))

    def _measure(self, jobs: Sequence[Job]) -> None:
        """Measure a chunk with the references, and hand its rows to be stored."""
        collector, before = self._collector(jobs[0]), state_facts()
        wanted = [*self._references(jobs[0]), *jobs]
        measured = collector.collect(wanted)
        drift = first_drift = self._drift(jobs[0], measured)
        if drift > DRIFT and not self.out_of_time():
            again = collector.collect(wanted)
            if (second := self._drift(jobs[0], again)) < drift:
                measured, drift = again, second
                self.remeasured += 1
        for job in jobs:
            if job.binary is not None:
                job.binary.unlink(missing_ok=True)
        facts = {"worker": dict(collector.facts()), "references_s": _reference_times(measured), "drift": drift,
                 "drift_first_try": first_drift, "before": before, "after": state_facts()}  # fmt: skip
        compiled = {job.module.module_id: self.compiled.pop(job.module.module_id, None) for job in jobs}
        self._store(
            [(part, compiled[part.row.module_id]) for part in measured if part.row.module_id in compiled], facts
        )

    def _drift(self, job: Job, measured: Sequence[Measured]) -> float:
        """By how much the references took longer than at their best in this campaign; the median of them, as a ratio less 1."""
        ratios = []
        for name, latency_s in _reference_times(measured).items():
            best = self.best.setdefault((job.compiler, job.threads, name), latency_s)
            self.best[job.compiler, job.threads, name] = min(best, latency_s)
            ratios.append(latency_s / best - 1.0)
        return statistics.median(ratios) if ratios else 0.0

    def _store(self, rows: Sequence[tuple[Measured, Compiled | None]], facts: Mapping[str, Any]) -> None:
        """Finish and store a block in the background, one after the other."""
        block = new_block_name()

        def store() -> list[ModuleRun]:
            runs = [replace(finished(measured, compiled, self.samples), block=block) for measured, compiled in rows]
            append_runs(self.root, runs, {**self.machine, **facts})
            return runs

        self.storing.append(self.storer.submit(store))
        self.await_stored(_UNSTORED)

    def _collector(self, job: Job) -> ModuleWorker:
        key = job.compiler, job.threads
        if key not in self.collectors:
            dump = self.folder / f"dump-{job.compiler}-{job.threads}"
            dump.mkdir()
            memory = memory_b() if self.plan.target == "cpu" else None
            self.collectors[key] = self.collector_for(ModuleWorkerOptions(
                compiler=job.compiler, target=self.plan.target, threads=job.threads, device=self.plan.device,
                cores=self._measuring_cores(job.threads), dump=str(dump),
                # Half: two workers may be alive, and compilers need some too. A GPU's driver reserves far more than it uses.
                memory_cap_b=None if memory is None else memory // 2,
            ))  # fmt: skip
        return self.collectors[key]

    def _references(self, job: Job) -> list[Job]:
        """The fixed modules, for the compiler and threads of `job`; one that does not compile is left out."""
        if job.compiler not in self.references:
            references = [Job(module, job.compiler, None) for module in REFERENCES.values()]
            if self._is_ahead(job):
                built = zip(references, self._outcomes(references), strict=True)
                references = [replace(reference, binary=outcome.path) for reference, outcome in built if outcome.path]
            self.references[job.compiler] = references
        return [replace(reference, threads=job.threads) for reference in self.references[job.compiler]]

    def _measuring_cores(self, threads: int | None) -> tuple[int, ...]:
        """The last cores; none to be pinned to on a GPU."""
        return () if threads is None else tuple(self.cores[-threads:])


def _reference_times(measured: Sequence[Measured]) -> dict[str, float]:
    """Latency in seconds of the references that ran, by name."""
    return {REFERENCES[part.row.module_id].program: part.row.latency_s for part in measured
            if part.row.module_id in REFERENCES and part.row.latency_s is not None}  # fmt: skip


def _give_way() -> None:
    """From now on the calling thread runs behind processes that measure."""
    thread = threading.get_native_id()
    # Only root may go forward again, so a thread that is further behind stays there.
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


@contextlib.contextmanager
def _kept_to(cores: Sequence[int]) -> Iterator[None]:
    """Keep this thread, and what it starts, on `cores`: it wakes up for every report, and not beside a call that is timed."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def by_size(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Chunks of at most `CHUNK` modules and `CHUNK_B` of operands, at least one module each."""
    chunk: list[Job] = []
    size = 0
    for job in jobs:
        needs = _operands_b(job)
        if chunk and (len(chunk) >= CHUNK or size + needs > CHUNK_B):
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += needs
    if chunk:
        yield chunk


def _operands_b(job: Job) -> int:
    try:
        return signature(job.module.text).nbytes
    except UnsupportedCaseError:  # a row of its own, later
        return 0


MANY_THREADS_SHARE = 0.35
"""Share of the modules that are also measured on further thread counts: how a module scales, its size and intensity tell."""


def ordered(texts: Sequence[ModuleText], runners: Sequence[ModuleRunner], threads: Sequence[int | None]) -> list[Job]:
    """Jobs of every compiler and thread count.

    On the first thread count, all modules; on the others `MANY_THREADS_SHARE` of them. Within a thread count, modules that only
    one compiler takes and half of the programs that all take go first: together they show every program there is.
    """
    jobs: list[tuple[tuple[int, bool, float], Job]] = []
    for text in texts:
        taking = [runner for runner in runners if not runner.dialects or text.dialect in runner.dialects]
        place = _share(text.module_id)
        for rank, count in enumerate(threads):
            if rank and _share(text.module_id + "threads") >= MANY_THREADS_SHARE:
                continue
            late = len(taking) > 1 and _share(text.program) >= 0.5
            jobs += [((rank, late, place), Job(text, runner.name, count)) for runner in taking]
    jobs.sort(key=lambda ranked: ranked[0])
    return [job for _, job in jobs]


def _share(word: str) -> float:
    """A number in [0, 1) that looks random and always is the same for the same word."""
    return int(hashlib.blake2b(word.encode(), digest_size=6).hexdigest(), 16) / 2.0**48
