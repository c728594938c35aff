"""A kernel along one of its sizes or knobs: the values to look at, and a curve per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.device import Device
from ...features.errors import SpecError, listed
from ...features.kernel import MAX_DIM, KernelFamily, KernelSpec, get_family
from ...features.spec_io.reading import DEFAULT_COVERAGE, MAX_TEXT, kind_of, shown_name
from ...models.predict.prediction import Predictor
from ..answers import interval_columns, known_columns, text_column
from .side_by_side import BARE_NEEDED, on_device, read_bare

MAX_CURVES = 8
"""Most devices of a sweep: as many as can be told apart in one plot."""

MAX_POINTS = 512
SCALES = ("log", "linear")
RANGE_FIELDS = ("dim", "from", "to", "points", "scale")
VALUES_FIELDS = ("dim", "values")
_DEFAULT_POINTS = 64
_MAX_STEPS = 256
"""How far a number that the family refuses is moved to one that it takes."""

_EXAMPLE = '{"dim": "m", "from": 1, "to": 8192, "points": 64, "scale": "log"}'


@dataclass(frozen=True, slots=True)
class SweptSpecs:
    """A spec at every value of what varies.

    Attributes:
        dim: The size or knob that varies.
        values: Its values, ascending where they were spread over a range.
        specs: The spec at each value.
    """

    dim: str
    values: list[int]
    specs: list[KernelSpec]


def check_sweep(sweep: Any) -> Mapping[str, Any]:
    """The fields of a sweep, whose names are checked.

    Raises:
        SpecError: it is no object, or has a field that it does not take; `field` is the path, such as `sweep.dim`.
    """
    if not isinstance(sweep, Mapping):
        raise SpecError(f"must be an object such as {_EXAMPLE}, not {kind_of(sweep)}", field="sweep")
    taken = VALUES_FIELDS if "values" in sweep else RANGE_FIELDS
    for name in sweep:
        if name not in taken:
            raise SpecError(
                "cannot be combined with `values`; send one or the other"
                if name in RANGE_FIELDS
                else f"unknown field; it takes {listed(RANGE_FIELDS)}, or {listed(VALUES_FIELDS)}",
                field=f"sweep.{shown_name(name)}",
            )
    return sweep


def read_swept_specs(plain: Mapping[str, Any], sweep: Mapping[str, Any], *extra: str) -> SweptSpecs:
    """The specs of plain fields without a device along a sweep; `extra` names fields of `plain` to pass over.

    Raises:
        SpecError: what is wrong; `field` is the path, such as `sweep.from` or `sizes.n`.
    """
    swept = _SweptSpec.from_fields(plain, sweep.get("dim"), extra)
    values, specs = _values_from_list(swept, sweep["values"]) if "values" in sweep else _values_from_range(swept, sweep)
    return SweptSpecs(swept.dim, values, specs)


def sweep(
    predictor: Predictor, swept: SweptSpecs, devices: Sequence[Device], *, coverage: float = DEFAULT_COVERAGE
) -> answers.Sweep:
    """A curve per device, in their order.

    Raises:
        SpecError: the model does not know the family or the coverage, or a device has no peak for the dtype.
    """
    curves = [_curve(predictor, cases_on(swept, device), coverage) for device in devices]
    return answers.Sweep(swept.dim, swept.specs[0].timing, swept.values, curves)


def cases_on(swept: SweptSpecs, device: Device) -> Cases:
    """The specs in columns, as they run on a device."""
    return Cases.from_specs([on_device(spec, device) for spec in swept.specs], [device.name] * len(swept.specs))


def _curve(predictor: Predictor, cases: Cases, coverage: float) -> answers.Curve:
    predictions = predictor.predict_cases(cases, coverage=coverage)
    return answers.Curve(
        device=str(cases.device[0]),
        latency_s=interval_columns(predictions.targets["latency_s"]),
        power_w=known_columns(predictions.targets["power_w"]),
        energy_j=known_columns(predictions.targets["energy_j"]),
        lower_bound_s=np.maximum.reduce(list(predictions.breakdown.values())).tolist(),
        bound=[str(word) for word in predictions.bound],
        method=text_column(predictions.method),
        in_domain=predictions.in_domain.tolist(),
    )


@dataclass(frozen=True, slots=True)
class _SweptSpec:
    """The fields of a spec without the one that is swept: a size, or a knob of its configuration."""

    plain: Mapping[str, Any]
    extra: tuple[str, ...]
    family: KernelFamily
    dim: str
    group: str

    @classmethod
    def from_fields(cls, plain: Mapping[str, Any], dim: Any, extra: tuple[str, ...]) -> _SweptSpec:
        for name in BARE_NEEDED:
            if name not in plain:
                raise SpecError(f"{name} is missing; a spec needs {listed(BARE_NEEDED)}", field=name)
        if not isinstance(plain["family"], str):
            raise SpecError(f"family must be text, not {kind_of(plain['family'])}", field="family")
        family = get_family(plain["family"][:MAX_TEXT])
        known = (*family.dim_names, *family.config)
        if not isinstance(dim, str) or dim not in known:
            shown = repr(dim[:MAX_TEXT]) if isinstance(dim, str) else kind_of(dim)
            raise SpecError(
                f"must be a size or knob of {family.name}, not {shown}; it has {listed(known)}", field="sweep.dim"
            )
        return cls(plain, extra, family, dim, "sizes" if dim in family.dim_names else "config")

    @property
    def least(self) -> int:
        """The smallest value that it can have."""
        return next((dim.minimum for dim in self.family.dims if dim.name == self.dim), 0)

    def spec_at(self, value: Any) -> KernelSpec:
        """The spec at a value.

        Raises:
            SpecError: what is wrong with it.
        """
        group = self.plain.get(self.group)
        if isinstance(group, Mapping) or group is None:
            group = {**(group or {}), self.dim: value}
        return read_bare({**self.plain, self.group: group}, *self.extra)

    def inconsistent_sizes(self, value: Any) -> dict[str, Any] | None:
        """All sizes at a value, where the family takes each of them and not all of them together; else None."""
        raw = self.plain.get("sizes")
        if self.group != "sizes" or not isinstance(raw, Mapping | None):
            return None
        at = {**(raw or {}), self.dim: value}
        sizes: dict[str, Any] = {dim.name: at.get(dim.name, dim.default) for dim in self.family.dims}
        whole = all(
            type(size) in (int, float) and size == size // 1 and dim.minimum <= size <= MAX_DIM
            for dim, size in zip(self.family.dims, sizes.values(), strict=True)
        )
        return sizes if whole and self.refuses(sizes) else None

    def refuses(self, sizes: Mapping[str, int]) -> bool:
        """Whether the family refuses sizes together, in the variant named or the one they imply."""
        variant = self.plain.get("variant")
        if isinstance(variant, str) and variant in self.family.variants:
            return self.family.check(sizes, variant) is not None
        return self.family.impossible(sizes)

    def path(self, error: SpecError, value_path: str) -> str:
        """What an error is about: the swept value itself, or another field."""
        return value_path if error.field == f"{self.group}.{self.dim}" else error.field or ""


def _values_from_list(swept: _SweptSpec, values: Any) -> tuple[list[int], list[KernelSpec]]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_POINTS:
        got = f"{len(values)} values" if isinstance(values, list) else kind_of(values)
        raise SpecError(f"must be a list of one to {MAX_POINTS} whole numbers, not {got}", field="sweep.values")
    specs: dict[int, KernelSpec] = {}
    for index, value in enumerate(values):
        try:
            spec = swept.spec_at(value)
        except SpecError as error:
            place = f"sweep.values[{index}]"
            path = place if swept.inconsistent_sizes(value) else swept.path(error, place)
            raise SpecError(str(error), field=path) from error
        specs.setdefault(int(value), spec)
    return list(specs), list(specs.values())


def _values_from_range(swept: _SweptSpec, sweep: Mapping[str, Any]) -> tuple[list[int], list[KernelSpec]]:
    """Whole numbers spread over the range, each once, moved to the nearest that the family takes."""
    scale = sweep.get("scale", "log")
    if scale not in SCALES:
        raise SpecError(f"must be one of {listed(SCALES)}", field="sweep.scale")
    least = max(swept.least, 1) if scale == "log" else swept.least
    low = _whole_number(sweep, "from", least, MAX_DIM)
    high = _whole_number(sweep, "to", least, MAX_DIM)
    points = _whole_number(sweep, "points", 1, MAX_POINTS, _DEFAULT_POINTS)
    if high < low:
        raise SpecError(f"must be at least `from`, which is {low}, got {high}", field="sweep.to")
    spread = np.geomspace if scale == "log" else np.linspace
    wanted = np.unique(np.rint(spread(low, high, points)).astype(np.int64)).tolist()
    specs: dict[int, KernelSpec] = {}
    first: SpecError | None = None
    for value in wanted:
        try:
            specs[value] = swept.spec_at(value)
        except SpecError as error:
            first = first or error
            if (sizes := swept.inconsistent_sizes(value)) is None:
                break
            specs |= _nearest(swept, sizes, low, high)
    if not specs:
        assert first is not None  # noqa: S101 - there is at least one wanted value, and none was taken
        raise SpecError(str(first), field=swept.path(first, "sweep")) from first
    values = sorted(specs)
    return values, [specs[value] for value in values]


def _nearest(swept: _SweptSpec, sizes: dict[str, Any], low: int, high: int) -> dict[int, KernelSpec]:
    """The value nearest to that of sizes that cannot go together which can, within the range; none within reach: nothing.

    Sizes are looked at and no specs, as there may be 262,144 numbers to look at.
    """
    value = sizes[swept.dim]
    for distance in range(1, _MAX_STEPS + 1):
        for moved in (value + distance, value - distance):
            sizes[swept.dim] = moved
            if low <= moved <= high and not swept.refuses(sizes):
                try:
                    return {moved: swept.spec_at(moved)}
                except SpecError:
                    # Something else is wrong, with every value.
                    return {}
    return {}


def _whole_number(sweep: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    value = sweep.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not low <= value <= high:
        got = f"{value:g}" if isinstance(value, float) else value if type(value) is int else kind_of(value)
        shown = str(got)[:MAX_TEXT]
        raise SpecError(f"must be a whole number between {low} and {high}, got {shown}", field=f"sweep.{name}")
    return int(value)
