"""Measured programs as the tables that models of programs are trained on and judged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ....datasets.records.compiled_code import TritonModule
from ....datasets.records.mlir_modules import (
    ModuleRun,
    ModuleText,
    read_packed,
    read_runs,
    read_texts,
    runs_of,
    texts_of,
)
from ....features.batch.cases import Floats
from ....features.device import Device
from ....features.errors import SpecError, listed
from ....features.mlir.program import Program
from ....features.mlir.vectors.program_vector import extract
from .ragged_batch import RaggedBatch, to_ragged_batch

CHARACTERISTICS = (
    "compile_s",
    "code_b",
    "code_instructions",
    "vector_instructions",
    "spills",
    "dispatches",
)
"""What is learned beside latency where rows have it; fields of `ModuleRun`."""

Vector = TypeVar("Vector")

Setting = tuple[str, int]
"""A compiler and its threads."""

_NOISE = 0.15
"""A spread between quartiles, over the median, from which on a row counts less."""


@dataclass(frozen=True, slots=True)
class MeasuredPrograms:
    """`n` programs on one device, and what was measured of them.

    Attributes:
        device: The device.
        programs: Their numbers.
        names: The programs they are instances of.
        sources: Where each comes from.
        dialects: The dialect of each text.
        texts: The texts.
        settings: Compilers with threads, the columns of all that follows.
        log_latency: ln of seconds, shape `(n, n_settings)`, NaN where nothing was measured.
        weight: How much each counts, likewise.
        characteristics: Further columns by name, likewise.
    """

    device: str
    programs: RaggedBatch
    names: tuple[str, ...]
    sources: tuple[str, ...]
    dialects: tuple[str, ...]
    texts: tuple[str, ...]
    settings: tuple[Setting, ...]
    log_latency: Floats
    weight: Floats
    characteristics: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Any) -> MeasuredPrograms:
        """Those of `rows`."""
        rows = np.flatnonzero(rows) if np.asarray(rows).dtype == np.bool_ else np.asarray(rows)

        def chosen(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(words[i] for i in rows)

        return MeasuredPrograms(
            self.device, self.programs.take(rows), chosen(self.names), chosen(self.sources), chosen(self.dialects),
            chosen(self.texts), self.settings, self.log_latency[rows], self.weight[rows],
            {name: column[rows] for name, column in self.characteristics.items()},
        )  # fmt: skip


def read_modules(paths: Sequence[Path]) -> tuple[list[ModuleText], list[ModuleRun]]:
    """The texts and rows of stores (directories with `texts/` and `runs/`) and of packed tables (directories with
    `texts.parquet` and `runs.parquet`); one of each.

    Raises:
        SpecError: a directory is neither, or a file in it is damaged.
    """
    texts: dict[str, ModuleText] = {}
    runs: dict[tuple[object, ...], ModuleRun] = {}
    for path in paths:
        if (path / "texts.parquet").exists() and (path / "runs.parquet").exists():
            own_texts, own_runs = read_packed(path)
        elif (path / "texts").is_dir() and (path / "runs").is_dir():
            own_texts, own_runs = texts_of(read_texts(path)), runs_of(read_runs(path))
        else:
            raise SpecError(
                f"{path} holds no measured programs: it has neither texts.parquet and runs.parquet nor texts/ and runs/; "
                "measure some with `kernelcast measure mlir`",
                field="data",
            )
        texts.update((text.module_id, text) for text in own_texts)
        runs.update(((run.module_id, run.compiler, run.device, run.threads), run) for run in own_runs)
    return list(texts.values()), list(runs.values())


Text = TypeVar("Text", ModuleText, TritonModule)


def readable(
    texts: Sequence[Text], read: Callable[[Text], Vector], progress: Callable[[int, int], None]
) -> tuple[list[Text], list[Vector], list[str]]:
    """The texts that `read` understands, what it makes of each, and why others are left out.

    Raises:
        SpecError: it understands none.
    """
    understood: list[Text] = []
    vectors: list[Vector] = []
    refusals: list[str] = []
    for i, text in enumerate(texts):
        progress(i, len(texts))
        try:
            vectors.append(read(text))
            understood.append(text)
        except SpecError as error:
            refusals.append(f"{text.program}: {error}")
    if not understood:
        raise SpecError(
            f"none of {len(texts)} programs can be used" + (f": {refusals[0]}" if refusals else ""), field="data"
        )
    return understood, vectors, refusals


def measured_programs(
    texts: Sequence[ModuleText],
    runs: Sequence[ModuleRun],
    device: Device,
    understand: Callable[[str], Program],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[MeasuredPrograms, list[str]]:
    """The programs measured on one device, and why some of them are left out.

    Args:
        texts: the modules.
        runs: what was measured, on whatever device.
        device: which device.
        understand: from a text to its program.
        progress: told how many texts of how many were read.

    Raises:
        SpecError: nothing was measured on the device.
    """
    device_runs = [run for run in runs if run.device == device.name and run.status == "ok" and run.latency_s]
    if not device_runs:
        there = sorted({run.device for run in runs})
        raise SpecError(
            f"no program was measured on {device.name}; rows are of: {listed(there) or 'nothing'}", field="data"
        )
    settings = tuple(sorted({(run.compiler, run.threads or 1) for run in device_runs}))
    measured = {run.module_id for run in device_runs}
    chosen = sorted(
        (text for text in texts if text.module_id in measured), key=lambda text: (text.program, text.module_id)
    )
    understood, vectors, refusals = readable(chosen, lambda text: extract(understand(text.text), device), progress)
    row = {text.module_id: i for i, text in enumerate(understood)}
    column = {setting: j for j, setting in enumerate(settings)}
    shape = (len(understood), len(settings))
    log_latency, weight = np.full(shape, np.nan), np.full(shape, np.nan)
    characteristics = {name: np.full(shape, np.nan) for name in CHARACTERISTICS}
    for run in device_runs:
        if run.module_id not in row or run.latency_s is None:
            continue
        at = row[run.module_id], column[run.compiler, run.threads or 1]
        log_latency[at], weight[at] = np.log(run.latency_s), _trust(run)
        for name, values in characteristics.items():
            value = getattr(run, name)
            values[at] = np.nan if value is None else value
    names, sources, dialects, contents = (
        tuple(str(getattr(text, name)) for text in understood) for name in ("program", "source", "dialect", "text")
    )
    return MeasuredPrograms(
        device.name,
        to_ragged_batch(vectors),
        names,
        sources,
        dialects,
        contents,
        settings,
        log_latency,
        weight,
        characteristics,
    ), refusals


def _trust(run: ModuleRun) -> float:
    """How much a row counts: less where its samples spread or a machine was noisy."""
    trust = 1.0
    if run.latency_q1_s and run.latency_q3_s and run.latency_s:
        spread = (run.latency_q3_s - run.latency_q1_s) / run.latency_s
        trust = 1.0 / (1.0 + (spread / _NOISE) ** 2)
    return max(trust * (0.7 if run.noisy else 1.0), 0.1)
