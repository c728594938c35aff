"""The one schema of measured rows: the `Measurement` record, its columns, and what a row must satisfy.

A row is one case (a `KernelSpec` on a device) and what measuring it gave. SI units, missing is None. The same columns
serve the shipped tables, the store, and the bring-your-own-measurements form, which needs only a few of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from ...features.kernel import KernelSpec, families, get_family
from ...features.spec_io.rows import spec_from_row

FORMAT_VERSION = 4
"""Version of the row format, kept in every file's metadata. History: 1, the first; 2, provenance compressed, and columns for
what a GPU's board and compiler say; 3, the column `software`; 4, the column `timing`."""

READ_VERSIONS = (3, FORMAT_VERSION)
"""Versions that are read; files of others are refused. Rows of version 3 do not say what their times contain."""

STATUSES = ("ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed")
"""`ok` rows carry a latency; every other status says why there is none."""

Status = Literal["ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed"]

MessageKind = Literal["no energy"]
"""What the `message` of a row is about where programs act on it. `no energy`: the latency was measured, its energy refused."""


def message_of(kind: MessageKind, reason: str) -> str:
    """The `message` of a row that has a kind: the kind, a colon and the reason; the column is text."""
    return f"{kind}: {reason}"


def message_kind(message: str | None) -> MessageKind | None:
    """The kind that `message_of` wrote into a row's message; None for free text and for no message."""
    kind = "" if message is None else message.partition(":")[0]
    return next((known for known in get_args(MessageKind) if known == kind), None)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a block of rows comes from: machine, versions, state of the host, and the code that measured.

    Attributes:
        block: Name of the block: rows refer to it in their `block` column, files keep `{block: facts}` in their metadata.
        facts: Plain JSON: device, CPU model, driver, library versions, clocks, temperature, power limit, host load, input
            distribution, collector version, hash of the kernels' source, start time in UTC …
    """

    block: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case on one device and what measuring it gave. Times in seconds, power in watts, energy in joules; None is
    unknown.

    Attributes:
        spec: The kernel.
        device: Catalogue name of the device.
        status: `ok`, or why there is no latency.
        block: Block of rows, which names the provenance.
        latency_s: Median of the clean samples.
        latency_q1_s: First quartile of the samples.
        latency_q3_s: Third quartile of the samples.
        latency_min_s: Smallest sample.
        n_samples: Clean samples.
        first_call_s: First call (compilation, autotuning, allocation), never part of the samples.
        converged: Whether the stopping rule was met.
        noisy: Whether the separated blocks still disagreed at the end.
        rejected_samples: Samples left out as disturbed.
        power_w: Mean power while it ran.
        power_limit_w: Power limit in force.
        energy_j: Energy of one call, gross.
        energy_source: The sensor, None where there is none.
        energy_mode: How the sensor was read (`steady_loop`).
        net_energy_j: Energy of one call above idling at `idle_power_w`.
        idle_power_w: Power of the idle board.
        power_integrated_w: Mean of instantaneous readings over the same window, a check on the energy counter.
        steady_latency_s: Time of a call in the energy loop, longer than `latency_s` where the board caps its power within a
            second.
        energy_windows: Windows over which energy was read.
        energy_spread: (largest - smallest) / median over the windows, None for one window.
        sm_clock_hz: Clock of the GPU's multiprocessors while it ran.
        temperature_c: Temperature of the GPU while it ran, in °C.
        throttle: Throttle reasons joined by commas, empty for none.
        registers: Registers per thread, as the compiler of a tiled kernel reports.
        spill_b: Spilled bytes per thread, likewise.
        shared_b: Shared memory per block in bytes, likewise.
        source: Who measured the row.
        split: The row's split, None for none.
        message: Why there is no latency.
        measured_at: Time in UTC, ISO 8601.
        software: Driver, power limit, versions, microcode: see `software`. The store fills it in from the block's
            provenance.
    """

    spec: KernelSpec
    device: str
    status: Status
    block: str
    latency_s: float | None = None
    latency_q1_s: float | None = None
    latency_q3_s: float | None = None
    latency_min_s: float | None = None
    n_samples: int | None = None
    first_call_s: float | None = None
    converged: bool | None = None
    noisy: bool | None = None
    rejected_samples: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    energy_mode: str | None = None
    net_energy_j: float | None = None
    idle_power_w: float | None = None
    power_integrated_w: float | None = None
    steady_latency_s: float | None = None
    energy_windows: int | None = None
    energy_spread: float | None = None
    sm_clock_hz: float | None = None
    temperature_c: float | None = None
    throttle: str | None = None
    registers: float | None = None
    spill_b: float | None = None
    shared_b: float | None = None
    source: str = "kernelcast"
    split: str | None = None
    message: str | None = None
    measured_at: str | None = field(default=None)
    software: str | None = None

    @property
    def case_id(self) -> str:
        """The spec's content hash; with `device`, what a case is skipped by on resume."""
        return self.spec.case_id


_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def record_columns(kind: type[Any]) -> dict[str, pa.DataType]:
    """The fields of a dataclass as columns of a table; a literal is text, and what may be None is of its other type."""
    hints = {name: next(iter(get_args(hint) or (hint,))) for name, hint in get_type_hints(kind).items()}
    return {f.name: _ARROW.get(hints[f.name], pa.string()) for f in fields(kind)}


_SPEC_COLUMNS = {name: pa.string() for name in ("family", "device", "dtype", "kv_dtype", "variant", "impl")} | {
    "threads": pa.int64(), "cache_state": pa.string(), "timing": pa.string()}  # fmt: skip
_LAST = ("block", "software", "case_id")
_RESULT_COLUMNS = {
    name: kind for name, kind in record_columns(Measurement).items() if name not in ("spec", "device", *_LAST)
} | dict.fromkeys(_LAST, pa.string())


def arrow_schema(family: str) -> pa.Schema:
    """Columns and types of one family's table, in order.

    Raises:
        SpecError: unknown family.
    """
    fam = get_family(family)
    sizes = dict.fromkeys((*fam.dim_names, *fam.config), pa.int64())
    return pa.schema(_SPEC_COLUMNS | sizes | _RESULT_COLUMNS)


def to_row(measurement: Measurement) -> dict[str, Any]:
    """The measurement as one flat row of its family's table."""
    spec = measurement.spec
    row: dict[str, Any] = {name: getattr(spec, name) for name in _SPEC_COLUMNS if name != "device"}
    row.update(spec.dims)
    row.update(spec.config)
    row.update({f.name: getattr(measurement, f.name) for f in fields(measurement) if f.name != "spec"})
    return row | {"timing": spec.timing or None, "case_id": spec.case_id}


def to_table(measurements: list[Measurement], family: str) -> pa.Table:
    """Rows of one family as an Arrow table of `arrow_schema(family)`."""
    return pa.Table.from_pylist([to_row(m) for m in measurements], arrow_schema(family))


def from_row(row: Mapping[str, Any]) -> Measurement:
    """The measurement a stored row describes.

    Raises:
        SpecError: see `spec_from_row`.
    """
    names = {f.name for f in fields(Measurement)} - {"spec"}
    return Measurement(spec=spec_from_row(row), **{name: row[name] for name in names if name in row})


def all_columns() -> frozenset[str]:
    """Every column name any family's table may have."""
    return frozenset(name for family in families() for name in arrow_schema(family).names)


def case_ids_of(rows: pa.Table, family: str) -> list[str]:
    """`KernelSpec.case_id` of every row of one family's table.

    Its content is put together as JSON by whole columns, which is several times as fast as making a spec of each row, so
    that every row of a large store can be checked.
    """
    fam = get_family(family)
    dims = _joined([_pair(rows, name) for name in fam.dim_names], rows.num_rows)
    knobs = _joined([_pair(rows, name) for name in sorted(fam.config)], rows.num_rows)
    # As in `KernelSpec.case_id`, a timing that is not given is no part of it.
    timing = pc.fill_null(rows["timing"].combine_chunks(), "")
    timing = pc.if_else(pc.equal(timing, ""), "]", pc.binary_join_element_wise(', "', timing, '"]', ""))
    content = pc.binary_join_element_wise(
        f'["{fam.name}"', _word(rows, "dtype"), dims, _word(rows, "variant"), _word(rows, "impl"), _word(rows, "kv_dtype"),
        knobs, pc.fill_null(rows["threads"].combine_chunks().cast(pa.string()), "null"),
        pc.binary_join_element_wise(_word(rows, "cache_state"), timing, ""), ", ",
    )  # fmt: skip
    return [hashlib.blake2b(cell, digest_size=8).hexdigest() for cell in content.cast(pa.binary()).to_pylist()]


def _pair(rows: pa.Table, name: str) -> pa.Array:
    """`["m", 64], `, empty where there is no value."""
    text = rows[name].combine_chunks().cast(pa.string())
    return pc.fill_null(pc.binary_join_element_wise(f'["{name}", ', text, "], ", ""), "")


def _joined(parts: list[pa.Array], n: int) -> pa.Array:
    """`[["m", 64], ["n", 8]]` of the parts that are there."""
    if not parts:
        return pa.array(["[]"] * n, pa.string())
    inside = pc.utf8_rtrim(pc.binary_join_element_wise(*parts, ""), ", ")
    return pc.binary_join_element_wise("[", inside, "]", "")


def _word(rows: pa.Table, name: str) -> pa.Array:
    """A text column as JSON, null as `null`."""
    column = rows[name].combine_chunks()
    distinct = pc.unique(column)
    words = pa.array([json.dumps(word) for word in distinct.to_pylist()], pa.string())
    return pc.take(words, pc.index_in(column, value_set=distinct))


VERSIONS = ("torch", "cuda", "cudnn", "hip", "miopen", "xpu", "triton", "cupy", "cutlass", "iree-base-compiler",
            "iree-base-runtime")  # fmt: skip
"""Libraries whose versions are part of it: those that choose or compile the kernels that campaigns run."""


def software_of(facts: Mapping[str, Any]) -> str:
    """`name=value; name=value`, sorted by name, of what `facts` know; empty for facts that know nothing of it.

    Names: `driver`, `cuda_driver` and `power_limit_w` of a GPU (the limit at the block's start where it was read), `microcode`
    and `kernel` of the host, and versions of `VERSIONS`. Facts are those of `collectors/environment.machine_facts`,
    `collectors/meters/find.gpu_facts` and what campaigns, plug-ins and importers add; of any other shape they are left out.
    """
    parts = dict(_versions(facts))
    gpu, before = _mapping(facts.get("gpu")), _mapping(facts.get("before"))
    for name, value in (
        ("driver", gpu.get("driver")), ("cuda_driver", gpu.get("cuda_driver")),
        ("microcode", facts.get("microcode")), ("kernel", facts.get("kernel")),
    ):  # fmt: skip
        if isinstance(value, str) and value.strip():
            parts[name] = _plain(value)
    for limit in (before.get("power_limit_w"), gpu.get("power_limit_w")):
        if isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0:
            # Whole watts: that is what drivers let a person set, and a reading's digits are no change of software.
            parts["power_limit_w"] = f"{limit:.0f}"
            break
    return "; ".join(f"{name}={parts[name]}" for name in sorted(parts))


def _versions(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Versions by library. Those a GPU's worker tells by runner come first, what the whole campaign knows replaces them.

    A CPU's worker tells only of the one library it loads; blocks of a campaign use different workers, and by these the same
    software would get several words.
    """
    workers = _mapping(facts.get("workers"))
    by_runner = [
        version for worker in workers.values() for version in _mapping(_mapping(worker).get("versions")).values()
    ]  # fmt: skip
    for versions in (*by_runner, facts.get("versions")):
        for name in VERSIONS:
            value = _mapping(versions).get(name)
            if isinstance(value, str) and value.strip():
                yield name, _plain(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: str) -> str:
    """The value without what separates values."""
    return " ".join(value.replace(";", ",").split())
