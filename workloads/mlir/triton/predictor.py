"""Predictions of compiled code from a model artifact: the serving side, with no training library imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, exp, floor
from pathlib import Path
from types import MappingProxyType

from ....features.batch.cases import Floats
from ....features.cost.occupancy import LIMITS, WARP_SIZE, occupancy
from ....features.mlir.triton.program_order import TARGETS, Options, register_limit, triton_function
from ....features.mlir.triton.vectors import NAMES, extract
from ....features.mlir.types.graph import Function, Module
from ....models.engine.runtime import GraphError, Runtime
from ....models.family_model.artifact_files import ArtifactError
from ....models.family_model.intervals import check_coverage, scale_of
from ....models.predict.prediction import Interval
from ....models.pretrained import TRITON_CODE
from .code_model import LEAST_REGISTERS, SCALES, CodeEngine, CodeModel, load_code_model, probability

_WIDENING_PER_DOUBLING = 0.5
"""Half-widths grow by half for every doubling outside the range of training."""

_GIVES_UP_FROM = 0.2
"""From this probability on an answer says that the assembler may give up on registers."""


def load_code_predictor(directory: Path | None = None) -> CodePredictor:
    """The predictor of compiled code of an artifact; None: the shipped one.

    Raises:
        ArtifactError: the directory holds no model of compiled code, or a damaged one.
    """
    chosen = TRITON_CODE if directory is None else directory
    try:
        return CodePredictor(load_code_model(chosen))
    except GraphError as error:
        raise ArtifactError(f"{chosen}: a graph cannot be run: {error}") from error


class CodePredictor:
    """Predicts what Triton functions compile to. Safe to share between threads."""

    def __init__(self, model: CodeModel) -> None:
        self.model = model
        self._engine = CodeEngine(model.graphs, model.fallback)
        self._scales = Runtime([model.graphs[f"scale-{name}"] for name in SCALES])

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets that can be asked about."""
        return tuple(TARGETS)

    def predict(
        self,
        module: Module,
        function: str | None,
        target: str,
        *,
        num_warps: int = 4,
        num_stages: int = 3,
        coverage: float = 0.9,
    ) -> CodePrediction:
        """What a function of a module in Triton IR compiles to.

        Args:
            module: as `features.mlir.understanding.read` gives it.
            function: its name; None: the only public one.
            target: `sm_80` or `sm_90`.
            num_warps: warps of a block, a power of two up to 32.
            num_stages: stages that loops keep in flight.
            coverage: share of functions the intervals are to contain.

        Raises:
            SpecError: no Triton IR, no such function, or an option there is none of; the message says what is possible.
        """
        check_coverage(coverage)
        options = Options(target, num_warps, num_stages)
        chosen = triton_function(module, function)
        x = extract(module, chosen, options)
        return self._answer(x, module, chosen, options, coverage)

    def _answer(
        self, x: Floats, module: Module, function: Function, options: Options, coverage: float
    ) -> CodePrediction:
        row = x[None]
        answer = self._engine.answer(row)
        inputs = row.astype("float32")
        name, beyond = self.model.outside(x)
        factor = 1.0 + _WIDENING_PER_DOUBLING * beyond
        sizes = {target: float(scale_of(column[:, 0])[0]) * factor
                 for target, column in zip(SCALES, self._scales.run(inputs).values(), strict=True)}  # fmt: skip
        limit = register_limit(options.num_warps)
        limits = LIMITS[TARGETS[options.target]]
        registers = self._interval(
            "registers", float(answer.registers[0]), sizes["registers"], coverage, LEAST_REGISTERS, float(limit)
        )
        instructions = self._interval(
            "instructions", float(answer.instructions[0]), sizes["instructions"], coverage, 1.0, float("inf")
        )
        shared = self._shared(float(answer.shared_b[0]), factor, coverage)
        slope, intercept = self.model.platt
        spills = float(probability(slope * answer.spill_margin + intercept)[0])
        given_up = float(answer.given_up[0])
        share, blocks = _occupancy(options, registers, shared)
        return CodePrediction(
            function=function.name,
            reader=module.reader,
            target=options.target,
            num_warps=options.num_warps,
            num_stages=options.num_stages,
            registers=registers,
            instructions=instructions,
            shared_b=shared,
            spill_probability=spills,
            spill_b=float(answer.spill_b[0]) if spills > 0.5 else 0.0,
            occupancy=share,
            blocks_per_sm=blocks,
            limits=MappingProxyType({"registers": limit, "shared_b": limits.shared_per_block_b}),
            coverage=coverage,
            in_domain=beyond == 0.0,
            notes=_notes(x, shared, limits.shared_per_block_b, given_up, name if beyond else "", options),
        )

    def _interval(self, name: str, value: float, size: float, coverage: float, least: float, most: float) -> Interval:
        """Whole numbers around a value; the ends go outwards, so rounding takes nothing from the coverage."""
        low, high = self.model.scores[name].bounds(coverage)
        middle = min(max(float(round(value)), least), most)
        lower = max(float(floor(value * exp(max(low * size, -_MOST_LOG_WIDTH)))), least)
        upper = min(float(ceil(value * exp(min(high * size, _MOST_LOG_WIDTH)))), most)
        return Interval(middle, min(lower, middle), max(upper, middle))

    def _shared(self, value: float, factor: float, coverage: float) -> Interval:
        low, high = (end * factor for end in self.model.scores["shared_b"].bounds(coverage))
        return Interval(value, max(floor((1.0 + value) * exp(max(low, -_MOST_LOG_WIDTH)) - 1.0 + 1e-6), 0.0) + 0.0,
                        float(ceil((1.0 + value) * exp(min(high, _MOST_LOG_WIDTH)) - 1.0 - 1e-6)))  # fmt: skip


_MOST_LOG_WIDTH = 12.0
"""An interval reaches at most this far in logarithms: what is wider says nothing either."""


def _occupancy(options: Options, registers: Interval, shared: Interval) -> tuple[Interval, int]:
    """Occupancy by CUDA's rules: the more a block takes, the fewer fit."""

    def of(registers_each: float, shared_b: float) -> tuple[float, int]:
        occupied = occupancy(
            TARGETS[options.target],
            threads=WARP_SIZE * options.num_warps,
            registers=int(registers_each),
            shared_b=int(shared_b),
        )
        return occupied.share, occupied.blocks

    share, blocks = of(registers.value, shared.value)
    lower, upper = of(registers.upper, shared.upper)[0], of(registers.lower, shared.lower)[0]
    return Interval(share, min(lower, share), max(upper, share)), blocks


def _notes(
    x: Floats, shared: Interval, most_b: int, given_up: float, outside: str, options: Options
) -> tuple[str, ...]:
    notes = []
    if outside:
        notes.append(f"{outside} is outside what was compiled to learn from: the intervals are wider")
    if shared.value > most_b:
        notes.append(
            f"it takes more shared memory than a block can have on {options.target} ({most_b} B): it would not run"
        )
    if given_up > _GIVES_UP_FROM:
        notes.append(
            "far too many values are alive at once: the assembler may give up and keep few of them in registers "
            f"(probability {given_up:.0%})"
        )
    unread = x[NAMES.index("unknown")]
    if unread > 0:
        notes.append(
            f"{round(2.0 ** float(unread) - 1.0)} operations are of kinds that are not known; "
            "they count as library calls"
        )
    return tuple(notes)


@dataclass(frozen=True, slots=True)
class CodePrediction:
    """The machine code one Triton function becomes.

    Attributes:
        function: Its name.
        reader: What read the text.
        target: The GPU architecture.
        num_warps: Warps of a block.
        num_stages: Pipeline stages.
        registers: Per thread.
        instructions: Machine instructions, each once however often it runs.
        shared_b: Bytes per block.
        spill_probability: Of a stack of more than `labels.SPILL_B` bytes per thread.
        spill_b: The stack expected if so, else 0.
        occupancy: The warps' share of what a multiprocessor holds, 0 to 1; its interval holds wherever those of registers
            and shared memory do.
        blocks_per_sm: Blocks that a multiprocessor holds.
        limits: Registers per thread and shared bytes per block that the target has.
        coverage: Share of functions the intervals are built to contain.
        in_domain: Whether the function is inside the domain of the model.
        notes: What to know of the answer.
    """

    function: str
    reader: str
    target: str
    num_warps: int
    num_stages: int
    registers: Interval
    instructions: Interval
    shared_b: Interval
    spill_probability: float
    spill_b: float
    occupancy: Interval
    blocks_per_sm: int
    limits: Mapping[str, int]
    coverage: float
    in_domain: bool
    notes: tuple[str, ...]
