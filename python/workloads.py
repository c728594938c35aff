"""Questions about many kernels: whole models, steps of models, services of language models, and MLIR programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ..features.batch.cases import Floats
from ..features.errors import SpecError, listed
from ..features.mlir.parse.parser_process import NativeReader
from ..features.mlir.understanding import read, understand
from ..models.predict.power_law import checked_setting
from ..workloads.architectures.config.catalogue import facts_of
from ..workloads.architectures.estimate import Estimate, estimate, formats_of
from ..workloads.architectures.facts import ModelFacts
from ..workloads.architectures.plan import ONE_DEVICE, ParallelPlan
from ..workloads.architectures.step import Step
from ..workloads.kernel_reading import read_kernels
from ..workloads.mlir.prediction import ModulePrediction
from ..workloads.mlir.program_text import text_of
from ..workloads.serving.planning.fleet import SIZE_FIELDS, Fleet, buckets_of, mean_sizes, plan_fleet
from ..workloads.serving.planning.planner import PlanAnswer, plan_service
from ..workloads.serving.planning.question import PlanQuestion, plan_question
from ..workloads.serving.predict import ServingPrediction
from ..workloads.serving.request import serving_request
from ..workloads.whole_model import Kernel, predict_whole
from .answer import Total
from .arguments import check_numbers, checked_settings, names_of
from .model_cache import load, programs, services
from .tables import frame_rows


def predict_model(
    kernels: Sequence[Mapping[str, Any] | Kernel],
    device: str,
    *,
    model: Path | str | None = None,
    coverage: float = 0.9,
    launch_s: float = 0.0,
    queued: bool = False,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
) -> Total:
    """What a whole model costs: the latency, power and energy of its kernels one after the other, with intervals.

    Args:
        kernels: mappings with `family`, `dtype`, the family's sizes (beside them or in `sizes`), and as needed `count`,
            `name`, `variant`, `impl`, `config`, `threads`, `cache_state`, `timing`; or `workloads.whole_model.Kernel`s.
        device: a device of the catalogue, by name or alias.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        launch_s: seconds between two kernels, added once per run; 0: they run back to back, as on a stream.
        queued: work is queued ahead, which hides launches: kernels take the time on the device alone.
        power_limit_w: power limit that the GPU is set to, in watts; default: its own.
        clock_hz: clock that its compute units are locked to, in hertz.

    Raises:
        kernelcast.SpecError: something is unknown or impossible; the message names the kernel.
    """
    if isinstance(kernels, str | Mapping) or not isinstance(kernels, Sequence):
        raise SpecError(f"kernels is a list of mappings, got {type(kernels).__name__}", field="kernels")
    predictor = load(model)
    name = predictor.devices.get(device).name
    if (setting := checked_setting(power_limit_w, clock_hz, predictor.devices.get(name))) is not None:
        predictor = predictor.under(setting)
    specs = read_kernels(kernels, [name], predictor.devices)
    whole = predict_whole(predictor, specs, name, coverage=coverage, launch_s=launch_s, queued=queued)
    return Total.of(whole, name)


def estimate_model(
    name_or_config: str | Path | Mapping[str, Any] | ModelFacts,
    device: str,
    *,
    batch: int = 1,
    prefill: int | None = None,
    decode: bool = False,
    context: int | None = None,
    train: int | None = None,
    recompute: bool = False,
    encode: bool = False,
    source: int | None = None,
    step: Step | None = None,
    plan: ParallelPlan | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    impl: str = "",
    threads: int | None = None,
    model: Path | str | None = None,
    coverage: float = 0.9,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
) -> Estimate:
    """What a step of a language, vision or speech model costs, from its `config.json` alone.

    Args:
        name_or_config: a model that ships by name, such as `meta-llama/Llama-3.1-8B`; the path of a `config.json`; or its
            content.
        device: a device of the catalogue, by name or alias.
        batch: sequences.
        prefill: new tokens of each.
        decode: one new token of each, in place of `prefill`.
        context: positions of each already in the cache.
        train: tokens of each in a training step with AdamW, in place of `prefill`.
        recompute: the training step keeps the inputs of layers alone and runs them forwards again (activation checkpointing).
        encode: only the encoder of a model that has one beside its decoder.
        source: tokens of each sequence that an encoder of text beside a decoder reads.
        step: a step of sequences of several lengths, in place of `batch`, `prefill`, `decode` and `context`.
        plan: how the model is split over devices; default: one device.
        dtype: number format of the activations; default: the model's.
        weights: number format of the matrices, such as `fp8`; default: the model's.
        kv_dtype: number format of the key and value cache; default: `dtype`.
        impl: what runs products, attention and experts, such as `vllm-0.24.0`; empty: the usual one of the device.
        threads: threads of a CPU; default: all cores.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        power_limit_w: power limit that the GPU is set to, in watts; default: its own.
        clock_hz: clock that its compute units are locked to, in hertz.

    Raises:
        kernelcast.SpecError: the configuration, the plan or an argument cannot be used; the message says
            what is possible.
    """
    if not isinstance(device, str):
        raise SpecError(f"device is the name of one, such as 'h100-sxm', got {device!r}", field="device")
    check_numbers({"batch": batch, "prefill": prefill, "train": train, "context": context, "source": source})
    facts = facts_of(name_or_config).with_source(source)
    if encode:
        facts = facts.encoder_alone()
    if step is None:
        if train is not None and (prefill is not None or decode):
            raise SpecError(
                "a step either trains, prefills or decodes; give one of train, prefill, decode", field="train"
            )
        new = prefill if train is None else train
        if new is None and not decode:
            new = facts.fixed_length
        step = Step.of(batch=batch, prefill=new, decode=decode, context=context)
    predictor = load(model)
    if (setting := checked_setting(power_limit_w, clock_hz, predictor.devices.get(device))) is not None:
        predictor = predictor.under(setting)
    return estimate(
        predictor, facts, step, device, formats=formats_of(facts, dtype=dtype, weights=weights, kv=kv_dtype),
        plan=plan or ONE_DEVICE, impl=impl, threads=threads, coverage=coverage, training=train is not None,
        recompute=recompute,
    )  # fmt: skip


def llm_predict(
    name_or_config: str | Path | Mapping[str, Any] | ModelFacts,
    device: str,
    *,
    input_tokens: float,
    output_tokens: float,
    model: Path | str | None = None,
    **load_and_settings: Any,
) -> ServingPrediction:
    """What a service of a language model gives its users, and what it takes.

    Args:
        name_or_config: a model that ships by name, the path of a `config.json`, or its content.
        device: a device of the catalogue, by name or alias.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        model: a model directory; default: the champion, else the shipped model.
        **load_and_settings: one of `concurrency`, `rate` and `batch`, and what else
            `kernelcast.workloads.serving.request.serving_request` takes: `gpus`, `tp`, `engine`, `weights`, `speculate`,
            `acceptance` …; `draft` is given like the model.

    Raises:
        kernelcast.SpecError: something is unknown or impossible, or the model does not fit; the message says
            what is possible.
    """
    lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    settings = checked_settings(lengths | load_and_settings, serving_request)
    service = services(model)
    request = serving_request(facts_of(name_or_config), service.predictor.devices.get(device).name, **settings)
    return service.predict(request)


def llm_plan(
    name_or_config: str | Path | Mapping[str, Any] | ModelFacts,
    devices: Sequence[str],
    *,
    input_tokens: float,
    output_tokens: float,
    gpus: int | None = None,
    prices: Path | str | Mapping[str, float] | None = None,
    model: Path | str | None = None,
    **load_and_limits: Any,
) -> PlanAnswer:
    """Which devices, plan and settings serve a language model best: in cost, time per token, energy and more.

    Args:
        name_or_config: a model that ships by name, the path of a `config.json`, or its content.
        devices: GPUs to choose among, by name or alias, or with how many there are: `h100-sxm:4`. Then pipelines over two kinds
            are tried, too.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        gpus: GPUs in all; at most so many where a load is given. Default: all, where every device says how many.
        prices: price of one GPU for an hour by name, or a YAML file of it; default: cost is counted in GPU hours.
        model: a model directory; default: the champion, else the shipped model.
        **load_and_limits: `concurrency` or `rate`, `ttft_s`, `tpot_s`, `power_budget_w` and the other fields of
            `kernelcast.workloads.serving.planning.question.PlanQuestion`.

    Raises:
        kernelcast.SpecError: something is unknown, or no plan is possible or keeps the limits; the message has
            the nearest.
    """
    settings = checked_settings(load_and_limits, PlanQuestion, plan_question)
    service = services(model)
    question = plan_question(
        facts_of(name_or_config), names_of(devices), service.predictor.devices, gpus=gpus, input_tokens=input_tokens,
        output_tokens=output_tokens, prices=prices, **settings,
    )  # fmt: skip
    return plan_service(service, question)


def llm_fleet(
    name_or_config: str | Path | Mapping[str, Any] | ModelFacts,
    devices: Sequence[str],
    *,
    rate: float,
    sizes: Any,
    gpus: int | None = None,
    prices: Path | str | Mapping[str, float] | None = None,
    model: Path | str | None = None,
    **limits: Any,
) -> Fleet:
    """The mix of GPUs that serves requests of many sizes at least cost, and which replicas take which sizes.

    Args:
        name_or_config: a model that ships by name, the path of a `config.json`, or its content.
        devices: GPUs to choose among, by name or alias, or with how many there are: `h100-sxm:4`.
        rate: requests per second in all.
        sizes: a DataFrame or a list of mappings with `input_tokens`, `output_tokens` and, how often a size occurs, `weight`.
        gpus: most GPUs in all; default: all, where every device says how many.
        prices: price of one GPU for an hour by name, or a YAML file of it; default: cost is counted in GPU hours.
        model: a model directory; default: the champion, else the shipped model.
        **limits: `ttft_s`, `tpot_s`, `power_budget_w` and the other fields of
            `kernelcast.workloads.serving.planning.question.PlanQuestion`.

    Raises:
        kernelcast.SpecError: something is unknown or impossible, scipy is not installed, no replica serves a size, or so many
            GPUs do not serve all.
    """
    settings = checked_settings(limits, PlanQuestion, plan_question)
    if find_spec("scipy") is None:
        raise SpecError("llm_fleet needs scipy; run: pip install 'kernelcast[llm]'")
    check_numbers({"rate": rate})
    buckets = buckets_of(*_sizes(sizes))
    inputs, outputs = mean_sizes(buckets)
    service = services(model)
    question = plan_question(
        facts_of(name_or_config), names_of(devices), service.predictor.devices, gpus=gpus, input_tokens=inputs,
        output_tokens=outputs, rate=rate, prices=prices, **settings,
    )  # fmt: skip
    return plan_fleet(service, question, buckets)


def _sizes(sizes: Any) -> list[Floats]:
    """Tokens of prompts and of answers, and weights, shape `(n,)` each.

    Raises:
        SpecError: it is no table, lacks a column, has another, or one that is no number.
    """
    rows = frame_rows(sizes) if hasattr(sizes, "to_dict") and hasattr(sizes, "columns") else sizes
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise SpecError(
            f"sizes is a DataFrame or a list of mappings with {listed(SIZE_FIELDS)}, got {type(sizes).__name__}",
            field="sizes",
        )
    columns: list[list[float]] = [[], [], []]
    for place, row in enumerate(rows):
        if unknown := [name for name in row if name not in SIZE_FIELDS]:
            raise SpecError(f"sizes[{place}] has {unknown[0]!r}; possible are {listed(SIZE_FIELDS)}", field="sizes")
        for name, column in zip(SIZE_FIELDS, columns, strict=True):
            value = row.get(name, 1 if name == "weight" else None)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise SpecError(f"sizes[{place}]: {name} must be a number, got {value!r}", field="sizes")
            column.append(float(value))
    return [np.array(column, dtype=np.float64) for column in columns]


def predict_mlir(
    text_or_path: str | Path,
    device: str,
    *,
    function: str | None = None,
    bind: Mapping[str, int] | None = None,
    compiler: str = "",
    threads: int | None = None,
    model: Path | str | None = None,
    coverage: float = 0.9,
    isolated: bool = False,
) -> ModulePrediction:
    """What one run of a function of MLIR text costs: latency, power and energy with intervals, and where they go.

    Args:
        text_or_path: the text, or a file of it: a `Path`, or the path of a file that exists.
        device: a device of the catalogue, by name or alias.
        function: the function; default: the only public one.
        bind: sizes of dynamic dimensions by name, such as `{"dim0": 128}`; the error for a missing one lists the names.
        compiler: `iree` or `xla`; default: the one the device's programs were measured with, if any.
        threads: CPU threads; default: all cores.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of programs the intervals are built to contain, 0.5 to 0.99.
        isolated: run native parsers in a child process, for text of strangers: text made to bring a parser down ends the
            process it runs in. Costs about a second.

    Raises:
        kernelcast.SpecError: the text or an argument cannot be used; the message says what is possible.
    """
    text = text_of(text_or_path)
    if isolated:
        with NativeReader() as native:
            program = understand(read(text, native=native), function, bind)
    else:
        program = understand(read(text), function, bind)
    return programs(model).predict(program, device, compiler=compiler, threads=threads, coverage=coverage)
