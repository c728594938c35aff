"""Rest from the garbage collector while a module is read or understood."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Puts the cyclic garbage collector off until the end of the block.

    Reading makes tens of thousands of objects that stay, which is what sets the collector off; it would look for cycles
    among all objects of the process and find none, a tenth of the time in a small process and more in one with models
    loaded. With several threads the one that put it off turns it on again, at worst before another has ended.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
