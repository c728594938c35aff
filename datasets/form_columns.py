"""Which columns the bring-your-own-measurements form needs, and what is said when a table has others instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from ..features.errors import SpecError, listed
from ..features.kernel import KernelFamily, families
from .schema import all_columns

TEXT_COLUMNS = frozenset({"family", "device", "dtype", "kv_dtype", "variant", "impl", "cache_state", "status", "source",
                          "split", "energy_source", "message", "measured_at", "block", "case_id"})  # fmt: skip

_TIME = re.compile(r"(?:.*_)?(?:latency|time|duration|runtime|elapsed)(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_POWER = re.compile(r"power(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_ENERGY = re.compile(r"energy(?:_?(?P<unit>[a-zµμ]+))?", re.IGNORECASE)
_PER_SECOND = {"s": "1", "sec": "1", "secs": "1", "seconds": "1", "ms": "1e3", "msec": "1e3", "milliseconds": "1e3",
               "us": "1e6", "µs": "1e6", "μs": "1e6", "usec": "1e6", "microseconds": "1e6", "ns": "1e9",
               "nsec": "1e9", "nanoseconds": "1e9"}  # fmt: skip
_PER_WATT = {"w": "1", "watt": "1", "watts": "1", "mw": "1e3", "milliwatts": "1e3", "uw": "1e6", "kw": "1e-3"}
_PER_JOULE = {"j": "1", "joule": "1", "joules": "1", "mj": "1e3", "millijoules": "1e3", "uj": "1e6", "kj": "1e-3",
              "wh": "1 / 3600"}  # fmt: skip
_QUANTITIES = (
    ("latency_s", "times are in seconds", _TIME, _PER_SECOND),
    ("power_w", "power is in watts", _POWER, _PER_WATT),
    ("energy_j", "energy is in joules", _ENERGY, _PER_JOULE),
)


def required_columns(family: KernelFamily, *, need_labels: bool) -> list[str]:
    """Columns a table of the family cannot do without."""
    sizes = [dim.name for dim in family.dims if dim.default is None]
    return ["device", "dtype", *sizes, *(["latency_s"] if need_labels else [])]


def check_units(found: Sequence[str]) -> None:
    """Refuse a table whose times, power or energy have another unit's name and no column in SI units.

    Raises:
        SpecError: names the column, the right one, and how to convert.
    """
    for right, rule, pattern, factors in _QUANTITIES:
        if right in found:
            continue
        for name in found:
            match = pattern.fullmatch(name)
            unit = match and (match.group("unit") or "").lower()
            if match is None or (unit and unit not in factors) or name in all_columns():
                continue
            how = f"{right} = {name} / {factors[unit]}" if unit and factors[unit] != "1" else f"rename it to {right}"
            unless = "" if unit else ", if it is in that unit"
            raise SpecError(f"column {name}: {rule} (SI) in a column called {right}; {how}{unless}", field=name)


def check_columns(family: KernelFamily, found: Sequence[str], *, need_labels: bool, origin: str) -> None:
    """Refuse a table without a column the family needs.

    Raises:
        SpecError: lists what is missing with near matches, what is required and what was found.
    """
    required = required_columns(family, need_labels=need_labels)
    missing = [name for name in required if name not in found]
    if missing:
        spare = [name for name in found if name not in all_columns()]
        words = [f"{name}{_near(name, spare)}" for name in missing]
        raise SpecError(
            f"{origin} lacks {listed(words)}; {family.name} needs: {listed(required)}; found: {listed(found)}",
            field=missing[0],
        )


def no_family(found: Sequence[str], origin: str) -> SpecError:
    """The error for a table that does not say which family its rows are of."""
    near = _near("family", [name for name in found if name not in all_columns()])
    return SpecError(
        f"{origin} lacks family{near}; give a column family or name one (--family); families: {listed(families())}; "
        f"found: {listed(found)}",
        field="family",
    )


def _near(name: str, spare: Iterable[str]) -> str:
    by_lower = {word.lower(): word for word in spare}
    close = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.6)
    return f" (is {by_lower[close[0]]!r} meant?)" if close else ""
