"""From the bytes of a sweep to the specs along it: one size or knob runs through whole numbers, all else stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..features.device import Catalogue
from ..features.errors import SpecError, listed
from ..features.kernel import MAX_DIM, KernelFamily, KernelSpec, get_family
from .compare_request import BARE_NEEDED, Across, check_peaks, read_bare, read_devices, read_root
from .problems import FieldProblem, ProblemError, field_problem
from .requests import MAX_TEXT, invalid, kind_of, read_coverage, shown_name

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
    """What was asked: the spec at each value of `dim`, and the devices."""

    dim: str
    values: list[int]
    specs: list[KernelSpec]
    across: Across


def read_sweep(body: bytes, catalogue: Catalogue) -> SweepRequest:
    """The sweep in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 422 naming what is wrong.
    """
    root = read_root(body, _WANTED, "sweep")
    sweep = root.get("sweep")
    if not isinstance(sweep, dict):
        raise _wrong("sweep", f"must be an object such as {_EXAMPLE}, not {kind_of(sweep)}")
    taken = VALUES_FIELDS if "values" in sweep else RANGE_FIELDS
    for name in sweep:
        if name not in taken:
            raise _wrong(
                f"sweep.{shown_name(name)}",
                "stands beside `values`; give one or the other"
                if name in RANGE_FIELDS
                else f"unknown field; it takes {listed(RANGE_FIELDS)}, or {listed(VALUES_FIELDS)}",
            )
    devices = read_devices(root.get("devices"), catalogue, MAX_CURVES)
    coverage = read_coverage(root)
    along = _Along.of(root, sweep.get("dim"))
    values, specs = _given(along, sweep["values"]) if "values" in sweep else _spread(along, sweep)
    across = Across(specs[0], devices, coverage)
    check_peaks(across)
    return SweepRequest(along.dim, values, specs, across)


@dataclass(frozen=True, slots=True)
class _Along:
    """The fields of a spec without the one that is swept: a size, or a knob of its configuration."""

    plain: Mapping[str, Any]
    family: KernelFamily
    dim: str
    group: str

    @classmethod
    def of(cls, root: Mapping[str, Any], dim: Any) -> _Along:
        for name in BARE_NEEDED:
            if name not in root:
                raise _wrong(name, f"{name} is missing; a spec needs {listed(BARE_NEEDED)}")
        if not isinstance(root["family"], str):
            raise _wrong("family", f"family must be text, not {kind_of(root['family'])}")
        try:
            family = get_family(root["family"][:MAX_TEXT])
        except SpecError as error:
            raise invalid([field_problem(error, "family")]) from error
        known = (*family.dim_names, *family.config)
        if not isinstance(dim, str) or dim not in known:
            shown = repr(dim[:MAX_TEXT]) if isinstance(dim, str) else kind_of(dim)
            raise _wrong("sweep.dim", f"must be a size or knob of {family.name}, not {shown}; it has {listed(known)}")
        return cls(root, family, dim, "sizes" if dim in family.dim_names else "config")

    @property
    def least(self) -> int:
        """The smallest value that it can have."""
        return next((dim.minimum for dim in self.family.dims if dim.name == self.dim), 0)

    def at(self, value: Any) -> KernelSpec:
        """The spec at a value.

        Raises:
            SpecError: what is wrong with it.
        """
        group = self.plain.get(self.group)
        if isinstance(group, Mapping) or group is None:
            group = {**(group or {}), self.dim: value}
        return read_bare({**self.plain, self.group: group}, "devices", "coverage", "sweep")

    def clashing(self, value: Any) -> dict[str, Any] | None:
        """All sizes at a value, where the family takes each of them and not all of them together; else None."""
        given = self.plain.get("sizes")
        if self.group != "sizes" or not isinstance(given, Mapping | None):
            return None
        at = {**(given or {}), self.dim: value}
        sizes: dict[str, Any] = {dim.name: at.get(dim.name, dim.default) for dim in self.family.dims}
        whole = all(
            type(size) in (int, float) and size == size // 1 and dim.minimum <= size <= MAX_DIM
            for dim, size in zip(self.family.dims, sizes.values(), strict=True)
        )
        return sizes if whole and self.family.check(sizes) is not None else None

    def path(self, error: SpecError, value_path: str) -> str:
        """What an error is about: the swept value itself, or another field."""
        return value_path if error.field == f"{self.group}.{self.dim}" else error.field or ""


def _given(along: _Along, values: Any) -> tuple[list[int], list[KernelSpec]]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_POINTS:
        given = f"{len(values)} values" if isinstance(values, list) else kind_of(values)
        raise _wrong("sweep.values", f"must be a list of one to {MAX_POINTS} whole numbers, not {given}")
    found: dict[int, KernelSpec] = {}
    for index, value in enumerate(values):
        try:
            spec = along.at(value)
        except SpecError as error:
            place = f"sweep.values[{index}]"
            path = place if along.clashing(value) else along.path(error, place)
            raise invalid([field_problem(error, path)]) from error
        found.setdefault(int(value), spec)
    return list(found), list(found.values())


def _spread(along: _Along, sweep: Mapping[str, Any]) -> tuple[list[int], list[KernelSpec]]:
    """Whole numbers spread over the range, each once, moved to the nearest that the family takes."""
    scale = sweep.get("scale", "log")
    if scale not in SCALES:
        raise _wrong("sweep.scale", f"must be one of {listed(SCALES)}")
    least = max(along.least, 1) if scale == "log" else along.least
    low = _whole(sweep, "from", least, MAX_DIM)
    high = _whole(sweep, "to", least, MAX_DIM)
    points = _whole(sweep, "points", 1, MAX_POINTS, _DEFAULT_POINTS)
    if high < low:
        raise _wrong("sweep.to", f"must be at least `from`, which is {low}, got {high}")
    spread = np.geomspace if scale == "log" else np.linspace
    wanted = np.unique(np.rint(spread(low, high, points)).astype(np.int64)).tolist()
    found: dict[int, KernelSpec] = {}
    first: SpecError | None = None
    for value in wanted:
        try:
            found[value] = along.at(value)
        except SpecError as error:
            first = first or error
            if (sizes := along.clashing(value)) is None:
                break
            found |= _near(along, sizes, low, high)
    if not found:
        assert first is not None  # noqa: S101 - there is at least one wanted value, and none was taken
        raise invalid([field_problem(first, along.path(first, "sweep"))]) from first
    values = sorted(found)
    return values, [found[value] for value in values]


def _near(along: _Along, sizes: dict[str, Any], low: int, high: int) -> dict[int, KernelSpec]:
    """The value nearest to that of sizes that cannot go together which can, within the range; none within reach: nothing.

    Sizes are looked at and no specs, as there may be 262,144 numbers to look at.
    """
    value, check = sizes[along.dim], along.family.check
    for distance in range(1, _MAX_STEPS + 1):
        for moved in (value + distance, value - distance):
            sizes[along.dim] = moved
            if low <= moved <= high and check(sizes) is None:
                try:
                    return {moved: along.at(moved)}
                except SpecError:
                    # Something else is wrong, with every value.
                    return {}
    return {}


def _whole(sweep: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    value = sweep.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not low <= value <= high:
        given = f"{value:g}" if isinstance(value, float) else value if type(value) is int else kind_of(value)
        shown = str(given)[:MAX_TEXT]
        raise _wrong(f"sweep.{name}", f"must be a whole number between {low} and {high}, got {shown}")
    return int(value)


def _wrong(field: str, detail: str) -> ProblemError:
    return invalid([FieldProblem(field, detail)])


_EXAMPLE = '{"dim": "m", "from": 1, "to": 8192, "points": 64, "scale": "log"}'
