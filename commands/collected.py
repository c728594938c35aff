"""How a collecting command ends: what was done, where the rows are, and the exit code of an interrupted one."""

from __future__ import annotations

from typing import Protocol

from .console import note, print_json


class Done(Protocol):
    """What a campaign says of itself."""

    @property
    def interrupted(self) -> bool:
        """Whether someone stopped it."""
        ...


def tell(done: Done, root: object, as_json: bool) -> None:
    """Print what was done.

    Raises:
        KeyboardInterrupt: it was interrupted, and what it measured is stored.
    """
    if as_json:
        print_json(done)
    note(str(done))
    note(f"rows are in {root}")
    if done.interrupted:
        raise KeyboardInterrupt
