"""The cases of one device name, shared by all the fleet's devices of that name."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from ...features.kernel import KernelSpec

_POLL_S = 0.2
_BLOCKS_OF_A_FAMILY = 4
_PARTS_OF_A_PLAN = 8
MOST_DEVICES_LOST = 2
"""A case that was being measured when this many devices were lost goes to no further one."""


def gathered(specs: Sequence[KernelSpec], block_cases: int) -> list[KernelSpec]:
    """The cases in another order: within each stretch of the plan those of one family stand together.

    Every family of a block is a file, and small files are what a driver's time goes to (docs/scale.md). A stretch is
    long enough for some blocks of each family, and an eighth of the plan at most: a campaign cut short has had some of
    every family all the same.
    """
    names = list(dict.fromkeys(spec.family for spec in specs))
    stretch = max(1, min(_BLOCKS_OF_A_FAMILY * block_cases * len(names), len(specs) // _PARTS_OF_A_PLAN))
    results: list[KernelSpec] = []
    for first in range(0, len(specs), stretch):
        results += sorted(specs[first : first + stretch], key=lambda spec: names.index(spec.family))
        # There and back: the family that ends a stretch begins the next.
        names.reverse()
    return results


class Pool:
    """Hands out portions; a case is in one pair of hands at a time.

    Portions follow guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers 36(12), 1987): a share of
    what is left, never less than a block, so that devices of unequal speed end together and a campaign calibrates its
    sentinels only a few times.
    """

    def __init__(self, specs: Iterable[KernelSpec], least: int, devices: int) -> None:
        self._left, self._least, self._devices = deque(specs), least, devices
        self._working = 0
        self._lost_with: Counter[str] = Counter()
        self.given_up: list[KernelSpec] = []
        self._changed = threading.Condition()

    def take(self, stopped: Callable[[], bool]) -> list[KernelSpec]:
        """The next portion; waits while others might give some back; empty when nothing is left to do or it is `stopped`.

        Whoever took a portion calls `give_back` when done with it.
        """
        with self._changed:
            while not self._left and self._working and not stopped():
                self._changed.wait(_POLL_S)
            if stopped() or not self._left:
                return []
            share = len(self._left) if self._devices <= 1 else math.ceil(len(self._left) / (2 * self._devices))
            self._working += 1
            return [self._left.popleft() for _ in range(min(len(self._left), max(self._least, share)))]

    def give_back(
        self, unmeasured: Sequence[KernelSpec], *, device_lost: bool, in_hand: Sequence[KernelSpec] = ()
    ) -> None:
        """Return what was not stored of a portion; `in_hand` was being measured when the device was lost."""
        suspects = {spec.case_id for spec in in_hand} if device_lost else set()
        with self._changed:
            self._lost_with.update(suspects)
            for spec in unmeasured:
                bad = self._lost_with[spec.case_id] >= MOST_DEVICES_LOST
                (self.given_up if bad else self._left).append(spec)
            self._working -= 1
            self._changed.notify_all()

    def leave(self) -> None:
        """One device fewer shares these cases."""
        with self._changed:
            self._devices -= 1
            self._changed.notify_all()

    def left(self) -> list[KernelSpec]:
        """Cases nobody measured."""
        with self._changed:
            return [*self._left, *self.given_up]
