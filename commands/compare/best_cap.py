"""`kernelcast compare best-cap`: the power limit or clock of a GPU at which work takes least energy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from .. import console, names

if TYPE_CHECKING:
    from ...features.device import Catalogue, Device
    from ...models.predict.predictor import ArtifactPredictor
    from ...workloads.compare.best_cap import BestCap, CapPoint, CostUnder

_FILES = (".json", ".yaml", ".yml", ".csv")
_MOST_ROWS, _WIDEST = 9, 100
"""Settings that a table has, and cells of a plot."""
_LENGTHS = ("input", "input_tokens", "input-tokens")
"""Words that say the length of a prompt."""
_TEXTS = ("engine", "engine_version", "dtype", "weights", "kv_dtype", "draft")


def best_cap(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="FAMILY | FILE | MODEL",
            help="A kernel family; a list of kernels (.yaml, .json, .csv); or a language model, such as "
            "meta-llama/Llama-3.1-8B or the path of its config.json.",
            autocompletion=names.complete_family,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="Of a kernel its sizes and settings; of a language model input=1024 output=256 concurrency=32 tp=4 …",
            autocompletion=names.complete_word,
        ),
    ] = None,
    device: names.OneDevice = "",
    slowdown: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Longest time accepted, such as 5%; default: any.")
    ] = None,
    time_s: Annotated[
        float | None, typer.Option("--time-s", help="Seconds of a program, measured by default; in place of a name.")
    ] = None,
    power_w: Annotated[
        float | None, typer.Option("--power-w", help="Mean watts of the program, measured by default.")
    ] = None,
    budget_w: Annotated[
        float | None, typer.Option("--budget-w", help="Power of a rack: how many servers fit, at which limit.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="With --budget-w: GPUs of a server.")] = 8,
    host_w: Annotated[
        float, typer.Option("--host-w", help="With --budget-w: watts of a server beside its GPUs.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the curves to an .svg.")] = None,
    model: console.Model = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Choose the power limit or the clock at which work takes least energy, and draw what each costs.

    kernelcast compare best-cap gemm 4096x4096x4096 bf16 --device h100-sxm --slowdown 5%

    kernelcast compare best-cap meta-llama/Llama-3.1-8B input=1024 output=256 concurrency=32 --device h100-sxm --slowdown 10%

    kernelcast compare best-cap --time-s 312 --power-w 241 --device a40 (a program that ran once by default)

    kernelcast compare best-cap bert.yaml --device a100-sxm-80gb --budget-w 40000 --gpus 8 --host-w 1500
    """
    from ...workloads.compare.best_cap import Budget, check_picture, measured_cost
    from ...workloads.compare.best_cap import best_cap as chosen

    if out is not None:
        check_picture(out)
    known = console.read_catalogue(device_file)
    if not device:
        raise SpecError("name a device with --device; `kernelcast devices` lists them", field="device")
    place = names.device(device, known)
    if (time_s is None) != (power_w is None):
        raise SpecError("a measured program has both --time-s and --power-w", field="time_s")
    if (what is None) == (time_s is None):
        raise SpecError(
            "name a kernel, a list of kernels or a language model; or give --time-s and --power-w of a program"
        )
    if time_s is not None and power_w is not None:
        cost, title = measured_cost(time_s, power_w, place), "a program"
    else:
        cost, title = _cost(what or "", words or [], place, known, console.model_dir(model))
    budget = None if budget_w is None else Budget(budget_w, gpus, host_w)
    result = chosen(cost, place, slowdown=_share(slowdown), budget=budget)
    if out is not None:
        result.save(out)
    if as_json:
        console.print_json(result)
    else:
        _show(title, place, result)


def _share(text: str | None) -> float | None:
    """A share such as `5%` or `0.05`.

    Raises:
        SpecError: it is none.
    """
    if text is None:
        return None
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise SpecError(f"--slowdown is {text[:40]!r}; it is a share such as 5% or 0.05", field="slowdown") from None


def _cost(what: str, words: Sequence[str], device: Device, known: Catalogue, model: Path) -> tuple[CostUnder, str]:
    """What work costs on a device under a setting, and its title.

    Raises:
        SpecError: it is unknown.
    """
    from ...models.predict.predictor import load_predictor

    predictor = load_predictor(model, known)
    if Path(what).suffix.lower() not in _FILES and "/" not in what:
        from ...features.spec_io.reading import read_spec
        from ...workloads.compare.best_cap import kernel_cost

        spec, _ = read_spec(names.kernel(what, words) | {"device": device.name}, known)
        return kernel_cost(predictor, spec, device), str(spec)
    if _is_model(what, words):
        return _service_cost(what, words, device, predictor)
    from ...workloads.compare.best_cap import model_cost
    from ...workloads.kernel_reading import read_kernels
    from ..predict.predict_model import read_items

    if words:
        raise SpecError(f"{words[0]!r} goes with a kernel family or a language model; a file has all of its kernels")
    kernels = read_kernels(read_items(Path(what)), [device.name], known)
    return model_cost(predictor, kernels, device), Path(what).name


def _is_model(what: str, words: Sequence[str]) -> bool:
    """Whether a name or a path is of a language model: of a file the words say so, as a list of kernels has no lengths."""
    path = Path(what)
    if path.suffix.lower() in _FILES:
        return any(word.partition("=")[0] in _LENGTHS for word in words)
    return not path.is_file()


def _service_cost(
    what: str, words: Sequence[str], device: Device, predictor: ArtifactPredictor
) -> tuple[CostUnder, str]:
    """The cost of a request of a service of which words say the load."""
    from ...python.arguments import checked_settings
    from ...workloads.architectures.config.catalogue import facts_of
    from ...workloads.compare.best_cap import service_cost
    from ...workloads.serving.predict import ServingPredictor
    from ...workloads.serving.request import serving_request

    settings: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        field = {"input": "input_tokens", "output": "output_tokens"}.get(name, name.replace("-", "_"))
        if field in settings:
            raise SpecError(f"{word!r} says {field} a second time; give it once", field=field)
        settings[field] = text if field in _TEXTS else _number(name, text)
    if missing := [name for name in ("input_tokens", "output_tokens") if name not in settings]:
        raise SpecError(
            f"{listed(missing)} missing: compare best-cap MODEL input=1024 output=256 concurrency=32", field=missing[0]
        )
    checked = checked_settings(settings, serving_request)
    request = serving_request(facts := facts_of(what), device.name, **checked)
    return service_cost(ServingPredictor(predictor), request), f"a request to {facts.name}"


def _number(name: str, text: str) -> float | int:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise SpecError(f"{name} must be a number, got {text[:40]!r}", field=name) from None


def _setting(point: CapPoint) -> str:
    if point.power_limit_w is not None:
        return console.watts(point.power_limit_w)
    return "default" if point.clock_hz is None else f"{point.clock_hz / 1e6:.0f} MHz"


def _show(title: str, device: Device, result: BestCap) -> None:
    from .plot import PlottedCurve, draw

    screen, best = console.out(), result.best
    screen.print(console.heading(title, f" on {device.title} ({device.name})"), soft_wrap=True)
    accepted = "" if result.slowdown is None else f" of those at most {100 * result.slowdown:g} % slower"
    servers = "" if best.servers is None else f", {best.servers} servers, {best.throughput:.2f} times the throughput"
    console.show_fact(
        "best", f"{_setting(best)}{accepted}: {100 * (1 - best.energy):.0f} % less energy, "
        f"{100 * (best.time - 1):.0f} % longer{servers}"
    )  # fmt: skip
    usual = result.usual
    cells = (
        console.seconds(usual.latency_s.value),
        console.watts(usual.power_w.value),
        console.joules(usual.energy_j.value),
    )
    console.show_fact("default", ", ".join(cells))
    for name, points in (("power limit in W", result.limits), ("clock in MHz", result.clocks)):
        if all(point.time == 1 for point in points):
            if points:
                console.show_fact(
                    "note", f"no {name.split(' in ')[0]} is reached: the default stays as it is under all"
                )
            continue
        places = [round(point.power_limit_w or (point.clock_hz or 0) / 1e6) for point in points]
        inside = [True] * len(points)
        curves = [
            PlottedCurve("time over the default's", [point.time for point in points], inside),
            PlottedCurve(f"energy over the default's, by {name}", [point.energy for point in points], inside),
        ]
        screen.print(draw(curves, places, lambda value: f"{value:.2f} ×", min(screen.width, _WIDEST), log_x=False))
        _table(points)


def _table(points: Sequence[CapPoint]) -> None:
    heads = ["setting", "time", "power", "energy", "interval of energy"]
    has_servers = points[0].servers is not None
    heads += ["servers", "throughput"] if has_servers else []
    count = min(_MOST_ROWS, len(points))
    table = console.new_table(*heads, numbers=set(heads))
    for i in sorted({round(k * (len(points) - 1) / max(1, count - 1)) for k in range(count)}):
        point = points[i]
        cells = [_setting(point), f"{point.time:.2f} ×", console.watts(point.power_w.value), f"{point.energy:.2f} ×",
                 console.between(point.energy_j, console.joules)]  # fmt: skip
        table.add_row(*cells, *([str(point.servers), f"{point.throughput:.2f} ×"] if has_servers else []))
    console.out().print(table)
