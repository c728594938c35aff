"""`kernelcast compare rank`: which configurations of a kernel are fastest on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...features.errors import SpecError, listed
from .. import console, names
from .compare import tell_outside

if TYPE_CHECKING:
    from ...client.answers import Ranking
    from ...features.kernel import KernelSpec


def rank(
    family: names.Family,
    device: names.OneDevice,
    words: names.Words = None,
    top: Annotated[int, typer.Option(min=1, help="Configurations to list.")] = 10,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Rank the configurations (tiles, warps, stages …) that are known of a kernel on a device, the fastest first.

    kernelcast compare rank gemm 4096x4096x4096 fp16 --device h200 impl=triton
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.rank import rank as ranked_by
    from ...workloads.compare.rank import rank_question

    known = console.read_catalogue(device_file)
    plain = names.kernel(family, words or [])
    if plain["config"]:
        raise SpecError(f"{listed(plain['config'])} is what is ranked; leave it out", field="config")
    question = rank_question(plain | {"device": names.device(device, known).name}, known, top=top, coverage=coverage)
    result = ranked_by(load_predictor(console.model_dir(model), known), question)
    if as_json:
        console.print_json(result)
    else:
        _show(replace(question.specs[0], config=()), result)


def _show(spec: KernelSpec, result: Ranking) -> None:
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
        config = _words(item.config, common) or "the compiler's own"
        table.add_row(
            console.domain_mark(item.in_domain is not False), config, console.seconds(item.latency_s.value),
            console.span(item.latency_s, console.seconds),
            "" if item.energy_j is None else console.joules(item.energy_j.value), f"{100 * item.slower_than_best:.1f} %",
        )  # fmt: skip
    screen.print(table)
    if common:
        console.show_fact("all", _words(common, {}))
    console.show_fact("method", result.method)
    console.show_fact("tied", f"the first {result.tied} cannot be told from the best")
    tell_outside(item.in_domain is not False for item in result.ranked)


def _words(config: Mapping[str, int], without: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items() if name not in without)
