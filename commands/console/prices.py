"""What an hour of a device costs, and where its electricity is from: options of every command that says such things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError, listed
from ...workloads.units import grams, money, plain
from .screen import between, show_fact

if TYPE_CHECKING:
    from ...features.device import Catalogue
    from ...models.predict.carbon import Electricity, Footprint
    from ...models.predict.prediction import Interval

Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="DEVICE=PRICE|YAML",
        help="Price of one device for an hour, in any one currency, or a file with a line `h100-sxm: 2.5` each; may be given "
        "again.",
    ),
]
GridOption = Annotated[
    str | None,
    typer.Option("--grid", metavar="NAME|G_PER_KWH", help="Also say the CO2e: a grid such as de, or grams per kWh."),
]
ElectricityPrice = Annotated[
    float | None, typer.Option("--electricity-price", metavar="PRICE", help="Also say its cost: price of a kWh.")
]
Pue = Annotated[
    float | None, typer.Option("--pue", help="Power of the data centre over that of its devices; default: 1.")
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", min=1, max=10**12, metavar="N", help="Also say the time, energy and cost of a run of N steps."
    ),
]
EarlierPrices = Annotated[list[str] | None, typer.Option("--prices", hidden=True)]
"""The earlier name of the option of services of language models."""

_EXPECTED = "--price takes DEVICE=PRICE, such as h100-sxm=2.99, or a YAML file of prices"


def read_prices(words: Sequence[str], devices: Sequence[str], known: Catalogue) -> dict[str, float]:
    """Prices of an hour by catalogue name; of files those of `devices`, which are catalogue names.

    A number alone is the price of the only device.

    Raises:
        SpecError: a word is neither a price nor a file of prices, its device is not among `devices`, or has two prices; or
            files have prices of other devices alone.
    """
    from ...features.spec_io.words import read_device
    from ...workloads.serving.planning.question import read_prices as read_file
    from ...workloads.units import MAX_PRICE

    prices: dict[str, float] = {}
    for word in words:
        name, mark, text = word.rpartition("=")
        amount = _number(text)
        if amount is None and not mark and (Path(word).suffix or Path(word).is_file()):
            per_hour = {device: price for device, price in read_file(Path(word), known).items() if device in devices}
        elif amount is None or not 0 <= amount <= MAX_PRICE or not (mark or len(devices) == 1):
            raise SpecError(f"{_EXPECTED}, of at most {MAX_PRICE:g}, got {word!r}", field="price")
        else:
            per_hour = {read_device(name, known)[0].name if mark else devices[0]: amount}
        for device, price in per_hour.items():
            if device not in devices:
                raise SpecError(
                    f"--price names {device}, which is not among the devices: {listed(devices)}", field="price"
                )
            if prices.setdefault(device, price) != price:
                raise SpecError(
                    f"--price names {device} twice, at {prices[device]:g} and {price:g}; give one", field="price"
                )
    if words and not prices:
        raise SpecError(
            f"{listed(words)}: no price of {listed(devices)}; add one, such as `{devices[0]}: 2.5`, or leave --price out",
            field="price",
        )
    return prices


def read_electricity(grid: str | None, price: float | None, pue: float | None) -> Electricity | None:
    """Where electricity is from and what it costs; None where no option says so.

    Raises:
        SpecError: an option is none that is possible.
    """
    from ...models.predict.carbon import read_electricity as read

    return read(grid, price, pue)


def show_footprint(
    electricity: Electricity | None, energies: Iterable[tuple[str, Interval | None, float]], name: str = "footprint"
) -> None:
    """Print what energies emit and cost: what each is of, joules, and how many times so much; None is unknown."""
    if electricity is None:
        return
    for what, energy_j, times in energies:
        item, words = electricity.footprint(energy_j, times), []
        if item.carbon_g is not None:
            words.append(f"{grams(item.carbon_g.value)} {between(item.carbon_g, grams)} CO2e")
        if item.electricity_cost is not None:
            words.append(
                f"{money(item.electricity_cost.value)} {between(item.electricity_cost, money)} for electricity"
            )
        show_fact(name, f"{what}: {', '.join(words) or 'unknown, as its energy is'}")
    show_fact("grid", str(electricity))


@dataclass(frozen=True, slots=True)
class StepRun:
    """So many steps one after the other, such as a training run. Their errors are one step's, so intervals grow alike.

    Attributes:
        steps: How many.
        latency_s: Time of all; None where that of one is unknown.
        energy_j: Energy of all devices; None likewise.
        cost: At a price of the devices' hours; None without one.
        footprint: What its electricity emits and costs; None where nobody asks.
    """

    steps: int
    latency_s: Interval | None
    energy_j: Interval | None
    cost: Interval | None
    footprint: Footprint | None


def step_run(
    steps: int, latency_s: Interval | None, energy_j: Interval | None, price_per_hour: float | None,
    electricity: Electricity | None,
) -> StepRun:  # fmt: skip
    """A run of steps, from the time and energy of one and the price of an hour of all devices."""
    whole_s, whole_j = (None if of_step is None else of_step.scaled(steps) for of_step in (latency_s, energy_j))
    cost = None if whole_s is None or price_per_hour is None else whole_s.scaled(price_per_hour / 3600)
    return StepRun(steps, whole_s, whole_j, cost, None if electricity is None else electricity.footprint(whole_j))


def show_step_run(run: StepRun, device: str) -> None:
    """Print what a run of steps takes on a device."""
    from ...models.predict.carbon import J_PER_KWH

    footprint = run.footprint
    amounts: list[tuple[Interval | None, Callable[[float], str], str]] = [
        (run.latency_s, lambda time_s: f"{plain(time_s / 3600)} h", ""),
        (run.energy_j, lambda energy_j: f"{plain(energy_j / J_PER_KWH)} kWh", ""),
        (run.cost, money, " to rent"),
    ]
    if footprint is not None:
        amounts += [(footprint.carbon_g, grams, " CO2e"), (footprint.electricity_cost, money, " for electricity")]
    words = [
        f"{write(amount.value)} {between(amount, write)}{what}" for amount, write, what in amounts if amount is not None
    ]
    if footprint is not None and footprint.pue != 1 and run.energy_j is not None:
        words.append(f"{plain(run.energy_j.value * footprint.pue / J_PER_KWH)} kWh with PUE {footprint.pue:g}")
    show_fact("run", f"{run.steps:,} steps on {device}: {', '.join(words) or 'unknown'}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
