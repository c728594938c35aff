"""`kernelcast predict model.mlir`: what a function of MLIR text costs, where its time goes, and how it was understood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..features.errors import SpecError
from .console import PIPE_WIDTH, model_dir, out, print_json
from .units import flops, flops_per_s, joules, num_bytes, seconds, watts

if TYPE_CHECKING:
    from ..features.device import Catalogue, Device
    from ..features.mlir.graph import Module
    from ..models.mlir.prediction import GroupCost, ModulePrediction
    from ..models.prediction import Interval

SUFFIXES = (".mlir", ".mlirbc", ".ttir", ".ttgir", ".stablehlo")
"""What files of MLIR are called; .mlirbc is bytecode, which is refused with a reason."""
STDIN = "-"

_SHOWN = 12
_NAMES = 3
_RANGES = 2
_WIDEST = {"kernel": 24, "operations": 20, "lines": 12}
"""Columns these may take where that leaves room for a product of matrices on one line."""
_LIKE = "≈"
"""Before a kernel that is only like what the operations do; how it differs stands under the table."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options that only MLIR text has."""

    function: str | None = None
    bind: Sequence[str] = ()
    compiler: str = ""
    threads: int | None = None
    flame: Path | None = None
    show_all: bool = False

    def given(self) -> list[str]:
        """The names of those that were given."""
        was = {
            "--function": self.function is not None, "--bind": bool(self.bind), "--compiler": bool(self.compiler),
            "--threads": self.threads is not None, "--flame": self.flame is not None, "--all": self.show_all,
        }  # fmt: skip
        return [name for name, given in was.items() if given]


def is_mlir(word: str) -> bool:
    """Whether the first argument of `predict` is MLIR text rather than a kernel family: a path, or stdin."""
    if word == STDIN or "/" in word or word.lower().endswith(SUFFIXES):
        return True
    from ..features.kernel import families

    return word not in families() and Path(word).exists()


def predict_mlir(
    word: str,
    devices: Sequence[str],
    known: Catalogue,
    options: TextOptions,
    *,
    model: Path | None,
    coverage: float,
    as_json: bool,
) -> None:
    """Predict the text in a file or on stdin on each device, and print it.

    Raises:
        SpecError: the text, an option or a device cannot be used; the message says what is possible.
    """
    if not devices:
        raise SpecError("name a device with --device; `kernelcast devices` lists them")
    from ..api.mlir_reader import NativeReader
    from ..api.mlir_request import read_bind, read_file, threads_on
    from ..features.mlir.reading import read
    from ..features.mlir.understanding import functions, understand
    from ..models.mlir.predictor import load_module_predictor
    from ..models.predictor import load_predictor

    names = [known.get(name).name for name in devices]
    if options.flame is not None:
        from .flame_page import check_flame

        check_flame(options.flame, len(names))
    bind = read_bind(options.bind)
    # A text made to bring a native parser down must not take the command with it.
    with NativeReader() as native:
        module = read(read_file(None if word == STDIN else Path(word)), native=native)
    program = understand(module, options.function, bind)
    predictor = load_module_predictor(load_predictor(model_dir(model), known))
    ask = partial(predictor.predict, program, compiler=options.compiler, coverage=coverage)
    threads = threads_on([known.get(name) for name in names], options.threads)
    found = [ask(name, threads=count) for name, count in zip(names, threads, strict=True)]
    title = "stdin" if word == STDIN else safe(Path(word).name)
    answers = [(known.get(name), one) for name, one in zip(names, found, strict=True)]
    if options.flame is not None:
        from .flame_page import write_flame

        write_flame(options.flame, title, answers)
    if as_json:
        from ..api.mlir_wire import programs_answer

        print_json(programs_answer(module, functions(module), found))
        return
    for device, one in answers:
        _show(title, device, module, one, show_all=options.show_all)
    if len(answers) > 1:
        _compare(answers)


def _show(title: str, device: Device, module: Module, found: ModulePrediction, *, show_all: bool) -> None:
    from rich.text import Text

    from .flame import flame

    screen = out()
    screen.print(
        Text.assemble((title, "bold"), f": {safe(found.function)} on {device.title} ({device.name})"),
        soft_wrap=True,
    )
    screen.print(_totals(found))
    for name, said in _facts(module, found).items():
        screen.print(Text.assemble((name.ljust(10), "dim"), safe(said)), soft_wrap=True)
    for line in flame(found.groups, screen.width):
        screen.print(line, soft_wrap=True)
    if found.groups:
        order = sorted(range(len(found.groups)), key=lambda i: found.groups[i].latency_s, reverse=True)
        shown = order if show_all else order[:_SHOWN]
        screen.print(_kernels(found.groups, shown, screen.width))
        for reason, numbers in _stand_ins(found.groups, shown).items():
            said = f"{_LIKE} {', '.join(map(str, numbers))}: {safe(reason)}"
            screen.print(Text(said, "dim"), soft_wrap=True)
    for op, reason in found.not_understood:
        screen.print(Text.assemble(("unknown   ", "red"), f"{safe(op)}: {safe(reason)}"), soft_wrap=True)
    for remark in found.notes:
        screen.print(Text.assemble(("note      ", "dim"), safe(remark)), soft_wrap=True)


def _totals(found: ModulePrediction) -> Any:
    from rich.text import Text

    table = _plain_table()
    rate = flops_per_s(found.flops / found.latency_s.value) if found.flops else ""
    for name, target, show, remark in (
        ("latency", found.latency_s, seconds, rate), ("power", found.power_w, watts, ""),
        ("energy", found.energy_j, joules, ""),
    ):  # fmt: skip
        if target is None:
            table.add_row(name, "unknown", "", _without_power(found))
        else:
            table.add_row(name, Text(show(target.value), "bold"), _between(target, show), remark)
    for name, code in found.characteristics.items():
        title, written, meaning = _CODE.get(name, (name, "{:.3g}".format, ""))
        table.add_row(title, Text(written(code.value), "bold"), _between(code, written), meaning)
    return table


_CODE: Mapping[str, tuple[str, Callable[[float], str], str]] = {
    "compile_s": ("compiling", seconds, "of one core"),
    "code_b": ("code", num_bytes, "of machine code"),
    "code_instructions": ("", "{:.3g}".format, "instructions in it"),
    "vector_instructions": ("", "{:.3g}".format, "of them on vectors"),
    "spills": ("", "{:.3g}".format, "moves to and from the stack, spilled registers among them"),
    "dispatches": ("", "{:.3g}".format, "kernels the compiler makes"),
    "executed_instructions": ("", "{:.3g}".format, "instructions a call executes"),
}
"""How characteristics of compiled code are called, shown and explained."""


def _without_power(found: ModulePrediction) -> str:
    """Why there is no energy of the whole: the kernels whose own is unknown."""
    names = list(dict.fromkeys(safe(group.title) for group in found.groups if group.energy_j is None))
    if not names:
        return "no power is known of programs on this device"
    others = len(names) - 1
    return f"no power is known of {names[0]}" + (f" and {others} other{'s' if others > 1 else ''}" if others else "")


def _facts(module: Module, found: ModulePrediction) -> dict[str, str]:
    """What stands under the totals, by name."""
    assumed = [f"compiler {found.compiler}"] if found.compiler else ["kernels as libraries run them"]
    if found.threads is not None:
        assumed.append(f"{found.threads} thread{'s' if found.threads > 1 else ''}")
    refused = "".join(f"; {reader} did not: {reason}" for reader, reason in module.refusals)
    work = [
        flops(found.flops), f"{num_bytes(found.bytes)} moved", f"{num_bytes(found.footprint_b)} arguments and results",
        f"{found.intensity:.3g} FLOP/B",
    ]  # fmt: skip
    if found.utilization is not None:
        work.append(f"{100 * found.utilization:.3g} % of peak")
    limits = ", ".join(f"{name} {seconds(value)}" for name, value in found.breakdown.items() if value)
    return {
        "interval": f"{found.coverage * 100:g} % of cases fall inside",
        "assumed": ", ".join(assumed),
        "read by": found.reader + refused,
        "work": ", ".join(work),
        "bound": f"no run takes less than {seconds(found.bound_s)}" + (f": {limits}" if limits else ""),
        "method": found.method + ("" if found.in_domain else " — outside what was measured"),
    }


def _kernels(groups: Sequence[GroupCost], shown: Sequence[int], width: int) -> Any:
    """The kernels at these positions, numbered as in the picture, and the others in one row."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for head in ("#", "kernel", "operations", "lines", "runs", "time", "share", "energy", "bound", "predicted as"):
        right = head in ("#", "runs", "time", "share", "energy")
        table.add_column(head, justify="right" if right else "left", no_wrap=right or head == "bound", overflow="fold",
                         max_width=_WIDEST.get(head) if width >= PIPE_WIDTH else None)  # fmt: skip
    for i in shown:
        one = groups[i]
        energy = "" if one.energy_j is None else joules(one.energy_j)
        table.add_row(
            str(i + 1), safe(one.title), safe(_names(one.ops)), ranges(one.lines), f"{one.runs:g}",
            seconds(one.latency_s), f"{100 * one.time_share:.1f} %", energy, one.bound, _known_as(one),
        )  # fmt: skip
    if left := [group for i, group in enumerate(groups) if i not in set(shown)]:
        share = f"{100 * sum(one.time_share for one in left):.1f} %"
        others = f"{len(left)} others (--all)"
        runs = f"{sum(one.runs for one in left):g}"
        table.add_row("", others, "", "", runs, seconds(sum(one.latency_s for one in left)), share)
    return table


def _known_as(one: GroupCost) -> str:
    if not one.understood:
        return "not understood: a guess"
    if not one.spec:
        return "no family: on paper"
    return f"{_LIKE}{safe(one.spec)}" if one.stand_in else safe(one.spec)


def _stand_ins(groups: Sequence[GroupCost], shown: Sequence[int]) -> dict[str, list[int]]:
    """How kernels differ from what they stand for, with the numbers of those that do."""
    found: dict[str, list[int]] = {}
    for i in sorted(shown):
        if groups[i].spec and groups[i].stand_in and groups[i].understood:
            found.setdefault(groups[i].stand_in, []).append(i + 1)
    return found


def _names(ops: Sequence[str]) -> str:
    """Operations by name, the dialect left off, each once with how often it stands there."""
    counts: dict[str, int] = {}
    for op in (one.rpartition(".")[2] for one in ops):
        counts[op] = counts.get(op, 0) + 1
    words = [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    return ", ".join(words[:_NAMES]) + (f" +{len(words) - _NAMES}" if len(words) > _NAMES else "")


def ranges(lines: Sequence[int]) -> str:
    """Line numbers with runs of them drawn together: `3–5, 9`."""
    found: list[list[int]] = []
    for line in sorted(set(lines)):
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    words = [f"{first}" if first == last else f"{first}–{last}" for first, last in found]
    return ", ".join(words[:_RANGES]) + (" …" if len(words) > _RANGES else "")


def _compare(answers: Sequence[tuple[Device, ModulePrediction]]) -> None:
    """The devices beside each other, the fastest first; times are also told in those of the first asked for."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("device", "latency", "", "of the first", "power", "energy", "of peak"):
        table.add_column(head, justify="left" if head == "device" else "right", no_wrap=True)
    first = answers[0][1].latency_s.value
    for device, one in sorted(answers, key=lambda answer: answer[1].latency_s.value):
        table.add_row(
            device.name, seconds(one.latency_s.value), _between(one.latency_s, seconds),
            f"{one.latency_s.value / first:.3g} ×", "unknown" if one.power_w is None else watts(one.power_w.value),
            "unknown" if one.energy_j is None else joules(one.energy_j.value),
            "" if one.utilization is None else f"{100 * one.utilization:.3g} %",
        )  # fmt: skip
    out().print(table)


def _plain_table() -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", width=9)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column()
    return table


def _between(target: Interval, show: Any) -> str:
    return f"[{show(target.lower)} … {show(target.upper)}]"


def safe(words: str) -> str:
    """Words of someone else's text without what a terminal would obey."""
    return "".join(one if one.isprintable() else "�" for one in words)
