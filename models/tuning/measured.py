"""Measurements a tuning model remembers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements, oldest first, one row each.

    `devices` and `dtypes` are names, `sizes` `(r, n_sizes)` and `knobs` `(r, n_knobs)` int64 in the model's order,
    `seconds` `(r,)` float64. A configuration measured several times has several rows.
    """

    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: NDArray[np.int64]
    knobs: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @classmethod
    def none(cls, n_sizes: int, n_knobs: int) -> Measured:
        """No measurements, of a model with so many sizes and knobs."""
        return cls((), (), np.empty((0, n_sizes), np.int64), np.empty((0, n_knobs), np.int64), np.empty(0))

    def __len__(self) -> int:
        return len(self.seconds)

    def and_then(self, later: Measured) -> Measured:
        """These rows, and later ones after them."""
        return Measured(
            self.devices + later.devices,
            self.dtypes + later.dtypes,
            np.concatenate([self.sizes, later.sizes]),
            np.concatenate([self.knobs, later.knobs]),
            np.concatenate([self.seconds, later.seconds]),
        )

    def last(self, rows: int) -> Measured:
        """The newest rows, at most so many."""
        low = max(len(self) - rows, 0)
        return Measured(self.devices[low:], self.dtypes[low:], self.sizes[low:], self.knobs[low:], self.seconds[low:])
