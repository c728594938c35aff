"""`kernelcast measure machine`: measures a machine's peaks and latencies and writes them as a device file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.device import known_by, known_machine, local_devices_dir, machine_id, machine_name
from ...features.dtypes import DTYPES
from ...features.errors import SpecError
from ...files import write_whole
from ...process import core_count
from .. import console
from .this_machine import device_of_kind

if TYPE_CHECKING:
    from ...collectors.gpu.characterize.characterize import Characterised
    from ...features.device import Catalogue, Device, Fact


Measured = Mapping[str, Mapping[str, Any]]
Entry = dict[str, Any]

CPU_HEADROOM = 2.0
"""Facts of a CPU that no datasheet was read for: twice what was measured, so that they hold as limits."""

MATRIX_HEADROOM = 1.5
"""The same for a GPU's matrix units: large products reach 70-80 % of a datasheet's peak where power limits the clock."""

GPU_HEADROOM = 1.25
"""The same for a GPU's vector units, L2 and memory, whose micro-kernels reach over 90 % of the peak."""

_GUESSED_CLOCK_HZ = 3e9
_FACT = re.compile(r"(?P<unit>matrix|vector)_(?P<dtype>[a-z0-9]+)_(?:\w+_)?flops_per_s")


def measured_entry(measured: Measured) -> dict[str, dict[str, Any]]:
    """What a device file keeps of facts: those that have a value."""
    return {name: dict(fact) for name, fact in measured.items() if fact["value"] is not None}


def known_entry(device: Device) -> Entry:
    """The catalogue's entry, as it would be written in a file."""
    peaks = {"matrix": device.matrix_flops_per_s, "vector": device.vector_flops_per_s}
    capability = {} if device.compute_capability is None else {"compute_capability": device.compute_capability}
    return {
        "name": device.name, "title": device.title, "aliases": list(device.aliases), "vendor": device.vendor,
        "kind": device.kind, "architecture": device.architecture, **capability, "facts": _facts(device.facts),
        "peak_flops_per_s": {unit: _facts(facts) for unit, facts in peaks.items()},
    }  # fmt: skip


def cpu_entry(name: str, measured: Measured) -> Entry:
    """The entry of a CPU that no one has read a datasheet for.

    Raises:
        SpecError: too little could be measured to say what the machine can do.
    """
    from ...collectors.host import cache_sizes_b, memory_b
    from ...features.device import cpu_info

    cores, system = core_count(), "as the operating system shows it"
    # What a busy machine did not let measure is bounded by what it did: by one core's figure for each, by a cache's for memory.
    # All cores reach less together than each alone where another virtual machine was busy, too.
    reached = dict(measured)
    for fact in ("bandwidth_dram_b_per_s", "matrix_fp32_flops_per_s", "matrix_bf16_flops_per_s"):
        near = (f"{fact}_1t", *(f"bandwidth_{level}_b_per_s_1t" for level in ("l3", "l2", "l1") if "dram" in fact))
        known = next((name for name in near if _value(measured, name) is not None), None)
        alone, together = (_value(measured, known) if known else None), _value(measured, fact)
        if alone is not None and (together is None or ("flops" in fact and cores * alone > together)):
            why = "could not be measured" if together is None else "was less"
            reached[fact] = {"value": cores * alone, "instead": f"{cores} times {known}", "why": why}
    limit, dram = _limits(reached, "CPU"), "bandwidth_dram_b_per_s"
    facts: dict[str, Any] = {f"{level}_b": {"value": size, "source": system} for level, size in cache_sizes_b().items()
                             if level != "l1"}  # fmt: skip
    facts |= {"compute_units": {"value": cores, "source": system}}
    facts |= {"boost_clock_hz": _clock(cpu_info().get("cpu MHz"))}
    facts |= {"memory_b": {"value": memory_b("MemTotal"), "source": system}}
    facts |= {"memory_bandwidth_b_per_s": limit(_largest(reached, dram, dram), CPU_HEADROOM)}
    if _value(measured, "bandwidth_l2_b_per_s_1t") is not None:
        facts |= {"l2_bandwidth_b_per_s": limit("bandwidth_l2_b_per_s_1t", cores * CPU_HEADROOM)}
    # Without bf16 instructions bf16 is computed in fp32, by PyTorch on a Zen 3 at a sixtieth of that rate.
    ways = {"fp32": "fp32", "bf16": "fp32|bf16"}
    peaks = {dtype: limit(_largest(reached, f"(matrix|vector)_({either})_flops_per_s", "matrix_fp32_flops_per_s"), CPU_HEADROOM)
             for dtype, either in ways.items()}  # fmt: skip
    peaks["fp64"] = {"value": peaks["fp32"]["value"] / 2, "source": "half the fp32 peak, as vectors hold half as many"}
    return {
        "name": name, "title": machine_name(), "vendor": cpu_info().get("vendor_id", "unknown"), "kind": "cpu",
        "facts": facts, "peak_flops_per_s": {"matrix": peaks, "vector": dict(peaks)},
    }  # fmt: skip


def gpu_entry(calls_itself: str, device: Mapping[str, Any], measured: Measured, power_limit_w: float | None) -> Entry:
    """The entry of a GPU that no one has read a datasheet for.

    Args:
        calls_itself: its name by the driver, kept as an alias.
        device: what the measuring process said of it (`attributes` by `characterize.micro_kernels.device_attributes`).
        measured: the facts.
        power_limit_w: the limit in force, None where unknown.

    Raises:
        SpecError: too little is known to say what the GPU can do.
    """
    limit = _limits(measured, "GPU")
    attributes = {name: {"value": value, "source": "as the CUDA driver says"}
                  for name, value in (device.get("attributes") or {}).items() if value is not None}  # fmt: skip
    if missing := [name for name in ("compute_units", "boost_clock_hz", "l2_b") if name not in attributes]:
        raise SpecError(f"{calls_itself} is in no device file, and its driver does not report {', '.join(missing)}")
    facts = {name: attributes[name] for name in
             ("compute_units", "boost_clock_hz", "memory_b", "l2_b", "shared_memory_per_unit_b", "registers_per_unit_b")
             if name in attributes}  # fmt: skip
    facts["memory_bandwidth_b_per_s"] = _bus_rate(attributes, measured) or limit("bandwidth_dram_b_per_s", GPU_HEADROOM)
    if _value(measured, "bandwidth_l2_b_per_s") is not None:
        facts["l2_bandwidth_b_per_s"] = limit("bandwidth_l2_b_per_s", GPU_HEADROOM)
    if power_limit_w is not None:
        facts["tdp_w"] = {"value": power_limit_w, "source": "the power limit in force, as NVML says"}
    if _value(measured, "power_idle_w") is not None:
        facts["idle_power_w"] = dict(measured["power_idle_w"])
    peaks = _peaks(measured, limit)
    if "fp32" not in peaks["vector"]:
        raise SpecError(f"{calls_itself} is in no device file, and neither its vector nor its matrix fp32 rate could be "
                        "measured; try again when it is idle")  # fmt: skip
    capability = device.get("compute_capability")
    return {
        "name": slug(calls_itself), "title": calls_itself, "aliases": [calls_itself], "vendor": "nvidia", "kind": "gpu",
        **({"compute_capability": capability} if capability else {}), "facts": facts, "peak_flops_per_s": peaks,
    }  # fmt: skip


def slug(calls_itself: str) -> str:
    """A device name from what a GPU calls itself: `nvidia-rtx-a4000` from `NVIDIA RTX A4000`."""
    return re.sub(r"[^a-z0-9]+", "-", calls_itself.lower()).strip("-")


def write_entry(entry: Mapping[str, Any], path: Path) -> None:
    """Write a device file, whole or not at all.

    Raises:
        SpecError: the entry is no device, or the file cannot be written.
    """
    import yaml

    from ...features.device import parse_device

    text = yaml.safe_dump(dict(entry), sort_keys=False, allow_unicode=True, width=120)
    parse_device(text, origin=str(path))
    try:
        write_whole(path, text)
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error.strerror or error}", field="out") from error


def _peaks(measured: Measured, limit: Callable[[str, float], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Peaks by unit and dtype: the best implementation of each, with headroom.

    A GPU whose vector units could not be measured (CuPy is missing) has at least the rate its fp32 products reach.
    """
    best: dict[str, dict[str, str]] = {"matrix": {}, "vector": {}}
    for name in measured:
        if (match := _FACT.fullmatch(name)) is None or match["dtype"] not in DTYPES:
            continue
        if (value := _value(measured, name)) is not None:
            of_unit = best[match["unit"]]
            if value > (_value(measured, of_unit.get(match["dtype"], "")) or 0.0):
                of_unit[match["dtype"]] = name
    peaks = {"matrix": {dtype: limit(name, MATRIX_HEADROOM) for dtype, name in best["matrix"].items()},
             "vector": {dtype: limit(name, GPU_HEADROOM) for dtype, name in best["vector"].items()}}  # fmt: skip
    if "fp32" not in peaks["vector"] and "fp32" in peaks["matrix"]:
        peaks["vector"]["fp32"] = dict(peaks["matrix"]["fp32"])
    return peaks


def _largest(measured: Measured, pattern: str, otherwise: str) -> str:
    """The name of the largest fact that has a value and matches, on all cores or on one: a limit holds for every one of them.
    `otherwise` where there is none.
    """
    names = [name for name in measured if re.fullmatch(f"(?:{pattern})(_1t)?", name) and _value(measured, name)]
    return max(names, key=lambda name: _value(measured, name) or 0.0, default=otherwise)


def _limits(measured: Measured, kind: str) -> Callable[[str, float], dict[str, Any]]:
    """Makes a fact that holds as a limit out of a measured one and its headroom."""

    def limit(what: str, headroom: float) -> dict[str, Any]:
        value = _value(measured, what)
        if value is None:
            raise SpecError(
                f"{what} could not be measured, and this {kind} is in no device file; try again when it is idle"
            )
        source = f"{headroom:g} times what was measured here, no datasheet figure"
        if (instead := measured[what].get("instead")) is not None:
            source = f"{headroom:g} times {instead} as measured here, since {what} {measured[what]['why']}; no datasheet figure"
        return {"value": headroom * value, "source": source}

    return limit


def _bus_rate(driver: Mapping[str, Mapping[str, Any]], measured: Measured) -> dict[str, Any] | None:
    """Memory bandwidth from clock and width of the bus, two transfers a clock.

    None where the driver tells neither, or figures that measuring has disproved.
    """
    if "memory_clock_hz" not in driver or "memory_bus_b" not in driver:
        return None
    rate = 2 * driver["memory_clock_hz"]["value"] * driver["memory_bus_b"]["value"]
    reached = max(_value(measured, f"bandwidth_dram{kind}_b_per_s") or 0.0 for kind in ("", "_read"))
    if rate < reached:
        return None
    return {"value": rate, "source": "twice the memory clock times the width of its bus, as the CUDA driver says"}


def _value(measured: Measured, name: str) -> float | None:
    return measured.get(name, {}).get("value")


def _facts(facts: Mapping[str, Fact]) -> dict[str, dict[str, Any]]:
    return {name: {"value": fact.value, "source": fact.source} for name, fact in facts.items()}


def _clock(mhz: str | None) -> dict[str, Any]:
    """The clock as a fact; where the system shows none (on most ARM), a guess that says that it is one."""
    if mhz is None:
        return {"value": _GUESSED_CLOCK_HZ, "source": "guessed, the operating system shows no clock; correct it"}
    return {"value": float(mhz) * 1e6, "source": "the clock at the time of measuring, as the operating system shows it"}


def characterize(
    out_file: Annotated[Path, typer.Option("--out", metavar="YAML", help="Where the device file goes.")],
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Which to measure; default: the GPU where its board can be read.")
    ] = None,
    index: console.GpuIndex = 0,
    launches: Annotated[
        bool, typer.Option("--launches/--no-launches", help="Trace a GPU's kernel launches and queues as well.")
    ] = True,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of the device; default: found by the name it reports.")
    ] = None,
    store: console.StoreRoot = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure this machine itself (peaks, bandwidth ladder, latency, launch floors, power) and write its device file.

    Takes half a minute for a CPU, one to two for a GPU. The file has the datasheet facts of the catalogue's entry where
    there is one, and of a CPU with rows of several days how much those differ.
    """
    console.check_file(out_file)
    known = console.read_catalogue(device_file)
    measure = _gpu if wants_gpu(gpu, index) else _cpu
    with console.plain_errors(
        *(("measure machine --gpu", "gpu") if measure is _gpu else ("measure machine", "collect"))
    ):
        entry, measured = measure(device, index, known, launches)
        if measure is _cpu:
            measured = {**measured, **_state(store, entry["name"])}
    for what, fact in measured.items():
        if fact["value"] is None:
            console.note(f"{what}: {fact['source']}")
    write_entry({**entry, "measured": measured_entry(measured)}, out_file)
    if as_json:
        console.print_json({"device": entry["name"], "out": str(out_file), "measured": measured})
    console.note(f"written to {out_file}; use it with --device {entry['name']} --device-file {out_file}")


def _state(store: str | None, name: str) -> Measured:
    """By how much a shared machine's days differ, as the sentinels of its stored rows say; empty of less than two days."""
    from ...datasets.records.sentinels import state_deviation
    from ...datasets.store.store import Store

    rows, columns = Store(store), ["device", "threads", "block", "measured_at"]
    known = state_deviation(rows.read(family, [name], columns) for family in rows.families())
    deviation, days = known or (0.0, 0)
    if not deviation:
        return {}
    return {"state_deviation": {"value": deviation, "source": f"sentinels of {days} days in the store"}}


def wants_gpu(wanted: bool | None, index: int) -> bool:
    """Whether the GPU is what is measured: as asked for, else where NVML or AMD SMI finds one."""
    if wanted is not None:
        return wanted
    from ...collectors.meters.find import open_gpu_reader

    return open_gpu_reader(index) is not None


def new_cpu() -> tuple[Path, Measured]:
    """Measure this machine's CPU, which no device file is of: its device file, where every command reads it, and the facts.

    Raises:
        SpecError: too little could be measured to say what the machine can do, or the file cannot be written.
    """
    from ...collectors.cpu.characterize import characterize as run

    path = local_devices_dir() / f"{machine_id()}.yaml"
    measured = run(machine_id())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry({**cpu_entry(machine_id(), measured), "measured": measured_entry(measured)}, path)
    return path, measured


def new_gpu(known: Catalogue) -> Path:
    """Measure this machine's GPU, which no device file is of: its device file, where every command reads it.

    Raises:
        SpecError: too little could be measured to say what the GPU can do, or the file cannot be written.
    """
    entry, measured = _gpu(None, 0, known, launches=False)
    path = local_devices_dir() / f"{entry['name']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry({**entry, "measured": measured_entry(measured)}, path)
    return path


def _cpu(device: str | None, index: int, known: Catalogue, launches: bool) -> tuple[dict[str, Any], Measured]:  # noqa: ARG001
    cpu = device_of_kind(device, "cpu", known) if device else known_machine(known)
    name = cpu.name if cpu else machine_id()
    console.note(f"measuring {name}; keep the machine idle for about half a minute")
    from ...collectors.cpu.characterize import characterize as run

    measured = run(name)
    return known_entry(cpu) if cpu else cpu_entry(name, measured), measured


def _gpu(device: str | None, index: int, known: Catalogue, launches: bool) -> tuple[dict[str, Any], Measured]:
    chosen = None if device is None else device_of_kind(device, "gpu", known)
    from ...collectors.meters.find import open_gpu_reader

    reader = open_gpu_reader(index)
    if chosen is not None and reader is not None and (name := reader.name()) is not None:
        # A board that calls itself otherwise would be another device's datasheet under this one's measurements.
        gpu_if_known = known_by(name, known)
        if gpu_if_known is None or gpu_if_known.name != chosen.name:
            raise SpecError(f"--device is {chosen.name}, but GPU {index} calls itself {name!r}; leave --device out",
                            field="device")  # fmt: skip
    console.note(f"measuring GPU {index}; keep it and the host idle for one to two minutes")
    done = _measured_gpu(index, launches)
    by_board, limit_w = (None, None) if reader is None else (reader.name(), reader.power_limit_w())
    calls_itself = by_board or done.device.get("gpu") or "NVIDIA GPU"
    gpu_if_known = chosen or known_by(calls_itself, known)
    if gpu_if_known is not None:
        return known_entry(gpu_if_known), done.facts
    return gpu_entry(calls_itself, done.device, done.facts, limit_w), done.facts


def _measured_gpu(index: int, launches: bool) -> Characterised:
    from ...collectors.gpu.characterize.characterize import characterize as run

    with console.progress_bar() as progress:
        done = run(index=index, progress=progress)
        return replace(done, facts=done.facts | _launch_facts(index, progress)) if launches else done


def _launch_facts(index: int, progress: console.Progress) -> dict[str, dict[str, Any]]:
    from ...collectors.gpu.characterize.characterize import missing_facts
    from ...collectors.gpu.profiling.launch_trace import FACT_NAMES, LaunchTraceError, trace_launches, traced_facts
    from ...process import ChildStartError

    try:
        return traced_facts(trace_launches(index=index, progress=progress))
    except (LaunchTraceError, ChildStartError) as error:
        return missing_facts(FACT_NAMES, str(error))
