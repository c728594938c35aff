"""Numbers with units, as people read them, and prices as they give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..features.errors import SpecError
from ..features.spec_io.reading import kind_of, shown_name

if TYPE_CHECKING:
    from ..models.predict.prediction import Interval

MAX_PRICE = 1e6
"""Highest price of one device for an hour that is taken, so that costs stay finite."""
_PLAIN = 1e6
"""Numbers of the largest unit from which on digits would be zeros or noise: these are written with an exponent."""


def _scaled(steps: Sequence[tuple[float, str]], value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {steps[-1][1]}"
    # 999.6 must become 1000 of this unit, that is 1 of the next.
    factor, unit = next((step for step in steps if abs(value) >= 0.9995 * step[0]), steps[-1])
    number = float(f"{value / factor:.3g}")
    if factor == steps[0][0] and abs(number) >= _PLAIN:
        return f"{number:.3g} {unit}"
    digits = max(0, 2 - math.floor(math.log10(abs(number)))) if abs(number) < 1000 else 0
    return f"{number:.{digits}f} {unit}"


seconds = partial(_scaled, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))
"""`1.23e-5` as `12.3 µs`."""
joules = partial(_scaled, ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")))
"""`0.0123` as `12.3 mJ`."""
grams = partial(_scaled, ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"), (1e-6, "µg"), (1e-9, "ng")))
"""`1234` as `1.23 kg`."""
watts = partial(_scaled, ((1e3, "kW"), (1.0, "W"), (1e-3, "mW")))
"""`12.3` as `12.3 W`."""
flops = partial(
    _scaled, ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))
)
"""`2.5e9` as `2.50 GFLOP`."""
num_bytes = partial(_scaled, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))
"""`8e10` as `80 GB`."""


def with_ends(interval: Interval | None, words: Callable[[float], str]) -> str:
    """A value and the ends of its interval, such as `3.79 µs (3.53 µs to 4.12 µs)`."""
    if interval is None:
        return "unknown"
    return f"{words(interval.value)} ({words(interval.lower)} to {words(interval.upper)})"


def plain(value: float) -> str:
    """`11342.7` as `11,343`, `0.2871` as `0.287`."""
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """`1 device`, `2 devices`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


money = plain
"""`0.28712` as `0.287`, of whatever currency prices are in."""


def flops_per_s(value: float) -> str:
    """`9.9e14` as `990 TFLOP/s`."""
    return flops(value) + "/s"


def bytes_per_s(value: float) -> str:
    """`3.35e12` as `3.35 TB/s`."""
    return num_bytes(value) + "/s"


def checked_price(price: Any, path: str) -> float:
    """The price of an hour of a device.

    Raises:
        SpecError: it is no number, or not one from 0 to `MAX_PRICE`; `path` is the field it names.
    """
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    if not is_number or not 0 <= price <= MAX_PRICE:
        shown = shown_name(price) if is_number else kind_of(price)
        raise SpecError(f"a price is a number from 0 to {MAX_PRICE:g}, got {shown}", field=path)
    return float(price)
