"""Whether the cluster is still there: Ray itself says nothing for a minute and then ends the process that asks."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from .ray_library import greet

_EVERY_S = 2.0


@dataclass(slots=True)
class Watch:
    """Greets the cluster's first node every other second, from a thread of its own, as long as the `with` block lasts."""

    address: str
    lost_after_s: float
    lost: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        threading.Thread(target=self._run, name="cluster watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def answers(self) -> bool:
        """Whether the cluster can be asked something now. Without this look, Ray would wait for the answer for a minute."""
        if self.lost:
            return False
        try:
            greet(self.address)
        except OSError:
            return False
        return True

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(_EVERY_S):
            try:
                greet(self.address)
            except OSError:
                # For good: who is told so has begun to give up.
                self.lost |= time.monotonic() - heard >= self.lost_after_s
            else:
                heard = time.monotonic()
