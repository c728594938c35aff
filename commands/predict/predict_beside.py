"""`kernelcast predict … --beside`: kernels that share a device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...features.errors import SpecError
from .. import console, names

if TYPE_CHECKING:
    from ...features.device import Catalogue, Device
    from ...models.predict.neighbours import Colocation


def predict_beside(
    request: dict[str, Any], beside: Sequence[str], place: Device, known: Catalogue, model: Path | None, coverage: float, *,
    as_json: bool,
) -> None:  # fmt: skip
    """Predict a kernel beside others, each given as words in one text.

    Raises:
        SpecError: a text is no kernel, or the kernels do not fit the device together.
    """
    from ...models.predict.predictor import load_predictor
    from ...workloads.compare.colocated import colocated, colocation_answer, read_neighbours

    predictor = load_predictor(console.model_dir(model), known)
    others = [_kernel(text, index) for index, text in enumerate(beside)]
    (first,) = read_neighbours([request], place, predictor, "kernel")
    result = colocated(predictor, [first, *read_neighbours(others, place, predictor)], place, coverage)
    if as_json:
        console.print_json(colocation_answer(result))
    else:
        _show(result, place)


def _kernel(text: str, index: int) -> dict[str, Any]:
    try:
        family, *words = shlex.split(text)
    except ValueError as error:
        raise SpecError(
            f"--beside is {text!r}; give a kernel in words, such as 'copy 4kx4k fp32 threads=1'", field="beside"
        ) from error
    try:
        return names.kernel(family, words)
    except SpecError as error:
        raise SpecError(f"beside[{index}]: {error}", field=f"beside[{index}].{error.field or 'family'}") from error


def _show(result: Colocation, place: Device) -> None:
    screen = console.out()
    screen.print(f"{len(result.kernels)} kernels beside each other on {place.title} ({place.name})", soft_wrap=True)
    numbers = ("alone", "beside", "from", "to", "slower")
    table = console.new_table("kernel", *numbers, numbers=numbers)
    for item in result.kernels:
        value = "unknown" if item.latency_s is None else console.seconds(item.latency_s.value)
        slower = "" if item.slowdown is None else f"{item.slowdown.value:.2f} x"
        table.add_row(
            str(item.spec), console.seconds(item.alone.latency_s.value), value, console.seconds(item.shortest_s),
            console.seconds(item.longest_s), slower,
        )  # fmt: skip
    screen.print(table)
    console.show_fact("interval", f"{result.coverage * 100:g} % of cases fall inside")
    console.show_fact(
        "all ended",
        f"{console.seconds(result.all_shortest_s)} to {console.seconds(result.all_longest_s)} after a common start",
    )
    console.show_fact("method", result.method if result.source is None else f"{result.method}: {result.source}")
    for note in result.notes:
        console.show_fact("note", note)
