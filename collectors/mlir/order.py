"""In which order modules are measured, so that a campaign stopped at any time leaves a useful set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ...datasets.modules import ModuleText
from .runner import Job, ModuleRunner

MANY_THREADS_SHARE = 0.35
"""Share of the modules that are also measured on further thread counts: how a module scales, its size and intensity tell."""


def ordered(
    texts: Sequence[ModuleText], runners: Sequence[ModuleRunner], threads: Sequence[int | None],
    skip: AbstractSet[tuple[str, str, int | None]] = frozenset(),
) -> list[Job]:  # fmt: skip
    """Jobs of every compiler and thread count, without those in `skip`.

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
    jobs.sort(key=lambda one: one[0])
    return [job for _, job in jobs if job.key not in skip]


def _share(word: str) -> float:
    """A number in [0, 1) that looks random and always is the same for the same word."""
    return int(hashlib.blake2b(word.encode(), digest_size=6).hexdigest(), 16) / 2.0**48
