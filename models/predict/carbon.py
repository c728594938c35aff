"""What the electricity of an answer emits and costs: its energy times the intensity of a grid, or times a price.

    carbon_g = pue · energy_j / 3.6e6 · g_per_kwh          electricity_cost = pue · energy_j / 3.6e6 · price_per_kwh

Operational emissions by the mean of a grid over a year, as the GHG Protocol's location-based Scope 2 has them. Intensities are
taken as exact, so that intervals are those of the energy.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...features.errors import SpecError, listed
from .prediction import Interval

J_PER_KWH = 3.6e6
ELECTRICITY_FIELDS = ("grid", "electricity_price", "pue")
"""What a request says of its electricity."""
MAX_G_PER_KWH = 2000.0
"""Above any grid's; coal alone is at about 1000."""
MAX_ELECTRICITY_PRICE, MAX_PUE = 1e6, 10.0
"""So that amounts stay finite, and a percentage in the place of a ratio is noticed."""
_NEAREST = 5


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid, or a number of one's own.

    Attributes:
        name: Its name, such as `de`; of a number the number.
        title: In words.
        g_per_kwh: Grams of CO2 equivalents per kilowatt-hour.
        source: Where the number is from, with its year.
    """

    name: str
    title: str
    g_per_kwh: float
    source: str


@cache
def grids() -> Mapping[str, Grid]:
    """The grids that ship, by name."""
    raw = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {
        name: Grid(name, item["title"], float(item["g_per_kwh"]), f"{raw['source']}, of {item['year']}")
        for name, item in raw["grids"].items()
    }


def grid_named(value: Any) -> Grid:
    """A grid by its name or title, or a number of grams of CO2e per kilowatt-hour, also as text.

    Raises:
        SpecError: it is neither; the message has the nearest.
    """
    if isinstance(value, str):
        word = value.strip().lower()
        for grid in grids().values():
            if word in (grid.name, grid.title.lower()):
                return grid
        try:
            value = float(word)
        except ValueError:
            titles = {
                **{grid.title.lower(): name for name, grid in grids().items()},
                **dict(zip(grids(), grids(), strict=True)),
            }
            close = [titles[text] for text in difflib.get_close_matches(word[:40], titles, n=_NEAREST, cutoff=0.4)]
            near = [f"{name} ({grids()[name].title})" for name in dict.fromkeys(close or ["world", "eu", "us"])]
            raise SpecError(
                f"there is no grid {word[:40]!r}; the nearest are {listed(near)}; or give grams of CO2e per kWh, such as 380",
                field="grid",
            ) from None
    # Less than a gram, but for none, was meant in kilograms.
    least = 0.0 if value == 0 else 1.0
    _check(
        "grid", value, least, MAX_G_PER_KWH, "grams (not kg) of CO2e per kWh, such as 380, or a grid's name, such as de"
    )
    return Grid(f"{value:g}", "a number of the user's", float(value), "the user")


@dataclass(frozen=True, slots=True)
class Footprint:
    """What energy emits and costs. The interval of each amount is that of the energy.

    Attributes:
        carbon_g: Grams of CO2 equivalents; None without a grid, or where the energy is unknown.
        electricity_cost: In the currency of the price; None without a price, or where the energy is unknown.
        grid: The grid in words; None without one.
        g_per_kwh: Its grams of CO2 equivalents per kilowatt-hour.
        source: Where that is from.
        price_per_kwh: Price of a kilowatt-hour; None without one.
        pue: Power of the data centre over that of its devices; 1: what the devices draw alone.
    """

    carbon_g: Interval | None
    electricity_cost: Interval | None
    grid: str | None
    g_per_kwh: float | None
    source: str | None
    price_per_kwh: float | None
    pue: float


@dataclass(frozen=True, slots=True)
class Electricity:
    """Electricity that devices draw.

    Attributes:
        grid: Where it is generated; None: emissions are not wanted.
        price_per_kwh: Price of a kilowatt-hour, in any one currency; None: its cost is not wanted.
        pue: Power of the data centre over that of its devices (power usage effectiveness, ISO/IEC 30134-2).
    """

    grid: Grid | None = None
    price_per_kwh: float | None = None
    pue: float = 1.0

    def __str__(self) -> str:
        parts = (
            []
            if self.grid is None
            else [f"{self.grid.title}, {self.grid.g_per_kwh:g} g CO2e per kWh ({self.grid.source})"]
        )
        parts += [] if self.price_per_kwh is None else [f"{self.price_per_kwh:g} per kWh"]
        of_devices = ": what the devices draw alone" if self.pue == 1 else ""
        return f"{'; '.join(parts)}; PUE {self.pue:g}{of_devices}"

    def footprint(self, energy_j: Interval | None, times: float = 1.0) -> Footprint:
        """What so many times an energy of the devices emits and costs; None is unknown."""
        grid, price = self.grid, self.price_per_kwh
        meter_kwh = None if energy_j is None else energy_j.scaled(self._meter_kwh_per_j(times))
        return Footprint(
            None if meter_kwh is None or grid is None else meter_kwh.scaled(grid.g_per_kwh),
            None if meter_kwh is None or price is None else meter_kwh.scaled(price),
            None if grid is None else grid.title, None if grid is None else grid.g_per_kwh,
            None if grid is None else grid.source, price, self.pue,
        )  # fmt: skip

    def carbon_g(self, energy_j: float, times: float = 1.0) -> float | None:
        """Grams of CO2e of so many times an energy of the devices; None without a grid."""
        return None if self.grid is None else energy_j * self._meter_kwh_per_j(times) * self.grid.g_per_kwh

    def _meter_kwh_per_j(self, times: float) -> float:
        """Kilowatt-hours of so many joules of the devices at the meter of the data centre."""
        return times * self.pue / J_PER_KWH


def read_electricity(grid: Any = None, electricity_price: Any = None, pue: Any = None) -> Electricity | None:
    """Electricity from plain values; None where there are none.

    Args:
        grid: as of `grid_named`.
        electricity_price: price of a kilowatt-hour, in any one currency.
        pue: power of the data centre over that of its devices, from 1; None: 1.

    Raises:
        SpecError: a value is none that is possible, or there is only a `pue`.
    """
    if electricity_price is not None:
        _check("electricity_price", electricity_price, 0.0, MAX_ELECTRICITY_PRICE, "a price of a kilowatt-hour")
    if pue is not None:
        _check("pue", pue, 1.0, MAX_PUE, "the power of the data centre over that of its devices")
    if grid is electricity_price is None:
        if pue is not None:
            raise SpecError("pue goes with a grid or an electricity_price; give one, or leave it out", field="pue")
        return None
    return Electricity(
        None if grid is None else grid_named(grid), electricity_price, 1.0 if pue is None else float(pue)
    )


def _check(name: str, value: Any, least: float, most: float, what: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise SpecError(f"{name} must be {what}, between {least:g} and {most:g}, got {str(value)[:40]!r}", field=name)
