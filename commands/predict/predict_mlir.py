"""`kernelcast predict model.mlir`: what a function of MLIR text costs and where its time goes; and `predict-code`, what a
Triton function compiles to, without compiling it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError
from .. import console, names

if TYPE_CHECKING:
    from ...features.device import Catalogue, Device
    from ...features.mlir.types.graph import Module
    from ...workloads.mlir.prediction import GroupCost, ModulePrediction
    from ...workloads.mlir.triton.predictor import CodePrediction

SUFFIXES = (".mlir", ".mlirbc", ".ttir", ".ttgir", ".stablehlo")
"""What files of MLIR are called; .mlirbc is bytecode, which is refused with a reason."""
STDIN = "-"

_SHOWN = 12
_NAMES = 3
_RANGES = 2
_WIDEST = {"# kernel": 26, "operations": 20, "lines": 12}
"""Columns these may take where that leaves room for a product of matrices on one line."""
_LIKE = "≈"
"""Before a kernel that is only like what the operations do; how it differs stands under the table."""


_SOURCES = frozenset({".ptx", ".cu", ".cuh", ".cubin", ".sass", ".hip", ".cl", ".cpp", ".c"})
"""Suffixes of what a kernel is written in or compiled to, which is not read."""


def is_mlir(word: str) -> bool:
    """Whether the first argument of `predict` is MLIR text rather than a kernel family: a path, or stdin."""
    if word == STDIN or "/" in word or word.lower().endswith((*SUFFIXES, *_SOURCES)):
        return True
    from ...features.kernel import families

    return word not in families() and Path(word).exists()


def predict_mlir(
    word: str,
    devices: Sequence[str],
    known: Catalogue,
    *,
    function: str | None,
    bind: Sequence[str],
    compiler: str,
    threads: int | None,
    flame: Path | None,
    show_all: bool,
    model: Path | None,
    coverage: float,
    as_json: bool,
) -> None:
    """Predict the text in a file or on stdin on each device, and print it; the options are those of `predict`.

    Raises:
        SpecError: the text, an option or a device cannot be used; the message says what is possible.
    """
    if not devices:
        raise SpecError("name a device with --device; `kernelcast devices` lists them")
    if Path(word).suffix.lower() in _SOURCES:
        raise SpecError(
            f"{safe(Path(word).name)}: sources and machine code of kernels are not read; give MLIR text, Triton IR (.ttir) to "
            "`kernelcast predict code`, a PyTorch program to `kernelcast estimate`, or the family that the kernel is like "
            "(`kernelcast devices kernels`)", field="text",
        )  # fmt: skip
    from ...features.mlir.parse.parser_process import NativeReader
    from ...features.mlir.understanding import functions, read, understand
    from ...models.predict.predictor import load_predictor
    from ...workloads.mlir.predictor import load_module_predictor
    from ...workloads.mlir.program_text import read_bind, read_file, threads_on

    asked_of = names.devices(devices, known)
    if flame is not None:
        from .flame_graph import check_flame

        check_flame(flame, len(asked_of))
    sizes = read_bind(bind)
    # A text made to bring a native parser down must not take the command with it.
    with NativeReader() as native:
        module = read(read_file(None if word == STDIN else Path(word)), native=native)
        program = understand(module, function, sizes)
    predictor = load_module_predictor(load_predictor(console.model_dir(model), known), ready=False)
    ask = partial(predictor.predict, program, compiler=compiler, coverage=coverage)
    counts = threads_on(asked_of, threads)
    predictions = [ask(item.name, threads=count) for item, count in zip(asked_of, counts, strict=True)]
    title = "stdin" if word == STDIN else safe(Path(word).name)
    answers = list(zip(asked_of, predictions, strict=True))
    if flame is not None:
        from .flame_graph import write_flame

        write_flame(flame, title, answers)
    if as_json:
        from ...workloads.answers import programs_answer

        console.print_json(programs_answer(module, functions(module), predictions))
        return
    for device, prediction in answers:
        _show(title, device, module, prediction, show_all=show_all)
    if len(answers) > 1:
        _compare(answers)


def _show(title: str, device: Device, module: Module, prediction: ModulePrediction, *, show_all: bool) -> None:
    from rich.text import Text

    from .flame_graph import flame

    screen = console.out()
    screen.print(
        Text.assemble((title, "bold"), f": {safe(prediction.function)} on {device.title} ({device.name})"),
        soft_wrap=True,
    )
    screen.print(_totals(prediction))
    for name, fact in _facts(module, prediction).items():
        console.show_fact(name, safe(fact))
    for line in flame(prediction.groups, screen.width):
        screen.print(line, soft_wrap=True)
    if prediction.groups:
        order = sorted(range(len(prediction.groups)), key=lambda i: prediction.groups[i].latency_s, reverse=True)
        shown = order if show_all else order[:_SHOWN]
        screen.print(_kernels(prediction.groups, shown, screen.width))
        for reason, numbers in _stand_ins(prediction.groups, shown).items():
            fact = f"{_LIKE} {', '.join(map(str, numbers))}: {safe(reason)}"
            screen.print(Text(fact, "dim"), soft_wrap=True)
    for op, reason in prediction.not_understood:
        console.show_fact("unknown", f"{safe(op)}: {safe(reason)}", style="red")
    for remark in prediction.notes:
        console.show_fact("note", safe(remark))


def _totals(prediction: ModulePrediction) -> Any:
    from rich.text import Text

    rate = console.flops_per_s(prediction.flops / prediction.latency_s.value) if prediction.flops else ""
    table = console.targets_table(prediction, rate, _without_power(prediction))
    for name, code in prediction.characteristics.items():
        title, written, meaning = _CODE.get(name, (name, "{:.3g}".format, ""))
        table.add_row(title, Text(written(code.value), "bold"), console.between(code, written), meaning)
    return table


_CODE: Mapping[str, tuple[str, Callable[[float], str], str]] = {
    "compile_s": ("compiling", console.seconds, "of one core"),
    "code_b": ("code", console.num_bytes, "of machine code"),
    "code_instructions": ("", "{:.3g}".format, "instructions in it"),
    "vector_instructions": ("", "{:.3g}".format, "of them on vectors"),
    "spills": ("", "{:.3g}".format, "moves to and from the stack, spilled registers among them"),
    "dispatches": ("", "{:.3g}".format, "kernels the compiler makes"),
}
"""How characteristics of compiled code are called, shown and explained."""


def _without_power(prediction: ModulePrediction) -> str:
    """Why there is no energy of the whole: the kernels whose own is unknown."""
    names = list(dict.fromkeys(safe(group.title) for group in prediction.groups if group.energy_j is None))
    if not names:
        return "no power is known of programs on this device"
    others = len(names) - 1
    return f"no power is known of {names[0]}" + (f" and {others} other{'s' if others > 1 else ''}" if others else "")


def _facts(module: Module, prediction: ModulePrediction) -> dict[str, str]:
    """What stands under the totals, by name."""
    assumed = [f"compiler {prediction.compiler}"] if prediction.compiler else ["kernels as libraries run them"]
    if prediction.threads is not None:
        assumed.append(f"{prediction.threads} thread{'s' if prediction.threads > 1 else ''}")
    refused = "".join(f"; {reader} did not: {reason}" for reader, reason in module.refusals)
    work = [
        console.flops(prediction.flops), f"{console.num_bytes(prediction.bytes)} moved",
        f"{console.num_bytes(prediction.footprint_b)} arguments and results", f"{prediction.intensity:.3g} FLOP/B",
    ]  # fmt: skip
    if prediction.utilization is not None:
        work.append(f"{100 * prediction.utilization:.3g} % of peak")
    limits = ", ".join(f"{name} {console.seconds(value)}" for name, value in prediction.breakdown.items() if value)
    return {
        "interval": f"{prediction.coverage * 100:g} % of cases fall inside",
        "assumed": ", ".join(assumed),
        "read by": prediction.reader + refused,
        "work": ", ".join(work),
        "bound": f"no run takes less than {console.seconds(prediction.bound_s)}" + (f": {limits}" if limits else ""),
        "method": prediction.method + ("" if prediction.in_domain else " — outside what was measured"),
    }


def _kernels(groups: Sequence[GroupCost], shown: Sequence[int], width: int) -> Any:
    """The kernels at these positions, numbered as in the picture, and the others in one row."""
    numbers = ("runs", "time", "share", "energy")
    heads = ("# kernel", *numbers, "bound", "lines", "operations", "predicted as")
    table = console.new_table(*heads, numbers=numbers, head_style="dim")
    for head, column in zip(heads, table.columns, strict=True):
        column.max_width = _WIDEST.get(head) if width >= console.PIPE_WIDTH else None
    for i in shown:
        group = groups[i]
        energy = "" if group.energy_j is None else console.joules(group.energy_j)
        table.add_row(
            f"{i + 1:>{len(str(len(groups)))}} {safe(group.title)}", f"{group.runs:g}", console.seconds(group.latency_s),
            f"{100 * group.time_share:.1f} %", energy, group.bound,
            ranges(group.lines), safe(_names(group.ops)), _known_as(group),
        )  # fmt: skip
    if left := [group for i, group in enumerate(groups) if i not in set(shown)]:
        share = f"{100 * sum(group.time_share for group in left):.1f} %"
        others = f"{len(left)} others (--all)"
        runs = f"{sum(group.runs for group in left):g}"
        table.add_row(others, runs, console.seconds(sum(group.latency_s for group in left)), share)
    return table


def _known_as(group: GroupCost) -> str:
    if not group.understood:
        return "not understood: a guess"
    if not group.spec:
        return "" if group.kind == "control" else "no family: on paper"
    return f"{_LIKE}{safe(group.spec)}" if group.stand_in else safe(group.spec)


def _stand_ins(groups: Sequence[GroupCost], shown: Sequence[int]) -> dict[str, list[int]]:
    """How kernels differ from what they stand for, with the numbers of those that do."""
    numbers: dict[str, list[int]] = {}
    for i in sorted(shown):
        if groups[i].spec and groups[i].stand_in and groups[i].understood:
            numbers.setdefault(groups[i].stand_in, []).append(i + 1)
    return numbers


def _names(ops: Sequence[str]) -> str:
    """Operations by name, the dialect left off, each once with how often it stands there."""
    counts: dict[str, int] = {}
    for op in ops:
        name = op.rpartition(".")[2]
        counts[name] = counts.get(name, 0) + 1
    shown = [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    return ", ".join(shown[:_NAMES]) + (f" +{len(shown) - _NAMES}" if len(shown) > _NAMES else "")


def ranges(lines: Sequence[int]) -> str:
    """Line numbers with runs of them drawn together: `3–5, 9`."""
    runs: list[list[int]] = []
    for line in sorted(set(lines)):
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    shown = [f"{first}" if first == last else f"{first}–{last}" for first, last in runs]
    return ", ".join(shown[:_RANGES]) + (" …" if len(shown) > _RANGES else "")


def _compare(answers: Sequence[tuple[Device, ModulePrediction]]) -> None:
    """The devices beside each other, the fastest first; times are also told in those of the first asked for."""
    numbers = ("latency", "interval", "of the first", "power", "energy", "of peak")
    table = console.new_table("device", *numbers, numbers=numbers, head_style="dim")
    first = answers[0][1].latency_s.value
    for device, item in sorted(answers, key=lambda answer: answer[1].latency_s.value):
        table.add_row(
            device.name, console.seconds(item.latency_s.value), console.between(item.latency_s, console.seconds),
            f"{item.latency_s.value / first:.3g} ×", "unknown" if item.power_w is None else console.watts(item.power_w.value),
            "unknown" if item.energy_j is None else console.joules(item.energy_j.value),
            "" if item.utilization is None else f"{100 * item.utilization:.3g} %",
        )  # fmt: skip
    console.out().print(table)


def safe(text: str) -> str:
    """Words of someone else's text without what a terminal would obey."""
    return "".join(character if character.isprintable() else "�" for character in text)


def predict_code(
    text: Annotated[str, typer.Argument(metavar="FILE", help="Triton IR (.ttir), or - for standard input.")],
    target: Annotated[list[str], typer.Option("--target", help="sm_80 or sm_90; may be given again.")],
    num_warps: Annotated[int, typer.Option("--num-warps", help="Warps of a block.")] = 4,
    num_stages: Annotated[int, typer.Option("--num-stages", help="Stages that loops keep in flight.")] = 3,
    function: Annotated[str | None, typer.Option(help="Which function; default: the only public one.")] = None,
    coverage: Annotated[float, typer.Option(help="Share of functions the intervals are to contain.")] = 0.9,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model directory; default: the shipped model.")
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Predict registers, spills, shared memory, instructions and occupancy: kernelcast predict code kernel.ttir
    --target sm_90.
    """
    from ...features.mlir.parse.parser_process import NativeReader
    from ...features.mlir.understanding import read
    from ...workloads.mlir.program_text import read_file
    from ...workloads.mlir.triton.predictor import load_code_predictor

    predictor = load_code_predictor(model)
    # A text made to bring a native parser down must not take the command with it.
    with NativeReader() as native:
        module = read(read_file(None if text == STDIN else Path(text)), native=native)
    predictions = [
        predictor.predict(module, function, name, num_warps=num_warps, num_stages=num_stages, coverage=coverage)
        for name in target
    ]
    if as_json:
        console.print_json({"predictions": predictions})
        return
    for prediction in predictions:
        _show_code("stdin" if text == STDIN else Path(text).name, prediction)


def _show_code(title: str, prediction: CodePrediction) -> None:
    from rich.text import Text

    screen = console.out()
    options = f"{prediction.target}, {prediction.num_warps} warps, {prediction.num_stages} stages"
    screen.print(Text.assemble((safe(title), "bold"), f": {safe(prediction.function)} for {options}"), soft_wrap=True)
    table = console.totals_table(13)
    spills = f"{100 * prediction.spill_probability:.0f} %"
    limits = prediction.limits
    for name, value, interval, remark in (
        ("registers", f"{prediction.registers.value:.0f}", console.between(prediction.registers, "{:.0f}".format),
        f"per thread, of {limits['registers']}"),
        ("spilling", spills, "",
        f"about {console.num_bytes(prediction.spill_b)} of stack per thread" if prediction.spill_b else "probability"),
        ("shared memory", console.num_bytes(prediction.shared_b.value), console.between(prediction.shared_b, console.num_bytes),
         f"per block, of {console.num_bytes(limits['shared_b'])}"),
        ("instructions", f"{prediction.instructions.value:.0f}", console.between(prediction.instructions, "{:.0f}".format),
        "each once, however often it runs"),
        ("occupancy", _percent(prediction.occupancy.value), console.between(prediction.occupancy, _percent),
        f"{prediction.blocks_per_sm} blocks at once"),
    ):  # fmt: skip
        table.add_row(name, Text(value, "bold"), interval, remark)
    screen.print(table)
    console.show_fact("interval", f"{prediction.coverage * 100:g} % of functions fall inside", cells=14)
    console.show_fact("read by", safe(prediction.reader), cells=14)
    for remark in prediction.notes:
        console.show_fact("note", safe(remark), cells=14)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
