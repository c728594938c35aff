"""Questions about power: the setting at which work takes least energy, and what the electricity of answers emits and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.predict.carbon import Footprint, read_electricity
from ..models.predict.prediction import Interval
from ..workloads.architectures.config.catalogue import facts_of
from ..workloads.architectures.estimate import Estimate
from ..workloads.architectures.facts import ModelFacts
from ..workloads.compare import best_cap as caps
from ..workloads.kernel_reading import read_kernels
from ..workloads.serving.request import serving_request
from ..workloads.whole_model import Kernel
from .arguments import check_names, check_numbers, checked_settings, named_family
from .model_cache import load, services

_ENERGIES = ("energy_j", "energy_per_request_j")


def best_cap(
    work: str | Sequence[Mapping[str, Any] | Kernel] | Mapping[str, Any] | ModelFacts | None,
    device: str,
    *,
    slowdown: float | None = None,
    budget: caps.Budget | Mapping[str, float] | None = None,
    time_s: float | None = None,
    power_w: float | None = None,
    model: Path | str | None = None,
    **sizes_or_load: Any,
) -> caps.BestCap:
    """The power limit or clock of a GPU at which work takes least energy, with the curves it is chosen from.

    Args:
        work: a kernel family, with `dtype` and sizes; a list of kernels as of `predict_model`; a language model as of
            `llm_predict`, with `input_tokens`, `output_tokens` and a load; or None with `time_s` and `power_w`.
        device: a GPU of the catalogue, by name or alias.
        slowdown: longest time accepted over that of the default, less 1 (0.05: 5 % longer); default: any.
        budget: power that servers share, in watts: `budget_w`, and as needed `gpus` of a server and its `host_w`. Then the
            limit of most throughput is chosen.
        time_s: seconds of a program that ran by default.
        power_w: its mean power in watts.
        model: a model directory; default: the champion, else the shipped model.
        **sizes_or_load: what the work takes.

    Raises:
        kernelcast.SpecError: something is unknown or impossible; the message says what is possible.
    """
    predictor = load(model)
    place = predictor.devices.get(device)
    check_numbers({"slowdown": slowdown, "time_s": time_s, "power_w": power_w})
    if isinstance(budget, Mapping):
        check_names(budget, caps.Budget)
        check_numbers(budget)
        budget = caps.Budget(**budget)  # type: ignore[arg-type]
    if (work is None) != (time_s is not None) or (time_s is None) != (power_w is None):
        raise SpecError("give work, or both time_s and power_w of a program that ran by default", field="work")
    if time_s is not None and power_w is not None:
        cost = caps.measured_cost(time_s, power_w, place)
    elif "input_tokens" in sizes_or_load or isinstance(work, Mapping | ModelFacts):
        settings = checked_settings(sizes_or_load, serving_request)
        request = serving_request(facts_of(work), place.name, **settings)  # type: ignore[arg-type]
        cost = caps.service_cost(services(model), request)
    elif isinstance(work, str):
        family, fields = named_family(work, sizes_or_load)
        cost = caps.kernel_cost(predictor, KernelSpec.of(family, fields.pop("dtype", None), **fields), place)
    else:
        cost = caps.model_cost(predictor, read_kernels(list(work or ()), [place.name], predictor.devices), place)
    return caps.best_cap(cost, place, slowdown=slowdown, budget=budget)


def footprint(
    answer: Any, *, grid: str | float | None = None, electricity_price: float | None = None, pue: float | None = None
) -> Footprint:
    """What the electricity of an answer emits and costs: of a kernel or a sum, a step, a program, or a request of a service.

    Args:
        answer: what a function of `kernelcast` gives for one device; or an `Interval` of joules.
        grid: where the electricity is generated, such as `de`, or grams of CO2 equivalents per kilowatt-hour.
        electricity_price: price of a kilowatt-hour, in any one currency.
        pue: power of the data centre over that of its devices; default: 1, what the devices draw alone.

    Raises:
        kernelcast.SpecError: there is neither a grid nor a price, a value is impossible, or the answer has no energy.
    """
    electricity = read_electricity(grid, electricity_price, pue)
    if electricity is None:
        raise SpecError("give a grid, such as 'de' or 380, or an electricity_price", field="grid")
    if isinstance(answer, Interval):
        return electricity.footprint(answer)
    if isinstance(answer, Estimate):
        return electricity.footprint(answer.energy_per_token_j, answer.step.tokens)
    name = next((name for name in _ENERGIES if hasattr(answer, name)), None)
    if name is None:
        raise SpecError(f"a footprint is of an answer with an energy, got {type(answer).__name__}", field="answer")
    return electricity.footprint(getattr(answer, name))
