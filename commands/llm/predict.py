"""`kernelcast llm predict`: what a service of a language model gives its users, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console, names

if TYPE_CHECKING:
    from ...features.device import Catalogue
    from ...workloads.serving.batching.load import Load
    from ...workloads.serving.predict import Latency, ServingPrediction


_TRACE = ("arrival_s", "input", "output")
_OF_TABLES = ("table", "out", "model", "device_file", "as_json")
"""Parameters that go with a table; all others go with one service."""
_COLUMNS = {
    "what": "model", "gpus": "num_gpus", "input_tokens": "isl", "output_tokens": "osl", "rate": "request_rate",
    "requests": "num_requests", "dtype": "precision", "weights": "weight_dtype", "speculate": "spec_tokens",
    "acceptance": "spec_acceptance", "draft": "draft_model",
}  # fmt: skip
"""Columns of a table whose names are not those of the parameters."""
_OF_TRACES = ("concurrency", "rate", "batch", "input_tokens", "output_tokens", "requests", "rounds", "spread", "seed")
"""Parameters in whose place a trace has its own."""
_OF_USER = "tokens/s per user"


def predict(
    ctx: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A model that ships, such as meta-llama/Llama-3.1-8B, or the path of a config.json or of facts in YAML.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The GPU; see `kernelcast devices`.", autocompletion=names.complete_device),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="GPUs in all; default: those of one plan. More are replicas.")
    ] = None,
    tp: Annotated[int, typer.Option(help="GPUs that split each layer.")] = 1,
    pp: Annotated[int, typer.Option(help="Stages that split the layers.")] = 1,
    ep: Annotated[int, typer.Option(help="GPUs that share out the experts.")] = 1,
    dp: Annotated[int, typer.Option(help="Groups of GPUs whose attention has sequences of its own.")] = 1,
    input_tokens: Annotated[float | None, names.amount_option("Mean tokens of a prompt.", "--input")] = None,
    output_tokens: Annotated[float | None, names.amount_option("Mean tokens of an answer.", "--output")] = None,
    concurrency: Annotated[
        int | None, names.whole_option("Requests under way: each answer is followed by a request.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, at random times.")] = None,
    batch: Annotated[int | None, names.whole_option("Sequences of one static batch.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Requests (.csv, .parquet): arrival_s, input and output tokens.")
    ] = None,
    rounds: Annotated[
        float | None, typer.Option(help="Requests per request under way, default 10; 1 is a single burst.")
    ] = None,
    requests: Annotated[
        int | None, names.whole_option("Requests simulated of a replica; default: from --rounds, or 1,000.")
    ] = None,
    spread: Annotated[float, typer.Option(help="Half the range of lengths, as a share of their mean.")] = 0.0,
    cached: Annotated[float, typer.Option(help="Share of a prompt that the prefix cache already has.")] = 0.0,
    seed: console.Seed = 0,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, pytorch, deepspeed or llama.cpp.")] = "vllm",
    engine_version: Annotated[str | None, typer.Option(help="Its version; default: the newest known.")] = None,
    chunk: Annotated[int | None, names.whole_option("Most tokens of a step; default: the engine's.")] = None,
    max_sequences: Annotated[
        int | None, names.whole_option("Most sequences that run together; default: the engine's.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Number format of activations; default: the model's.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Number format of the matrices, such as fp8, nvfp4, int4.")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Number format of the cache; default: that of activations.")
    ] = None,
    speculate: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Speculative decoding: tokens guessed, which a step verifies.")
    ] = None,
    acceptance: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of guesses accepted, of those after accepted ones.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model that guesses; default: n-grams, at no cost.")
    ] = None,
    host_experts: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the routed experts that is in the host's memory.")
    ] = 0.0,
    prefill_workers: Annotated[
        int,
        typer.Option(
            metavar="N", help="Workers that compute prompts alone, beside those that decode; --gpus has both."
        ),
    ] = 0,
    prefill_tp: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs of each; default: those of a stage.")
    ] = None,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    price: console.Prices = None,
    prices: console.EarlierPrices = None,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Answer the rows of a .csv or .parquet file, such as of several GPUs or rates."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the table with its answers goes.")] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Predict time to first token, time per token, throughput, power, energy, cost and memory of a service.

    kernelcast llm predict meta-llama/Llama-3.1-70B --device h100-sxm --gpus 4 --tp 4 --input 2048 --output 256 --concurrency 32

    kernelcast llm predict --table rows.parquet --out predicted.parquet
    """
    electricity = console.read_electricity(grid, electricity_price, pue)
    known = console.read_catalogue(device_file)
    options = _parameters_on_line(ctx)
    if table is not None or out is not None:
        if table is None or out is None:
            raise SpecError("a table is answered as a whole: --table FILE --out FILE", field="table")
        _check_table_alone(options)
        written = _predict_table(table, out, console.model_dir(model), known)
        if as_json:
            console.print_json(written)
        return
    needed: dict[str, Any] = {"MODEL": what, "--device": device}
    if trace is None:
        needed |= {"--input": input_tokens, "--output": output_tokens}
    for name, value in needed.items():
        if value is None:
            raise SpecError(
                f"{name} is missing: kernelcast llm predict MODEL --device NAME --input N --output N --concurrency N"
            )
    from ...models.predict.predictor import load_predictor
    from ...workloads.architectures.config.catalogue import facts_of
    from ...workloads.serving.predict import ServingPredictor
    from ...workloads.serving.request import serving_request

    place = names.device(device, known).name  # type: ignore[arg-type]  # one that is missing is an error above
    per_hour = console.read_prices([*(price or ()), *(prices or ())], [place], known).get(place)
    _check_trace(options)
    load = None if trace is None else _trace(trace, cached)
    request = serving_request(
        facts_of(what), place, input_tokens=input_tokens, output_tokens=output_tokens,  # type: ignore[arg-type]
        concurrency=concurrency, rate=rate, batch=batch, load=load, gpus=gpus, tp=tp, pp=pp, ep=ep, dp=dp, rounds=rounds,
        requests=requests, spread=spread, cached=cached, seed=seed, engine=engine, engine_version=engine_version, chunk=chunk,
        max_sequences=max_sequences, dtype=dtype, weights=weights, kv_dtype=kv_dtype,
        speculate=speculate, acceptance=acceptance, draft=None if draft is None else facts_of(draft),
        host_experts=host_experts, power_limit_w=power_limit_w, clock_hz=clock_hz, prefill_workers=prefill_workers,
        prefill_tp=prefill_tp,
    )  # fmt: skip
    answer = ServingPredictor(load_predictor(console.model_dir(model), known)).predict(request)
    if as_json:
        from ...workloads.answers import serving_answer

        console.print_json(serving_answer(answer, per_hour, electricity))
    else:
        _show(answer, known, per_hour)
        amounts = [
            ("a request", answer.energy_per_request_j, 1.0),
            ("a million tokens", answer.energy_per_token_j, 1e6),
        ]
        console.show_footprint(electricity, amounts)


def _parameters_on_line(ctx: typer.Context) -> dict[str, str]:
    """Parameters that the command line has, and the options or metavars that it has them by."""
    names = {
        item.name or "": item.opts[0] if item.param_type_name == "option" else "MODEL" for item in ctx.command.params
    }
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return {
        name: names[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    }


def _check_table_alone(options: Mapping[str, str]) -> None:
    """That nothing is given which rows of a table say, or which none of them has.

    Raises:
        SpecError: something is.
    """
    from ...workloads.serving.table import COLUMNS

    misplaced = [name for name in options if name not in _OF_TABLES]
    if not misplaced:
        return
    columns = [column for name in misplaced if (column := _COLUMNS.get(name, name)) in COLUMNS]
    as_columns = f"; rows of a table say it in columns: {listed(columns)}" if columns else ""
    raise SpecError(
        f"{listed(options[name] for name in misplaced)}: of one service, not of --table{as_columns}; leave these options out",
        field=misplaced[0],
    )


def _check_trace(options: Mapping[str, str]) -> None:
    """That nothing is given beside a trace which it has its own of.

    Raises:
        SpecError: something is.
    """
    if misplaced := [name for name in _OF_TRACES if name in options and "trace" in options]:
        raise SpecError(
            f"{listed(options[name] for name in misplaced)} cannot go with {options['trace']}, which says when requests "
            "arrive and how long they are; leave out one or the other", field=misplaced[0],
        )  # fmt: skip


def _trace(path: Path, cached: float) -> Load:
    from ...datasets.rows.table_columns import read_table
    from ...workloads.serving.batching.load import Load

    table = read_table(path, frozenset())
    # Tables of the other commands call lengths `input_tokens` and `output_tokens`.
    columns = [name if name in table.column_names else f"{name}_tokens" for name in _TRACE]
    if missing := [name for name, column in zip(_TRACE, columns, strict=True) if column not in table.column_names]:
        raise SpecError(f"{path} has no column {', '.join(missing)}; needed are {', '.join(_TRACE)}", field="trace")
    arrival_s, inputs, outputs = (table[column].to_pylist() for column in columns)
    times, prompts, answers = ([_typed(value) for value in column] for column in (arrival_s, inputs, outputs))
    return Load.of_trace(times, prompts, answers, cached)


def _typed(value: Any) -> Any:
    """A number that stands as text in a column where one row has a word; all else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _predict_table(path: Path, out: Path, model: Path, known: Catalogue) -> dict[str, Any]:
    import pyarrow as pa

    from ...datasets.rows.table_columns import read_table
    from ...models.predict.predictor import load_predictor
    from ...workloads.serving.predict import ServingPredictor
    from ...workloads.serving.table import COLUMNS, TEXTS, predict_rows
    from ..predict.predict_table import check_table, write_table

    check_table(out)
    if out.exists() and path.exists() and out.samefile(path):
        raise SpecError(f"--out {out} is the table that is read; give another file", field="out")
    table = read_table(path, TEXTS)
    rows = table.select([name for name in table.column_names if name in COLUMNS]).to_pylist()
    with console.progress_bar() as progress:
        columns = predict_rows(
            rows, ServingPredictor(load_predictor(model, known)), lambda done: progress("predicting", done, len(rows))
        )
    if replaced := [name for name in columns if name in table.column_names]:
        console.note(f"columns of {', '.join(replaced)} in the table are replaced")
        table = table.drop_columns(replaced)
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column, pa.string() if name == "refused" else pa.float64()))
    write_table(table, out)
    console.note_refused(columns["refused"])
    refused = sum(bool(reason) for reason in columns["refused"])
    console.note(f"{len(rows) - refused} rows predicted, {refused} refused, written to {out}")
    return {"out": str(out), "rows": len(rows), "predicted": len(rows) - refused, "refused": refused}


def _show(answer: ServingPrediction, known: Catalogue, price: float | None) -> None:
    from rich.text import Text

    request, memory = answer.request, answer.memory
    screen = console.out()
    title = known.get(request.device).title
    screen.print(Text.assemble((request.facts.name, "bold"), f" on {request.gpus} × {title}"), soft_wrap=True)
    console.show_fact("load", str(request.load))
    replicas = f", {request.replicas} replicas" if request.replicas > 1 else ""
    console.show_fact("plan", f"{request.plan}{replicas}; {request.engine} {request.engine_version or ''}".rstrip())
    formats = request.formats
    console.show_fact("formats", f"{formats.dtype}, {formats.weights_text}, {formats.kv} cache")
    heads = ("mean", "interval", "p50", "p90", "p99")
    table = console.new_table("latency", *heads, numbers=heads)
    for name, latency in _latencies(answer):
        if latency is None:
            table.add_row(name, "none", *[""] * (len(heads) - 1))
            continue
        table.add_row(
            name, console.seconds(latency.mean.value), console.between(latency.mean, console.seconds),
            *(console.seconds(getattr(latency, point).value) for point in ("p50", "p90", "p99")),
        )  # fmt: skip
    screen.print(table)
    table = console.new_table("service", "value", "interval", numbers=("value", "interval"))
    for name, interval, show in _amounts(answer, price):
        if interval is None:
            # Answers of one token have no time after it, so that no user sees a rate.
            table.add_row(name, "none" if name == _OF_USER else "unknown", "")
        else:
            table.add_row(name, show(interval.value), console.between(interval, show))
    screen.print(table)
    parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in answer.parts.items() if share >= 0.005)
    console.show_fact("step", f"{answer.batch:.1f} sequences decode together; {parts}")
    fitting = "" if answer.fitting is None else f"; {answer.fitting:,} such sequences fit in the cache"
    usable = "" if memory.usable_b is None else f" of {console.num_bytes(memory.usable_b)} usable"
    sizes = (
        f"weights {console.num_bytes(memory.weights_b)}, activations {console.num_bytes(memory.activations_b)}{usable}"
    )
    each = (
        f"; {console.num_bytes(memory.cache_per_sequence_b)} of cache a sequence" if memory.cache_per_sequence_b else ""
    )
    console.show_fact("memory", f"{sizes}{each}{fitting}")
    if (guesses := answer.speculation) is not None:
        spread = console.between(guesses.tokens_per_step, lambda value: f"{value:.3g}")
        best = f"{guesses.best_tokens} would be fastest" if guesses.best_tokens else "none would be faster"
        by = guesses.speculation.draft
        console.show_fact(
            "guesses", f"{guesses.speculation.tokens} a step by {'n-grams' if by is None else by.name}; "
            f"{guesses.tokens_per_step.value:.3g} tokens a step ({spread} in 90 % of answers); {best}"
        )  # fmt: skip
    for remark in answer.notes:
        console.show_fact("note", remark)


def _latencies(answer: ServingPrediction) -> tuple[tuple[str, Latency | None], ...]:
    return (
        ("time to first token", answer.ttft_s), ("time per token", answer.tpot_s), ("between two tokens", answer.itl_s),
        ("end to end", answer.e2e_s),
    )  # fmt: skip


def _amounts(answer: ServingPrediction, price: float | None) -> list[tuple[str, Any, Any]]:
    from ...workloads.answers import inverse

    gpus = answer.request.gpus
    user = None if answer.tpot_s is None else inverse(answer.tpot_s.mean)

    def plain(value: float) -> str:
        return f"{value:,.4g}"

    rows = [
        ("tokens/s", answer.throughput_tok_s, plain), ("tokens/s per GPU", answer.throughput_tok_s.scaled(1 / gpus), plain),
        (_OF_USER, user, plain), ("requests/s", answer.requests_s, plain),
        ("power per GPU", answer.power_w, console.watts), ("energy per token", answer.energy_per_token_j, console.joules),
        ("energy per request", answer.energy_per_request_j, console.joules),
    ]  # fmt: skip
    if price is not None:
        rows.append(("cost per million tokens", answer.cost_per_million_tokens(price), plain))
    return rows
