"""How many choices were seen, left out and measured, and what that is likely to have saved."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counts:
    """Sums over one installation; `report()` gives a copy.

    `choices` and `lists` are of matrix products, `other_lists` of anything else (convolutions, attention), which is left as
    it is. `pruned_by_failure` had failed before, `pruned_by_memory` had been measured and lost, `pruned_by_model` were
    not among the model's best. `measured` and `failed` are choices Inductor handed back with and without a time; of them
    `not_kept` could not be described as a row. `timed` choices took Inductor `timing_s` seconds in all.
    """

    lists: int = 0
    other_lists: int = 0
    choices: int = 0
    pruned_by_failure: int = 0
    pruned_by_memory: int = 0
    pruned_by_model: int = 0
    measured: int = 0
    failed: int = 0
    not_kept: int = 0
    timed: int = 0
    timing_s: float = 0.0

    @property
    def pruned(self) -> int:
        """Choices that were neither compiled nor timed because of this plug-in."""
        return self.pruned_by_failure + self.pruned_by_memory + self.pruned_by_model

    @property
    def saved_s(self) -> float | None:
        """Seconds of compiling and timing saved, an estimate: choices left out times the mean of those that were timed here.

        The mean is over choices of all makers; a library call needs no compiler, so templates cost more than it. None where
        this process timed nothing to take a mean of.
        """
        return self.pruned * self.timing_s / self.timed if self.timed else None

    def copy(self) -> Counts:
        """The counts as they are now."""
        return Counts(**{field.name: getattr(self, field.name) for field in fields(self)})

    def __str__(self) -> str:
        saved = self.saved_s
        spent = f"Inductor took {self.timing_s:.1f} s to compile and time {self.timed} choices"
        if self.pruned and saved is not None:
            spent += f"; the {self.pruned} left out would have taken about {saved:.1f} s at that rate (an estimate)"
        return (
            f"{self.choices} choices in {self.lists} lists of matrix products ({self.other_lists} lists of other operations "
            f"untouched): {self.pruned} left out ({self.pruned_by_model} by the model, {self.pruned_by_memory} measured "
            f"slower before, {self.pruned_by_failure} failed before); {self.measured} measured, {self.failed} failed, "
            f"{self.not_kept} not kept as rows. {spent}."
        )
