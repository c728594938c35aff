"""How time, power and energy of a kernel change along one of its sizes or knobs, on devices side by side."""

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
from ...features.spec_io.reading import MAX_TEXT, kind_of
from ...models.predict.named_impl import check_specs
from ...models.predict.prediction import Predictor
from ..answers import interval_columns, known_columns, text_column
from .spec_on_devices import BARE_NEEDED, check_peaks, on_device, read_bare

MAX_POINTS = 512
SCALES = ("log", "linear")
_DEFAULT_POINTS = 64
_MAX_STEPS = 256
"""How far a number that the family refuses is moved to one that it takes."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A spec along one of its sizes or knobs.

    Attributes:
        dim: The size or knob that varies.
        values: Its values, ascending where they were spread over a range.
        specs: The spec at each value, with a timing.
    """

    dim: str
    values: list[int]
    specs: list[KernelSpec]


def sweep(predictor: Predictor, swept: Swept, devices: Sequence[Device], *, coverage: float = 0.9) -> answers.Sweep:
    """A curve for each device, in their order.

    Raises:
        SpecError: a device has no peak for the dtype, or the model does not know the family, the implementation or the
            coverage.
    """
    check_peaks(swept.specs[0], devices)
    check_specs(predictor, swept.specs[:1])
    curves = [_curve(predictor, swept.specs, device, coverage) for device in devices]
    return answers.Sweep(swept.dim, swept.specs[0].timing, swept.values, curves)


def cases_on(specs: Sequence[KernelSpec], device: Device) -> Cases:
    """The specs as they run on a device."""
    return Cases.from_specs([on_device(spec, device) for spec in specs], [device.name] * len(specs))


def _curve(predictor: Predictor, specs: Sequence[KernelSpec], device: Device, coverage: float) -> answers.Curve:
    predictions = predictor.predict_cases(cases_on(specs, device), coverage=coverage)
    return answers.Curve(
        device=device.name,
        latency_s=interval_columns(predictions.targets["latency_s"]),
        power_w=known_columns(predictions.targets["power_w"]),
        energy_j=known_columns(predictions.targets["energy_j"]),
        lower_bound_s=np.maximum.reduce(list(predictions.breakdown.values())).tolist(),
        bound=[str(word) for word in predictions.bound],
        method=text_column(predictions.method),
        in_domain=predictions.in_domain.tolist(),
    )


def swept_values(plain: Mapping[str, Any], dim: Any, values: Any, *extra: str) -> Swept:
    """A spec at a list of values, each once, in the order given.

    Args:
        plain: the fields of a spec without its device; the size or knob that varies may be left out.
        dim: the size or knob.
        values: one to `MAX_POINTS` whole numbers.
        *extra: fields of `plain` to pass over.

    Raises:
        SpecError: what is wrong; `field` is a path within the spec, `sweep.dim` or `sweep.values[3]`.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or not 1 <= len(values) <= MAX_POINTS:
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        got = f"{len(values)} values" if is_list else kind_of(values)
        raise SpecError(f"values must be a list of one to {MAX_POINTS} whole numbers, not {got}", field="sweep.values")
    spec = _SweptSpec.of(plain, dim, extra)
    specs: dict[int, KernelSpec] = {}
    for index, value in enumerate(values):
        try:
            at = spec.spec_at(value)
        except SpecError as error:
            place = f"sweep.values[{index}]"
            path = place if spec.inconsistent_sizes(value) else spec.path(error, place)
            raise SpecError(str(error), field=path) from error
        specs.setdefault(int(value), at)
    return Swept(spec.dim, list(specs), list(specs.values()))


def swept_range(plain: Mapping[str, Any], dim: Any, span: Mapping[str, Any], *extra: str) -> Swept:
    """A spec at whole numbers spread over a range, each once, moved to the nearest that the family takes.

    Args:
        plain: the fields of a spec without its device; the size or knob that varies may be left out.
        dim: the size or knob.
        span: `from` and `to`, and as needed `points` (64) and `scale`, one of `SCALES`.
        *extra: fields of `plain` to pass over.

    Raises:
        SpecError: what is wrong; `field` is a path within the spec, or such as `sweep.from`.
    """
    swept = _SweptSpec.of(plain, dim, extra)
    scale = span.get("scale", "log")
    if scale not in SCALES:
        raise SpecError(f"scale must be one of {listed(SCALES)}", field="sweep.scale")
    least = max(swept.least, 1) if scale == "log" else swept.least
    low = _whole_number(span, "from", least, MAX_DIM)
    high = _whole_number(span, "to", least, MAX_DIM)
    points = _whole_number(span, "points", 1, MAX_POINTS, _DEFAULT_POINTS)
    if high < low:
        raise SpecError(f"`to` must be at least `from`, which is {low}, got {high}", field="sweep.to")
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
    return Swept(swept.dim, values, [specs[value] for value in values])


@dataclass(frozen=True, slots=True)
class _SweptSpec:
    """The fields of a spec without the one that is swept: a size, or a knob of its configuration."""

    plain: Mapping[str, Any]
    family: KernelFamily
    dim: str
    group: str
    extra: tuple[str, ...]

    @classmethod
    def of(cls, plain: Mapping[str, Any], dim: Any, extra: tuple[str, ...]) -> _SweptSpec:
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
                f"what is swept must be a size or knob of {family.name}, not {shown}; it has {listed(known)}",
                field="sweep.dim",
            )
        return cls(plain, family, dim, "sizes" if dim in family.dim_names else "config", extra)

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


def _whole_number(span: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    value = span.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not low <= value <= high:
        got = f"{value:g}" if isinstance(value, float) else value if type(value) is int else kind_of(value)
        shown = str(got)[:MAX_TEXT]
        raise SpecError(f"{name} must be a whole number between {low} and {high}, got {shown}", field=f"sweep.{name}")
    return int(value)
