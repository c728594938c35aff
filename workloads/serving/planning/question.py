"""What is asked of a planner: a model, lengths and a load, what may be chosen, and what a plan must keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ....features.device import Catalogue
from ....features.errors import SpecError, listed
from ....models.predict.power_law import PowerSetting, checked_setting
from ...architectures.facts import ModelFacts
from ...architectures.plan import ONE_DEVICE
from ...units import MAX_PRICE
from ..batching.load import MAX_TOKENS
from ..host_experts import check_host_experts
from ..predict import Latency
from ..request import engine_named
from ..speculation import Speculation, speculation_of

MAX_GPUS = 4096
"""Most devices planned for: above any real service of one model, so that a number in the wrong place is noticed."""
ENGINES = ("vllm", "sglang", "trtllm")
"""Engines whose command lines are known, which are planned with unless others are given."""
MAX_CHOICES = 16
"""Most devices, engines or formats to choose among: bounds the number of plans."""


PERCENTILES = (50, 90, 99)
"""Shares of requests in percent whose times are known of a simulated service."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A question: which devices, plan and settings serve a load best.

    Attributes:
        facts: The model.
        devices: Catalogue names of the devices to choose among.
        gpus: Devices that a plan uses in all, at most where a load is given.
        input_tokens: Mean tokens of a prompt.
        output_tokens: Mean tokens of an answer.
        concurrency: Requests under way in all; None: the planner chooses.
        rate: Requests per second in all; None: the planner chooses.
        ttft_s: Longest time to the first token, of the request at `percentile`; None: any.
        tpot_s: Longest time per token, likewise; None: any.
        prices: Price of one device for an hour, by catalogue name; None: cost is counted in hours of devices.
        engines: Engines to choose among.
        weights: Formats of the matrices to choose among; empty: the model's own, and fp8 where a device multiplies it.
        dtype: Format of activations; None: the model's.
        kv_dtype: Format of the cache; None: that of activations.
        power_budget_w: Watts of all devices together; None: any.
        cached: Share of a prompt that the prefix cache already has.
        speculation: Guesses, with which every plan is tried beside itself without; None: none.
        host_experts: Share of the routed experts that is in the host's memory, in every plan.
        setting: How every device is set; None: as it comes.
        percentile: Share of requests in percent, 50, 90 or 99, that keep the longest times.
        counts: How many there are of a device, by catalogue name; of others there are `gpus`.
    """

    facts: ModelFacts
    devices: tuple[str, ...]
    gpus: int
    input_tokens: float
    output_tokens: float
    concurrency: float | None = None
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prices: Mapping[str, float] | None = None
    engines: tuple[str, ...] = ENGINES
    weights: tuple[str, ...] = ()
    dtype: str | None = None
    kv_dtype: str | None = None
    power_budget_w: float | None = None
    cached: float = 0.0
    speculation: Speculation | None = None
    host_experts: float = 0.0
    setting: PowerSetting | None = None
    percentile: int = PERCENTILES[0]
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts.check_serves()
        for name in ("devices", "engines"):
            if not getattr(self, name):
                raise SpecError(f"at least one of {name} is needed", field=name)
        for name in ("devices", "engines", "weights"):
            if len(getattr(self, name)) > MAX_CHOICES:
                raise SpecError(
                    f"at most {MAX_CHOICES} {name} are compared, got {len(getattr(self, name))}", field=name
                )
        for engine in self.engines:
            if engine not in ENGINES:
                raise SpecError(f"plans are made for {listed(ENGINES)}, not {engine!r}", field="engines")
        gpus = self.gpus
        if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_GPUS:
            raise SpecError(f"gpus must be a whole number between 1 and {MAX_GPUS}, got {gpus!r}", field="gpus")
        for name, count in self.counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_GPUS:
                raise SpecError(
                    f"the number of {name} must be a whole number between 1 and {MAX_GPUS}, got {count!r}",
                    field="devices",
                )
        for name in ("input_tokens", "output_tokens"):
            _check_number(name, getattr(self, name), 1, MAX_TOKENS)
        if self.concurrency is not None and self.rate is not None:
            raise SpecError("a load is a concurrency or a rate, not both", field="concurrency")
        if self.concurrency is not None:
            _check_number("concurrency", self.concurrency, 1, 1e5)
            if self.concurrency != int(self.concurrency):
                raise SpecError(f"concurrency must be a whole number, got {self.concurrency!r}", field="concurrency")
        for name in ("rate", "ttft_s", "tpot_s", "power_budget_w"):
            if (value := getattr(self, name)) is not None:
                _check_number(name, value, 1e-6, 1e9)
        if self.percentile not in PERCENTILES:
            raise SpecError(
                f"percentile must be one of {listed(map(str, PERCENTILES))}, got {self.percentile!r}",
                field="percentile",
            )
        if not 0 <= self.cached < 1:
            raise SpecError(f"cached must be at least 0 and below 1, got {self.cached!r}", field="cached")
        longest = self.input_tokens + self.output_tokens
        if self.facts.max_length is not None and longest > self.facts.max_length:
            raise SpecError(
                f"{longest:.0f} tokens are longer than the {self.facts.max_length} that {self.facts.name} is made for; shorten "
                "the prompts or the answers", field="input_tokens",
            )  # fmt: skip
        if self.speculation is not None:
            self.speculation.check(self.facts, ONE_DEVICE, longest)
        check_host_experts(self.host_experts, self.facts)
        if self.prices is not None and (missing := [name for name in self.devices if name not in self.prices]):
            raise SpecError(
                f"prices lack {listed(missing)}; every device needs a price per hour, or none has one", field="prices"
            )

    def at_most(self, device: str) -> int:
        """Devices of a kind that a plan may use."""
        return min(self.gpus, self.counts.get(device, self.gpus))

    @property
    def longest(self) -> int:
        """Tokens of a prompt and its answer, of mean lengths."""
        return math.ceil(self.input_tokens) + math.ceil(self.output_tokens)

    def value_of(self, latency: Latency) -> float:
        """The value of a latency at the percentile, in seconds."""
        return float(getattr(latency, f"p{self.percentile}").value)

    @property
    def cost_unit(self) -> str:
        """What a cost is counted in."""
        return "GPU hours" if self.prices is None else "price"

    def price(self, device: str) -> float:
        """Price of one device for an hour; 1 without prices, so that a cost is in hours of devices."""
        return 1.0 if self.prices is None else self.prices[device]


def plan_question(
    facts: ModelFacts, devices: Sequence[str], catalogue: Catalogue, *, engines: Sequence[str] = ENGINES,
    weights: Sequence[str] = (), prices: Path | str | Mapping[str, Any] | None = None, speculate: int | None = None,
    acceptance: float | None = None, draft: ModelFacts | None = None, power_limit_w: float | None = None,
    clock_hz: float | None = None, gpus: int | None = None, **others: Any,
) -> PlanQuestion:  # fmt: skip
    """A question in plain names and numbers, as commands and requests give it.

    Args:
        facts: the model.
        devices: GPUs by name or alias, such as `h100-sxm`, or with how many there are of it: `h100-sxm:4`.
        catalogue: known devices.
        engines: engines by any of their names.
        weights: formats of the matrices.
        prices: as `read_prices` reads them.
        speculate: tokens that a step guesses for each sequence in plans with guesses; None: no plan guesses.
        acceptance: probability that a guess is accepted where those before it were; needed to speculate.
        draft: the model that guesses; None: guesses cost nothing.
        power_limit_w: power limit that every GPU is set to, in watts; None: its own.
        clock_hz: clock that its compute units are locked to, in hertz; None: as high as the limit allows.
        gpus: devices that a plan uses in all; None: as many as there are, where every device says how many.
        **others: the other fields of `PlanQuestion`.

    Raises:
        SpecError: something is unknown, a value is none that is possible, or a device cannot be set so.
    """
    names, counts = devices_counted(devices, catalogue)
    if gpus is None:
        if lacking := [name for name in names if name not in counts]:
            raise SpecError(
                f"gpus is needed, or how many there are of every device, such as {lacking[0]}:4", field="gpus"
            )
        gpus = sum(counts.values())
    return PlanQuestion(
        facts, names, gpus, counts=counts, engines=tuple(dict.fromkeys(engine_named(name) for name in engines)),
        weights=tuple(weights), prices=None if prices is None else read_prices(prices, catalogue),
        speculation=speculation_of(speculate, acceptance, draft),
        setting=checked_setting(power_limit_w, clock_hz, *map(catalogue.get, names)), **others,
    )  # fmt: skip


def devices_counted(words: Sequence[str], catalogue: Catalogue) -> tuple[tuple[str, ...], dict[str, int]]:
    """Catalogue names of GPUs, each once, and of `name:4` how many there are.

    Raises:
        SpecError: one is unknown or no GPU, a number is none, or a name has two.
    """
    counts: dict[str, int | None] = {}
    for word in words:
        name, mark, count = str(word).partition(":")
        device = catalogue.get(name)
        if device.kind != "gpu":
            raise SpecError(f"{device.name} is a {device.kind}; plans are made for GPUs", field="devices")
        if mark and not (count.isascii() and count.isdigit()):
            raise SpecError(f"{word!r}: behind the colon is how many there are, such as {name}:4", field="devices")
        number = int(count) if mark else None
        if counts.setdefault(device.name, number) != number:
            raise SpecError(f"{device.name} is given twice with different numbers; give one", field="devices")
    return tuple(counts), {name: count for name, count in counts.items() if count is not None}


def read_prices(source: Path | str | Mapping[str, Any], catalogue: Catalogue) -> dict[str, float]:
    """Prices per hour by catalogue name, from a YAML file (or a mapping) with a line `h100-sxm: 2.5` per device.

    Raises:
        SpecError: the file cannot be read, or holds anything else.
    """
    raw: Any = source
    if isinstance(source, Path | str):
        try:
            raw = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(
                f"cannot read the prices {source}: {getattr(error, 'strerror', None) or error}", field="prices"
            ) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise SpecError(f"the prices {source} are no YAML: {str(error).splitlines()[0]}", field="prices") from error
    if not isinstance(raw, Mapping) or not raw:
        raise SpecError(
            "prices are a mapping of devices to the price of one for an hour, such as `h100-sxm: 2.5`", field="prices"
        )
    prices = {}
    for name, value in raw.items():
        if not isinstance(name, str):
            raise SpecError(f"prices: {name!r} is no name of a device", field="prices")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_PRICE:
            raise SpecError(
                f"the price of {name} must be a positive number per hour, of at most {MAX_PRICE:g}, got {value!r}",
                field="prices",
            )
        prices[catalogue.get(name).name] = float(value)
    return prices


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        raise SpecError(f"{name} must be a number between {least:g} and {most:g}, got {value!r}", field=name)
