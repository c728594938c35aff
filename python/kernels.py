"""Questions about kernels: what they cost on devices, side by side, along a size, and in which configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from ..features.device import Device
from ..features.dtypes import DTYPES
from ..features.errors import SpecError, listed
from ..features.kernel import KernelSpec
from ..features.kernel import families as known_families
from ..features.spec_io.reading import SETTING_FIELDS, read_bare_spec
from ..features.spec_io.words import fitting_devices
from ..models.predict.named_impl import check_impl, check_specs
from ..models.predict.neighbours import Colocation
from ..models.predict.power_cap import rows_under
from ..models.predict.power_law import PowerSetting, checked_setting
from ..models.predict.predictor import ArtifactPredictor
from ..workloads.compare import devices as side_by_side
from ..workloads.compare import rank as ranking
from ..workloads.compare import sweep as sweeps
from ..workloads.compare.colocated import colocated, read_neighbours
from ..workloads.compare.spec_on_devices import (
    BARE_FIELDS,
    BARE_NEEDED,
    distinct_devices,
    on_device,
    read_bare,
    read_prices,
)
from ..workloads.kernel_reading import nested
from ..workloads.units import bytes_per_s, num_bytes
from .answer import Answer
from .arguments import check_fields, named_family, names_of
from .model_cache import load
from .tables import Comparison, Ranking, Roofline, Sweep, Table, answer_row, as_table, data_frame, frame_rows


@overload
def predict(
    family: str, *, device: str, dtype: str, model: Path | str | None = None, coverage: float = 0.9,
    power_limit_w: float | None = None, clock_hz: float | None = None, **sizes_and_settings: Any,
) -> Answer: ...  # fmt: skip


@overload
def predict(
    family: str, *, device: Sequence[str], dtype: str, model: Path | str | None = None, coverage: float = 0.9,
    power_limit_w: float | None = None, clock_hz: float | None = None, **sizes_and_settings: Any,
) -> Any: ...  # fmt: skip


@overload
def predict(
    family: str, *, device: str, dtype: str, beside: Sequence[Any], model: Path | str | None = None, coverage: float = 0.9,
    **sizes_and_settings: Any,
) -> Colocation: ...  # fmt: skip


@overload
def predict(
    family: Any, *, device: str | Sequence[str] | None = None, model: Path | str | None = None, coverage: float = 0.9,
    power_limit_w: float | None = None, clock_hz: float | None = None,
) -> Any: ...  # fmt: skip


def predict(
    family: Any,
    *,
    device: str | Sequence[str] | None = None,
    dtype: str | None = None,
    model: Path | str | None = None,
    coverage: float = 0.9,
    power_limit_w: float | None = None,
    clock_hz: float | None = None,
    beside: Sequence[Any] | None = None,
    **sizes_and_settings: Any,
) -> Any:
    """What kernels cost: latency in seconds, power in watts, energy in joules, each with an interval.

    One kernel on one device gives an `Answer`. Several devices, a list of specs or a DataFrame of them give a DataFrame with a
    row for each spec and device: what was asked, `latency_s`, `latency_s_lower`, `latency_s_upper`, the same of `power_w` and
    `energy_j`, and `bound`, `in_domain`, `method`, `notes`. The model is read by the first call and again when it changes.

    Args:
        family: a kernel family, such as `gemm`; or a list of specs, mappings with `family`, `dtype`, the family's sizes (beside
            them or in `sizes`) and as needed `device` and settings; or a DataFrame with these columns, in which an empty cell
            is a field left out and whose index the answer has. A spec may have a `power_limit_w` and a `clock_hz` of its own.
        device: a device of the catalogue, by name or alias, or several; left out where each spec has its own.
        dtype: a number format, such as `bf16`; specs have their own.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        power_limit_w: power limit that the GPUs are set to, in watts; default: their own.
        clock_hz: clock that their compute units are locked to, in hertz.
        beside: kernels that run on the device at the same time, specs as in a list: what each costs then is a `Colocation`,
            with the kernel first and these after it.
        **sizes_and_settings: the family's sizes, and `variant`, `impl`, `config`, `threads`, `cache_state`, `timing` as in
            `KernelSpec.of`. Of several devices, only CPUs take `threads`.

    Raises:
        kernelcast.SpecError: something is unknown or impossible, or pandas is needed and not installed; the message says
            what is possible.
    """
    common = {"power_limit_w": power_limit_w, "clock_hz": clock_hz}
    if beside is not None and not (
        isinstance(family, str) and isinstance(device, str) and power_limit_w is clock_hz is None
    ):
        raise SpecError(
            "beside goes with one kernel on one device as it comes; leave it or the rest out", field="beside"
        )
    if not isinstance(family, str):
        return _frame(family, device, load(model), coverage, {"dtype": dtype} | sizes_and_settings, common)
    if device is None or dtype is None:
        check_fields({"family": named_family(family, sizes_and_settings)[0], **sizes_and_settings})
        missing, known = ("device", "") if device is None else ("dtype", f"; dtype is one of {listed(DTYPES)}")
        raise SpecError(f"{missing} is missing; a kernel needs a family, a device and a dtype{known}", field=missing)
    family, sizes_and_settings = named_family(family, sizes_and_settings)
    spec = KernelSpec.of(family, dtype, **sizes_and_settings)
    predictor = load(model)
    check_specs(predictor, [spec])
    if isinstance(device, str):
        item = predictor.devices.get(device)
        if beside is not None:
            return colocated(predictor, [spec, *read_neighbours(beside, item, predictor)], item, coverage)
        under = predictor.under(checked_setting(power_limit_w, clock_hz, item))
        return Answer.of(spec, item.name, under.predict([spec], [item.name], coverage=coverage)[0])
    named = distinct_devices(names_of(device), predictor.devices)
    question = {"family": family, "dtype": dtype, **sizes_and_settings}
    settings = {name: value for name, value in common.items() if value is not None}
    return _answered([(question | settings, spec, item) for item in named], predictor, coverage, None)


def _frame(
    specs: Any,
    device: str | Sequence[str] | None,
    predictor: ArtifactPredictor,
    coverage: float,
    beside: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Any:
    is_frame = hasattr(specs, "to_dict") and hasattr(specs, "columns")
    if not is_frame and (not isinstance(specs, Sequence) or not all(isinstance(spec, Mapping) for spec in specs)):
        kinds = sorted({type(spec).__name__ for spec in specs}) if isinstance(specs, list | tuple) else []
        what = type(specs).__name__ + (f" of {', '.join(kinds)}" if kinds else "")
        message = f"predict takes the name of a family, a list of specs (mappings) or a DataFrame, got {what}"
        raise SpecError(message, field="specs")
    if more := [name for name, value in beside.items() if value is not None]:
        raise SpecError(
            f"each spec of a list has its own dtype, sizes and settings; leave {listed(more)} out beside a list",
            field="specs",
        )
    rows = frame_rows(specs) if is_frame else [dict(spec) for spec in specs]
    for_all = {name: value for name, value in settings.items() if value is not None}
    rows = [for_all | row for row in rows]
    if not rows:
        raise SpecError("there is no spec to predict; give at least one", field="specs")
    common = None if device is None else distinct_devices(names_of(device), predictor.devices)
    question = [item for i, row in enumerate(rows) for item in _read_row(i, row, common, predictor)]
    per_row = 1 if common is None else len(common)
    index = [label for label in specs.index for _ in range(per_row)] if is_frame else None
    return _answered(question, predictor, coverage, index)


def _read_row(
    i: int, row: Mapping[str, Any], common: Sequence[Device] | None, predictor: ArtifactPredictor
) -> list[tuple[Mapping[str, Any], KernelSpec, Device]]:
    """What a row asks: its fields, and its spec on each of its devices.

    Raises:
        SpecError: what is wrong with it; message and `field` start with its path, such as `specs[3].m`.
    """
    try:
        if (common is None) == ("device" not in row):
            raise SpecError(
                "the device is missing; give a `device` field, or `device=` for all"
                if common is None
                else "the device is given twice: as a field and for all specs",
                field="device",
            )
        check_fields({name: value for name, value in row.items() if name not in SETTING_FIELDS})
        fields = {name: getattr(value, "item", lambda value=value: value)() for name, value in row.items()}
        question = {name: value for name, value in fields.items() if name != "device"}
        spec = read_bare_spec(nested(question), SETTING_FIELDS, BARE_FIELDS, BARE_NEEDED)
        check_impl(predictor, spec.family, spec.impl)
        devices = common or [predictor.devices.get(fields["device"])]
        for item in devices:
            _setting(question, item)
        return [(question, spec, item) for item in devices]
    except SpecError as error:
        field = error.field or ""
        if "sizes" not in row:
            field = field.removeprefix("sizes.").removeprefix("config.")
        path = f"specs[{i}].{field}" if field else f"specs[{i}]"
        raise SpecError(f"{path}: {error}", field=path) from error


def _answered(
    question: Sequence[tuple[Mapping[str, Any], KernelSpec, Device]],
    predictor: ArtifactPredictor,
    coverage: float,
    index: Any,
) -> Any:
    """A DataFrame with a row for each spec and device."""
    specs = [on_device(spec, item) for _, spec, item in question]
    names = [item.name for *_, item in question]
    predictions = predictor.predict(specs, names, coverage=coverage)
    boards = [item for *_, item in question]
    predictions = rows_under(predictions, boards, [_setting(fields, item) for fields, _, item in question])
    answers = map(Answer.of, specs, names, predictions)
    return data_frame(
        [{**row, **answer_row(answer)} for (row, *_), answer in zip(question, answers, strict=True)], index
    )


def _setting(fields: Mapping[str, Any], device: Device) -> PowerSetting | None:
    return checked_setting(fields.get("power_limit_w"), fields.get("clock_hz"), device)


def compare(
    family: str, *, dtype: str, devices: Sequence[str] | None = None, price_per_hour: Mapping[str, float] | None = None,
    model: Path | str | None = None, coverage: float = 0.9, **sizes_and_settings: Any,
) -> Comparison:  # fmt: skip
    """One kernel on devices side by side, as `/v1/compare` answers; with prices, what a million calls cost.

    Args:
        family: a kernel family.
        dtype: a number format.
        devices: devices by name or alias; default: the whole catalogue.
        price_per_hour: what an hour costs, by device, in one currency.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        **sizes_and_settings: as for `predict`; times are those of the kernel alone unless `timing` says otherwise.

    Raises:
        kernelcast.SpecError: something is unknown or impossible; a device that cannot run the kernel is an answer instead.
    """
    predictor = load(model)
    spec = read_bare(_plain(family, dtype, sizes_and_settings))
    named = distinct_devices(predictor.devices.names() if devices is None else names_of(devices), predictor.devices)
    prices = read_prices(price_per_hour, predictor.devices, named)
    result: Comparison = as_table(
        Comparison, side_by_side.compare(predictor, spec, named, coverage=coverage, prices=prices)
    )
    return result


def roofline(
    family: str, *, dtype: str, devices: Sequence[str], model: Path | str | None = None, coverage: float = 0.9,
    **sizes_and_settings: Any,
) -> Roofline:  # fmt: skip
    """One kernel under the roofs of devices, as `/v1/roofline` answers: its intensity, what it attains, what limits it.

    Args:
        family: a kernel family.
        dtype: a number format.
        devices: devices by name or alias.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        **sizes_and_settings: as for `compare`.

    Raises:
        kernelcast.SpecError: something is unknown or impossible.
    """
    predictor = load(model)
    spec = read_bare(_plain(family, dtype, sizes_and_settings))
    named = distinct_devices(names_of(devices), predictor.devices)
    result: Roofline = as_table(Roofline, side_by_side.roofline(predictor, spec, named, coverage=coverage))
    return result


def sweep(
    family: str, *, dtype: str, devices: Sequence[str], dim: str, values: Sequence[int] | None = None,
    start: int | None = None, stop: int | None = None, points: int | None = None, scale: str | None = None,
    model: Path | str | None = None, coverage: float = 0.9, **sizes_and_settings: Any,
) -> Sweep:  # fmt: skip
    """One kernel while a size or a knob takes several values, as `/v1/sweep` answers.

    Args:
        family: a kernel family.
        dtype: a number format.
        devices: devices by name or alias.
        dim: the size or knob that varies; it need not be among the sizes.
        values: its values, in place of the four that follow.
        start: its first value.
        stop: its last value.
        points: how many values there are between them; default: 64.
        scale: how they are spread, `log` (the default) or `linear`.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        **sizes_and_settings: as for `compare`.

    Raises:
        kernelcast.SpecError: something is unknown or impossible.
    """
    predictor = load(model)
    named = distinct_devices(names_of(devices), predictor.devices)
    plain = _plain(family, dtype, sizes_and_settings)
    options = {"from": start, "to": stop, "points": points, "scale": scale}
    span = {name: value for name, value in options.items() if value is not None}
    if values is not None and span:
        raise SpecError("values cannot be combined with start, stop, points or scale", field="values")
    if values is None and (start is None or stop is None):
        raise SpecError(f"give values of {dim}, or start and stop", field="values")
    swept = (
        sweeps.swept_range(plain, dim, span)
        if values is None
        else sweeps.swept_values(plain, dim, _plain_numbers(values))
    )
    result: Sweep = as_table(Sweep, sweeps.sweep(predictor, swept, named, coverage=coverage))
    return result


def rank(
    family: str, *, device: str, dtype: str, configs: Sequence[Mapping[str, int]] | None = None,
    top: int = ranking.DEFAULT_TOP, model: Path | str | None = None, coverage: float = 0.9, **sizes_and_settings: Any,
) -> Ranking:  # fmt: skip
    """Configurations of a kernel, the fastest first, as `/v1/rank` answers.

    Args:
        family: a kernel family.
        device: a device by name or alias.
        dtype: a number format.
        configs: configurations, mappings of knobs to whole numbers; default: those known of the kernel's compiler.
        top: how many of the best are wanted.
        model: a model directory; default: the champion, else the shipped model.
        coverage: share of cases the intervals are built to contain, 0.5 to 0.99.
        **sizes_and_settings: as for `compare`.

    Raises:
        kernelcast.SpecError: something is unknown or impossible, or no configurations are known.
    """
    predictor = load(model)
    plain = {**_plain(family, dtype, sizes_and_settings), "device": device}
    question = ranking.rank_question(plain, predictor.devices, configs, top=top, coverage=coverage)
    result: Ranking = as_table(Ranking, ranking.rank(predictor, question))
    return result


def devices(name: str | None = None, *, measured: bool = False, model: Path | str | None = None) -> Table:
    """Devices that can be asked about: their figures in SI units, and the families a model has measurements of there.

    Args:
        name: a part of their names, such as `h100` or `nvidia`; default: all.
        measured: whether only devices with measurements are wanted.
        model: a model directory; default: the champion, else the shipped model.

    Raises:
        kernelcast.SpecError: the name fits no device, or the directory is no model.
    """
    predictor = load(model)
    if name is not None and not isinstance(name, str):
        raise SpecError(f"a part of a device's name is text, got {type(name).__name__}", field="device")
    fitting = list(predictor.devices) if name is None else fitting_devices(name, predictor.devices)
    by_family = {family: set(entry["devices"]) for family, entry in predictor.manifest["families"].items()}
    items = tuple(
        {
            "name": item.name, "title": item.title, "kind": item.kind, "architecture": item.architecture,
            "memory_b": item.fact("memory_b"), "memory_bandwidth_b_per_s": item.fact("memory_bandwidth_b_per_s"),
            "tdp_w": item.fact("tdp_w"), "aliases": item.aliases,
            "measured": tuple(family for family, there in by_family.items() if item.name in there),
        }
        for item in fitting
    )  # fmt: skip
    items = tuple(item for item in items if item["measured"] or not measured)
    words = {
        "name": str, "architecture": str, "memory_b": num_bytes, "memory_bandwidth_b_per_s": bytes_per_s,
        "measured": ", ".join,
    }  # fmt: skip
    return Table("devices", items, words)


def families() -> Table:
    """Every kernel family: its sizes, with a default where one may be left out, its variants and its knobs."""
    items = tuple(
        {
            "name": item.name, "title": item.doc.strip().splitlines()[0],
            "sizes": {dim.name: dim.default for dim in item.dims}, "variants": item.variants, "config": tuple(item.config),
        }
        for item in known_families().values()
    )  # fmt: skip
    return Table("families", items, {"name": str, "sizes": _sizes_in_words, "title": str})


def _sizes_in_words(sizes: Mapping[str, int | None]) -> str:
    return " ".join(name if default is None else f"{name}={default}" for name, default in sizes.items())


def _plain_numbers(values: Any) -> Any:
    """The numbers of an array as Python has them; of anything else, its items."""
    return values.tolist() if hasattr(values, "tolist") else list(values) if isinstance(values, Iterable) else values


def _plain(family: str, dtype: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec whose sizes and knobs may stand beside the others, as keywords do."""
    family, settings = named_family(family, settings)
    plain: dict[str, Any] = {"family": family, "dtype": dtype, "sizes": {}, **nested({"family": family, **settings})}
    return {name: value for name, value in plain.items() if value is not None}
