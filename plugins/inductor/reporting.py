"""What the plug-in tells the user: warnings, each once in a process, and counts of choices seen, left out and measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..cost_model import warn_once


@dataclass(slots=True)
class Counts:
    """Sums over one installation; `report()` gives a copy.

    Attributes:
        lists: Lists of matrix products.
        other_lists: Lists of anything else (convolutions, attention), which stay as they are.
        choices: Choices of matrix products.
        pruned_by_failure: Choices left out because they failed before.
        pruned_by_memory: Choices left out because they were measured and lost.
        pruned_by_model: Choices left out because they were not among the best of the model.
        measured: Choices that Inductor handed back with a time.
        failed: Choices that Inductor handed back without one.
        not_kept: Of both, those that no row can describe.
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

    @property
    def pruned(self) -> int:
        """Choices that were neither compiled nor timed because of this plug-in."""
        return self.pruned_by_failure + self.pruned_by_memory + self.pruned_by_model

    def __str__(self) -> str:
        return (
            f"{self.choices} choices in {self.lists} lists of matrix products ({self.other_lists} lists of other operations "
            f"untouched): {self.pruned} left out ({self.pruned_by_model} by the model, {self.pruned_by_memory} measured "
            f"slower before, {self.pruned_by_failure} failed before); {self.measured} measured, {self.failed} failed, "
            f"{self.not_kept} not kept as rows."
        )


_shown: set[str] = set()


def say_once(sentence: str, *, about: str = "") -> None:
    """Warn with `sentence`, once in this process; of sentences with the same `about`, the first."""
    warn_once(sentence, _shown, about)


def forget_shown() -> None:
    """Say everything anew, as a new installation does."""
    _shown.clear()
