"""`kernelcast llm plan`: which GPUs, plan and settings serve a model best, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...workloads.units import counted, grams
from .. import console, names

if TYPE_CHECKING:
    from ...models.predict.carbon import Electricity
    from ...workloads.serving.planning.disaggregated import SimulatedTimes, Split
    from ...workloads.serving.planning.mixed_pipeline import MixedPipeline
    from ...workloads.serving.planning.planner import Choice, PlanAnswer
    from ...workloads.serving.planning.question import PlanQuestion
    from ...workloads.serving.planning.space import Setting
    from ...workloads.serving.planning.sweep import Candidate

SHOWN = 12
"""Most plans of the Pareto front on the screen, evenly chosen; `--json` has all."""


ALL_ENGINES = "vllm,sglang,trtllm"

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model that ships, such as meta-llama/Llama-3.1-70B, or a config.json.")
]
DeviceNames = Annotated[
    list[str],
    typer.Option(
        "--device",
        "--devices",
        metavar="NAMES",
        help="GPUs to choose among, separated by commas, or given again; h100-sxm:4 are at most four.",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="GPUs in all, at most so many where a load is given; default: all, where --devices say how many.",
    ),
]
MostTtft = Annotated[
    float | None, typer.Option("--ttft", metavar="S", help="Longest time to the first token, of the median request.")
]
MostTpot = Annotated[
    float | None, typer.Option("--tpot", metavar="S", help="Longest time per token, of the median request.")
]
Engines = Annotated[str, typer.Option("--engines", metavar="NAMES", help="Engines to choose among.")]
Weights = Annotated[
    str,
    typer.Option(
        "--weights", metavar="FORMATS", help="Formats of the matrices; default: the model's own, and fp8 where native."
    ),
]
Dtype = Annotated[str | None, typer.Option("--dtype", help="Number format of activations; default: the model's.")]
CacheDtype = Annotated[
    str | None, typer.Option("--kv-dtype", help="Number format of the cache; default: that of activations.")
]
Guesses = Annotated[
    int | None, typer.Option("--speculate", metavar="TOKENS", help="Try plans that guess so many tokens a step, too.")
]
Acceptance = Annotated[
    float | None,
    typer.Option("--acceptance", metavar="SHARE", help="Share of guesses accepted, of those after accepted ones."),
]
Draft = Annotated[
    str | None, typer.Option("--draft", metavar="MODEL", help="The model that guesses; default: n-grams, at no cost.")
]
HostExperts = Annotated[
    float,
    typer.Option(
        "--host-experts", metavar="SHARE", help="Share of the routed experts that is in the host's memory; with vLLM."
    ),
]
PowerBudget = Annotated[
    float | None, typer.Option("--power-budget", metavar="W", help="Watts of all GPUs together; hosts are not in it.")
]


def plan(
    what: ModelName,
    devices: DeviceNames,
    input_tokens: Annotated[float, names.amount_option("Mean tokens of a prompt.", "--input")],
    output_tokens: Annotated[float, names.amount_option("Mean tokens of an answer.", "--output")],
    gpus: Gpus = None,
    concurrency: Annotated[
        int | None, names.whole_option("Requests under way in all; default: the planner chooses.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second in all, at random times.")] = None,
    ttft: MostTtft = None,
    tpot: MostTpot = None,
    percentile: Annotated[
        int, typer.Option(metavar="50|90|99", help="Percent of the requests that keep --ttft and --tpot.")
    ] = 50,
    price: console.Prices = None,
    prices: console.EarlierPrices = None,
    engines: Engines = ALL_ENGINES,
    weights: Weights = "",
    dtype: Dtype = None,
    kv_dtype: CacheDtype = None,
    power_budget: PowerBudget = None,
    cached: Annotated[float, typer.Option(help="Share of a prompt that the prefix cache already has.")] = 0.0,
    speculate: Guesses = None,
    acceptance: Acceptance = None,
    draft: Draft = None,
    host_experts: HostExperts = 0.0,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Choose GPUs, plan and settings of a service: thousands of plans are compared, and the best for each aim simulated.

    kernelcast llm plan meta-llama/Llama-3.1-70B --devices h100-sxm,h200,l40s --gpus 8 --input 2048 --output 256 --tpot 0.05

    kernelcast llm plan MODEL --devices h100-sxm,l40s --gpus 16 --input 1024 --output 256 --rate 20 --price prices.yaml

    kernelcast llm plan MODEL --devices a100-sxm-80gb:1,l40s:2 --input 1024 --output 256: also over two kinds of GPUs
    """
    electricity = console.read_electricity(grid, electricity_price, pue)
    known = console.read_catalogue(device_file)
    from ...models.predict.predictor import load_predictor
    from ...workloads.architectures.config.catalogue import facts_of
    from ...workloads.serving.planning.choice import AIMS
    from ...workloads.serving.planning.planner import plan_service
    from ...workloads.serving.planning.question import devices_counted, plan_question
    from ...workloads.serving.predict import ServingPredictor

    chosen = names.counted_names(console.words(",".join(devices)), known)
    priced = console.read_prices([*(price or ()), *(prices or ())], devices_counted(chosen, known)[0], known)
    question = plan_question(
        facts_of(what), chosen, known, gpus=gpus,
        input_tokens=input_tokens, output_tokens=output_tokens,
        concurrency=concurrency, rate=rate, ttft_s=ttft, tpot_s=tpot,
        prices=priced or None, engines=console.words(engines),
        weights=console.words(weights), dtype=dtype, kv_dtype=kv_dtype, power_budget_w=power_budget, cached=cached,
        speculate=speculate, acceptance=acceptance, draft=None if draft is None else facts_of(draft),
        host_experts=host_experts, power_limit_w=power_limit_w, clock_hz=clock_hz, percentile=percentile,
    )  # fmt: skip
    service = ServingPredictor(load_predictor(console.model_dir(model), known))
    with console.progress_bar() as progress:
        answer = plan_service(service, question, lambda name: progress(name, 0, 0))
    if as_json:
        from ...workloads.answers import plans_answer

        console.print_json(plans_answer(answer, electricity))
    else:
        _show(answer, electricity)
        amounts = [
            (f"{AIMS[item.aim].title}, a million tokens", item.service.energy_per_token_j, 1e6)
            for item in answer.choices
        ]
        console.show_footprint(electricity, amounts)


def _show(answer: PlanAnswer, electricity: Electricity | None) -> None:
    question = answer.question
    screen = console.out()
    screen.print(
        f"{question.facts.name}: {answer.plans:,} plans of up to {counted(question.gpus, 'GPU')}, {answer.possible:,} possible",
        soft_wrap=True,
    )
    for kind, item in answer.refusals.items():
        console.show_fact(kind, f"{item.count:,} refused, nearest: {item.nearest}")
    for choice in answer.choices:
        _show_choice(choice, question)
    if answer.split is not None:
        _show_split(answer.split)
    if answer.pipeline is not None:
        _show_pipeline(answer.pipeline)
    if answer.front:
        front = _evenly(answer.front, SHOWN)
        of_all = f"({len(front)} of {len(answer.front)})"
        _show_plans(question, front, f"no plan beats these in cost, time and energy together {of_all}", electricity)
    if len(answer.by_gpus) > 1:
        _show_plans(question, answer.by_gpus, "least cost by number of GPUs", electricity)
    console.note(
        f"cost in {question.cost_unit} per million tokens of answers; tables are steady states in closed form, whose "
        "first tokens come earlier than simulated ones"
    )


def _show_choice(choice: Choice, question: PlanQuestion) -> None:
    from rich.text import Text

    from ...workloads.serving.planning.choice import AIMS
    from ...workloads.serving.planning.question import PERCENTILES

    screen, service = console.out(), choice.service
    screen.print()
    screen.print(Text.assemble((AIMS[choice.aim].title, "bold"), f": {_title(choice.plan)}"), soft_wrap=True)
    energy = "unknown" if service.energy_per_token_j is None else console.joules(service.energy_per_token_j.value)
    cost, tpot = choice.cost_per_million_tokens, service.tpot_s
    then = "none" if tpot is None else f"{console.seconds(tpot.p50.value)} {console.between(tpot.p50, console.seconds)}"
    console.show_fact(
        "simulated",
        f"first token {console.seconds(service.ttft_s.p50.value)}, per token {then}, "
        f"{service.throughput_tok_s.value:,.4g} tokens/s, {energy} per token, "
        f"cost {cost.value:.4g} {console.between(cost, _plain)}",
    )
    if question.percentile != PERCENTILES[0]:
        after = "" if tpot is None else f", {console.seconds(question.value_of(tpot))} per token"
        words = f"first token within {console.seconds(question.value_of(service.ttft_s))}{after}"
        console.show_fact(f"{question.percentile} %", words)
    if choice.runner_up is not None:
        sure = "" if choice.probability is None else f"; better than it with probability {choice.probability:.2f}"
        console.show_fact("next", f"{_title(choice.runner_up)}{sure}")
    console.show_fact("command", choice.command, is_command=True)
    for remark in choice.notes:
        console.show_fact("note", remark)


def _show_split(item: Split) -> None:
    from rich.text import Text

    parts = (
        f"{workers} × {setting.plan.devices} GPUs ({setting.plan}) for {what}"
        for workers, setting, what in (
            (item.prefill_workers, item.prefill, "prompts"), (item.decode_workers, item.decode, "answers")
        )
    )  # fmt: skip
    setting = item.decode
    console.out().print()
    console.out().print(
        Text.assemble(
            ("prompts and answers apart, least cost", "bold"),
            f": {item.gpus} × {setting.device}, {', '.join(parts)}, {setting.formats.weights_text}, {setting.engine}",
        ),
        soft_wrap=True,
    )
    _show_steady(item, f"; a cache is sent in {console.seconds(item.transfer_s)}")
    if item.service is not None:
        _show_simulated(item.service)


def _show_pipeline(item: MixedPipeline) -> None:
    from rich.text import Text

    plan = item.plan
    console.out().print()
    console.out().print(Text.assemble(("over two kinds of GPUs, least cost", "bold"), f": {item}"), soft_wrap=True)
    _show_steady(plan)
    _show_simulated(item.service)
    console.show_fact("command", item.command, is_command=True)
    for remark in item.notes:
        console.show_fact("note", remark)


def _show_steady(item: Candidate | Split, more: str = "") -> None:
    console.show_fact(
        "steady", f"first token {console.seconds(item.ttft_s)}, per token {console.seconds(item.tpot_s)}, "
        f"{item.throughput_tok_s:,.4g} tokens/s, {_plain(item.energy_per_token_j)} J per token, cost "
        f"{item.cost_per_million_tokens:.4g}{more}",
    )  # fmt: skip


def _show_simulated(times: SimulatedTimes) -> None:
    ttft, tpot = times.ttft_s, times.tpot_s
    console.show_fact(
        "simulated", f"first token {console.seconds(ttft.p50.value)} {console.between(ttft.p50, console.seconds)}, 99 % "
        f"within {console.seconds(ttft.p99.value)}; per token {console.seconds(tpot.p50.value)} "
        f"{console.between(tpot.p50, console.seconds)}",
    )  # fmt: skip


def engine_words(setting: Setting) -> str:
    """An engine and its guesses."""
    return setting.engine if setting.speculation is None else f"{setting.engine} + {setting.speculation.tokens} guesses"


def _title(item: Candidate) -> str:
    setting = item.setting
    return (
        f"{item.gpus} × {setting.device} as {item.replicas} of ({setting.plan}), {setting.formats.weights_text}, "
        f"{engine_words(setting)}, {item.concurrency} requests each, steps of {item.chunk}"
    )


def _show_plans(
    question: PlanQuestion, items: Sequence[Candidate], title: str, electricity: Electricity | None
) -> None:
    from ...workloads.serving.planning.sweep import under_way

    grid = None if electricity is None else electricity.grid
    carbon = () if grid is None else ("CO2e",)
    numbers = ("requests", "TTFT", "TPOT", "tokens/s", "J/token", "cost", *carbon)
    heads = ("GPUs", "replicas of", "weights", "engine", *numbers)
    rows = [
        (
            f"{item.gpus} × {item.setting.device}", f"{item.replicas} × ({item.setting.plan})",
            item.setting.formats.weights, engine_words(item.setting), str(under_way(question, item)),
            console.seconds(item.ttft_s), console.seconds(item.tpot_s) if item.tpot_s else "none",
            f"{item.throughput_tok_s:,.4g}", _plain(item.energy_per_token_j), _plain(item.cost_per_million_tokens),
            *_carbon(item.energy_per_token_j, electricity),
        )
        for item in items
    ]  # fmt: skip
    console.out().print()
    console.show_table(heads, rows, numbers=numbers, title=title)


def _carbon(energy_j: float, electricity: Electricity | None) -> list[str]:
    """CO2e of a million tokens at so many joules each; nothing without a grid."""
    carbon_g = None if electricity is None else electricity.carbon_g(energy_j, 1e6)
    return [] if carbon_g is None else ["unknown" if carbon_g != carbon_g else grams(carbon_g)]


def _plain(value: float) -> str:
    return "unknown" if value != value else f"{value:,.4g}"


def _evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly chosen, both ends among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
