"""From the text of a module to configurations of its kernels: read, scored, chosen, and tried on the compiler once."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...features.device import Device, catalogue
from ...features.errors import SpecError
from ...features.tuning.kind import Candidates
from ..cost_model import CostModel
from .compiler import (
    HOST,
    CompileError,
    Instructions,
    compile_text,
    compile_with,
    failing,
    not_applied,
    packed_as_told,
    target_flags,
)
from .dispatches import CONTRACTION, CONVOLUTION, Dispatch, Dispatches, UntunedDispatch, read_dispatches
from .scoring import DEFAULT, PACKED, Scored, Variant, score, to_measure, total_s, variants
from .spec_text import HOOK_NAME, Config

Measure = Callable[[Sequence[Candidates]], Sequence[Sequence[float]]]
"""Measures the candidates of several tasks, interleaved: seconds of each, not finite where it could not be measured."""

Models = Callable[[str], CostModel]
"""The model of a kind by its name; raises SpecError where there is none."""

Race = Callable[[Mapping[str, Path]], Mapping[str, float]]
"""Times whole compiled modules, interleaved: seconds by the name of each that ran."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration chosen for a dispatch. Seconds are of one call.

    Attributes:
        dispatch: The dispatch.
        config: The configuration.
        chosen_s: Seconds with it.
        default_s: Seconds with the default of the compiler.
        data_tiling_s: Seconds with data tiling; None where it does not apply, as for convolutions.
        measured: Whether the seconds are measured; else they are predicted.
    """

    dispatch: Dispatch
    config: Config
    chosen_s: float
    default_s: float
    data_tiling_s: float | None
    measured: bool


@dataclass(frozen=True, slots=True)
class TuningResult:
    """How to compile a module, and why.

    Attributes:
        device: Catalogue name of the device.
        threads: CPU threads.
        target: Target flags of the compiler.
        variant: Name of the way chosen.
        choices: Configurations of the tunable dispatches.
        left: Dispatches left to the compiler.
        dispatches: Number of dispatches in all.
        totals_s: Seconds per call that the tunable dispatches take, by way considered.
        raced_s: Measured seconds of whole modules by way, empty where none was timed.
        notes: Sentences for the user.
    """

    device: str
    threads: int
    target: tuple[str, ...]
    variant: str
    choices: tuple[Choice, ...]
    left: tuple[UntunedDispatch, ...]
    dispatches: int
    totals_s: Mapping[str, float]
    raced_s: Mapping[str, float]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> list[tuple[Dispatch, Config]]:
        """Dispatches with their configurations."""
        return [(choice.dispatch, choice.config) for choice in self.choices]

    @property
    def instructions(self) -> Instructions:
        """The texts of the tuning spec, the hook and the hints, and the flags that name them."""
        return Instructions.of(self.chosen)


_KINDS = {CONTRACTION: "products", CONVOLUTION: "convolutions"}


@dataclass(slots=True)
class _Session:
    """One module being tuned. Scratch files of the compiler go to `scratch`."""

    text: str
    device: Device
    threads: int
    target: tuple[str, ...]
    scratch: Path
    notes: list[str] = field(default_factory=list)

    def scored(self, dispatches: Dispatches, models: Models) -> tuple[list[Scored], list[UntunedDispatch]]:
        """Scores of every dispatch that a model can say something of, and the others; each reason is noted once."""
        scores, left = [], []
        for dispatch in dispatches.tunable:
            try:
                model = models(dispatch.kind)
                scores.append(score(dispatch, model, self.device, self.threads))
                self._note(model.caveat)
            except SpecError as error:
                reason = str(error).rstrip(".")
                left += [UntunedDispatch(name, reason) for name in dispatch.names]
                self._note(f"{_KINDS[dispatch.kind]} are left to the compiler: {reason}")
        return scores, left

    def measured(self, scores: Sequence[Scored], k: int, measure: Measure, models: Models) -> list[Scored]:
        """The scores with the compiler's own choices and the best `k` of every dispatch measured."""
        at = [to_measure(item, k) for item in scores]
        tried = [item.candidates.take(rows) for item, rows in zip(scores, at, strict=True)]
        results = []
        for entry, rows, candidates, item in zip(scores, at, tried, measure(tried), strict=True):
            seconds = np.asarray(item, dtype=np.float64)
            known = np.isfinite(seconds)
            if known.any():
                models(entry.dispatch.kind).update(candidates.take(known), seconds[known])
            else:
                self._note(f"{entry.dispatch.title} could not be measured; what the model says decides")
            results.append(entry.with_measured(rows, seconds.tolist()))
        return results

    def settled(self, scores: Sequence[Scored], variant: Variant) -> tuple[Variant, Path] | None:
        """A variant that compiles, with its compiled module; None where the compiler does not pack as it is told."""
        chosen = list(variant.chosen)
        while True:
            folder = Path(tempfile.mkdtemp(dir=self.scratch))
            configs = [(item.dispatch, item.config(i)) for item, i in zip(scores, chosen, strict=True)]
            raw = (self.text, self.target, configs, folder)
            if Instructions.of(configs).hints and not packed_as_told(*raw):
                return None
            why = "IREE does not apply it to this operation"
            if not (refused := not_applied(*raw)):
                try:
                    path = compile_with(*raw)
                    name = variant.name if any(chosen) else DEFAULT
                    return Variant(name, tuple(chosen), total_s(scores, chosen)), path
                except CompileError as error:
                    why = str(error)
                    try:
                        refused = failing(*raw)
                    except CompileError:
                        if variant.name == DEFAULT:
                            raise
                        self._note(f"the way called {variant.name!r} is left out, since it does not compile: {why}")
                        return None
            self._refused(scores, chosen, refused, why)

    def _refused(self, scores: Sequence[Scored], chosen: list[int], refused: Sequence[int], why: str) -> None:
        for i in refused:
            knobs = ", ".join(f"{name} {value}" for name, value in scores[i].config(chosen[i]).items())
            self._note(f"{scores[i].dispatch.title}: {knobs} was dropped for the compiler's own choice ({why})")
            chosen[i] = 0

    def _note(self, sentence: str) -> None:
        if sentence and sentence not in self.notes:
            self.notes.append(sentence)


def tune(
    text: str,
    device: str | Device,
    threads: int = 1,
    models: Models | None = None,
    *,
    target_cpu: str = HOST,
    top: int = 0,
    measure: Measure | None = None,
    race: Race | None = None,
) -> TuningResult:
    """Choose configurations for the products and convolutions of a module that IREE compiles for a CPU.

    Args:
        text: MLIR that `iree-compile` takes: linalg, tosa, stablehlo or torch.
        device: the CPU it runs on, by its name in the catalogue.
        threads: threads it runs on, of `local-task`; 1 for `local-sync`.
        models: gives the cost model of a kind; default: those that come with the product or are the user's own.
        target_cpu: what the compiler makes code for, as `--iree-llvmcpu-target-cpu` takes it.
        top: how many configurations of each dispatch `measure` is given, beside the compiler's own choices.
        measure: measures configurations; without it the models' word counts.
        race: times whole modules; without it sums over dispatches decide between ways to compile the module.

    Raises:
        SpecError: the compiler does not take the module, or the device is unknown or no CPU.
        ImportError: IREE's compiler is not installed.
    """
    known = catalogue().get(device) if isinstance(device, str) else device
    if known.kind != "cpu":
        raise SpecError(f"{known.name} is a {known.kind}; IREE's kernels are tuned for CPUs", field="device")
    # Loaded once each: what one learns must not be forgotten.
    load = cache(models or (lambda kind: CostModel.load(kind, known.name)))
    target = target_flags(text, target_cpu)
    result = read_dispatches(compile_text(text, *target, "--compile-to=flow", brief=True))
    with tempfile.TemporaryDirectory(prefix="kernelcast-tune-") as scratch:
        session = _Session(text, known, threads, target, Path(scratch))
        scores, unknown = session.scored(result, load)
        if measure is not None and scores:
            scores = session.measured(scores, top, measure, load)
        options = variants(scores)
        variant, raced = _decided(session, scores, options, race)
    return TuningResult(
        device=known.name, threads=threads, target=target, variant=variant.name,
        left=(*result.left, *unknown), dispatches=result.total,
        choices=tuple(_choice(item, i) for item, i in zip(scores, variant.chosen, strict=True)),
        totals_s={option.name: option.total_s for option in options} | {variant.name: variant.total_s},
        raced_s=raced, notes=tuple(session.notes),
    )  # fmt: skip


def _decided(
    session: _Session, scores: Sequence[Scored], options: Sequence[Variant], race: Race | None
) -> tuple[Variant, Mapping[str, float]]:
    """The way to compile the module: the fastest that was timed; without a race the one with the least sum."""
    by_total = sorted(options, key=lambda option: option.total_s)
    if race is None:
        return _least(session, scores, by_total), {}
    tried = [settled for option in by_total if (settled := session.settled(scores, option)) is not None]
    ready = {option.name: (option, path) for option, path in tried}
    raced = race({name: path for name, (_, path) in ready.items()})
    known = {name: seconds for name, seconds in raced.items() if np.isfinite(seconds)}
    if DEFAULT not in known:
        session.notes.append("the whole module could not be timed; the sum over its dispatches decides")
        return next(iter(ready.values()))[0], {}
    return ready[min(known, key=lambda name: known[name])][0], known


def _least(session: _Session, scores: Sequence[Scored], by_total: Sequence[Variant]) -> Variant:
    """The variant with the least sum that compiles; sums grow where a configuration has to be dropped."""
    best: Variant | None = None
    for option in by_total:
        if best is not None and best.total_s <= option.total_s:
            break
        # The compiler's own two ways need no trying.
        local = option.name in (DEFAULT, PACKED)
        settled = (option, None) if local else session.settled(scores, option)
        if settled is not None and (best is None or settled[0].total_s < best.total_s):
            best = settled[0]
    return best or next(option for option in by_total if option.name == DEFAULT)


def _choice(scored: Scored, i: int) -> Choice:
    packed = scored.packed
    return Choice(
        scored.dispatch, scored.config(i), float(scored.seconds[i]), float(scored.seconds[0]),
        None if packed is None else float(scored.seconds[packed]), bool(scored.measured[i]),
    )  # fmt: skip


def command_line(result: TuningResult, model: Path | str, folder: Path) -> str:
    """The `iree-compile` command that compiles the file `model` as chosen, with the files written into `folder`."""
    return _command(result, model, result.instructions.flags(folder))


def hook_command_line(result: TuningResult, model: Path | str, folder: Path) -> str | None:
    """The same by the external hook, which has to be found on PATH; None where nothing is tiled."""
    if not result.instructions.tiled:
        return None
    # The hook is looked for by name along PATH, so relative folders would depend on where the compiler is run.
    path = f"PATH={shlex.quote(str(folder.resolve()))}:$PATH"
    return f"{path} {_command(result, model, result.instructions.flags(folder, by_hook=True))}"


def _command(result: TuningResult, model: Path | str, flags: Sequence[str]) -> str:
    module = Path(model).with_suffix(".vmfb").name
    return shlex.join(["iree-compile", str(model), *result.target, *flags, "-o", module])


def summary(result: TuningResult, model: Path | str, folder: Path) -> dict[str, Any]:
    """Everything there is to say, as JSON takes it. Times in seconds of one call."""
    return {
        "model": str(model),
        "device": result.device,
        "threads": result.threads,
        "variant": result.variant,
        "command": command_line(result, model, folder),
        "hook_command": hook_command_line(result, model, folder),
        "hook": HOOK_NAME,
        "totals_s": dict(result.totals_s),
        "measured_module_s": dict(result.raced_s),
        "dispatches": result.dispatches,
        "tuned": [_row(choice) for choice in result.choices],
        "left_to_the_compiler": [{"name": item.name, "reason": item.reason} for item in result.left],
        "notes": list(result.notes),
    }


def _row(choice: Choice) -> dict[str, Any]:
    dispatch = choice.dispatch
    return {
        "title": dispatch.title, "names": list(dispatch.names), "kind": dispatch.kind, "sizes": dict(dispatch.sizes),
        "calls": dispatch.calls, "calls_with_constant_weights": dispatch.constant_calls, "config": dict(choice.config),
        "default_s": choice.default_s, "data_tiling_s": choice.data_tiling_s, "chosen_s": choice.chosen_s,
        "measured": choice.measured,
    }  # fmt: skip
