"""Prices of runs in Python are checked as those of the command line and the service are."""

from __future__ import annotations

from typing import Any

import kernelcast.torch
import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"h100": -1}, "a price is a number from 0 to 1e+06, got -1"),
        ({"h100": float("nan")}, "got nan"),
        ({"h100": "2.5"}, "got text"),
        ({"h100": True}, "got true or false"),
        ({"h9000": 2}, "h9000"),
        ({3: 2}, "3"),
        ({"h200": 2}, "is not among the compared devices"),
        ([2], "prices must be an object of prices by device, not a list"),
        (2.5, "prices must be an object of prices by device, not a number"),
    ],
)
def test_what_is_no_price_is_told(prices: Any, message: str, predictor: ArtifactPredictor) -> None:
    with pytest.raises(SpecError) as error:
        kernelcast.torch.estimate("h100", model=predictor, price_per_hour=prices)
    assert message in str(error.value)
    assert str(error.value.field).startswith("price_per_hour")


def test_what_a_run_costs(predictor: ArtifactPredictor) -> None:
    with kernelcast.torch.estimate("h100", "h200", model=predictor, price_per_hour={"h100": 3}) as run:
        torch.ones(64, 64) @ torch.ones(64, 64)
    answers = run.answers
    (name, priced), (other, _) = answers.totals.items()
    cost = answers.cost(name)
    assert cost is not None
    assert priced.latency_s is not None
    assert cost.value == pytest.approx(priced.latency_s.value * 3 / 3600)
    assert answers.cost(other) is None
