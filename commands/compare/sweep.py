"""`kernelcast compare sweep`: a kernel along one of its sizes or knobs, drawn as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console, names
from .compare import curve_devices

if TYPE_CHECKING:
    from ...client.answers import Sweep
    from ...features.kernel import KernelSpec
    from ...workloads.compare.sweep import Swept

_MOST_ROWS, _WIDEST = 9, 100
"""Values that the table under the plot has, and cells of the plot."""

_TARGETS = {"latency": ("latency_s", console.seconds), "power": ("power_w", console.watts),
            "energy": ("energy_j", console.joules)}  # fmt: skip


def sweep(
    family: names.Family,
    words: names.Words = None,
    device: names.Devices = None,
    points: Annotated[int, typer.Option(help="Values that a range is spread over.")] = 64,
    linear: Annotated[bool, typer.Option("--linear", help="Spread them evenly, not by equal factors.")] = False,
    of: Annotated[str, typer.Option("--of", help=f"What is drawn: {listed(_TARGETS)}.")] = "latency",
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Predict a kernel along a size or knob, which is given as a range or as values, and draw it.

    kernelcast compare sweep gemm m=1..8192 n=4096 k=4096 bf16 --device h100 --device l40s

    kernelcast compare sweep softmax rows=128,1024,8192 cols=4k fp16 --device h100 --of energy
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.sweep import sweep as swept_by

    if of not in _TARGETS:
        raise SpecError(f"--of is {of!r}; it is one of {listed(_TARGETS)}", field="of")
    known = console.read_catalogue(device_file)
    word, others = _swept_word(words or [])
    plain = names.kernel(family, others)
    try:
        swept = _swept(plain, word, points, linear)
    except SpecError as error:
        at_fault = (error.field or "").startswith("sweep")
        raise SpecError(f"{word}: {error}" if at_fault else str(error), field=error.field) from error
    devices = curve_devices(device, known)
    result = swept_by(load_predictor(console.model_dir(model), known), swept, devices, coverage=coverage)
    if as_json:
        console.print_json(result)
    else:
        _show(swept.specs[0], result, of, is_log=not linear and swept.values[0] > 0)


def _swept_word(words: Sequence[str]) -> tuple[str, list[str]]:
    """The word that has a range or values, and the others.

    Raises:
        SpecError: none has, or several have.
    """
    swept = [word for word in words if "=" in word and (".." in word or "," in word)]
    if len(swept) != 1:
        count = f"{listed(swept)} are {len(swept)}" if swept else "there is none"
        raise SpecError(
            f"give one size or knob a range or values, such as m=1..8192 or m=1,8,64; {count}", field="sweep"
        )
    return swept[0], [word for word in words if word != swept[0]]


def _swept(plain: dict[str, Any], word: str, points: int, linear: bool) -> Swept:
    """The kernel along what a word says.

    Raises:
        SpecError: what is wrong; `field` begins with `sweep` where it is the word.
    """
    from ...features.kernel import get_family
    from ...features.spec_io.words import read_number
    from ...workloads.compare.sweep import swept_range, swept_values

    name, _, text = word.partition("=")
    family = get_family(plain["family"])
    dim = name if name in (*family.dim_names, *family.config) else name.lower()
    low, dots, high = text.partition("..")
    if not dots:
        return swept_values(plain, dim, sorted({read_number(value.strip(), dim) for value in text.split(",")}))
    if not low or not high:
        raise SpecError("a range has both ends, such as m=1..8192", field="sweep")
    ends = {"from": read_number(low, f"{dim} from"), "to": read_number(high, f"{dim} to")}
    return swept_range(plain, dim, {**ends, "points": points, "scale": "linear" if linear else "log"})


def _show(spec: KernelSpec, result: Sweep, of: str, *, is_log: bool) -> None:
    from .plot import MARKS, PlottedCurve, draw

    field, show = _TARGETS[of]
    columns = {curve.device: getattr(curve, field) for curve in result.curves}
    values = {name: [] if column is None else column.value for name, column in columns.items()}
    for name in (name for name, column in values.items() if not column):
        console.note(f"{name}: {of} is unknown")
    curves = [
        PlottedCurve(curve.device, [None if value is None or value != value else value for value in values[curve.device]],
                     curve.in_domain)
        for curve in result.curves if values[curve.device]
    ]  # fmt: skip
    if not any(value is not None for curve in curves for value in curve.values):
        return
    screen = console.out()
    kernel = str(spec).replace(f"{result.dim}={result.values[0]}", f"{result.dim}", 1)
    screen.print(console.heading(kernel, f": {of} over {result.dim}"), soft_wrap=True)
    screen.print(draw(curves, result.values, show, min(screen.width, _WIDEST), log_x=is_log))
    heads = [f"{MARKS[number]} {of}" for number in range(len(curves))]
    step = (len(result.values) - 1) / max(1, min(_MOST_ROWS, len(result.values)) - 1)
    rows = sorted({round(i * step) for i in range(min(_MOST_ROWS, len(result.values)))})
    table = console.new_table(result.dim, *heads, numbers={result.dim, *heads})
    for i in rows:
        cells = [(curve.values[i], curve.in_domain[i]) for curve in curves]
        table.add_row(f"{result.values[i]:,}", *(console.domain_text("" if value is None else show(value), is_in)
                                                  for value, is_in in cells))  # fmt: skip
    screen.print(table)
