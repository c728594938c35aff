"""`kernelcast compare`, `compare roofline` and `compare rank`: one kernel on devices side by side, or in configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console, names

if TYPE_CHECKING:
    from ...client.answers import Comparison, DeviceCost, Ranking, Roofline
    from ...features.device import Catalogue, Device
    from ...features.kernel import KernelSpec

_SHOWN, _REASONS = 20, 3
"""Most devices of a comparison, and most reasons for devices without an answer."""
_CACHED = ("compute", "cache")
"""Limits that bind a kernel of low intensity only where its operands are in the caches."""
MOST_CURVES = 8
"""Most devices of a plot or a roofline: as many as can be told apart."""


def compare(
    family: names.Family,
    words: names.Words = None,
    device: names.Devices = None,
    price: console.Prices = None,
    top: Annotated[int | None, typer.Option(min=1, help=f"Devices to list; default: those named, or {_SHOWN}.")] = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Compare a kernel on devices, the fastest first; without --device on all that are known.

    kernelcast compare gemm 4096x4096x4096 bf16 --device h100 --device l40s --device mi300x
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.devices import compare as compared
    from ...workloads.compare.devices import fastest_first

    known = console.read_catalogue(device_file)
    spec = read_spec(family, words)
    devices = names.devices(device, known) if device else list(known)
    prices = console.read_prices(price or (), [item.name for item in devices], known)
    predictor = load_predictor(console.model_dir(model), known)
    comparison = fastest_first(compared(predictor, spec, devices, coverage=coverage, prices=prices))
    _check_answered(comparison)
    if as_json:
        console.print_json(comparison)
    else:
        _show(spec, comparison, top or (len(devices) if device else _SHOWN))


def read_spec(family: str, words: list[str] | None) -> KernelSpec:
    """The kernel of typed words, with its timing.

    Raises:
        SpecError: a word means nothing of the family, or the sizes cannot be.
    """
    from ...workloads.compare.spec_on_devices import read_bare

    return read_bare(names.kernel(family, words or []))


def curve_devices(device: list[str] | None, known: Catalogue) -> list[Device]:
    """The named devices, one to `MOST_CURVES`.

    Raises:
        SpecError: none or too many are named, or one is not known.
    """
    devices = names.devices(device or (), known)
    if not devices:
        raise SpecError("name a device with --device; `kernelcast devices` lists them", field="device")
    if len(devices) > MOST_CURVES:
        raise SpecError(f"at most {MOST_CURVES} devices can be told apart; {len(devices)} were given", field="device")
    return devices


def _check_answered(comparison: Comparison) -> None:
    """That one device at least is answered.

    Raises:
        SpecError: none is; the message has the reasons.
    """
    refusals = [cost.refusal for cost in comparison.answers if cost.prediction is None]
    if len(refusals) == len(comparison.answers):
        reasons = [reason for reason in dict.fromkeys(refusals) if reason]
        more = f"; and {len(reasons) - _REASONS} other reasons" if len(reasons) > _REASONS else ""
        raise SpecError(f"no device can run it: {'; '.join(reasons[:_REASONS])}{more}", field="device")


def _show(spec: KernelSpec, comparison: Comparison, most: int) -> None:
    answered = [cost for cost in comparison.answers if cost.prediction is not None]
    screen = console.out()
    screen.print(console.heading(str(spec), amounts(comparison.flops, comparison.bytes)), soft_wrap=True)
    has_prices = any(cost.cost_per_million_calls is not None for cost in answered)
    heads = ["", "device", "latency", "interval", "energy", "times", *(["1M calls"] if has_prices else [])]
    table = console.new_table(*heads, numbers=set(heads[2:]))
    for cost in answered[:most]:
        table.add_row(*_row(cost, answered[0], has_prices))
    screen.print(table)
    tell_outside(cost.prediction is not None and cost.prediction.in_domain for cost in answered[:most])
    if len(answered) > most:
        console.note(f"{len(answered) - most} slower ones are left out; --top {len(answered)} lists all")
    for cost in comparison.answers[len(answered) :][:_REASONS]:
        console.note(f"{cost.device}: not answered: {cost.refusal}")
    if (refused := len(comparison.answers) - len(answered)) > _REASONS:
        console.note(f"and {refused - _REASONS} others are not answered; --json says why")


def _row(cost: DeviceCost, best: DeviceCost, has_prices: bool) -> list[Any]:
    prediction, first = cost.prediction, best.prediction
    assert prediction is not None  # noqa: S101 - only answered devices have a row
    assert first is not None  # noqa: S101 - likewise
    latency, price = prediction.latency_s, cost.cost_per_million_calls
    times = latency.value / first.latency_s.value
    row = [
        console.domain_mark(prediction.in_domain), cost.device, console.seconds(latency.value),
        console.span(latency, console.seconds),
        "" if prediction.energy_j is None else console.joules(prediction.energy_j.value),
        f"{times:,.0f}×" if times >= 100 else f"{times:.2f}×",
    ]  # fmt: skip
    return [*row, "" if price is None else console.money(price.value)] if has_prices else row


def tell_outside(in_domain: Iterable[bool]) -> None:
    """Say what the hollow mark means, where there is one."""
    if not all(in_domain):
        console.note("○ outside what was measured: the interval is wider")


def amounts(flops: float, moved_b: float) -> str:
    """The arithmetic and the traffic of a kernel, as the end of a heading."""
    intensity = flops / moved_b if moved_b else 0.0
    per_byte = f", {intensity:,.0f} FLOP/B" if intensity >= 100 else f", {intensity:.3g} FLOP/B" if intensity else ""
    return f": {console.flops(flops)}, {console.num_bytes(moved_b)}{per_byte}"


def roofline(
    family: names.Family,
    words: names.Words = None,
    device: names.Devices = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Show a kernel under the roofline of devices: its intensity, what binds it, and how much of that limit it attains.

    kernelcast compare roofline gemm 4096x4096x4096 bf16 --device h100 --device l40s
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.devices import roofline as roofline_of

    known = console.read_catalogue(device_file)
    spec = read_spec(family, words)
    devices = curve_devices(device, known)
    predictor = load_predictor(console.model_dir(model), known)
    result = roofline_of(predictor, spec, devices, coverage=coverage)
    if as_json:
        console.print_json(result)
    else:
        _show_roofline(spec, result)


def _show_roofline(spec: KernelSpec, result: Roofline) -> None:
    screen = console.out()
    screen.print(console.heading(str(spec), amounts(result.flops, result.bytes)), soft_wrap=True)
    heads = ("", "device", "attained", "peak", "ridge", "bound", "of limit")
    table = console.new_table(*heads, numbers={"attained", "peak", "ridge", "of limit"})
    for roof in result.answers:
        table.add_row(
            console.domain_mark(roof.in_domain), roof.device, console.flops_per_s(roof.attained_flops_per_s.value),
            console.flops_per_s(roof.peak_flops_per_s.value), f"{roof.ridge_intensity:.3g}", roof.bound,
            f"{100 * roof.of_limit:.0f} %",
        )  # fmt: skip
    screen.print(table)
    console.show_fact("ridge", "FLOP/B; below it memory binds, above it compute")
    cached = [roof.device for roof in result.answers if roof.intensity < roof.ridge_intensity and roof.bound in _CACHED]
    if cached and spec.cache_state == "hot":
        console.note(
            f"on {listed(cached)} operands stay in the cache between runs; cache_state=cold asks for a first run"
        )
    tell_outside(roof.in_domain for roof in result.answers)


def rank(
    family: names.Family,
    device: names.OneDevice,
    words: names.Words = None,
    configs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rank these: a .json, .yaml or .csv list, such as a CSV of tile_m,tile_n,warps."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Configurations to list.")] = 10,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Rank configurations (tiles, warps, stages …) of a kernel on a device, those that are known or yours, the fastest first.

    kernelcast compare rank gemm 4096x4096x4096 fp16 --device h200 impl=triton
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.rank import rank as ranked_by
    from ...workloads.compare.rank import rank_question
    from ..predict.predict_model import read_items

    known = console.read_catalogue(device_file)
    plain = names.kernel(family, words or [])
    if plain["config"]:
        raise SpecError(f"{listed(plain['config'])} is what is ranked; leave it out", field="config")
    spec = plain | {"device": names.device(device, known).name}
    candidates = None if configs is None else read_items(configs, "configs")
    question = rank_question(spec, known, candidates, top=top, coverage=coverage)
    result = ranked_by(load_predictor(console.model_dir(model), known), question)
    if as_json:
        console.print_json(result)
    else:
        _show_ranking(replace(question.specs[0], config=()), result)


def _show_ranking(spec: KernelSpec, result: Ranking) -> None:
    screen = console.out()
    count = f" on {result.device}: {result.considered} configurations of {result.impl or 'the kernel'}"
    screen.print(console.heading(str(spec), count), soft_wrap=True)
    heads = ("", "configuration", "latency", "interval", "energy", "slower")
    table = console.new_table(*heads, numbers=set(heads[2:]))
    first, *others = (item.config for item in result.ranked)
    common = {
        name: value for name, value in first.items() if others and all(other.get(name) == value for other in others)
    }
    for item in result.ranked:
        config = _knobs(item.config, common) or "the compiler's own"
        table.add_row(
            console.domain_mark(item.in_domain is not False), config, console.seconds(item.latency_s.value),
            console.span(item.latency_s, console.seconds),
            "" if item.energy_j is None else console.joules(item.energy_j.value), f"{100 * item.slower_than_best:.1f} %",
        )  # fmt: skip
    screen.print(table)
    if common:
        console.show_fact("all", _knobs(common, {}))
    console.show_fact("method", result.method)
    console.show_fact("tied", f"the first {result.tied} cannot be told from the best")
    tell_outside(item.in_domain is not False for item in result.ranked)


def _knobs(config: Mapping[str, int], without: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if name not in without)
