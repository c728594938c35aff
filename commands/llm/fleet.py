"""`kernelcast llm fleet`: which mix of GPUs serves requests of many sizes at least cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError
from .. import console, names
from . import plan

if TYPE_CHECKING:
    from ...workloads.serving.planning.fleet import Bucket, Fleet
    from ...workloads.serving.planning.question import PlanQuestion


def fleet(
    what: plan.ModelName,
    devices: plan.DeviceNames,
    rate: Annotated[float, typer.Option(help="Requests per second in all.")],
    sizes: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Sizes of requests: input_tokens, output_tokens and, if you like, weight."),
    ],
    gpus: plan.Gpus = None,
    ttft: plan.MostTtft = None,
    tpot: plan.MostTpot = None,
    price: console.Prices = None,
    prices: console.EarlierPrices = None,
    engines: plan.Engines = plan.ALL_ENGINES,
    weights: plan.Weights = "",
    dtype: plan.Dtype = None,
    kv_dtype: plan.CacheDtype = None,
    power_budget: plan.PowerBudget = None,
    speculate: plan.Guesses = None,
    acceptance: plan.Acceptance = None,
    draft: plan.Draft = None,
    host_experts: plan.HostExperts = 0.0,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Choose a mix of GPUs for requests of many sizes: kernelcast llm fleet MODEL --devices h100-sxm,l40s --gpus 16 --rate 20
    --sizes trace.csv --tpot 0.05 --price prices.yaml

    An integer program chooses the replicas and which sizes each takes. It needs the extra `llm`.
    """
    known = console.read_catalogue(device_file)
    with console.plain_errors("llm fleet", "llm"):
        # First, so that a missing package is said before the sweeps.
        import scipy.optimize  # noqa: F401

        from ...models.predict.predictor import load_predictor
        from ...workloads.architectures.config.catalogue import facts_of
        from ...workloads.serving.planning.fleet import mean_sizes, plan_fleet
        from ...workloads.serving.planning.question import devices_counted, plan_question
        from ...workloads.serving.predict import ServingPredictor

        buckets = read_sizes(sizes)
        inputs, outputs = mean_sizes(buckets)
        chosen = names.counted_names(console.words(",".join(devices)), known)
        question = plan_question(
            facts_of(what), chosen, known, gpus=gpus, input_tokens=inputs, output_tokens=outputs, rate=rate, ttft_s=ttft,
            tpot_s=tpot, speculate=speculate, acceptance=acceptance, draft=None if draft is None else facts_of(draft),
            prices=console.read_prices([*(price or ()), *(prices or ())], devices_counted(chosen, known)[0], known) or None,
            engines=console.words(engines), weights=console.words(weights), dtype=dtype, kv_dtype=kv_dtype,
            power_budget_w=power_budget, host_experts=host_experts, power_limit_w=power_limit_w, clock_hz=clock_hz,
        )  # fmt: skip
        answer = plan_fleet(ServingPredictor(load_predictor(console.model_dir(model), known)), question, buckets)
    if as_json:
        from ...workloads.answers import fleet_answer

        console.print_json(fleet_answer(question, answer))
    else:
        _show(question, answer)


def read_sizes(path: Path) -> tuple[Bucket, ...]:
    """The buckets of a table of sizes.

    Raises:
        SpecError: the table cannot be read, lacks a column, or holds what is no length.
    """
    import numpy as np

    from ...datasets.rows.table_columns import read_table
    from ...workloads.serving.planning.fleet import SIZE_FIELDS, buckets_of

    table = read_table(path, frozenset())
    if missing := [name for name in SIZE_FIELDS[:2] if name not in table.column_names]:
        raise SpecError(
            f"{path} has no column {missing[0]}; sizes need {' and '.join(SIZE_FIELDS[:2])}", field=missing[0]
        )
    columns = []
    for name in SIZE_FIELDS:
        if name not in table.column_names:
            continue
        try:
            columns.append(np.array(table[name].to_pylist(), dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise SpecError(f"{path}: {name} must be a number in every row", field=name) from error
    return buckets_of(*columns)


def _show(question: PlanQuestion, answer: Fleet) -> None:
    screen = console.out()
    screen.print(f"{question.facts.name}: {question.rate:g} requests/s on {answer.gpus} GPUs", soft_wrap=True)
    for kind in answer.kinds:
        setting = kind.setting
        console.show_fact(
            f"{kind.replicas} ×", f"{setting.plan.devices} × {setting.device} ({setting.plan}), "
            f"{setting.formats.weights_text}, {plan.engine_words(setting)}",
        )  # fmt: skip
    console.show_fact(
        "cost", f"{answer.cost_per_hour:.4g} per hour, {answer.cost_per_million_tokens:.4g} per million tokens, in "
        f"{question.cost_unit}"
    )  # fmt: skip
    if answer.one_kind is not None and len(answer.kinds) > 1:
        saved = 100 * (1 - answer.cost_per_hour / answer.one_kind)
        sure = "" if answer.probability is None else f"; mixing costs less with probability {answer.probability:.2f}"
        console.show_fact("one kind", f"{answer.one_kind:.4g} per hour, {saved:.0f} % saved by mixing{sure}")
    for remark in answer.notes:
        console.show_fact("note", remark)
    heads = ("input", "output", "requests")
    names = [f"{place + 1}: {kind.setting.device}" for place, kind in enumerate(answer.kinds)]
    rows = [
        (
            f"{bucket.input_tokens:.0f}", f"{bucket.output_tokens:.0f}", f"{100 * bucket.share:.1f} %",
            *(f"{100 * kind.shares[place]:.0f} %" for kind in answer.kinds),
        )
        for place, bucket in enumerate(answer.buckets)
    ]  # fmt: skip
    screen.print()
    console.show_table((*heads, *names), rows, numbers=(*heads, *names), title="which replicas take which sizes")
