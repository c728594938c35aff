"""What `kernelcast devices NAME` prints: a device's facts, what answers for it rest on, and what adapting would bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ...features.errors import SpecError
from ...models.family_model.artifact_files import ArtifactError
from .. import console

if TYPE_CHECKING:
    from ...client.device_answers import (
        AnswerError,
        DeviceBasis,
        DevicePage,
        KernelGroup,
        MeasuredAdaptation,
        TenMinutes,
    )
    from ...features.device import Catalogue, Device

_MOST_KERNELS, _MOST_SOURCES = 4, 3
"""Implementations and devices that a line names; `--json` has all."""

_WORDS = {
    "itself": "other kernels of this device", "edition": "another edition of the chip",
    "utilisation": "how busy the device is", "scaled bound": "scaled lower bound",
    "law": "bytes and operations alone",
}  # fmt: skip
"""Bases that their names do not explain."""

_SHORT = {"latency_s": "latency", "power_w": "power", "energy_j": "energy"}


def print_page(device: Device, known: Catalogue, model: Path | None, *, as_json: bool) -> None:
    """Print the page of a device; where only what measures is installed, its facts alone and a note.

    Raises:
        ArtifactError: the model that was given cannot be read.
        SpecError: JSON is wanted, and a package for it is missing.
    """
    try:
        page = read_page(device, known, model)
    except ModuleNotFoundError as error:
        if (error.name or "kernelcast").startswith("kernelcast"):
            raise
        reason = f"it needs {error.name}; run: pip install kernelcast"
        if as_json:
            raise SpecError(f"the page of a device cannot be made here: {reason}") from error
        _show_facts(device)
        console.note(f"what answers rest on is not known: {reason}")
        return
    if as_json:
        console.print_json(page)
    else:
        show_page(page)


def read_page(device: Device, known: Catalogue, model: Path | None) -> DevicePage:
    """The page of a device by a model, the serving one where none is given; without it, and a note, where that cannot be read.

    Raises:
        ArtifactError: the model that was given cannot be read.
    """
    from ...api.browse.device_page import device_page, page_without_model
    from ...models.predict.predictor import load_predictor

    try:
        directory = console.model_dir(model)
        return device_page(device, load_predictor(directory, known), directory.name, directory)
    except ArtifactError as error:
        if model is not None:
            raise
        console.note(f"what answers rest on is not known: {error}")
        return page_without_model(device)


def show_page(page: DevicePage) -> None:
    """Print the page."""
    _show_facts(page)
    if page.basis is not None:
        _show_basis(page.basis)
    if page.ten_minutes is not None:
        _show_ten_minutes(page.ten_minutes)


def _show_facts(page: DevicePage | Device) -> None:
    """Facts and measured figures, with the numbers of their sources, which are listed below."""
    numbers: dict[str, int] = {}

    def row(name: str, value: str, source: str | None) -> tuple[str, str, str]:
        return name, value, str(numbers.setdefault(source, len(numbers) + 1)) if source else ""

    rows = [row(name, _with_unit(name, fact.value), fact.source) for name, fact in page.facts.items()]
    for what, peaks in (("matrix", page.matrix_flops_per_s), ("vector", page.vector_flops_per_s)):
        rows += [row(f"{what} {dtype}", console.flops_per_s(fact.value), fact.source) for dtype, fact in peaks.items()]
    heads = ("fact", "value", "source")
    console.show_table(heads, rows, numbers=heads[1:], title=f"{page.title} ({page.name})")
    if page.aliases:
        console.show_fact("also called", ", ".join(page.aliases), cells=13)
    rows = [row(name, _with_unit(name, fact.value), fact.source) for name, fact in page.measured.items()]
    if rows:
        title = "measured figures in the device file; of these, launch floors are used by answers for calls"
        console.show_table(("figure", *heads[1:]), rows, numbers=heads[1:], title=title)
    else:
        console.show_fact("", "no measured figure stands in the device file")
    for source, number in numbers.items():
        console.show_fact(f"{number:>3}", source, cells=5)


def _with_unit(name: str, value: float) -> str:
    """A fact in units a person reads, by the suffix of its name."""
    scales = (("flops_per_s", console.flops_per_s), ("b_per_s", console.bytes_per_s), ("_hz", lambda v: f"{v / 1e9:g} GHz"),
              ("_w", console.watts), ("_j", console.joules), ("_s", console.seconds), ("_b", console.num_bytes))  # fmt: skip
    return next((show(value) for suffix, show in scales if name.endswith(suffix)), f"{value:g}")


def _show_basis(basis: Sequence[DeviceBasis]) -> None:
    lines = [
        (f"{line.family} {_SHORT[line.target]}", _WORDS.get(line.basis, line.basis), "" if not line.rows else f"{line.rows:,}",
         _kernels(line.kernels), _sources(line), _error(line.error_here or line.error))
        for line in _energy_joined(basis)
    ]  # fmt: skip
    heads = ("family", "rests on", "rows here", "kernels", "carried over from", "error %")
    console.show_table(heads, lines, numbers=("rows here",), title="what the answers rest on")
    console.note(
        "*: some variants, cache states or knobs of it only. carried over from: share of the answer and, in brackets, the "
        "distance; laws for all devices make up the rest. error: mean / median of held-out predictions of this kind: of this "
        "device's own rows (here), or of all devices together, other shapes (shapes) or a device left out (device). energy is "
        "latency times power and rests on the less sure of the two."
    )


def _energy_joined(basis: Sequence[DeviceBasis]) -> Iterator[DeviceBasis]:
    """The lines; those of energy joined by family and basis without sources, which are those of latency or power."""
    for (family, target, of), group in groupby(basis, lambda line: (line.family, line.target, line.basis)):
        lines = list(group)
        if target != "energy_j" or len(lines) == 1:
            yield from lines
            continue
        kernels = [kernel for line in lines for kernel in line.kernels]
        rows = None if any(line.rows is None for line in lines) else sum(line.rows or 0 for line in lines)
        yield type(lines[0])(family, target, of, rows, kernels, [], 0.0, None)


def _kernels(kernels: Sequence[KernelGroup]) -> str:
    dtypes: dict[str, list[str]] = {}
    for kernel in kernels:
        dtypes.setdefault(kernel.impl or "no impl", []).append(kernel.dtype + ("" if kernel.is_whole else "*"))
    words = [f"{impl} {', '.join(of)}" for impl, of in dtypes.items()]
    return _first(words, _MOST_KERNELS, "; ") or "all"


def _sources(line: DeviceBasis) -> str:
    words = [f"{source.device} {100 * source.weight:.0f} % ({source.distance:.2f})" for source in line.sources]
    return _first(words, _MOST_SOURCES, ", ")


def _first(words: list[str], most: int, between: str) -> str:
    more = [f"and {len(words) - most} more"] if len(words) > most else []
    return between.join([*words[:most], *more])


_OF = {"held_out": "shapes", "device_left_out": "device", "own_rows": "here"}


def _error(error: AnswerError | None) -> str:
    return "" if error is None else f"{error.mean_ape_pct:.1f} / {error.median_ape_pct:.1f} {_OF[error.of]}"


def _show_ten_minutes(ten: TenMinutes) -> None:
    for sentence in ten.says:
        console.show_fact("", sentence)
    rows = [(run.machine, run.base, "" if run.minutes is None else f"{run.minutes:g}", f"{run.rows:,}", *_both(run), run.doc)
            for run in ten.measured]  # fmt: skip
    heads = ("on", "model", "minutes", "rows", "before", "after", "more in")
    title = "adaptations that were measured: mean / median error in % on shapes left out"
    console.show_table(heads, rows, numbers=("minutes", "rows", "before", "after"), title=title)


def _both(run: MeasuredAdaptation) -> tuple[str, str]:
    before, after = (f"{mean:.1f} / {median:.1f}" for mean, median in (run.before, run.after))
    return before, after
