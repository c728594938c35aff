"""Devices: datasheet facts and measured facts, each with its source, read from one YAML file per device."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..files import home_dir
from .devices.device_file import (
    aliases_of,
    check_figures,
    check_keys,
    mapping_of,
    plain_text,
    read_device_text,
    read_mapping,
    shown,
)
from .dtypes import DTYPES
from .errors import NAME, SpecError, listed

_log = logging.getLogger("kernelcast.devices")

CATALOGUE_DIR = Path(__file__).parent / "devices"

FACTS = (
    "compute_units", "base_clock_hz", "boost_clock_hz", "memory_bandwidth_b_per_s", "memory_b", "l2_b", "l3_b", "tdp_w",
    "shared_memory_per_unit_b", "l1_per_unit_b", "registers_per_unit_b", "l1_bandwidth_per_unit_b_per_s",
    "l2_bandwidth_b_per_s", "l3_bandwidth_b_per_s", "idle_power_w", "fabric_bandwidth_b_per_s", "fabric_devices",
    "pcie_bandwidth_b_per_s",
)  # fmt: skip
"""Facts a device file may give; all SI base units. What is not public is left out, never guessed."""

_REQUIRED = ("compute_units", "boost_clock_hz", "memory_bandwidth_b_per_s", "l2_b")
_KINDS, _UNITS = ("gpu", "cpu"), ("matrix", "vector")
_KEYS = ("name", "title", "aliases", "vendor", "kind", "architecture", "compute_capability", "sources", "facts",
         "peak_flops_per_s", "measured")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """A number and where it comes from.

    Attributes:
        value: The number, in SI units.
        source: A datasheet, a link, or how it was measured.
    """

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """A processor: what its maker publishes, and what characterising it gave.

    Attributes:
        name: Catalogue name, such as `nvidia-h200`.
        title: Full name.
        vendor: Who makes it.
        kind: `cpu` or `gpu`.
        architecture: Its architecture, such as `hopper`.
        aliases: Other names, such as what its driver calls it.
        facts: Datasheet figures by name.
        matrix_flops_per_s: Dense peak by dtype in FLOP/s of the best units for a matrix product.
        vector_flops_per_s: Dense peak by dtype in FLOP/s of the ordinary units.
        measured: Characterised facts by flat name (`launch_torch_s` …).
        compute_capability: CUDA's compute capability, such as `9.0`; None for others.
    """

    name: str
    title: str
    vendor: str
    kind: str
    architecture: str
    aliases: tuple[str, ...]
    facts: Mapping[str, Fact]
    matrix_flops_per_s: Mapping[str, Fact]
    vector_flops_per_s: Mapping[str, Fact]
    measured: Mapping[str, Fact]
    compute_capability: str | None = None

    def fact(self, name: str) -> float | None:
        """A datasheet figure in SI units, or None where none is public."""
        figure = self.facts.get(name)
        return None if figure is None else figure.value

    def required(self, name: str) -> float:
        """A datasheet figure every device file has (compute units, boost clock, memory bandwidth, L2 size)."""
        return self.facts[name].value

    def peak_flops_per_s(self, dtype: str, unit: str) -> tuple[float, str]:
        """Dense peak in FLOP/s, and the dtype it is the peak of: what `dtype` runs as where hardware lacks it.

        A GPU without bf16 computes in fp32, one without vector units for fp8 in bf16, and so on (`Dtype.runs_as`).

        Raises:
            SpecError: the device has no hardware for the dtype nor for anything it could run as.
        """
        tables = (self.matrix_flops_per_s, self.vector_flops_per_s) if unit == "matrix" else (self.vector_flops_per_s,)
        tried: str | None = dtype
        while tried is not None:
            for table in tables:
                if tried in table:
                    return table[tried].value, tried
            tried = None if unit == "matrix" and DTYPES[tried].needs_matrix_units else DTYPES[tried].runs_as
        known = sorted({name for table in tables for name in table})
        raise SpecError(f"{self.name} has no peak for {dtype}; it has: {listed(known)}", field="dtype")

    def runs(self, dtype: str, unit: str) -> bool:
        """Whether it has hardware for a dtype, or for what the dtype could run as."""
        try:
            self.peak_flops_per_s(dtype, unit)
        except SpecError:
            return False
        return True

    @property
    def last_level_cache_b(self) -> float:
        """Bytes of the largest cache in front of memory."""
        return self.fact("l3_b") or self.required("l2_b")


def parse_device(text: str, *, origin: str) -> Device:
    """A device from the text of its YAML file.

    Raises:
        SpecError: the text is no YAML; a key is missing, unknown, or not a positive number with a known source; or figures
            cannot be, or contradict each other.
    """
    raw = read_mapping(text, origin)
    for key in ("name", "kind", "facts", "peak_flops_per_s"):
        if key not in raw:
            raise SpecError(f"{origin} lacks {key}; see features/devices/ for examples", field=key)
    check_keys(raw, _KEYS, "the file", origin)
    name = plain_text(raw["name"], "name", origin)
    if not re.fullmatch(NAME, name):
        raise SpecError(f"{origin}: name is {name!r}; it is a name such as nvidia-h200-sxm-141gb", field="name")
    words = {key: plain_text(raw.get(key, default), key, origin) for key, default in (
        ("title", name), ("vendor", "unknown"), ("architecture", "unknown"),
    )}  # fmt: skip
    if raw["kind"] not in _KINDS:
        raise SpecError(f"{origin}: kind is {shown(raw['kind'])}; it is one of {listed(_KINDS)}", field="kind")
    sources = mapping_of(raw.get("sources"), "sources", origin)
    facts = _facts(raw["facts"], "facts", sources, origin)
    if unknown := sorted(set(facts) - set(FACTS)):
        raise SpecError(f"{origin}: unknown fact {unknown[0]!r}; facts: {listed(FACTS)}", field=unknown[0])
    if missing := [name for name in _REQUIRED if name not in facts]:
        raise SpecError(f"{origin} lacks the fact {missing[0]}; required: {listed(_REQUIRED)}", field=missing[0])
    peaks = mapping_of(raw["peak_flops_per_s"], "peak_flops_per_s", origin)
    check_keys(peaks, _UNITS, "peak_flops_per_s", origin)
    matrix, vector = (_facts(peaks.get(unit), f"peak_flops_per_s.{unit}", sources, origin) for unit in _UNITS)
    if unknown := sorted({*matrix, *vector} - set(DTYPES)):
        raise SpecError(f"{origin}: peak for unknown dtype {unknown[0]!r}; dtypes: {listed(DTYPES)}", field="dtype")
    if "fp32" not in vector:
        raise SpecError(f"{origin} lacks peak_flops_per_s.vector.fp32", field="peak_flops_per_s")
    measured = _facts(raw.get("measured"), "measured", sources, origin)
    check_figures(_values(facts), {"matrix": _values(matrix), "vector": _values(vector)}, _values(measured), origin)
    capability = raw.get("compute_capability")
    return Device(
        name=name,
        kind=raw["kind"],
        aliases=aliases_of(raw.get("aliases"), origin),
        **words,
        facts=facts,
        matrix_flops_per_s=matrix,
        vector_flops_per_s=vector,
        measured=measured,
        # YAML reads 9.0 as a number.
        compute_capability=None if capability is None else plain_text(
            str(capability) if isinstance(capability, float) else capability, "compute_capability", origin
        ),
    )  # fmt: skip


def load_device_file(path: Path) -> Device:
    """The device a user's YAML file describes.

    Raises:
        SpecError: the file cannot be read or is not a device file.
    """
    return parse_device(read_device_text(path), origin=str(path))


def catalogue_with(paths: Sequence[Path]) -> Catalogue:
    """The shipped devices and those of a user's files. A file of a shipped device's name takes its place, and is told of.

    Raises:
        SpecError: a file is no device file, or a name in it is another device's, shipped or of another file.
    """
    devices = tuple(load_device_file(path) for path in paths)
    named: dict[str, Path] = {}
    for path, device in zip(paths, devices, strict=True):
        for name in dict.fromkeys(name.lower() for name in (device.name, *device.aliases)):
            if name in named:
                raise SpecError(
                    f"{path}: {name} is a name of a device in {named[name]} too; leave it out of one", field="aliases"
                )
            named[name] = path
            known = known_by(name, catalogue())
            if known is not None and known.name != device.name:
                which = "known" if catalogue().shipped(name) is None else "shipped"
                raise SpecError(
                    f"{path}: {name} is a name of the {which} device {known.name}; leave it out", field="aliases"
                )
        if catalogue().shipped(device.name.lower()) is not None:
            _log.warning("the device file %s takes the place of the shipped device %s", path, device.name)
    return Catalogue(extra=devices) if devices else catalogue()


class Catalogue:
    """The devices one can ask about: the shipped ones, plus any the caller adds. Read lazily, one file at a time."""

    def __init__(self, extra: tuple[Device, ...] = (), directory: Path = CATALOGUE_DIR) -> None:
        self._directory = directory
        self._loaded: dict[str, Device] = {device.name.lower(): device for device in extra}
        for device in extra:
            self._loaded.update(dict.fromkeys((alias.lower() for alias in device.aliases), device))
        self._files = {path.stem.lower(): path for path in sorted(directory.glob("*.yaml"))}
        self._all_read = False

    def get(self, name: str) -> Device:
        """The device of that name or alias, case ignored.

        Raises:
            SpecError: there is none; the message has close names, and no other device takes its place.
        """
        key = name.lower() if isinstance(name, str) else ""
        if self.shipped(key) is None:
            self._read_all()
        if key not in self._loaded and (device := _local_devices().get(key)) is not None:
            return device
        if key not in self._loaded:
            close = [other for other in self.names() if key and key in other][:6] or difflib.get_close_matches(
                key, self._loaded
            )
            hint = f" (close: {listed(close)})" if close else ""
            lists = f"{len(self.names())} are known, see `kernelcast devices` or /v1/devices"
            advice = f"{lists}; `kernelcast measure machine` writes another's file"
            raise SpecError(f"no device {name!r}{hint}", field="device", advice=advice)
        return self._loaded[key]

    def shipped(self, key: str) -> Device | None:
        """The device of a name or alias in lower case, without those of `local_devices_dir`; None where there is none."""
        if key not in self._loaded:
            self._read_naming(key)
        return self._loaded.get(key)

    def names(self) -> list[str]:
        """Names of all devices, sorted, without aliases."""
        self._read_all()
        return sorted({device.name for device in (*self._loaded.values(), *_local_devices().values())})

    def __iter__(self) -> Any:
        return iter([self.get(name) for name in self.names()])

    def _read_naming(self, key: str) -> None:
        """Read the file of that name, or those whose text has it: all files take longer to parse than to search."""
        paths = [self._files[key]] if key in self._files else []
        if key and not paths and not self._all_read:
            paths = [path for path in self._files.values() if key in path.read_text(encoding="utf-8").lower()]
        for path in paths:
            self._remember(load_device_file(path))

    def _read_all(self) -> None:
        if not self._all_read:
            for path in self._files.values():
                self._remember(load_device_file(path))
            self._all_read = True

    def _remember(self, device: Device) -> None:
        # The aliases of one whose place another took are that one's.
        device_now = self._loaded.setdefault(device.name.lower(), device)
        for alias in device.aliases:
            self._loaded.setdefault(alias.lower(), device_now)


def local_devices_dir() -> Path:
    """The folder of device files that `kernelcast measure nightly` made of this machine."""
    return home_dir() / "devices"


def _local_devices() -> Mapping[str, Device]:
    """The devices of that folder by name and alias; files are read again only where they have changed."""
    return _local_by_name(tuple((path, _changed_ns(path)) for path in sorted(local_devices_dir().glob("*.yaml"))))


def _changed_ns(path: Path) -> int:
    """When a file was changed; 0 for one that cannot be looked at, of which reading it says why."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=8)
def _local_by_name(files: tuple[tuple[Path, int], ...]) -> Mapping[str, Device]:
    """The devices of the files by name and alias; of two with one name the first or the shipped one, with a warning."""
    by_name: dict[str, Device] = {}
    for path, changed_ns in files:
        device = _local_device(path, changed_ns)
        for name in () if device is None else dict.fromkeys(key.lower() for key in (device.name, *device.aliases)):
            known = catalogue().shipped(name) or by_name.get(name)
            if known is not None:
                _log.warning("%s: %s is a name of the device %s, which counts; leave it out", path, name, known.name)
            elif device is not None:
                by_name[name] = device
    return MappingProxyType(by_name)


@lru_cache(maxsize=64)
def _local_device(path: Path, changed_ns: int) -> Device | None:  # noqa: ARG001 - another file has another time
    """The device of a file; None for a damaged one, which is logged and must not keep others from being known."""
    try:
        return load_device_file(path)
    except SpecError as error:
        _log.warning("%s; the device file is left out: mend or remove it", error)
        return None


@cache
def catalogue() -> Catalogue:
    """The shipped catalogue, and with it the devices of `local_devices_dir`."""
    return Catalogue()


def _values(facts: Mapping[str, Fact]) -> dict[str, float]:
    return {name: fact.value for name, fact in facts.items()}


def _facts(raw: Any, what: str, sources: Mapping[str, Any], origin: str) -> Mapping[str, Fact]:
    facts: dict[str, Fact] = {}
    for name, fact in mapping_of(raw, what, origin).items():
        if not isinstance(name, str) or not re.fullmatch(NAME, name):
            raise SpecError(f"{origin}: {shown(name)} in {what} is no name of a figure", field=what)
        value = fact.get("value") if isinstance(fact, dict) else fact
        # YAML 1.1 reads 1e9 (no dot, no sign) as text.
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise SpecError(
                f"{origin}: {what}.{name} must be a positive number, got {shown(fact)}; give {{value: …, source: …}}",
                field=str(name),
            )
        source = fact.get("source", "") if isinstance(fact, dict) else ""
        if not source or not isinstance(source, str):
            raise SpecError(f"{origin}: {what}.{name} has no source; write {{value: …, source: …}}", field=str(name))
        facts[name] = Fact(float(value), plain_text(sources.get(source, source), f"{what}.{name}", origin))
    return MappingProxyType(facts)


def cpu_info(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty where there is none."""
    try:
        first = path.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def machine_id() -> str:
    """What the processor says it is, as a device alias: `cpuid-authenticamd-26-2-2c` (vendor, family, model, cores)."""
    from ..process import core_count

    words = [cpu_info().get(name, "unknown") for name in ("vendor_id", "cpu family", "model")]
    return "-".join(["cpuid", *words, f"{core_count()}c"]).lower().replace(" ", "_")


def machine_name() -> str:
    """The processor's marketing name, as the operating system shows it."""
    return cpu_info().get("model name", "unknown CPU")


def known_machine(known: Catalogue) -> Device | None:
    """The device that this machine's processor is, None where no device file is of it."""
    return known_by(machine_id(), known) or known_by(machine_name(), known)


def known_by(name: str, known: Catalogue) -> Device | None:
    """The device of a name or alias, None where there is none."""
    try:
        return known.get(name)
    except SpecError:
        return None


def canonical_name(name: str, known: Catalogue) -> str:
    """The catalogue's name of a device; of one that it does not know the name itself."""
    return getattr(known_by(name, known), "name", name)
