"""`kernelcast measure`: run the cases of a table on this machine, and write the table with what they took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.device import known_machine
from ...features.errors import SpecError, listed
from ...process import core_count
from .. import console
from .result_table import NOT_MEASURED, Case, stored_cases, stored_results, with_results
from .this_machine import refuse_other_machine, this_device, this_gpu

if TYPE_CHECKING:
    from ...collectors.kernel_campaign import Sink
    from ...collectors.meters.find import GpuReader
    from ...datasets.form.form import FormTable
    from ...datasets.store.store import Store
    from ...features.device import Catalogue, Device
    from ...features.kernel import KernelSpec

_SHOWN = 10
_IMPL = "torch"
"""What runs a case whose row does not say."""

_EXTRAS = {"cpu": "collect", "gpu": "gpu"}


def measure(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Cases (.csv, .parquet), as `measure suggest --out` writes them.")
    ],
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: TABLE-measured beside the table.")
    ] = None,
    store: console.RowsTo = None,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="On a GPU: measure power and energy too, 3 s a case. A CPU's always are.")
    ] = False,
    index: console.GpuIndex = 0,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Measure the cases of a table on this machine: kernelcast measure cases.csv

    Writes the table with latency_s, power_w, energy_j, status and message, ready for `kernelcast train calibrate`, also where
    measuring fails in the middle. Cases that cannot run here are refused before anything is measured. Run it again to resume:
    stored cases are not measured again.
    """
    from ..predict.predict_table import check_table, write_table

    out = out_file or table.with_name(f"{table.stem}-measured{table.suffix}")
    check_table(out)
    known = console.read_catalogue(device_file)
    with console.plain_errors("measure", "collect"):
        from ...datasets.form.form import read_form
        from ...datasets.rows.checks import catalogue_bounds
        from ...datasets.store.store import Store

        form = read_form(table, family=family, skip_bad_rows=skip_bad_rows, need_labels=False,
                         known_devices=lambda name: known.get(name).name)  # fmt: skip
        machine = ThisMachine(known, index)
        cases, refused = check_rows(form, machine)
        if refused and (not skip_bad_rows or not cases):
            raise SpecError(_complaint(table, refused, form.table.num_rows, any_good=bool(cases)))
    refused |= {row.row: f"{row.column}: {row.reason}" for row in form.refused}
    extras = sorted({_EXTRAS[case.device.kind] for case in cases.values()})
    with console.plain_errors("measure", ",".join(extras)):
        rows = Store(store, lower_bounds=partial(catalogue_bounds, known=known))
        for device in _devices(cases):
            refuse_other_machine(rows, device, machine.gpu()[1] if device.kind == "gpu" else None)
        try:
            interrupted = _run(cases, machine, rows, energy=energy)
        finally:
            results = stored_results(rows, cases)
            write_table(with_results(form, cases, results, refused), out)
    _tell(out, cases, results, refused, rows.location.name, as_json)
    if interrupted:
        console.note("run the same command again to measure the rest")
        raise KeyboardInterrupt


class ThisMachine:
    """What this machine can measure; a GPU is looked for only where a row names one."""

    def __init__(self, known: Catalogue, index: int = 0) -> None:
        self.known, self.index = known, index
        self._gpu: tuple[Device, GpuReader | None] | SpecError | None = None

    def gpu(self) -> tuple[Device, GpuReader | None]:
        """The GPU and what reads its board.

        Raises:
            SpecError: there is none, or it is in no device file.
        """
        if self._gpu is None:
            try:
                self._gpu = this_gpu(None, self.index, self.known)
            except SpecError as error:
                self._gpu = error
        if isinstance(self._gpu, SpecError):
            raise self._gpu
        return self._gpu

    def case(self, spec: KernelSpec, device: str) -> Case:
        """The case as it is measured here.

        Raises:
            SpecError: it cannot be; the message says why.
        """
        wanted = self.known.get(device)
        here = self.known.get(this_device(None, self.known)) if wanted.kind == "cpu" else self.gpu()[0]
        if here.name != wanted.name:
            raise SpecError(
                f"is {wanted.name}, and this machine's {wanted.kind.upper()} is {here.name}", field="device"
            )
        threads = None if here.kind == "gpu" else spec.threads or core_count()
        # Collectors time the device, and store that as no word.
        spec = replace(
            spec, impl=spec.impl or _IMPL, threads=threads, timing="" if spec.timing == "device" else spec.timing
        )
        _check_runs(spec, here)
        return Case(spec, here)


def impls_of(kind: str) -> tuple[str, ...]:
    """The words of `impl` that this project's runners measure on a kind of device."""
    from ...collectors.runner import gpu_runners, runners

    return tuple(gpu_runners() if kind == "gpu" else runners())


@cache
def refusal_of(kind: str, impl: str) -> str | None:
    """Why a runner cannot run on this machine, and what to do about a missing package; None where it can."""
    from ...collectors.runner import UnsupportedCaseError, gpu_runners, runners

    runner = gpu_runners()[impl] if kind == "gpu" else runners()[impl]
    try:
        runner.versions()
    except (ImportError, UnsupportedCaseError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return f"it needs {error.name}; run: pip install 'kernelcast[{_EXTRAS[kind]}]'"
        return str(error)
    return None


def _check_runs(spec: KernelSpec, device: Device) -> None:
    """Raises SpecError: this machine cannot run the case; the message says why."""
    from ...features.kernel import View, get_family
    from ...models.selection.candidates import MEMORY_SHARE

    family, able = get_family(spec.family), impls_of(device.kind)
    if spec.impl not in able:
        raise SpecError(
            f"is {spec.impl!r}; kernelcast measures {listed(able)} on a {device.kind.upper()}", field="impl"
        )
    if (reason := refusal_of(device.kind, spec.impl)) is not None:
        raise SpecError(f"is {spec.impl!r}, which cannot run here: {reason}", field="impl")
    if spec.impl == _IMPL and _IMPL not in family.run:
        raise SpecError(f"is {family.name}, which torch has no kernel of", field="family")
    if spec.impl == _IMPL and spec.config:
        raise SpecError(f"is torch, which takes no tuning knobs; the row has {listed(dict(spec.config))}", field="impl")
    if spec.timing:
        raise SpecError(f"is {spec.timing!r}; kernelcast measures the kernel alone: leave it empty", field="timing")
    device.peak_flops_per_s(spec.dtype, family.unit)
    cores = core_count()
    if device.kind == "cpu":
        from ...collectors.cpu.runners.torch import DTYPES

        if spec.impl == _IMPL and spec.dtype not in DTYPES:
            raise SpecError(f"is {spec.dtype}; torch on a CPU is measured in {listed(DTYPES)}", field="dtype")
        if (spec.threads or 1) > cores:
            raise SpecError(f"is {spec.threads}; this process may use {cores} cores", field="threads")
    room_b = (device.fact("memory_b") or math.inf) * MEMORY_SHARE
    size_b = float(family.footprint_b(View.of(spec)))
    if size_b > room_b:
        raise SpecError(f"need {console.num_bytes(size_b)}, and {console.num_bytes(room_b)} of {device.name} may be used",
                        field="sizes")  # fmt: skip


def check_rows(form: FormTable, machine: ThisMachine) -> tuple[dict[int, Case], dict[int, str]]:
    """By row of the table, the cases that can be measured here and why the others cannot."""
    from ...models.selection.suggest import spec_at

    cases: dict[int, Case] = {}
    refused: dict[int, str] = {}
    for part in form.parts.values():
        for i, row in enumerate(part.rows.tolist()):
            try:
                cases[row] = machine.case(spec_at(part.cases, i), str(part.cases.device[i]))
            except SpecError as error:
                refused[row] = f"{error.field}: {error}" if error.field else str(error)
    return dict(sorted(cases.items())), refused


def _complaint(path: Path, refused: Mapping[int, str], n: int, *, any_good: bool) -> str:
    shown = "\n".join(f"  row {row + 1}: {reason}" for row, reason in sorted(refused.items())[:_SHOWN])
    more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    advice = ("Correct them, or skip them with --skip-bad-rows." if any_good else
              "`kernelcast measure suggest --device NAME --out cases.csv` writes cases that this machine can run.")  # fmt: skip
    return (f"{path}: {len(refused)} of {n} rows cannot be measured on this machine (rows count from 1, below the header):\n"
            f"{shown}{more}\nNothing was measured. {advice}")  # fmt: skip


def _devices(cases: Mapping[int, Case]) -> list[Device]:
    """The devices of the cases, each once. A GPU is first: that it has no energy sensor is known when its worker starts."""
    devices = {case.device.name: case.device for case in cases.values()}
    return sorted(devices.values(), key=lambda device: device.kind == "cpu")


def _run(cases: Mapping[int, Case], machine: ThisMachine, store: Store, *, energy: bool) -> bool:
    """Measure and store the cases that are not stored yet; whether someone stopped it."""
    for device in _devices(cases):
        specs = list(dict.fromkeys(case.spec for case in cases.values() if case.device.name == device.name))
        done = stored_cases(store, device, specs, energy=energy)
        todo = [spec for spec in specs if spec.case_id not in done]
        if len(todo) < len(specs):
            console.note(f"{len(specs) - len(todo)} of {len(specs)} cases of {device.name} are stored already")
        if todo and _campaign(todo, device, machine, store, energy=energy):
            return True
    return False


def _campaign(specs: Sequence[KernelSpec], device: Device, machine: ThisMachine, store: Store, *, energy: bool) -> bool:
    """Measure the cases of one device; whether someone stopped it.

    Raises:
        CampaignError: nothing more can be stored or measured; what was stored stays.
        SpecError: energy is asked for, and the GPU has no sensor.
    """
    from ...collectors.kernel_campaign import store_sink
    from ...nightly.record.plan import Plan

    sink: Sink = store_sink(store)
    note = {"command": "measure"}
    with store.lock(device.name), console.progress_bar() as show:
        progress = partial(show, f"measuring {device.name}")
        if device.kind == "cpu":
            from ...nightly.measuring.cpu import CpuMeasurer

            measurer = CpuMeasurer(Plan(), device.name)
            return measurer.collect(
                {device.name: specs}, sink=sink, until=math.inf, note=note, progress=progress
            ).interrupted
        from ...nightly.measuring.gpu import GpuMeasurer, NoSensorError

        windows = {spec.case_id: 1 for spec in specs if energy and spec.cache_state == "hot"}
        gpu = GpuMeasurer(Plan(collector="gpu"), device, machine.gpu()[1], index=machine.index)
        try:
            return gpu.campaign(specs, windows, math.inf, sink, note, progress).interrupted
        except NoSensorError as missing:
            raise SpecError(
                f"energy cannot be measured here: {missing}; leave out --energy", field="energy"
            ) from missing


def _tell(
    out: Path, cases: Mapping[int, Case], results: Mapping[str, Mapping[str, Any]], refused: Mapping[int, str], store: str,
    as_json: bool,
) -> None:  # fmt: skip
    failed = list(_failed(cases, results))
    good = sum(results.get(case.spec.case_id, {}).get("status") == "ok" for case in cases.values())
    if as_json:
        console.print_json({"out": str(out), "rows": len(cases) + len(refused), "measured": good, "refused": len(refused),
                            "failed": [{"row": row + 1, "status": status, "message": why} for row, status, why in failed],
                            "store": store})  # fmt: skip
    for row, status, why in failed[:_SHOWN]:
        console.note(f"row {row + 1}: {status}{f': {why}' if why else ''}")
    if len(failed) > _SHOWN:
        console.note(f"and {len(failed) - _SHOWN} more; their status and message are in {out}")
    console.note(
        f"{good} of {len(cases) + len(refused)} rows measured, {len(failed)} without a time, {len(refused)} refused"
    )
    console.note(f"written to {out}; rows are also in {store}")
    if good:
        console.note(f"next: kernelcast train calibrate --data {out} --out MODEL_DIR")


def _failed(
    cases: Mapping[int, Case], results: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[int, str, str | None]]:
    for row, case in cases.items():
        result = results.get(case.spec.case_id)
        if result is None:
            yield row, NOT_MEASURED, None
        elif result["status"] != "ok":
            yield row, str(result["status"]), result["message"]


def runnable_impls(device: Device, known: Catalogue) -> tuple[str, ...]:
    """What this project can measure on a device: of this machine's what is installed, if anything is."""
    able = impls_of(device.kind)
    if not _is_here(device, known):
        return able
    return tuple(impl for impl in able if refusal_of(device.kind, impl) is None) or able


def _is_here(device: Device, known: Catalogue) -> bool:
    """Whether a device is this machine's CPU, or its first GPU."""
    if device.kind == "cpu":
        machine = known_machine(known)
        return machine is not None and machine.name == device.name
    try:
        return this_gpu(None, 0, known)[0].name == device.name
    except SpecError:
        return False
