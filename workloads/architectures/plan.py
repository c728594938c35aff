"""How a model is split over devices, and what the devices then send each other.

`tp` ranks split every layer, `pp` stages split the layers, `dp` groups of `tp` ranks take sequences of their own. Experts are
split like all else (`ep` 1), or shared out over `ep` of the `tp · dp` ranks of a stage, as vLLM's and TensorRT-LLM's expert
parallelism do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from ...features.errors import SpecError

MAX_RANKS = 4096
"""Most devices of one replica accepted: above any real one, so that a size in the wrong place is noticed."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """A plan; `ParallelPlan()` is one device.

    Attributes:
        tp: Ranks that split each layer's matrices and heads (tensor parallelism).
        pp: Stages that split the layers (pipeline parallelism).
        ep: Ranks that share out the experts; 1: experts are split by the ranks of `tp`.
        dp: Groups of `tp` ranks, each with sequences of its own. With `ep` 1 they are replicas.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{item.name} must be a whole number of at least 1, got {value!r}", field=item.name)
        if self.devices > MAX_RANKS:
            raise SpecError(f"tp·pp·dp is {self.devices}; at most {MAX_RANKS} devices are planned", field="plan")
        if self.stage_ranks % self.ep:
            raise SpecError(
                f"ep must divide tp·dp, got ep {self.ep} with tp {self.tp} and dp {self.dp}; experts are shared out over "
                "ranks of one stage", field="ep",
            )  # fmt: skip

    @property
    def devices(self) -> int:
        """Devices of the plan."""
        return self.stage_ranks * self.pp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.tp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that split each expert."""
        return self.tp if self.ep == 1 else self.stage_ranks // self.ep

    def __str__(self) -> str:
        sizes = ((item.name, getattr(self, item.name)) for item in fields(self))
        return ", ".join(f"{name} {size}" for name, size in sizes if name == "tp" or size != 1)


ONE_DEVICE = ParallelPlan()


def check_divides(ranks: int, size: int, what: str, field: str = "tp") -> None:
    """That `ranks` divide a size.

    Raises:
        SpecError: they do not.
    """
    if size % ranks:
        near = [max(n for n in range(1, min(ranks, size) + 1) if size % n == 0)]
        near += [n for n in range(ranks + 1, size + 1) if size % n == 0][:1]
        raise SpecError(
            f"{field} {ranks} does not divide the model's {size} {what}; use {' or '.join(map(str, near))}", field=field
        )


@dataclass(frozen=True, slots=True)
class Collective:
    """What ranks send each other at one place of a step. No kernel family predicts it yet.

    Attributes:
        name: The place, such as `layers.attention.output`.
        kind: What is done.
        ranks: Ranks that take part.
        size_b: Bytes that each of them holds before it.
        count: Times in the step.
    """

    name: str
    kind: Literal["all_reduce", "all_gather", "all_to_all", "send"]
    ranks: int
    size_b: float
    count: int
