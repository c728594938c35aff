"""POST /v1/sweep: how time, power and energy of a kernel change along one of its sizes or knobs, on up to eight devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ...client import answers
from ...features.batch.cases import Cases
from ...features.device import Catalogue
from ...features.errors import SpecError, listed
from ...features.kernel import MAX_DIM, KernelFamily, KernelSpec
from ...features.spec_io.reading import MAX_TEXT, kind_of, shown_name
from ..predict.columns import interval_columns, known_columns, text_column
from ..predict.thread_endpoint import Call, refusal_problem
from ..transport.bodies import named_family, read_coverage
from ..transport.problems import field_problem, invalid, invalid_field
from .request import BARE_NEEDED, AcrossDevices, check_peaks, on_device, read_bare, read_devices, read_root


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable.
    """
    request = read_sweep(body, call.loaded.catalogue)
    try:
        curves = [_curve(call, request, i) for i in range(len(request.across.devices))]
    except SpecError as error:
        raise refusal_problem(error, "family") from error
    return msgspec.json.encode(answers.Sweep(request.dim, request.across.spec.timing, request.values, curves))


def _curve(call: Call, request: SweepRequest, i: int) -> answers.Curve:
    device = request.across.devices[i]
    specs = [on_device(spec, device) for spec in request.specs]
    cases = Cases.from_specs(specs, [device.name] * len(specs))
    predictions = call.loaded.predictor.predict_cases(cases, coverage=request.across.coverage)
    inside = int(np.count_nonzero(predictions.in_domain))
    family = cases.family.name
    call.metrics.count_predictions(
        {(family, device.name, True): inside, (family, device.name, False): len(specs) - inside}
    )
    call.metrics.count_usage_cases(cases)
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


MAX_CURVES = 8
MAX_POINTS = 512
SCALES = ("log", "linear")
RANGE_FIELDS = ("dim", "from", "to", "points", "scale")
VALUES_FIELDS = ("dim", "values")
_DEFAULT_POINTS = 64
_MAX_STEPS = 256
"""How far a number that the family refuses is moved to one that it takes."""
_WANTED = '{"family": …, "dtype": …, "sizes": {…}, "devices": […], "sweep": {"dim": …, "from": …, "to": …}}'


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A checked request of `/v1/sweep`.

    Attributes:
        dim: The size or knob that varies.
        values: Its values, ascending where they were spread over a range.
        specs: The spec at each value.
        across: The first spec and the devices.
    """

    dim: str
    values: list[int]
    specs: list[KernelSpec]
    across: AcrossDevices


def read_sweep(body: bytes, catalogue: Catalogue) -> SweepRequest:
    """The sweep in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    root = read_root(body, _WANTED, "sweep")
    sweep = root.get("sweep")
    if not isinstance(sweep, dict):
        raise invalid_field("sweep", f"must be an object such as {_EXAMPLE}, not {kind_of(sweep)}")
    taken = VALUES_FIELDS if "values" in sweep else RANGE_FIELDS
    for name in sweep:
        if name not in taken:
            raise invalid_field(
                f"sweep.{shown_name(name)}",
                "cannot be combined with `values`; send one or the other"
                if name in RANGE_FIELDS
                else f"unknown field; it takes {listed(RANGE_FIELDS)}, or {listed(VALUES_FIELDS)}",
            )
    devices = read_devices(root.get("devices"), catalogue, MAX_CURVES)
    coverage = read_coverage(root)
    swept = _SweptSpec.from_request(root, sweep.get("dim"))
    values, specs = _values_from_list(swept, sweep["values"]) if "values" in sweep else _values_from_range(swept, sweep)
    across = AcrossDevices(specs[0], devices, coverage)
    check_peaks(across)
    return SweepRequest(swept.dim, values, specs, across)


@dataclass(frozen=True, slots=True)
class _SweptSpec:
    """The fields of a spec without the one that is swept: a size, or a knob of its configuration."""

    plain: Mapping[str, Any]
    family: KernelFamily
    dim: str
    group: str

    @classmethod
    def from_request(cls, root: Mapping[str, Any], dim: Any) -> _SweptSpec:
        for name in BARE_NEEDED:
            if name not in root:
                raise invalid_field(name, f"{name} is missing; a spec needs {listed(BARE_NEEDED)}")
        family = named_family(root["family"])
        known = (*family.dim_names, *family.config)
        if not isinstance(dim, str) or dim not in known:
            shown = repr(dim[:MAX_TEXT]) if isinstance(dim, str) else kind_of(dim)
            raise invalid_field(
                "sweep.dim", f"must be a size or knob of {family.name}, not {shown}; it has {listed(known)}"
            )
        return cls(root, family, dim, "sizes" if dim in family.dim_names else "config")

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
        return read_bare({**self.plain, self.group: group}, "devices", "coverage", "sweep")

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
        raise invalid_field("sweep.values", f"must be a list of one to {MAX_POINTS} whole numbers, not {got}")
    specs: dict[int, KernelSpec] = {}
    for index, value in enumerate(values):
        try:
            spec = swept.spec_at(value)
        except SpecError as error:
            place = f"sweep.values[{index}]"
            path = place if swept.inconsistent_sizes(value) else swept.path(error, place)
            raise invalid([field_problem(error, path)]) from error
        specs.setdefault(int(value), spec)
    return list(specs), list(specs.values())


def _values_from_range(swept: _SweptSpec, sweep: Mapping[str, Any]) -> tuple[list[int], list[KernelSpec]]:
    """Whole numbers spread over the range, each once, moved to the nearest that the family takes."""
    scale = sweep.get("scale", "log")
    if scale not in SCALES:
        raise invalid_field("sweep.scale", f"must be one of {listed(SCALES)}")
    least = max(swept.least, 1) if scale == "log" else swept.least
    low = _whole_number(sweep, "from", least, MAX_DIM)
    high = _whole_number(sweep, "to", least, MAX_DIM)
    points = _whole_number(sweep, "points", 1, MAX_POINTS, _DEFAULT_POINTS)
    if high < low:
        raise invalid_field("sweep.to", f"must be at least `from`, which is {low}, got {high}")
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
        raise invalid([field_problem(first, swept.path(first, "sweep"))]) from first
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
        raise invalid_field(f"sweep.{name}", f"must be a whole number between {low} and {high}, got {shown}")
    return int(value)


_EXAMPLE = '{"dim": "m", "from": 1, "to": 8192, "points": 64, "scale": "log"}'
