"""What electricity emits and costs: grids by name and by number, amounts with the energy's interval, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.carbon import J_PER_KWH, Electricity, grid_named, grids, read_electricity
from kernelcast.models.predict.prediction import Interval

KWH = Interval(J_PER_KWH, 0.9 * J_PER_KWH, 1.2 * J_PER_KWH)


def test_a_kilowatt_hour_emits_what_the_grid_has_and_costs_its_price():
    item = Electricity(grid_named("de"), 0.25).footprint(KWH)
    assert item.carbon_g is not None
    ends = (item.carbon_g.lower, item.carbon_g.value, item.carbon_g.upper)
    assert ends == pytest.approx((0.9 * 344, 344, 1.2 * 344))
    assert item.electricity_cost is not None
    assert item.electricity_cost.value == pytest.approx(0.25)
    assert (item.grid, item.g_per_kwh, item.price_per_kwh, item.pue) == ("Germany", 344.0, 0.25, 1.0)
    assert item.source == "Ember, Yearly Electricity Data, 2025, of 2024"


def test_a_data_centre_draws_more_than_its_devices():
    item = Electricity(grid_named(100), pue=1.5).footprint(KWH, 2.0)
    assert item.carbon_g is not None
    assert item.carbon_g.value == pytest.approx(300.0)
    assert item.electricity_cost is None


def test_of_an_unknown_energy_nothing_is_known():
    item = Electricity(grid_named("fr"), 0.2).footprint(None)
    assert item.carbon_g is item.electricity_cost is None


@pytest.mark.parametrize("name", ["gb", "GB", "United Kingdom", " united kingdom "])
def test_a_grid_is_named_by_code_or_title(name: str):
    assert grid_named(name) == grids()["gb"]


def test_grids_that_ship_are_plausible():
    assert len(grids()) > 30
    assert grids()["no"].title == "Norway"
    assert len({grid.title for grid in grids().values()}) == len(grids())
    assert all(20 <= grid.g_per_kwh <= 1000 and "20" in grid.source for grid in grids().values())


@pytest.mark.parametrize("value", [0, 380, "380", 29.5])
def test_a_grid_may_be_a_number_of_the_users(value: Any):
    assert grid_named(value).g_per_kwh == float(value)


def test_without_a_grid_and_a_price_there_is_no_footprint():
    assert read_electricity() is None


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        (("germny",), "grid", r"nearest are de \(Germany\)"),
        (("atlantis-7",), "grid", "or give grams of CO2e per kWh"),
        ((-1,), "grid", "between 1 and 2000, got '-1'"),
        ((0.38,), "grid", r"grams \(not kg\) of CO2e"),
        (("nan",), "grid", "got 'nan'"),
        ((True,), "grid", "got 'True'"),
        ((None, -0.1), "electricity_price", "between 0 and"),
        ((None, "cheap"), "electricity_price", "a price of a kilowatt-hour"),
        (("de", None, 0.9), "pue", "between 1 and 10"),
        ((None, None, 1.2), "pue", "goes with a grid or an electricity_price"),
    ],
)
def test_what_cannot_be_is_refused(values: tuple[Any, ...], field: str, words: str):
    with pytest.raises(SpecError, match=words) as refused:
        read_electricity(*values)
    assert refused.value.field == field
