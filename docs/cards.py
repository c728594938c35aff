"""Writes the cards of the shipped tables, in datasets/data/ (shipped/, tiles/, programs/, pairs/).

Run `.venv/bin/python docs/cards.py` after the tables change; a test fails while a card is out of date.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kernelcast.datasets.records.kernel_pairs import GPU_PAIRS, PAIRS_DIR, read_pairs
from kernelcast.datasets.records.mlir_modules import PROGRAMS_DIR, RUN_SCHEMA, read_packed
from kernelcast.datasets.shipped import (
    HISTORY_DIR,
    SHIPPED_DIR,
    TILES_DIR,
    dataset_card,
    read_shipped,
    shipped_families,
)
from kernelcast.datasets.store.parquet_files import file_metadata, provenance_of, read_file
from kernelcast.features.device import catalogue

LICENCE = "Apache-2.0, as kernelcast itself. Measured by kernelcast's own collectors; nothing was taken from elsewhere."

KERNELS = """
Latencies of nine families of PyTorch operators on two cores of an AMD EPYC 9005 (Zen 5) virtual machine, fp32 and bf16,
with one thread and with two, caches hot and cold. Two thirds of the shapes fill the space of sizes evenly in the logarithm,
one third are those of published models; powers of two have no preference. A fresh clone predicts CPU kernels from them, and
the tests use them.
"""

OTHER_CPUS = """
Latencies of nine families of PyTorch operators on two cores of three other virtual machines, an AMD EPYC 9004 (Zen 4), an AMD
EPYC 7003 (Zen 3, without bf16 instructions) and a fifth-generation Intel Xeon (Emerald Rapids), fp32 and bf16, with one thread
and with two, caches hot and cold. Those of the Xeon are ten nights of three minutes and the rows that judge them, those of the
Zen 3 two adaptations of ten minutes and three campaigns, the second of four families more, embeddings, cross-entropy, fused
steps of optimisers and rotary positions, the third of another four: latent and linear attention, short convolutions before it,
and the scaling of activations to short formats. A CPU never measured is answered from several with them.
"""

TILED = """
Latencies of fp32 matrix products compiled by IREE for one core, each shape with about fifty tile configurations, IREE's own
choice and its data tiling. Poor configurations are in it on purpose: a cost model must know them. Every result was checked
against numpy before it was timed.
"""

SHARED_GAPS = (
    "A virtual machine with neighbours, who share its last-level cache: working sets of 2–20 MB repeat worst.",
    "No power or energy: the machine shows no sensor.",
    "Freed memory is reused (see docs/measurement.md): page faults of fresh memory are not in these latencies.",
    "One PyTorch and one IREE version; other versions choose other kernels.",
)

GPU_KERNELS = """
Latencies of seventeen families of kernels on NVIDIA H200s, some also on an H100, taken as CUDA graphs, caches hot and cold, in
the dtypes that PyTorch runs there; of a stratified share also power and energy. Shapes fill the space of sizes evenly in the
logarithm or are those of published models. The campaigns measured the cases with the most value for its minutes
(docs/measurement.md). Results, and a comparison with public tables, are in docs/h200.md.
"""

GPU_TILED = """
Matrix products and attention with their tuning knobs on NVIDIA H200s, some also on an H100: Triton kernels, CUTLASS kernels
for sm_80's tensor cores, and a naive CUDA product in square tiles of 1 to 32. Poor configurations are in it on purpose: a
cost model must know them. Every result was checked against PyTorch before it was timed. Registers, spills and shared memory
come from the compilers.
"""

GPU_GAPS = (
    "A few boards, on two days, in virtual machines; boards of one kind differ by a few percent in clocks and power.",
    "Latency is that of a short burst: a large product that the board's power limit slows within a second runs up to "
    "a fifth longer in a steady loop (`steady_latency_s`, in the rows with energy).",
    "GPU time only: what the host needs to launch a kernel is in the launch traces, not in these latencies.",
    "Power and energy in few rows, and only for hot caches: a cold call cannot be repeated in a steady loop.",
    "One version each of PyTorch, cuDNN, Triton and CUTLASS; other versions choose other kernels.",
)


def _of(kind: str, impls: tuple[str, ...], devices: tuple[str, ...] = ("*",)) -> Callable[[pa.Table], pa.Array]:
    """Rows on devices of a kind (`cpu`, `gpu`) whose `impl` matches one of `impls` and whose name matches `devices`."""
    names = [device.name for device in catalogue() if device.kind == kind and _matches(device.name, devices)]

    def chosen(table: pa.Table) -> pa.Array:
        wanted = [impl for impl in table["impl"].unique().to_pylist() if _matches(impl, impls)]
        return pc.and_(
            pc.is_in(table["device"], pa.array(names)), pc.is_in(table["impl"], pa.array(wanted, pa.string()))
        )

    return chosen


def _matches(impl: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(impl, pattern) for pattern in patterns)


CARDS: dict[str, tuple[str, str, Callable[[pa.Table], pa.Array], tuple[str, ...]]] = {
    "cpu-kernels.md": (
        "PyTorch kernels on two Zen 5 cores",
        KERNELS,
        _of("cpu", ("torch",), ("*-9005-*",)),
        (
            "Cases of more than about 30 ms or 128 MB are not in it; nor are dtypes other than fp32 and bf16.",
            "Cold rows repeat within 5–11 %, against 2–4 % for hot ones.",
            *SHARED_GAPS,
        ),
    ),
    "other-cpu-kernels.md": (
        "PyTorch kernels on three more CPUs",
        OTHER_CPUS,
        _of("cpu", ("torch",), ("*-9004-*", "*-7003-*", "intel-*")),
        (
            "The Zen 4 machine was shared while it measured: two blocks of three were measured twice, since the machine moved, "
            "and repeats of its sentinels scatter by 9 and 12 %. The Zen 3 machine was busy too: cases measured twice differ "
            "by 12.6 % (median) and 20.2 % (mean).",
            "Their device files hold what was measured, and no data sheet's figures: the hypervisor hides the model.",
            *SHARED_GAPS[1:],
        ),
    ),
    "cpu-tiled-gemm.md": (
        "Tiled matrix products on one Zen 5 core",
        TILED,
        _of("cpu", ("iree",)),
        (
            "fp32 only: IREE's tiled bf16 code widens to fp32 and has no use for the bf16 instructions.",
            "One thread, hot caches, products of at most about 0.5 GFLOP.",
            *SHARED_GAPS,
        ),
    ),
    "h200-kernels.md": (
        "Library kernels on NVIDIA H200 and H100",
        GPU_KERNELS,
        _of("gpu", ("torch", "torch-*")),
        GPU_GAPS,
    ),
    "h200-tiled.md": (
        "Tiled kernels on NVIDIA H200 and H100",
        GPU_TILED,
        _of("gpu", ("triton", "cutlass", "cupy-tiled")),
        ("The CUTLASS kernels are those for sm_80: Hopper's own instructions are not in them.", *GPU_GAPS),
    ),
}


IREE_TILES = """
Latencies of fp32 products (plain, batched, one operand transposed) and of unpadded convolutions (NHWC and NCHW) compiled
by IREE for one core of a Zen 5 or a Zen 3: shapes with seven to twenty tile configurations each, IREE's own choice and, of
products, its data tiling. Configurations of the first round were drawn over the knobs, poor ones among them; those of later
rounds are what a cost model of the rows so far ranked first, where its mistakes are. Every result was checked against numpy.
"""

MLIR_OPT_TILES = """
Latencies of fp32 products that mlir-opt 19 lowers by plain loops after one level of tiling with peeled remainders, compiled by
LLVM 19 at -O3 for one core: shapes with some 25 tile sizes each, and untiled loops. Every result was checked against numpy.
"""

TILE_GAPS = (
    "The machine's other core was busy while these rows were measured; a case whose blocks disagree is marked noisy.",
    "One thread, hot caches, fp32; products and convolutions of at most about 1 GFLOP.",
    *SHARED_GAPS,
)

TRITON_TILES = """
Up to 48 configurations each of 40 shapes by Triton on one NVIDIA H200: products in bf16 and fp8 and attention, of prompts and
of decoding, caches hot (`benchmarks/triton_sweep.py`). Cost models of Triton's configurations are trained on them and judged
with shapes held out (docs/plugins.md). The kernel model is not: with thousands of rows of few shapes it gets products by
other libraries wrong.
"""

TRITON_TILE_GAPS = (
    "One board on one day; 1,770 of the sweep's 2,000 cases, in random order; row-major operands, head sizes of 64 and 128.",
    *GPU_GAPS[1:3],
)

TILE_CARDS: dict[str, tuple[str, str, Callable[[pa.Table], pa.Array], tuple[str, ...]]] = {
    "iree-tiles.md": ("Tiled kernels of IREE on two CPUs", IREE_TILES, _of("cpu", ("iree",)), TILE_GAPS),
    "mlir-opt-tiles.md": (
        "Tiled loops of mlir-opt on one Zen 5 core",
        MLIR_OPT_TILES,
        _of("cpu", ("mlir-opt",)),
        TILE_GAPS,
    ),
    "triton-sweep.md": (
        "Triton's configurations on an NVIDIA H200",
        TRITON_TILES,
        _of("gpu", ("triton",)),
        TRITON_TILE_GAPS,
    ),
}

HISTORY = """
Twelve nights on one core of an AMD EPYC 9005 (Zen 5) virtual machine, between which the libraries below PyTorch take other
code paths, as they would after an update: real kernels, really measured. `libraries` in a block's facts is `a` (as installed),
`b` (PyTorch's own kernels with 256-bit vectors, oneDNN without bf16 instructions) or `c` (MKL's oldest code path),
`library_settings` the environment that did it, `night` the night: a a a b b a a c c b b a. Up to sixty cases repeat every
night, the others are new. They exist to compare retraining with reusing old models (docs/gate.md), and are no part of what the
shipped models learn from.
"""

HISTORY_GAPS = (
    "One thread, hot caches, products of at most 0.5 GFLOP and operands of at most 30 MB.",
    "A night is fifty seconds of measuring, all twelve within half an hour: nothing drifts but the libraries.",
    "The machine's other core was busy in most nights; the worker had a core and priority of its own.",
    "A setting is not an update: code paths change, versions of compilers and kernels do not.",
    *SHARED_GAPS[:3],
)

HISTORY_CARDS: dict[str, tuple[str, str, Callable[[pa.Table], pa.Array], tuple[str, ...]]] = {
    "history.md": ("Twelve nights between which libraries changed", HISTORY, _of("cpu", ("torch",)), HISTORY_GAPS),
}
FOLDERS = {
    **dict.fromkeys(CARDS, SHIPPED_DIR),
    **dict.fromkeys(TILE_CARDS, TILES_DIR),
    **dict.fromkeys(HISTORY_CARDS, HISTORY_DIR),
}
"""Every card and the folder it is of."""


def card(name: str) -> str:
    """The text of one card."""
    title, what, chosen, gaps = (CARDS | TILE_CARDS | HISTORY_CARDS)[name]
    folder = FOLDERS[name]
    tables = {family: read_shipped(family, directory=folder) for family in shipped_families(folder)}
    remaining = {family: table.filter(chosen(table)) for family, table in tables.items()}
    remaining = {family: _only_its_blocks(table) for family, table in remaining.items() if table.num_rows}
    return dataset_card(title, remaining, what=what, licence=LICENCE, gaps=gaps)


def _only_its_blocks(table: pa.Table) -> pa.Table:
    """The table with the provenance of the blocks its rows are of, and no other's."""
    blocks = set(table["block"].to_pylist())
    facts = {block: about for block, about in provenance_of(table).items() if block in blocks}
    return table.replace_schema_metadata(file_metadata(facts))


MODULES = """
Whole MLIR modules, compiled and run by IREE (llvm-cpu) and by XLA on two cores of virtual machines, an AMD EPYC 9005 (Zen 5)
and a 7003 (Zen 3). {modules} distinct modules of {programs} programs have a latency: blocks of models, losses and their
gradients written in JAX ({jax}), exported from PyTorch through torch-mlir ({torch}), drawn graphs ({generated}), and texts
after public descriptions of operations, kernels and networks ({described}). By dialect: {dialects}. A program is
a structure in several sizes; splits are by program. Operands are seeded random numbers in place before the call; results are
allocated by the call, as callers see it.
"""

MODULE_GAPS = (
    "Virtual machines with neighbours, the other core busy while rows were measured on one thread; half of Zen 3's are noisy.",
    "Rows on two threads are noisier: a runtime's own threads preempt each other, and both cores were wanted by others.",
    "No power or energy: the machine shows no sensor.",
    "One version each of IREE and XLA, with default flags; IREE without data tiling.",
    "`code_instructions`, `vector_instructions` and `spills` count machine code once, however often it runs.",
    "What a call executes was counted (callgrind, AVX2 builds: `iree-avx2`) of a few small modules only.",
    "XLA takes StableHLO text only.",
)
MODULE_CARD = "mlir-modules.md"


def module_card() -> str:
    """The text of the card of the measured modules."""
    texts, runs = read_packed()
    measured = {run.module_id for run in runs if run.status == "ok"}
    measured_texts = [text for text in texts if text.module_id in measured]
    sources, dialects = (Counter(getattr(text, name) for text in measured_texts) for name in ("source", "dialect"))
    what = MODULES.format(
        modules=f"{len(measured_texts):,}", programs=f"{len({text.program for text in measured_texts}):,}", **sources,
        dialects=", ".join(f"{name} {count}" for name, count in dialects.most_common()),
    )  # fmt: skip
    table = read_file(PROGRAMS_DIR / "runs.parquet", RUN_SCHEMA)
    # A case, for a card, is what was measured once per compiler and thread count.
    table = table.append_column("case_id", table["module_id"])
    tables = {}
    for compiler, threads in sorted({(run.compiler, run.threads or 0) for run in runs}):
        chosen = pc.and_(pc.equal(table["compiler"], compiler), pc.equal(pc.fill_null(table["threads"], 0), threads))
        tables[f"{compiler}, {threads} thread{'s' if threads > 1 else ''}"] = table.filter(chosen)
    return dataset_card("MLIR modules on two virtual machines", tables, what=what, licence=LICENCE, gaps=MODULE_GAPS)


PAIRS = """
How much longer kernels of nine families take beside each other on the two cores of an AMD EPYC 7003 (Zen 3) virtual machine: a
kernel on each core, one thread each, PyTorch, hot caches, fp32 and bf16. Of each family as many kernels fit the second-level
cache as fit the last level and neither. `a_slowdown` is the time of a call of `a` beside `b` over that alone in the same cycle,
`a_error` the standard error of its logarithm (docs/neighbours.md). The law of neighbours is fitted to them.
"""

PAIR_GAPS = (
    "One machine, a virtual one with neighbours of its own, which move its speed by 30 % within a tenth of a second.",
    "Calls of at most 30 ms and operands of at most 40 MB; products in fp32 only; one thread each; pairs, and no more kernels.",
    "No power or energy: the machine shows no sensor.",
)

GPU_PAIRS_WHAT = """
How much longer kernels of seventeen families take beside each other on an NVIDIA H200: two CUDA streams of one process, on each
a graph of calls of one kernel that is replayed without a pause; PyTorch, hot caches. Two of three pairs have two kernels of
20 µs or more, by a guess. `a_slowdown` is the time of a call of `a` beside `b` over that alone in the same cycle, `a_error` the
standard error of its logarithm (docs/neighbours.md). The law of GPUs is fitted to them.

`h200-launches.parquet` has what torch's profiler saw one call of 157 of the kernels launch: names cut at 60 characters and
seconds, by the same torch on an H200 on 27 November 2026. Numbers of launches come from it.
"""

GPU_PAIR_GAPS = (
    "A few boards, twelve minutes, one process: processes that take turns are not in it, nor more than two kernels.",
    "Calls of at most 5 ms and operands of at most 2 GB.",
    "What engines fuse (latent and linear attention, rotary positions, quantisation) ran as eager PyTorch, in many launches.",
    "Slots are too short for a power limit to act on two kernels in full.",
)
PAIR_CARDS = {
    "pairs.md": (PAIRS_DIR / "pairs.parquet", "Pairs of kernels on two Zen 3 cores", PAIRS, PAIR_GAPS),
    "h200-pairs.md": (GPU_PAIRS, "Pairs of kernels on two streams of an NVIDIA H200", GPU_PAIRS_WHAT, GPU_PAIR_GAPS),
}


def _page(title: str, what: Sequence[str], where: str, gaps: Sequence[str]) -> str:
    known = "\n".join(f"* {gap}" for gap in gaps)
    parts = (f"# {title}", *what, "## Where and how", where, "## Known gaps", known, "## Licence", LICENCE)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def pair_card(name: str) -> str:
    """The text of a card of measured pairs."""
    path, title, what, gaps = PAIR_CARDS[name]
    rows, facts = read_pairs(path)
    good = [row for row in rows if row.status == "ok"]
    slower = defaultdict(list)
    for row in good:
        slower[row.a.family].append(row.a_slowdown)
        slower[row.b.family].append(row.b_slowdown)
    table = ["| family | in pairs | median | nine of ten below | most |", "| --- | --- | --- | --- | --- |"]
    for family, values in sorted(slower.items()):
        middle, high, most = (f"{value:.3f}" for value in np.percentile(values, (50, 90, 100)))
        table.append(f"| {family} | {len(values)} | {middle} | {high} | {most} |")
    errors = [error for row in good for error in (row.a_error, row.b_error)]
    kernels = {spec for row in good for spec in (row.a, row.b)}
    middle, high = (100 * float(np.percentile(errors, share)) for share in (50, 90))
    devices = ", ".join(sorted({row.device for row in rows}))
    others = "hold a kernel of long calls" + ", or ended too seldom" * (path == GPU_PAIRS)
    counts = (
        f"{len(rows)} pairs on {devices}, {len(good)} of them with times, of {len(kernels)} kernels; the others {others}. "
        f"Standard error of a slowdown: median {middle:.1f} %, nine in ten below {high:.1f} %."
    )
    where = [
        f"* {block}: {fact['utc']}, {fact['gpu']['name'] if 'gpu' in fact else fact['cpu_model']}, "
        f"{fact['cores']} cores, torch {fact['versions']['torch']}, seed {fact['seed']}"
        for block, fact in sorted(facts.items())
    ]
    return _page(title, (what, "## What", counts, "## Slowdowns", "\n".join(table)), "\n".join(where), gaps)


TORCH_PROGRAMS = """
What a step of 26 PyTorch programs takes on one NVIDIA H200, in small and in large sizes: inference and training, eager and
compiled, fp32 and bf16 (`benchmarks/torch_suite.py`). Measured by `benchmarks/torch_programs_gpu.py`, whose `Measured` has the
columns: time in a steady loop, the host's alone, the GPU's alone, peak memory, energy. No model was trained on them; estimates
of whole programs are judged by them, and what a host takes for an operator was fitted to the small ones (docs/pytorch.md).
"""

TORCH_PROGRAM_GAPS = (
    "One GPU, one host with slow single threads, one PyTorch; no fp16, no several GPUs, no CUDA graphs.",
    "Energy is of steps that take up to 1.7 times as long where the host limits, since it reads the sensor too.",
    "15 programs have no energy: counter and power readings differ by more than 5 % there (`message`).",
)
TORCH_PROGRAM_CARD = "torch-programs.md"

DECODER_STEPS = """
`steps.parquet` has 66 steps of decoder layers as CUDA graphs (`benchmarks/decoder_steps.py`, docs/h200.md): prompts and
decoding of Llama 3.1 8B and 70B and Qwen3 30B-A3B, with power and energy. `steps-repeated.parquet` has 13 of them again, on
another board on 27 November 2026. No model was trained on them.
"""


def torch_program_card() -> str:
    """The text of the card of the measured PyTorch programs."""
    table = pq.read_table(PROGRAMS_DIR / "torch.parquet")
    facts = json.loads(table.schema.metadata[b"facts"])
    rows = table.to_pylist()
    lines = ["| size | programs | ms a step | bound by the host | with energy |", "| --- | --- | --- | --- | --- |"]
    for size in ("small", "large"):
        some = [row for row in rows if row["size"] == size]
        times = [1e3 * row["latency_s"] for row in some]
        waits = sum(row["host_s"] > row["device_s"] for row in some)
        energies = sum(row["energy_j"] is not None for row in some)
        lines.append(f"| {size} | {len(some)} | {min(times):.3g} to {max(times):.3g} | {waits} | {energies} |")
    where = (
        f"* {facts['device']}, {facts['gpu']['power_limit_w']:g} W, driver {facts['gpu']['driver']}, CUDA {facts['cuda']}, "
        f"torch {facts['torch']}, Python {facts['python']}"
    )
    what = (TORCH_PROGRAMS, DECODER_STEPS, "## What", "\n".join(lines))
    return _page("PyTorch programs on an H200", what, where, TORCH_PROGRAM_GAPS)


if __name__ == "__main__":
    for pair_name in PAIR_CARDS:
        (PAIRS_DIR / pair_name).write_text(pair_card(pair_name), encoding="utf-8")
    (PROGRAMS_DIR / TORCH_PROGRAM_CARD).write_text(torch_program_card(), encoding="utf-8")
    (PROGRAMS_DIR / MODULE_CARD).write_text(module_card(), encoding="utf-8")
    for file_name, place in FOLDERS.items():
        (place / file_name).write_text(card(file_name), encoding="utf-8")
