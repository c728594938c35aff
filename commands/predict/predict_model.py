"""`kernelcast predict model`: what a whole model costs, from a file that lists its kernels."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console, names

if TYPE_CHECKING:
    from ...features.device import Device
    from ...workloads.whole_model import WholeModelPrediction

_SHOWN = 12
_TEXT_COLUMNS = ("family", "dtype", "variant", "impl", "kv_dtype", "cache_state", "timing", "name")


def predict_model(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The kernels: a .json, .yaml or .csv list.")],
    device: names.Devices = None,
    model: console.Model = None,
    coverage: console.Coverage = 0.9,
    launch_s: Annotated[
        float, typer.Option("--launch-s", help="Seconds between two kernels; 0: they run back to back.")
    ] = 0.0,
    queued: Annotated[
        bool, typer.Option("--queued", help="Work is queued ahead, which hides launches: ask for the kernels alone.")
    ] = False,
    power_limit_w: console.PowerLimit = None,
    clock_hz: console.Clock = None,
    grid: console.GridOption = None,
    electricity_price: console.ElectricityPrice = None,
    pue: console.Pue = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Predict what a whole model costs: kernels with counts in, latency, power and energy with intervals out.

    kernelcast predict model bert.yaml --device h100-sxm

    Each kernel has a family, a dtype, its sizes, and as it likes a count, a name and what `predict` takes besides.
    """
    electricity = console.read_electricity(grid, electricity_price, pue)
    known = console.read_catalogue(device_file)
    if not device:
        raise SpecError("name a device with --device; `kernelcast devices` lists them")
    from ...models.predict.power_law import read_setting
    from ...models.predict.predictor import load_predictor
    from ...workloads.kernel_reading import read_kernels
    from ...workloads.whole_model import predict_whole

    devices = names.devices(device, known)
    device_names = [item.name for item in devices]
    kernels = read_kernels(read_items(path), device_names, known)
    predictor = load_predictor(console.model_dir(model), known)
    if (setting := read_setting(power_limit_w, clock_hz)) is not None:
        predictor = predictor.under(setting)
    ask = partial(predict_whole, predictor, kernels, coverage=coverage, launch_s=launch_s, queued=queued)
    wholes = [ask(name) for name in device_names]
    if as_json:
        from ...client.answers import WholeModelPredictions
        from ...workloads.answers import whole_answer

        pairs = zip(device_names, wholes, strict=True)
        console.print_json(WholeModelPredictions([whole_answer(*pair, electricity) for pair in pairs]))
        return
    for item, whole in zip(devices, wholes, strict=True):
        _show(path, item, whole)
        console.show_footprint(electricity, [("one run", whole.energy_j, 1.0)])


def read_items(path: Path, what: str = "kernels") -> list[Any]:
    """The list of kernels, or of `what`, in a file, as plain data.

    JSON and YAML hold a list of mappings, or a mapping with the list under the name of `what`; a CSV has a column per field.

    Raises:
        SpecError: the file is not there, cannot be read as what its suffix says, or holds no list.
    """
    readers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": _yaml, ".yml": _yaml, ".csv": _rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise SpecError(f"{path} must end in {listed(readers)}", field="file")
    try:
        content = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", field="file") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} cannot be read as {path.suffix[1:]}: {error}", field="file") from error
    if isinstance(content, dict):
        if other := [name for name in content if name != what]:
            hint = "; a model's config.json goes to `kernelcast estimate`" if "model_type" in content else ""
            raise SpecError(
                f"{path} has {other[0]!r}, which is no list of {what}; give `{what}` alone{hint}", field="file"
            )
        content = content.get(what)
    if not isinstance(content, list):
        raise SpecError(f"{path} must hold a list of {what}, or `{what}:` with such a list", field="file")
    return content


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def _rows(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV table with empty fields left out, and whole numbers where there is no text."""
    rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
    return [{name: _value(name, word) for name, word in row.items() if word} for row in rows]


def _value(name: str | None, word: Any) -> Any:
    if name is None:
        raise ValueError(f"a row has more fields than the header: {word}")
    try:
        return word if name in _TEXT_COLUMNS else int(word)
    except ValueError:
        return word


def _show(path: Path, device: Device, whole: WholeModelPrediction) -> None:
    from rich.text import Text

    screen = console.out()
    runs = f"{console.counted(len(whole.parts), 'kernel')}, {console.counted(whole.launches, 'run')}"
    screen.print(Text.assemble((path.name, "bold"), f" on {device.title} ({device.name}): {runs}"), soft_wrap=True)
    without = whole.without_energy
    others = f" and {len(without) - 1} others" if len(without) > 1 else ""
    screen.print(console.targets_table(whole, "", f"no power is known of {without[0]}{others}" if without else ""))
    console.show_fact("interval", f"{whole.coverage * 100:g} % of cases fall inside")
    console.show_fact("bound", f"no run of these kernels takes less than {console.seconds(whole.bound_s)}")
    if whole.launch_s:
        console.show_fact("gaps", f"{console.seconds(whole.launch_s)} between kernels, in the latency")
    screen.print(_kernels(whole))
    if len(whole.families) > 1:
        screen.print(_families(whole))
    for remark in whole.notes:
        console.show_fact("note", remark)


def _kernels(whole: WholeModelPrediction) -> Any:
    """The kernels that take most of the time, a bar each."""
    from rich.text import Text

    table = _table("kernel", "runs", "one run", "all runs", "energy", "time", "")
    order = sorted(range(len(whole.parts)), key=lambda i: whole.parts[i].latency_s, reverse=True)
    longest = whole.parts[order[0]].time_share
    for i in order[:_SHOWN]:
        part = whole.parts[i]
        energy = "" if part.energy_j is None else console.joules(part.energy_j)
        style = "bold" if i in whole.dominant else ""
        table.add_row(
            Text(part.kernel.title, style), str(part.kernel.count), console.seconds(part.prediction.latency_s.value),
            console.seconds(part.latency_s), energy, f"{100 * part.time_share:.1f} %", console.bar(part.time_share / longest),
        )  # fmt: skip
    if rest := order[_SHOWN:]:
        left = [whole.parts[i] for i in rest]
        share = f"{100 * sum(part.time_share for part in left):.1f} %"
        table.add_row(
            f"{len(left)} others", str(sum(part.kernel.count for part in left)), "",
            console.seconds(sum(part.latency_s for part in left)), "", share, "",
        )  # fmt: skip
    return table


def _families(whole: WholeModelPrediction) -> Any:
    table = _table("family", "runs", "all runs", "energy", "time", "")
    for family in whole.families:
        energy = "" if family.energy_j is None else console.joules(family.energy_j)
        drawn = console.bar(family.time_share / whole.families[0].time_share)
        table.add_row(
            family.family,
            str(family.launches),
            console.seconds(family.latency_s),
            energy,
            f"{100 * family.time_share:.1f} %",
            drawn,
        )
    return table


def _table(*heads: str) -> Any:
    """A table without lines; numbers stand to the right between the name and the bar."""
    return console.new_table(*heads, numbers=heads[1:-1], head_style="dim")
