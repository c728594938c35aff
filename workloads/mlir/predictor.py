"""Predictions for programs: the learned model where programs were measured, the sum of kernels everywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from math import log
from pathlib import Path
from types import MappingProxyType

from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import MAX_THREADS
from ...features.mlir.program import Program
from ...features.mlir.vectors.device_limits import Hardware, hardware
from ...features.mlir.vectors.program_vector import extract
from ...models.engine.runtime import GraphError
from ...models.family_model.artifact_files import ArtifactError
from ...models.family_model.intervals import check_coverage
from ...models.predict.prediction import Interval
from ...models.predict.predictor import ArtifactPredictor
from ...models.pretrained import MLIR_PROGRAMS
from .composition import compose_program, learned
from .learned.program_model import ProgramEngine, load_models
from .prediction import ModulePrediction, ProgramCost
from .xla_gpu import as_xla_runs, called

COMPILERS = ("iree", "xla")
"""Compilers that can be asked for; empty: the one the device's programs were measured with, XLA for StableHLO on a GPU, or
kernels as libraries run them."""

COMPOSITION = "composition"
"""Method of an answer that is the sum of kernel predictions."""


LEARNED = "learned on whole programs"
"""Method of an answer by the learned model, followed by what it is blended from."""


def load_module_predictor(
    kernels: ArtifactPredictor, directory: Path | None = None, *, ready: bool = True
) -> ModulePredictor:
    """The predictor for programs.

    Args:
        kernels: the kernel model, whose devices can be asked about.
        directory: the learned model of programs; None: the shipped one.
        ready: whether the graphs of every device are loaded now, which takes half a second, or when first asked for.

    Raises:
        ArtifactError: the directory holds no model of programs, or a damaged one.
    """
    chosen = MLIR_PROGRAMS if directory is None else directory
    try:
        engines = {device: ProgramEngine(model) for device, model in load_models(chosen).items()}
        for engine in engines.values() if ready else ():
            engine.load()
    except GraphError as error:
        raise ArtifactError(f"{chosen}: a graph cannot be run: {error}") from error
    return ModulePredictor(kernels, engines)


class ModulePredictor:
    """Predicts what programs cost. Safe to share between threads."""

    def __init__(self, kernels: ArtifactPredictor, engines: Mapping[str, ProgramEngine] | None = None) -> None:
        self._kernels = kernels
        self._engines = engines or {}

    @property
    def devices(self) -> Catalogue:
        """The devices that can be asked about."""
        return self._kernels.devices

    @property
    def measured(self) -> dict[str, tuple[str, ...]]:
        """Devices on which whole programs were measured, each with the compilers."""
        return {device: engine.model.compilers for device, engine in self._engines.items()}

    def predict(
        self, program: Program, device: str, *, compiler: str = "", threads: int | None = None, coverage: float = 0.9
    ) -> ModulePrediction:
        """What a program costs on a device.

        Args:
            program: what runs, with every size known.
            device: a name or alias in the catalogue.
            compiler: one of `COMPILERS`, or empty.
            threads: CPU threads; None: all cores.
            coverage: share of programs the intervals are to contain.

        Raises:
            SpecError: unknown device or compiler, threads where there are none, or a coverage outside what is possible.
        """
        check_coverage(coverage)
        if compiler not in ("", *COMPILERS):
            raise SpecError(
                f"no compiler {compiler!r}; compilers: {listed(COMPILERS)}, or none given", field="compiler"
            )
        on = _placed(self.devices.get(device), threads)
        engine = self._engine_for(on.device)
        setting, setting_notes = _setting(engine, program, on, compiler, threads)
        if engine is None or setting is None:
            if not on.is_cpu and (compiler or _main_dialect(program)) in ("xla", "stablehlo", ""):
                run = as_xla_runs(program, on)
                cost = called(compose_program(self._kernels, run, on, coverage=coverage), run, on, coverage)
                taken = () if compiler else ("no compiler given: xla, which mostly runs stablehlo on GPUs",)
                return assembled(run, on, cost, compiler="xla", method=COMPOSITION,
                                 notes=(*setting_notes, *taken, *cost.notes), coverage=coverage)  # fmt: skip
            cost = compose_program(self._kernels, program, on, coverage=coverage)
            return assembled(program, on, cost, compiler=compiler, method=COMPOSITION,
                             notes=(*setting_notes, *cost.notes), coverage=coverage)  # fmt: skip
        on = hardware(on.device, setting[1])
        elsewhere = engine.model.device != on.device.name
        answer = engine.answer(extract(program, on.device), setting, coverage, elsewhere=elsewhere)
        spread = learned(program, on, answer)
        method = f"{LEARNED}: {engine.method}"
        if elsewhere:
            spread = replace(spread, in_domain=False)
            method = f"{LEARNED} of {engine.model.device}: {engine.method}"
        return assembled(
            program, on, spread, compiler=setting[0], method=method,
            notes=(*setting_notes, *spread.notes), coverage=coverage, characteristics=answer.characteristics,
        )  # fmt: skip

    def _engine_for(self, device: Device) -> ProgramEngine | None:
        """The engine of a device; on a CPU without one that of the CPU whose cores compute nearest to its, where programs of
        other CPUs have shown how far such an answer is off.
        """
        if device.name in self._engines or device.kind != "cpu":
            return self._engines.get(device.name)
        # A model may be of a device that was described to whoever trained it, and is not to this catalogue.
        known = {name for name, engine in self._engines.items() if engine.model.elsewhere} & set(self.devices.names())
        apart = {
            other.name: abs(log(_core_flops_per_s(other) / _core_flops_per_s(device)))
            for other in map(self.devices.get, known) if other.kind == "cpu"
        }  # fmt: skip
        return self._engines[min(apart, key=lambda name: (apart[name], name))] if apart else None


def _core_flops_per_s(device: Device) -> float:
    return device.peak_flops_per_s("fp32", "vector")[0] / device.required("compute_units")


def _setting(
    engine: ProgramEngine | None, program: Program, on: Hardware, compiler: str, threads: int | None
) -> tuple[tuple[str, int] | None, tuple[str, ...]]:
    """The setting of the learned model that answers, None where it has none, and what must be said of the choice."""
    device = on.device.name
    if engine is None:
        note = f"no model of whole programs on {device}; the kernels of this one are added up"
        return None, (f"{note}, as libraries run them" if compiler and (on.is_cpu or compiler != "xla") else note,)
    model, dialect = engine.model, _main_dialect(program)
    elsewhere = model.device != device
    away = (f"no program was measured on {device}",) if elsewhere else ()
    chosen = compiler or model.usual.get(dialect, model.compilers[0])
    compilers = tuple(name for name in model.compilers if not elsewhere or name in model.elsewhere)
    if chosen not in compilers:
        measured = listed(compilers)
        return None, (
            *away,
            f"no program was measured with {chosen} on {model.device}, only with {measured}; its kernels are added up",
        )
    counts = sorted(number for name, number in model.settings if name == chosen)
    # More threads than there are cores run as that many.
    wanted = min(on.threads or 1, int(on.device.required("compute_units"))) if on.is_cpu else counts[-1]
    if threads is None and wanted not in counts and not elsewhere:
        wanted = counts[-1]
    if wanted not in counts:
        measured = listed(map(str, counts))
        return None, (
            *away,
            f"programs were measured with {measured} threads on {model.device}, not {wanted}; its kernels are added up",
        )
    notes = tuple(
        f"{fact}: the answer is of the model for {model.device}, whose cores are nearest, with what {device} can do, and its "
        "interval is as wide as such answers are off"
        for fact in away
    )
    if compiler:
        return (chosen, wanted), notes
    return (chosen, wanted), (
        *notes,
        f"no compiler given: {chosen}" + (f", which {dialect} was mostly measured with" if dialect else ""),
    )


def _main_dialect(program: Program) -> str:
    """The dialect of most operations, in which views count and constants do not."""
    counts = Counter(node.op.partition(".")[0] for node in program.nodes if node.kind not in ("constant", "control"))
    # Arithmetic of scalars and shapes is beside the point of a text in another dialect.
    main = [(n, name) for name, n in counts.items() if name not in ("arith", "tensor", "func", "math")]
    return max(main or [(n, name) for name, n in counts.items()] or [(0, "")])[1]


def assembled(
    program: Program, on: Hardware, cost: ProgramCost, *, compiler: str, method: str, notes: tuple[str, ...],
    coverage: float, characteristics: Mapping[str, Interval] = MappingProxyType({}),
) -> ModulePrediction:  # fmt: skip
    """The answer for a program from what its kernels add up to.

    Args:
        program: The program.
        on: The device.
        cost: Totals and parts by kernel.
        compiler: The compiler the answer is for.
        method: How the answer came about.
        notes: Messages besides the program's own.
        coverage: Share of cases the intervals are to contain.
        characteristics: What the compiled code is expected to be, by name.
    """
    peak = on.peak_flops_per_s(*_main_arithmetic(program))
    by_kernels = {field.name: getattr(cost, field.name) for field in fields(cost)}
    return ModulePrediction(
        **{**by_kernels, "notes": (*program.notes, *notes)},
        function=program.function,
        reader=program.reader,
        device=on.device.name,
        compiler=compiler,
        threads=on.threads,
        coverage=coverage,
        method=method,
        flops=program.flops,
        bytes=program.bytes,
        footprint_b=program.footprint_b,
        intensity=program.intensity,
        utilization=min(program.flops / cost.latency_s.value / peak, 1.0),
        not_understood=tuple(dict.fromkeys((node.op, node.note) for node in program.not_understood)),
        characteristics=characteristics,
    )


def _placed(device: Device, threads: int | None) -> Hardware:
    if threads is None:
        return hardware(device, None)
    if device.kind != "cpu":
        raise SpecError(f"{device.name} is no CPU; leave threads out", field="threads")
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise SpecError(f"threads must be a whole number between 1 and {MAX_THREADS}, got {threads!r}", field="threads")
    return hardware(device, threads)


def _main_arithmetic(program: Program) -> tuple[str, str]:
    """Dtype and kind of the group with most arithmetic."""
    if not program.groups:
        return "fp32", "elementwise"
    most = max(program.groups, key=lambda group: group.flops * group.runs)
    return most.dtype, most.kind
