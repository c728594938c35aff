"""Which choices of a list are worth compiling and timing: decided from what was measured, then from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .choices import Reading
from .rows import Memory

MARGIN = 1.5
"""A choice measured this much slower than the best is not timed again: Inductor's times of one kernel in two processes were up
to 1.42 times apart (four small products on two cores that others used), so a choice this far behind has hardly a chance."""

Rank = Callable[[Sequence[Reading]], Sequence[int] | None]
"""Positions of the readings given, best first; None where no model can say."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Positions of a list's choices that stay, in order, and how many went for which reason."""

    kept: tuple[int, ...]
    by_failure: int = 0
    by_memory: int = 0
    by_model: int = 0

    @property
    def pruned(self) -> int:
        """How many choices went."""
        return self.by_failure + self.by_memory + self.by_model


def decide(
    readings: Sequence[Reading], memory: Memory, rank: Rank, *, top_k: int, keep_extern: bool, on_cpu: bool
) -> Decision:
    """Which choices of one list stay.

    Library calls stay, unless `keep_extern` is False and a template does. Templates that failed before go. Triton templates
    of which enough were measured for this very product are settled by their times; else the `top_k` that `rank` puts first
    stay. Other templates go when they were measured clearly slower than the best. What cannot be judged stays, and so does
    everything where nothing would be left.

    On a CPU the best may be a library call, as Inductor there takes the fastest; on a GPU a template may still win by
    taking in the operations that follow it, so only templates are compared.
    """
    templates = [at for at, reading in enumerate(readings) if not reading.stays]
    failed = {at for at in templates if memory.failed(readings[at].spec)}
    dropped: dict[str, set[int]] = {"failure": failed, "memory": set(), "model": set()}
    for hint in dict.fromkeys(readings[at].hint for at in templates):
        group = [at for at in templates if at not in failed and readings[at].hint == hint]
        ranked = [at for at in group if readings[at].maker == "triton" and readings[at].knobs]
        times = {at: memory.latency_s(reading.spec) for at, reading in enumerate(readings)}
        rivals = [*group, *(at for at, reading in enumerate(readings) if on_cpu and reading.stays)]
        best_s = min((time for at in rivals if (time := times[at]) is not None), default=None)
        slow = {at for at in group if best_s is not None and (time := times[at]) is not None and time > MARGIN * best_s}
        known = sorted((at for at in ranked if times[at] is not None), key=lambda at: times[at] or 0.0)
        if known and len(known) >= min(top_k, len(ranked)):
            slow |= set(ranked) - set(known[:top_k])
        elif len(ranked) > top_k and (order := rank([readings[at] for at in ranked])) is not None:
            dropped["model"] |= set(ranked) - {ranked[at] for at in order[:top_k]}
            slow -= set(ranked)
        dropped["memory"] |= slow
    gone = set().union(*dropped.values())
    if not keep_extern and len(gone) < len(templates):
        gone |= {at for at, reading in enumerate(readings) if reading.stays}
    if len(gone) == len(readings):
        return Decision(tuple(range(len(readings))))
    kept = tuple(at for at in range(len(readings)) if at not in gone)
    return Decision(kept, len(dropped["failure"]), len(dropped["memory"]), len(dropped["model"]))
