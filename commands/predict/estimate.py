"""`kernelcast estimate`: what a step costs, of a model from its name or `config.json` alone, or of a PyTorch program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from ...workloads.units import money
from .. import console, names
from .estimate_program import ProgramOptions, estimate_program, is_program
from .predict_mlir import SUFFIXES

if TYPE_CHECKING:
    from ...features.device import Catalogue
    from ...models.predict.carbon import Electricity
    from ...models.predict.prediction import Interval
    from ...workloads.architectures.estimate import Estimate
    from ...workloads.flame import Picture
    from ...workloads.savings import Saving
    from ...workloads.whole_model import Part

_SHOWN = 10
_MOST = 10_000_000
"""Most sequences or tokens of an option."""


def estimate(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL | FILE.py:FUNCTION | FILE",
            help="A model that ships, such as meta-llama/Llama-3.1-8B, the path of a config.json, a function that runs one "
            "step of a PyTorch program, a program that was captured (.json), or an ONNX file (.onnx).",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The config.json of any other model; MODEL is then its name.")
    ] = None,
    device: names.Devices = None,
    batch: Annotated[int | None, names.whole_option("Sequences of a step; of a program, its samples.")] = None,
    prefill: Annotated[int | None, names.whole_option("New tokens of each sequence.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="One new token of each sequence; needs --context.")] = False,
    train: Annotated[
        int | None, names.whole_option("A training step with AdamW on sequences of so many tokens.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --train: layers keep their inputs alone and run forwards again.")
    ] = False,
    encode: Annotated[
        bool, typer.Option("--encode", help="Only the encoder of a model that has one beside its decoder.")
    ] = False,
    context: Annotated[int | None, names.whole_option("Positions of each sequence already in the cache.")] = None,
    source: Annotated[int | None, names.whole_option("Tokens that an encoder of text beside a decoder reads.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Number format of activations; default: the model's.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Number format of the matrices, such as fp8, nvfp4, int4; default: the model's.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Number format of the key and value cache; default: that of activations.")
    ] = None,
    impl: Annotated[str, typer.Option(help="What runs products, attention and experts, such as vllm-0.24.0.")] = "",
    tp: Annotated[int, typer.Option(help="Devices that split each layer.")] = 1,
    pp: Annotated[int, typer.Option(help="Stages that split the layers.")] = 1,
    ep: Annotated[int, typer.Option(help="Devices that share out the experts.")] = 1,
    dp: Annotated[int, typer.Option(help="Groups of devices with sequences of their own.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPUs; default: all cores.")] = None,
    bind: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="A dynamic size of an ONNX file; may be given again.")
    ] = None,
    price: console.Prices = None,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    steps: console.Steps = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a program's answer to a .html, .json or .txt file.")
    ] = None,
    flame: Annotated[
        Path | None,
        typer.Option(help="Also draw where the time goes: a page (.html), or for one device a picture (.svg)."),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(help="Also write the program itself to a .json file that needs no torch to be estimated."),
    ] = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Estimate what a step of a model or a PyTorch program costs, and whether it fits, on devices side by side.

    kernelcast estimate meta-llama/Llama-3.1-8B --prefill 2048 --batch 8 --device h100-sxm --device rtx-4090

    kernelcast estimate --config config.json --decode --context 4096 --batch 32 --device h100-sxm --weights fp8

    kernelcast estimate train.py:step --device h100-sxm --device rtx-4090

    kernelcast estimate resnet50.onnx --bind batch=8 --device h100-sxm --flame time.svg

    A program's file is loaded and the function called with fake tensors: nothing is computed, no GPU and no weights are needed.
    """
    known = console.read_catalogue(device_file)
    sizes = {"--batch": batch, "--prefill": prefill, "--train": train, "--context": context, "--source": source}
    for option, value in sizes.items():
        if value is not None and not 1 <= value <= _MOST:
            raise SpecError(f"{option} must be between 1 and {_MOST:,}, got {value:,}", field=option.removeprefix("--"))
    device = names.device_names(device or (), known)
    prices = console.read_prices(price or (), device, known)
    electricity = console.read_electricity(grid, electricity_price, pue)
    if what is not None and is_program(what):
        of_models = {
            "--config": config, "--prefill": prefill, "--decode": decode, "--train": train, "--recompute": recompute,
            "--encode": encode, "--source": source,
            "--context": context, "--dtype": dtype, "--weights": weights, "--kv-dtype": kv_dtype, "--impl": impl,
            "--tp": tp > 1, "--pp": pp > 1, "--ep": ep > 1, "--dp": dp > 1,
        }  # fmt: skip
        if misplaced := [name for name, value in of_models.items() if value]:
            raise SpecError(
                f"the program {what} says its own sizes; only a model from its configuration takes {listed(misplaced)}",
                field=misplaced[0].removeprefix("--"),
            )
        options = ProgramOptions(
            device, threads, batch, bind or (), out, flame, capture, console.model_dir(model), coverage, prices,
            power_limit_w, clock_hz, electricity, steps, as_json,
        )  # fmt: skip
        estimate_program(what, options, known)
        return
    if what is not None and what.lower().endswith(SUFFIXES):
        command = "predict code" if what.lower().endswith(".ttir") else "predict"
        raise SpecError(f"{what} is MLIR; what it costs says: kernelcast {command} {what} --device NAME", field="model")
    if what is not None and (what.endswith(".py") or ".py:" in what):
        raise SpecError(f"{what!r} names no function; give FILE.py:FUNCTION, such as train.py:step", field="model")
    of_programs = {"--out": out, "--capture": capture, "--bind": bind}
    if misplaced := [name for name, value in of_programs.items() if value]:
        raise SpecError(
            f"{listed(misplaced)} goes with a program, FILE.py:FUNCTION or FILE.onnx; --json prints a model's answer",
            field=misplaced[0].removeprefix("--"),
        )
    if not device:
        raise SpecError("name a device with --device; `kernelcast devices` lists them", field="device")
    if what is None and config is None:
        raise SpecError("name a model, or give its configuration with --config", field="model")
    if what is not None and config is not None and Path(what).suffix in (".json", ".yaml", ".yml"):
        raise SpecError(f"{what} and {config} are two configurations; give one of them", field="config")
    from ...models.predict.power_law import checked_setting
    from ...models.predict.predictor import load_predictor
    from ...workloads.architectures.config.catalogue import facts_of
    from ...workloads.architectures.estimate import estimate as estimate_on
    from ...workloads.architectures.estimate import formats_of
    from ...workloads.architectures.plan import ParallelPlan
    from ...workloads.architectures.savings import savings
    from ...workloads.architectures.step import Step

    facts = facts_of(what if config is None else config).with_source(source)  # type: ignore[arg-type]
    if what is not None and config is not None:
        facts = replace(facts, name=what)
    if encode:
        facts = facts.encoder_alone()
    if train is not None and (prefill is not None or decode):
        raise SpecError(
            "a step either trains, prefills or decodes; give one of --train, --prefill, --decode", field="train"
        )
    new = prefill if train is None else train
    length = facts.fixed_length if new is None and not decode else new
    step = Step.of(batch=1 if batch is None else batch, prefill=length, decode=decode, context=context)
    plan = ParallelPlan(tp=tp, pp=pp, ep=ep, dp=dp)
    formats = formats_of(facts, dtype=dtype, weights=weights, kv=kv_dtype)
    if flame is not None:
        from ...workloads.flame import check_path

        check_path(flame, len(device))
    predictor = load_predictor(console.model_dir(model), known)
    if (setting := checked_setting(power_limit_w, clock_hz, *map(known.get, device))) is not None:
        predictor = predictor.under(setting)
    estimates = [
        estimate_on(
            predictor, facts, step, name, formats=formats, plan=plan, impl=impl, coverage=coverage, training=train is not None,
            recompute=recompute,
            threads=threads if known.get(name).kind == "cpu" or len(device) == 1 else None,
        )
        for name in device
    ]  # fmt: skip
    runs = [] if steps is None else [_run(steps, item, prices.get(item.device), electricity) for item in estimates]
    won = {item.device: savings(predictor, item, coverage=coverage) for item in estimates}
    if flame is not None:
        from ...workloads.flame import write

        write(flame, f"{facts.name}, {step}", {"plan": str(plan)}, [_picture(item, known) for item in estimates])
    if as_json:
        answers = [
            estimate_answer(item, prices.get(item.device))
            | {"savings": won[item.device], "collectives_s": _links(item, known) if item.collectives else None}
            for item in estimates
        ]
        if electricity is not None:
            for values, item in zip(answers, estimates, strict=True):
                values["footprint"] = electricity.footprint(item.energy_per_token_j, item.step.tokens)
        for values, run in zip(answers, runs, strict=False):
            values["run"] = run
        console.print_json({"estimates": answers})
    else:
        _show(estimates, known, won, prices)
        console.show_footprint(
            electricity,
            [
                (f"{where}, {item.device}" if len(estimates) > 1 else where, item.energy_per_token_j, times)
                for item in estimates
                for where, times in (("a step", float(item.step.tokens)), ("a million tokens", 1e6))
            ],
        )
        for item, run in zip(estimates, runs, strict=False):
            console.show_step_run(run, known.get(item.device).title)


def _run(steps: int, item: Estimate, price: float | None, electricity: Electricity | None) -> console.StepRun:
    """Steps like an estimated one, on all devices of its plan."""
    energy_j = None if item.energy_per_token_j is None else item.energy_per_token_j.scaled(item.step.tokens)
    per_hour = None if price is None else price * item.plan.devices
    return console.step_run(steps, item.whole.latency_s, energy_j, per_hour, electricity)


def estimate_answer(estimate: Estimate, price_per_hour: float | None = None) -> dict[str, Any]:
    """An estimate as `--json` prints it, with what it costs at a price of one device and hour."""
    from ...workloads.answers import whole_answer

    facts, memory = estimate.facts, estimate.memory
    cost = None if price_per_hour is None else estimate.cost_per_million_tokens(price_per_hour)
    return {
        "model": facts.name, "architecture": facts.architecture, "source": facts.source, "parameters": facts.parameters,
        "active_parameters": facts.active_parameters, "device": estimate.device, "step": estimate.step.groups,
        "plan": estimate.plan, "devices": estimate.plan.devices, "formats": estimate.formats,
        "latency_s": estimate.whole.latency_s, "power_w": estimate.whole.power_w, "energy_j": estimate.whole.energy_j,
        "tokens_per_s": estimate.tokens_per_s, "energy_per_token_j": estimate.energy_per_token_j,
        "price_per_hour": price_per_hour, "cost_per_million_tokens": cost,
        "memory": {
            "weights_b": memory.weights_b, "gradients_b": memory.gradients_b, "optimizer_state_b": memory.optimizer_b,
            "cache_b": memory.cache_b, "activations_b": memory.activations_b,
            "total_b": memory.total_b, "cache_per_token_b": memory.cache_per_token_b,
            "cache_per_sequence_b": memory.cache_per_sequence_b, "device_b": memory.device_b, "usable_b": memory.usable_b,
            "fits": memory.fits, "sequences": memory.sequences,
        },
        "collectives": estimate.collectives, "notes": estimate.notes,
        "kernels": whole_answer(estimate.device, estimate.whole),
    }  # fmt: skip


def _picture(item: Estimate, known: Catalogue) -> Picture:
    """Time by place in the model, in the order of the step."""
    from ...workloads.flame import Picture, tree

    whole = item.whole
    total = f"{console.seconds(whole.latency_s.value)} {console.between(whole.latency_s, console.seconds)}"
    leaves = [
        (
            part.kernel.title.split("."), part.latency_s, part.kernel.spec.family,
            f"bound by {part.prediction.bound}, {part.kernel.count} runs",
        )
        for part in whole.parts
    ]  # fmt: skip
    return Picture(known.get(item.device).title, total, tree(total, leaves))


def _links(item: Estimate, known: Catalogue) -> Interval | None:
    """Seconds of a step's collectives, which its time does not include; None where that is not known."""
    from ...workloads.serving.engine.collectives import shipped_laws

    return shipped_laws().together(known.get(item.device), item.collectives)


def _show(
    estimates: Sequence[Estimate], known: Catalogue, won: Mapping[str, Sequence[Saving]], prices: Mapping[str, float]
) -> None:
    from rich.text import Text

    first = estimates[0]
    facts, formats = first.facts, first.formats
    screen = console.out()
    size = f"{facts.parameters / 1e9:.3g} billion parameters"
    if facts.active_parameters != facts.parameters:
        size += f", {facts.active_parameters / 1e9:.3g} per token"
    screen.print(Text.assemble((facts.name, "bold"), f": {size}, {facts.layers} layers"), soft_wrap=True)
    console.show_fact("step", str(first.step))
    words = [f"{formats.dtype}", f"weights {formats.weights}", f"cache {formats.kv}"]
    if formats.experts != formats.weights and facts.expert_layers:
        words.insert(2, f"experts {formats.experts}")
    console.show_fact("formats", ", ".join(words))
    if first.plan.devices > 1:
        console.show_fact("plan", f"{first.plan}: {first.plan.devices} devices")
    console.show_fact("memory", f"{console.num_bytes(first.memory.total_b)}: {first.memory.parts_text}")
    screen.print(_totals(estimates, known, prices))
    screen.print(_parts(estimates, known))
    if any(won.values()):
        screen.print(_savings(estimates, known, won))
    for remark in dict.fromkeys(remark for item in estimates for remark in item.notes):
        console.show_fact("note", remark)
    for item in estimates:
        if item.collectives and (time := _links(item, known)) is not None:
            time_text = f"{console.seconds(time.value)} {console.between(time, console.seconds)}"
            console.show_fact(
                "links", f"{item.device}: collectives alone take {time_text} besides; those of gradients may overlap"
            )
        # What an implementation that was named is read as.
        methods = dict.fromkeys(part.prediction.method for part in item.whole.parts if part.kernel.spec.impl)
        for method in methods:
            console.show_fact("method", f"{item.device}: {method}")
        outside = sum(not part.prediction.in_domain for part in item.whole.parts)
        if outside:
            share = f"{outside} of {len(item.whole.parts)}"
            console.show_fact("note", f"{item.device}: {share} kernels are outside what was measured; --json says why")


def _savings(estimates: Sequence[Estimate], known: Catalogue, won: Mapping[str, Sequence[Saving]]) -> Any:
    """Changes that would save time, with the seconds saved of a step."""
    numbers = ("share", "saved", "interval")
    table = console.new_table("could be won on", *numbers, "by", numbers=numbers)
    for item in estimates:
        for saving in won[item.device]:
            saved = saving.saved_s
            ends = f"[{console.seconds(saved.lower)} … {console.seconds(saved.upper)}]"
            table.add_row(
                known.get(item.device).title, f"{saving.share:.0%}", console.seconds(saved.value), ends, saving.change
            )
    return table


def _totals(estimates: Sequence[Estimate], known: Catalogue, prices: Mapping[str, float]) -> Any:
    cost = ("cost/M tokens",) if prices else ()
    numbers = ("latency", "interval", "tokens/s", "power", "J/token", "weights", "cache", "memory", *cost)
    table = console.new_table("device", *numbers, "fits", numbers=numbers)
    for item in estimates:
        whole, memory = item.whole, item.memory
        table.add_row(
            known.get(item.device).title, console.seconds(whole.latency_s.value),
            console.between(whole.latency_s, console.seconds),
            f"{item.tokens_per_s.value:,.0f}", "unknown" if whole.power_w is None else console.watts(whole.power_w.value),
            "unknown" if item.energy_per_token_j is None else console.joules(item.energy_per_token_j.value),
            console.num_bytes(memory.weights_b), console.num_bytes(memory.cache_b), console.num_bytes(memory.total_b),
            *([_cost(item, prices)] if prices else ()), _fit(item),
        )  # fmt: skip
    return table


def _cost(item: Estimate, prices: Mapping[str, float]) -> str:
    """Of a million new tokens on all devices of the plan."""
    if (price := prices.get(item.device)) is None:
        return "–"
    return money(item.cost_per_million_tokens(price).value)


def _fit(item: Estimate) -> str:
    memory = item.memory
    if memory.fits is None or memory.usable_b is None:
        return "memory unknown"
    if memory.fits:
        return "yes" if memory.sequences is None else f"yes, up to {memory.sequences:,} sequences"
    return f"no: {console.num_bytes(memory.total_b)} of {console.num_bytes(memory.usable_b)}"


def _parts(estimates: Sequence[Estimate], known: Catalogue) -> Any:
    """The parts that take most of the time on any device, each with its time, share and limit on every device that has it."""
    by_name = [_by_name(item) for item in estimates]
    titles = [known.get(item.device).title if len(estimates) > 1 else "time" for item in estimates]
    table = console.new_table("part", "runs", *titles, numbers=("runs", *titles))
    names = dict.fromkeys(name for parts in by_name for name in parts)
    order = sorted(
        names,
        key=lambda name: max(sum(part.time_share for part in parts.get(name, ())) for parts in by_name),
        reverse=True,
    )
    for name in order[:_SHOWN]:
        runs = max(sum(part.kernel.count for part in parts.get(name, ())) for parts in by_name)
        table.add_row(name, str(runs), *(_cell(parts.get(name, ())) for parts in by_name))
    if rest := order[_SHOWN:]:
        sums = [[part for name in rest for part in parts.get(name, ())] for parts in by_name]
        table.add_row(f"{len(rest)} others", "", *(_cell(parts, limit=False) for parts in sums))
    return table


def _by_name(item: Estimate) -> Mapping[str, list[Part]]:
    result: dict[str, list[Part]] = {}
    for part in item.whole.parts:
        result.setdefault(part.kernel.title, []).append(part)
    return result


def _cell(parts: Sequence[Part], *, limit: bool = True) -> str:
    if not parts:
        return "–"
    time = console.seconds(sum(part.latency_s for part in parts))
    share = f"{100 * sum(part.time_share for part in parts):.1f} %"
    longest = max(parts, key=lambda part: part.latency_s)
    return f"{time}  {share}" + (f"  {longest.prediction.bound}" if limit else "")
