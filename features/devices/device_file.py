"""A device file as plain data, and what makes it untrustworthy: bombs, repeated keys, wrong units, figures that contradict.

A person writes such a file, or `kernelcast measure machine` does. Whatever is wrong is one error that names the file, the
figure and what to do; nothing is mended silently.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecError, check_text, listed

MAX_FILE_B = 256 << 10
"""Longest device file; the longest that ships has 10 kB."""

_MAX_DEPTH = 8
"""Deepest nesting; a device file has three levels. Tens of thousands would overflow the stack of YAML's C parser."""

_MAX_ALIASES = 100
"""Most uses of YAML anchors, so that what a file becomes in memory is bounded."""

_SHOWN = 60
"""Characters of a wrong value that an error shows."""

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("compute_units", 1.0, 1e5), ("memory_bandwidth_b_per_s", 1e9, 1e15), ("memory_b", 1e8, 1e15), ("l2_b", 1e4, 1e12),
    ("l3_b", 1e5, 1e12), ("flops_per_s", 1e6, 1e20), ("b_per_s", 1e6, 1e17), ("unit_b", 1e3, 1e9), ("hz", 1e8, 1e10),
    ("w", 0.01, 1e5), ("s", 1e-12, 1e4), ("state_deviation", 0.0, 10.0),
)  # fmt: skip
"""By the end of a figure's name, the first that fits, the least and the most it can be in SI base units. A decade or more wider
than anything built, and narrower than the factor of 1000 by which a unit is mistaken."""

_MOST_FLOPS_PER_CLOCK = {"vector": 4096.0, "matrix": 262144.0}
"""Most FLOP per clock and compute unit. Of the catalogue 512 (A100, fp16) and 47,674 (GB300, nvfp4)."""

_BEYOND_PEAK = 1.5
"""Most that a measured rate or power can be above the datasheet's: boards exceed limits by 3 % (A100, 412 of 400 W), and
boosted clocks by less than a third."""

_LESS = (
    ("l2_b", "memory_b"), ("l3_b", "memory_b"), ("base_clock_hz", "boost_clock_hz"), ("idle_power_w", "tdp_w"),
    ("memory_bandwidth_b_per_s", "l3_bandwidth_b_per_s"), ("memory_bandwidth_b_per_s", "l2_bandwidth_b_per_s"),
)  # fmt: skip
"""Facts of which the first is never above the second."""

_TOLERANCE = 1.1
"""Rounded or measured figures may be that far on the wrong side of each other."""

# libyaml's loader reads the whole catalogue about ten times faster; PyYAML can be built without it.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]  # which of the two is known at run time alone
    """The safe loader, without the rule that of a repeated key the last counts."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node.

        Raises:
            yaml.YAMLError: a key stands in it twice.
        """
        keys: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            keys.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_device_text(path: Path) -> str:
    """The text of a device file.

    Raises:
        SpecError: it is missing, no regular file, too long, unreadable, or not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SpecError(f"the device file {path} is no regular file; give a YAML file", field="device_file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_B + 1)
    except OSError as error:
        raise SpecError(
            f"cannot read the device file {path}: {error.strerror}; check the path and its permissions",
            field="device_file",
        ) from error
    if len(raw) > MAX_FILE_B:
        raise SpecError(
            f"the device file {path} is longer than {MAX_FILE_B} bytes; give the YAML file of one device",
            field="device_file",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"cannot read the device file {path}: byte {error.start} is not UTF-8; save it as UTF-8 text",
            field="device_file",
        ) from error


def read_mapping(text: str, origin: str) -> dict[str, Any]:
    """The mapping that a device file's YAML is.

    Raises:
        SpecError: it is no YAML, no mapping, nested too deeply, repeats a key, or uses anchors inside others.
    """
    try:
        _check_structure(text, origin)
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506 - both loaders are the safe ones
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise SpecError(f"{origin}{line}: not valid YAML: {error.problem}", field="device") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{origin} is not valid YAML: {' '.join(str(error).split())}", field="device") from error
    except SpecError:
        raise
    except ValueError as error:
        # What YAML takes for a date or number, and Python does not.
        raise SpecError(f"{origin} is not valid YAML: {error}", field="device") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{origin} must be a mapping with name, kind, sources, facts, peak_flops_per_s", field="device")
    return raw


def _check_structure(text: str, origin: str) -> None:
    """Raises SpecError: the text nests too deeply, or uses anchors by which a few lines become gigabytes.

    An alias of plain values is read: `kernelcast measure machine` writes such files.
    """
    anchored: list[bool] = []
    aliases = 0
    event: Any
    for event in yaml.parse(text, Loader=_BASE):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if any(anchored) or aliases > _MAX_ALIASES:
                raise SpecError(
                    f"{origin}, line {line}: YAML anchors (&, *) inside others, or more than {_MAX_ALIASES} uses, are not "
                    "read; write the value out",
                    field="device",
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            anchored.append(event.anchor is not None)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchored.pop()
        if len(anchored) > _MAX_DEPTH:
            raise SpecError(f"{origin}, line {line}: nested more than {_MAX_DEPTH} levels deep; a device file has three",
                            field="device")  # fmt: skip


def shown(value: object) -> str:
    """A wrong value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plain_text(value: object, what: str, origin: str) -> str:
    """A text of the file that can be kept, see `errors.check_text`.

    Raises:
        SpecError: it is none.
    """
    try:
        return check_text(value, what)
    except SpecError as error:
        raise SpecError(f"{origin}: {error}", field=what) from error


def mapping_of(value: Any, what: str, origin: str) -> Mapping[str, Any]:
    """A mapping of the file, empty for one that is not there.

    Raises:
        SpecError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{origin}: {what} must be a mapping, got {shown(value)}", field=what)
    return value


def aliases_of(raw: Any, origin: str) -> tuple[str, ...]:
    """The aliases of a device, none where there are none.

    Raises:
        SpecError: they are no list of names.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list) or any(not alias for alias in raw):
        raise SpecError(f"{origin}: aliases must be a list of names, got {shown(raw)}", field="aliases")
    return tuple(plain_text(alias, "aliases", origin) for alias in raw)


def check_keys(raw: Mapping[Any, Any], allowed: tuple[str, ...], what: str, origin: str) -> None:
    """Raises SpecError: a key of `raw`, which is `what` of the file, is none of those allowed."""
    for key in raw:
        if key not in allowed:
            raise SpecError(
                f"{origin}: unknown key {shown(key)} in {what}; it has: {listed(allowed)}", field=str(key)[:_SHOWN]
            )


def check_figures(
    facts: Mapping[str, float], peaks: Mapping[str, Mapping[str, float]], measured: Mapping[str, float], origin: str
) -> None:
    """Refuse figures that cannot be, alone or beside each other.

    Args:
        facts: Datasheet figures by name.
        peaks: By `matrix` and `vector`, peaks by dtype in FLOP/s.
        measured: Measured figures by name.
        origin: Name of the file.

    Raises:
        SpecError: the first that is wrong, and what to do.
    """
    for name, value in facts.items():
        _check_range("facts", name, value, origin)
    for unit, by_dtype in peaks.items():
        for dtype, value in by_dtype.items():
            _check_range(f"peak_flops_per_s.{unit}", dtype, value, origin, end="flops_per_s")
    for name, value in measured.items():
        _check_range("measured", name, value, origin)
    if facts["compute_units"] % 1:
        raise SpecError(
            f"{origin}: facts.compute_units is {facts['compute_units']:g}; it is a whole number", field="compute_units"
        )
    for low, high in _LESS:
        if low in facts and high in facts and facts[low] > _TOLERANCE * facts[high]:
            raise _contradiction(origin, f"facts.{low}", facts[low], f"facts.{high}", facts[high])
    _check_peaks(facts, peaks, origin)
    _check_measured(facts, peaks, measured, origin)


def _check_range(what: str, name: str, value: float, origin: str, end: str = "") -> None:
    words = end or name.removesuffix("_1t")
    _, low, high = next((row for row in _RANGES if words == row[0] or words.endswith(f"_{row[0]}")), ("", 0.0, 1e30))
    if not low <= value <= high:
        raise SpecError(
            f"{origin}: {what}.{name} is {value:g}, and {low:g} to {high:g} is possible; check its unit: figures are in SI "
            "base units (Hz, B, B/s, FLOP/s, W, s)",
            field=name,
        )


def _check_peaks(facts: Mapping[str, float], peaks: Mapping[str, Mapping[str, float]], origin: str) -> None:
    clocks_per_s = facts["compute_units"] * facts["boost_clock_hz"]
    for unit, by_dtype in peaks.items():
        for dtype, value in by_dtype.items():
            per_clock = value / clocks_per_s
            if not 0.1 <= per_clock <= _MOST_FLOPS_PER_CLOCK[unit]:
                raise SpecError(
                    f"{origin}: peak_flops_per_s.{unit}.{dtype} is {value:g}, that is {per_clock:.3g} FLOP per clock of each "
                    f"of the {facts['compute_units']:g} compute units, and 0.1 to {_MOST_FLOPS_PER_CLOCK[unit]:g} is possible; "
                    "correct the peak, compute_units or boost_clock_hz",
                    field=dtype,
                )
    for dtype, value in peaks["vector"].items():
        matrix = peaks["matrix"].get(dtype)
        if matrix is not None and value > _TOLERANCE * matrix:
            raise _contradiction(
                origin, f"peak_flops_per_s.vector.{dtype}", value, f"peak_flops_per_s.matrix.{dtype}", matrix
            )
    double, single = peaks["vector"].get("fp64"), peaks["vector"]["fp32"]
    if double is not None and double > _TOLERANCE * single:
        raise _contradiction(origin, "peak_flops_per_s.vector.fp64", double, "peak_flops_per_s.vector.fp32", single)


def _check_measured(
    facts: Mapping[str, float], peaks: Mapping[str, Mapping[str, float]], measured: Mapping[str, float], origin: str
) -> None:
    for name, value in measured.items():
        unit, _, rest = name.partition("_")
        limit: tuple[str, float | None] = ("", None)
        if unit in peaks and name.removesuffix("_1t").endswith("_flops_per_s"):
            dtype = rest.partition("_")[0]
            limit = f"peak_flops_per_s.{unit}.{dtype}", peaks[unit].get(dtype)
        elif name.startswith("bandwidth_dram"):
            limit = "facts.memory_bandwidth_b_per_s", facts["memory_bandwidth_b_per_s"]
        elif unit == "power":
            limit = "facts.tdp_w", facts.get("tdp_w")
        if limit[1] is not None and value > _BEYOND_PEAK * limit[1]:
            raise _contradiction(origin, f"measured.{name}", value, limit[0], limit[1])


def _contradiction(origin: str, low: str, low_value: float, high: str, high_value: float) -> SpecError:
    return SpecError(
        f"{origin}: {low} is {low_value:g}, which cannot be above {high}, {high_value:g}; correct the one that is wrong",
        field=low.rpartition(".")[2],
    )
