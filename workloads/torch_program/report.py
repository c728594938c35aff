"""A run's answers for people and programs: text, a page, plain data."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from ...features.errors import SpecError, listed
from ...models.evaluation.charts import head, page
from ...models.predict.prediction import Interval
from ..flame import Picture, in_page, tree
from ..savings import Saving
from ..units import flops, joules, money, num_bytes, seconds, watts
from .answers import Answers
from .device_estimate import DeviceEstimate
from .memory import Memory
from .shares import Share

_SHOWN = 10
_NOTES_SHOWN = 4
_NOT_WRITTEN = frozenset({"whole", "leaves"})
"""Fields of answers that plain data leaves out: they are composed of, or drawn from, what it has."""
_WIDTH = 80
"""Columns of text."""
_NAME_CELLS, _NAME_CELLS_BESIDE = 44, 27
"""Columns of names of operators and modules, of one device and of several: two devices have room beside each other."""

Table = list[list[str]]


def as_text(answers: Answers) -> str:
    """Totals side by side, memory, the operators and modules that take longest, and what to know, in 80 columns."""
    parts = [_title(answers), *_side_by_side(_totals(answers), 1), "", *_wrapped(_memory_line(answers.memory))]
    for name, shares in _breakdowns(answers):
        parts += ["", *_side_by_side(_shares_table(name, answers, shares), 2, 3)]
    if answers.any_savings:
        parts += ["", *_savings_lines(answers)]
    return "\n".join([*parts, *(line for note in _remarks(answers) for line in _wrapped(f"note: {note}"))])


def as_html(answers: Answers) -> str:
    """The same as a piece of a page, for notebooks."""
    tables = [_html_table(_totals(answers)), f"<p>{html.escape(_memory_line(answers.memory))}</p>"]
    tables += [_html_table(_shares_table(name, answers, shares)) for name, shares in _breakdowns(answers)]
    if answers.any_savings:
        tables.append(_html_table(_savings_table(answers)))
    remarks = "".join(f"<li>{html.escape(remark)}</li>" for remark in _remarks(answers))
    return f"<div><h3>{html.escape(_title(answers))}</h3>{''.join(tables)}<ul>{remarks}</ul></div>"


def as_page(answers: Answers) -> str:
    """A page that needs nothing else: where the time goes as a picture for each device, and the tables."""
    title = "Time of a program"
    facts = {
        "operators": answers.operators,
        "arithmetic": flops(answers.flops),
        "peak memory": num_bytes(answers.memory.peak_b),
    }
    pictures = [in_page(picture, f"time of the program on {picture.device}") for picture in pictures_of(answers)]
    return page(title, [head(title, facts, ()), *pictures, f"<section>{as_html(answers)}</section>"])


def pictures_of(answers: Answers) -> list[Picture]:
    """Time by phase, module and operator on each device that has totals, in the order of first calls."""
    return [
        Picture(answer.title, total := _target(answer.latency_s, seconds, answer), tree(total, answer.leaves))
        for answer in answers.totals.values()
        if answer.latency_s is not None
    ]


def as_data(answers: Answers) -> dict[str, Any]:
    """The same as plain data, in full: what `--json` prints."""
    totals = {name: plain(answer) | _cost(answers, name) for name, answer in answers.totals.items()}
    return {"operators": answers.operators, "flops": answers.flops, "batch": answers.batch, "memory": plain(answers.memory),
            "totals": totals, "savings": plain(answers.savings)}  # fmt: skip


def _cost(answers: Answers, name: str) -> dict[str, Any]:
    """The price of an hour of a device and what a run costs there; nothing where no price was given."""
    price = answers.prices.get(name)
    return {} if price is None else {"price_per_hour": price, "cost": plain(answers.cost(name))}


def save(answers: Answers, path: Path) -> Path:
    """See `Run.save`."""
    writers: Mapping[str, Callable[[Answers], str]] = {
        ".html": as_page,
        ".json": lambda answers: json.dumps(as_data(answers), indent=2) + "\n",
        ".txt": lambda answers: as_text(answers) + "\n",
    }  # fmt: skip
    if path.suffix not in writers:
        raise SpecError(f"{path} must end in {listed(writers)}", field="path")
    try:
        path.write_text(writers[path.suffix](answers), encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror}", field="path") from error
    return path


def plain(value: Any) -> Any:
    """Dataclasses as mappings, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name not in _NOT_WRITTEN
        }
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def _title(answers: Answers) -> str:
    words = "operator" if answers.operators == 1 else "operators"
    return f"program: {answers.operators} {words}, {flops(answers.flops)} in products and attention"


def _totals(answers: Answers) -> Table:
    by_device = list(answers.totals.values())
    rows = [["", *(answer.title for answer in by_device)]]
    for name, read, show in _TARGETS:
        rows.append([name, *(_target(read(answer), show, answer) for answer in by_device)])
    if answers.batch:
        rows.append(["samples/s", *(_rate(answer, answers.batch) for answer in by_device)])
        rows.append(["J/sample", *(_of_each(answer.energy_j, answers.batch, joules) for answer in by_device)])
    if answers.prices:
        unit, times = ("million samples", 1e6 / answers.batch) if answers.batch else ("million runs", 1e6)
        costs = (answers.cost(name) for name in answers.totals)
        rows.append([f"cost/{unit}", *(_of_each(cost, 1 / times, money) for cost in costs)])
    rows.append(["kernels", *(f"{answer.launches} in {seconds(answer.kernels_s)}" for answer in by_device)])
    rows.append(["limited by", *(_limits(answer) for answer in by_device)])
    rows.append(["memory", *(_fits(answer) for answer in by_device)])
    return rows


_TARGETS: Sequence[tuple[str, Callable[[DeviceEstimate], Interval | None], Callable[[float], str]]] = (
    ("latency", lambda answer: answer.latency_s, seconds),
    ("power", lambda answer: answer.power_w, watts),
    ("energy", lambda answer: answer.energy_j, joules),
)


def _target(target: Interval | None, show: Callable[[float], str], answer: DeviceEstimate) -> str:
    if target is None:
        return "no answer" if answer.unanswered else "unknown"
    return f"{show(target.value)} [{show(target.lower)} … {show(target.upper)}]"


def _rate(answer: DeviceEstimate, batch: int) -> str:
    return "no answer" if answer.latency_s is None else f"{batch / answer.latency_s.value:.4g}"


def _of_each(whole: Interval | None, parts: float, show: Callable[[float], str]) -> str:
    return "unknown" if whole is None else show(whole.value / parts)


def _limits(answer: DeviceEstimate) -> str:
    if answer.bound_by == "host":
        idle = "" if not answer.idle_share else f", the GPU idles {answer.idle_share:.0%}"
        return f"host: calls take {seconds(answer.host_s)}{idle}"
    return ", ".join(f"{name} {share:.0%}" for name, share in list(answer.by_bound.items())[:3])


def _fits(answer: DeviceEstimate) -> str:
    if answer.fits is None or answer.memory_b is None:
        return "size unknown"
    return f"{'fits into' if answer.fits else 'does not fit into'} {num_bytes(answer.memory_b)}"


def _memory_line(memory: Memory) -> str:
    named = (
        ("weights", memory.weights_b), ("gradients", memory.gradients_b), ("optimiser state", memory.optimizer_state_b),
        ("activations", memory.activations_b), ("inputs", memory.inputs_b),
        ("workspace", memory.workspace_b),
    )  # fmt: skip
    parts = ", ".join(f"{name} {num_bytes(size_b)}" for name, size_b in named if size_b)
    return f"peak memory {num_bytes(memory.peak_b)} at {memory.at}: {parts}"


def _breakdowns(answers: Answers) -> Iterator[tuple[str, Mapping[str, Sequence[Share]]]]:
    """Shares by device of each kind of part, where any device has some."""
    for part in ("phase", "module", "operator"):
        shares = {name: getattr(answer, f"by_{part}") for name, answer in answers.totals.items()}
        if any(shares.values()):
            yield part, shares


def _shares_table(part: str, answers: Answers, shares: Mapping[str, Sequence[Share]]) -> Table:
    """The longest of the first device that has any, with the others beside; the rest is added up in the last row."""
    by_name = {device: {share.name: share for share in rows} for device, rows in shares.items()}
    names = [share.name for share in next(filter(None, shares.values()), ())]
    table = [[part, "calls", *(cell for name in shares for cell in (_short(answers, name), "", "bound"))]]
    for name in names[:_SHOWN]:
        row = [_cut(name, _NAME_CELLS if len(shares) == 1 else _NAME_CELLS_BESIDE)]
        row.append(str(next(rows[name].calls for rows in by_name.values() if name in rows)))
        for rows in by_name.values():
            share = rows.get(name)
            row += ["", "", ""] if share is None else [seconds(share.latency_s), f"{share.time_share:.1%}", share.bound]
        table.append(row)
    if rest := names[_SHOWN:]:
        row = [f"{len(rest)} {'other' if len(rest) == 1 else 'others'}", ""]
        for rows in by_name.values():
            left = [rows[name] for name in rest if name in rows]
            time_s, share_left = sum(share.latency_s for share in left), sum(share.time_share for share in left)
            row += [seconds(time_s), f"{share_left:.1%}", ""]
        table.append(row)
    return table


def _savings_table(answers: Answers) -> Table:
    """What could be won, by device."""
    table = [["could be won", "", "", ""]]
    for name, savings in answers.savings.items():
        table += [[item.change, _short(answers, name), _saved(item), f"{item.share:.0%}"] for item in savings]
    return table


def _saved(item: Saving) -> str:
    return f"{seconds(item.saved_s.value)} [{seconds(item.saved_s.lower)} … {seconds(item.saved_s.upper)}]"


def _short(answers: Answers, device: str) -> str:
    return device if len(answers.totals) > 1 else "time"


def _remarks(answers: Answers) -> Iterator[str]:
    for name, answer in answers.totals.items():
        where = f"{name}: " if len(answers.totals) > 1 else ""
        for reason in answer.unanswered:
            yield f"{where}no answer for {reason}"
        if answer.rough_share >= 0.005:
            yield f"{where}{answer.rough_share:.0%} of the kernels' time is of operators priced as a kernel like them"
        for note in answer.notes[:_NOTES_SHOWN]:
            yield where + note
        if (more := len(answer.notes) - _NOTES_SHOWN) > 0:
            yield f"{where}{more} more in totals[{name!r}].notes"
    yield from answers.notes


def _side_by_side(table: Table, names: int, each: int = 1) -> Iterator[str]:
    """Lines of a table; the devices that find no room beside others follow in tables below.

    Args:
        table: rows.
        names: how many columns stand before those of devices.
        each: columns of a device, of which the first has its name as head.
    """
    left = _lines([row[:names] for row in table])
    devices = []
    for first in range(names, len(table[0]), each):
        columns = [row[first : first + each] for row in table]
        devices.append(_lines(columns) if each == 1 else _under(columns[0][0], _lines(columns[1:], apart=1)))
    is_first = True
    while devices:
        room, shown = _WIDTH - len(left[0]), [left]
        while devices and (len(shown) == 1 or len(devices[0][0]) + 2 <= room):
            room -= len(devices[0][0]) + 2
            shown.append(devices.pop(0))
        if not is_first:
            yield ""
        is_first = False
        yield from ("  ".join(cells).rstrip() for cells in zip(*shown, strict=True))


def _lines(rows: Table, apart: int = 2) -> list[str]:
    """Rows as lines of one length, columns so many characters apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(" " * apart).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _under(head: str, lines: list[str]) -> list[str]:
    """Lines under a head, which is cut where it is longer."""
    return [_cut(head, len(lines[0])).ljust(len(lines[0])), *lines]


def _cut(name: str, width: int) -> str:
    """The end of a name, which says most, where all of it has no room."""
    return name if len(name) <= width else "…" + name[1 - width :]


def _wrapped(text: str, indent: int = 6) -> list[str]:
    return wrap(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _savings_lines(answers: Answers) -> Iterator[str]:
    """What could be won, by device, with its words in the room that the numbers leave."""
    for name, savings in answers.savings.items():
        if not savings:
            continue
        yield "could be won" + (f" on {name}" if len(answers.totals) > 1 else "")
        for numbers, item in zip(
            _lines([[f"{each.share:4.0%}", _saved(each)] for each in savings]), savings, strict=True
        ):
            indent = len(numbers) + 2
            yield from _wrapped(f"{numbers}  {item.change}", indent)


def _html_table(table: Table) -> str:
    head, *rows = table
    cells = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"
