"""`kernelcast characterize`: measure this machine itself and write its device file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, need_extra, note, print_json, read_catalogue
from .this_machine import known_machine, machine_id, machine_name, named_cpu

if TYPE_CHECKING:
    from ..features.device import Device, Fact

_HEADROOM = 2.0
"""Facts of a CPU that no datasheet was read for: twice what was measured, so that they hold as limits."""

_GUESSED_CLOCK_HZ = 3e9

Measured = Mapping[str, Mapping[str, Any]]


def characterize(
    out_file: Annotated[Path, typer.Option("--out", metavar="YAML", help="Where the device file goes.")],
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of this machine; default: by what its CPU says it is.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Measure this machine itself (peaks, bandwidth ladder, latency, dispatch) in about half a minute.

    The device file that is written has the datasheet facts of the catalogue's entry where there is one.
    """
    if not out_file.parent.is_dir():
        raise SpecError(f"the folder of --out {out_file} does not exist; make it first", field="out")
    known = read_catalogue(device_file)
    found = named_cpu(device, known) if device else known_machine(known)
    name = found.name if found else machine_id()
    note(f"measuring {name}; keep the machine idle for about half a minute")
    try:
        from ..collectors.characterize import characterize as run
        from ..collectors.process import WorkerStartError
    except ImportError as error:
        raise need_extra("characterize", "collect", error) from error
    try:
        measured = run(name)
    except WorkerStartError as error:
        raise SpecError(f"{error}; `kernelcast characterize` needs: pip install 'kernelcast[collect]'") from error
    for what, fact in measured.items():
        if fact["value"] is None:
            note(f"{what}: {fact['source']}")
    _write({**(_known(found) if found else _unknown(name, measured)), "measured": _given(measured)}, out_file)
    if as_json:
        print_json({"device": name, "out": str(out_file), "measured": measured})
    note(f"written to {out_file}; use it with --device-file {out_file}")


def _given(measured: Measured) -> dict[str, dict[str, Any]]:
    return {name: dict(fact) for name, fact in measured.items() if fact["value"] is not None}


def _known(device: Device) -> dict[str, Any]:
    """The catalogue's entry, as it would be written in a file."""
    peaks = {"matrix": device.matrix_flops_per_s, "vector": device.vector_flops_per_s}
    return {
        "name": device.name, "title": device.title, "aliases": list(device.aliases), "vendor": device.vendor,
        "kind": device.kind, "architecture": device.architecture, "facts": _facts(device.facts),
        "peak_flops_per_s": {unit: _facts(facts) for unit, facts in peaks.items()},
    }  # fmt: skip


def _facts(facts: Mapping[str, Fact]) -> dict[str, dict[str, Any]]:
    return {name: {"value": fact.value, "source": fact.source} for name, fact in facts.items()}


def _unknown(name: str, measured: Measured) -> dict[str, Any]:
    """The entry of a CPU that no one has read a datasheet for.

    Raises:
        SpecError: too little could be measured to say what the machine can do.
    """
    from ..collectors.environment import cache_sizes_b, cpu_info, memory_b

    def limit(what: str) -> dict[str, Any]:
        value = measured.get(what, {}).get("value")
        if value is None:
            raise SpecError(
                f"{what} could not be measured, and this CPU is in no device file; try again when it is idle"
            )
        return {
            "value": _HEADROOM * value,
            "source": f"{_HEADROOM:g} times what was measured here, no datasheet figure",
        }

    system = "as the operating system shows it"
    facts: dict[str, Any] = {f"{level}_b": {"value": size, "source": system} for level, size in cache_sizes_b().items()
                             if level != "l1"}  # fmt: skip
    facts |= {"compute_units": {"value": os.cpu_count(), "source": system}}
    facts |= {"boost_clock_hz": _clock(cpu_info().get("cpu MHz"))}
    facts |= {"memory_b": {"value": memory_b("MemTotal"), "source": system}}
    facts |= {"memory_bandwidth_b_per_s": limit("bandwidth_dram_b_per_s")}
    facts |= {"l2_bandwidth_b_per_s": limit("bandwidth_l2_b_per_s_1t")}
    facts["l2_bandwidth_b_per_s"]["value"] *= os.cpu_count() or 1
    peaks = {dtype: limit(f"matrix_{dtype}_flops_per_s") for dtype in ("fp32", "bf16")}
    return {
        "name": name, "title": machine_name(), "vendor": cpu_info().get("vendor_id", "unknown"), "kind": "cpu",
        "facts": facts, "peak_flops_per_s": {"matrix": peaks, "vector": dict(peaks)},
    }  # fmt: skip


def _clock(mhz: str | None) -> dict[str, Any]:
    """The clock as a fact; where the system shows none (on most ARM), a guess that says that it is one."""
    if mhz is None:
        return {"value": _GUESSED_CLOCK_HZ, "source": "guessed, the operating system shows no clock; correct it"}
    return {"value": float(mhz) * 1e6, "source": "the clock at the time of measuring, as the operating system shows it"}


def _write(entry: Mapping[str, Any], path: Path) -> None:
    import yaml

    from ..features.device import parse_device

    text = yaml.safe_dump(dict(entry), sort_keys=False, allow_unicode=True, width=120)
    parse_device(text, origin=str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}", field="out") from error
    finally:
        temporary.unlink(missing_ok=True)
