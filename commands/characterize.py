"""`kernelcast characterize`: measure this machine's GPU or CPU itself and write its device file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, Progress, need_extra, note, print_json, progress_bar, read_catalogue
from .device_entry import Measured, cpu_entry, gpu_entry, known_entry, measured_entry, write_entry
from .this_machine import known_machine, machine_id, named

if TYPE_CHECKING:
    from ..collectors.gpu.characterize import Characterised
    from ..features.device import Catalogue, Device


def characterize(
    out_file: Annotated[Path, typer.Option("--out", metavar="YAML", help="Where the device file goes.")],
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Which to measure; default: the GPU where NVML finds one.")
    ] = None,
    index: Annotated[int, typer.Option(min=0, help="Which GPU, as CUDA counts.")] = 0,
    launches: Annotated[
        bool, typer.Option("--launches/--no-launches", help="Trace a GPU's kernel launches and queues as well.")
    ] = True,
    device: Annotated[
        str | None, typer.Option(help="Catalogue name of what is measured; default: by what it says it is.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Measure this machine itself (peaks, bandwidth ladder, latency, launch floors, power) and write its device file.

    Takes half a minute for a CPU, one to two for a GPU. The file has the datasheet facts of the catalogue's entry where
    there is one.
    """
    if not out_file.parent.is_dir():
        raise SpecError(f"the folder of --out {out_file} does not exist; make it first", field="out")
    known = read_catalogue(device_file)
    measure = _gpu if _wants_gpu(gpu, index) else _cpu
    try:
        entry, measured = measure(device, index, known, launches)
    except ImportError as error:
        raise need_extra("characterize", "gpu" if measure is _gpu else "collect", error) from error
    for what, fact in measured.items():
        if fact["value"] is None:
            note(f"{what}: {fact['source']}")
    write_entry({**entry, "measured": measured_entry(measured)}, out_file)
    if as_json:
        print_json({"device": entry["name"], "out": str(out_file), "measured": measured})
    note(f"written to {out_file}; use it with --device {entry['name']} --device-file {out_file}")


def _wants_gpu(asked: bool | None, index: int) -> bool:
    if asked is not None:
        return asked
    from ..collectors.gpu.nvml import open_nvml

    return open_nvml(index) is not None


def _cpu(device: str | None, index: int, known: Catalogue, launches: bool) -> tuple[dict[str, Any], Measured]:  # noqa: ARG001
    found = named(device, "cpu", known) if device else known_machine(known)
    name = found.name if found else machine_id()
    note(f"measuring {name}; keep the machine idle for about half a minute")
    from ..collectors.characterize import characterize as run
    from ..collectors.process import WorkerStartError

    try:
        measured = run(name)
    except WorkerStartError as error:
        raise SpecError(f"{error}; `kernelcast characterize` needs: pip install 'kernelcast[collect]'") from error
    return known_entry(found) if found else cpu_entry(name, measured), measured


def _gpu(device: str | None, index: int, known: Catalogue, launches: bool) -> tuple[dict[str, Any], Measured]:
    chosen = None if device is None else named(device, "gpu", known)
    from ..collectors.gpu.nvml import open_nvml

    reader = open_nvml(index)
    if chosen is not None and reader is not None and (name := reader.name()) is not None:
        # A board that calls itself otherwise would be another device's datasheet under this one's measurements.
        found = _gpu_if_known(name, known)
        if found is None or found.name != chosen.name:
            raise SpecError(f"--device is {chosen.name}, but GPU {index} calls itself {name!r}; leave --device out",
                            field="device")  # fmt: skip
    note(f"measuring GPU {index}; keep it and the host idle for one to two minutes")
    done = _measured_gpu(index, launches)
    by_nvml, limit_w = (None, None) if reader is None else (reader.name(), reader.power_limit_w())
    calls_itself = by_nvml or done.device.get("gpu") or "NVIDIA GPU"
    found = chosen or _gpu_if_known(calls_itself, known)
    if found is not None:
        return known_entry(found), done.facts
    return gpu_entry(calls_itself, done.device, done.facts, limit_w), done.facts


def _measured_gpu(index: int, launches: bool) -> Characterised:
    from ..collectors.gpu.characterize import characterize as run
    from ..collectors.pipe import WorkerStartError

    try:
        with progress_bar() as progress:
            done = run(index=index, progress=progress)
            return replace(done, facts=done.facts | _launch_facts(index, progress)) if launches else done
    except WorkerStartError as error:
        raise SpecError(f"{error}; `kernelcast characterize --gpu` needs: pip install 'kernelcast[gpu]'") from error


def _launch_facts(index: int, progress: Progress) -> dict[str, dict[str, Any]]:
    from ..collectors.gpu.launch_trace import missing_facts, trace_launches, traced_facts
    from ..collectors.gpu.launches import LaunchTraceError
    from ..collectors.pipe import WorkerStartError

    try:
        return traced_facts(trace_launches(index=index, progress=progress))
    except (LaunchTraceError, WorkerStartError) as error:
        return missing_facts(str(error))


def _gpu_if_known(name: str, known: Catalogue) -> Device | None:
    try:
        return named(name, "gpu", known)
    except SpecError:
        return None
