"""Measured MLIR modules: their text, and what compiling and running each of them gave.

Two tables. `ModuleText` is a module's text, once. `ModuleRun` is one compiler's build of it, run on one device with so many
threads; rows name their text by `module_id`, a hash of it. A failed run is a row with a status, never a hole.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .schema import Status


@dataclass(frozen=True, slots=True)
class ModuleText:
    """The text of one module and where it comes from.

    `program` names the program it is an instance of, sizes left out (`jax/mlp-gelu/grad`, `generated/fused-000123`): splits
    are by program, so that no program is trained on in one size and judged in another. `source` is what wrote it (`jax`,
    `torch`, `generated`), `dialect` the main dialect of its text. Every argument of its one public function has static sizes.
    """

    text: str
    program: str
    source: str
    dialect: str

    @property
    def module_id(self) -> str:
        """16 hex digits that name this text by content."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class ModuleRun:
    """What compiling and running a module gave. Times in seconds, sizes in bytes; None for what is not known.

    `compiler` is `iree` or `xla`, with versions in the block's provenance, or `iree-avx2`, whose rows have
    `executed_instructions` and no latency. `threads` is the CPU thread count, None on a GPU.
    `latency_s` is the median of `n_samples` clean samples of one call with operands in place, quartiles and minimum beside it,
    as in `schema.Measurement`. `compile_s` is the processor time of the compiler, which is its wall time on an idle core.
    `binary_b` is the size of what it wrote, `code_b` that of the machine code inside. `code_instructions`,
    `vector_instructions` and `spills` (stores to and loads from slots of the stack) count that machine code,
    `executed_instructions` is what one call executes. `dispatches` is the number of kernels the compiler made. Code of
    libraries that a compiler calls instead of writing its own (XLA does, for products) is in none of them.
    """

    module_id: str
    compiler: str
    device: str
    threads: int | None
    status: Status
    block: str
    latency_s: float | None = None
    latency_q1_s: float | None = None
    latency_q3_s: float | None = None
    latency_min_s: float | None = None
    n_samples: int | None = None
    converged: bool | None = None
    noisy: bool | None = None
    rejected_samples: int | None = None
    compile_s: float | None = None
    binary_b: int | None = None
    code_b: int | None = None
    code_instructions: int | None = None
    vector_instructions: int | None = None
    spills: int | None = None
    executed_instructions: float | None = None
    dispatches: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    message: str | None = None
    measured_at: str | None = None
    """UTC, ISO 8601."""
