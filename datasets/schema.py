"""The one schema of measured rows: the `Measurement` record, its columns, and what a row must satisfy.

A row is one case (a `KernelSpec` on a device) and what measuring it gave. SI units, missing is None. The same columns
serve the shipped tables, the store, and the bring-your-own-measurements form, which needs only a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pyarrow as pa

from ..features.errors import SpecError
from ..features.kernel import KernelSpec, families, get_family

FORMAT_VERSION = 3
"""Version of the row format, kept in every file's metadata. History: 1, the first; 2, provenance compressed, and columns for
what a GPU's board and compiler say; 3, the column `software`. Older files are read as this version, see `upgrading`."""

STATUSES = ("ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed")
"""`ok` rows carry a latency; every other status says why there is none."""

Status = Literal["ok", "unsupported", "out_of_memory", "timeout", "crashed", "failed"]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a block of rows comes from: machine, versions, state of the host, and the code that measured.

    `facts` is plain JSON (device, cpu model, driver, library versions, clocks, temperature, power limit, host load,
    input distribution, collector version, hash of the kernels' source, start time in UTC …). `block` names it: rows
    refer to it in their `block` column, files keep `{block: facts}` in their metadata.
    """

    block: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case on one device and what measuring it gave. Times in seconds, power in watts, energy in joules.

    `latency_s` is the median of `n_samples` clean samples; quartiles and minimum beside it. `first_call_s`
    (compilation, autotuning, allocation) is never part of the samples. `noisy` is set when the separated blocks still
    disagree at the end, `converged` when the stopping rule was met. `energy_source` names the sensor, None where there
    is none; `energy_mode` how it was read (`steady_loop`).

    `energy_j` is gross, `net_energy_j` what lies above idling at `idle_power_w`; `power_integrated_w` is the mean of
    instantaneous readings over the same window, a check on the counter; `steady_latency_s` is the time of a call in that
    loop, longer than `latency_s` where the board caps its power within a second; `energy_spread` is (largest - smallest)
    / median over `energy_windows` windows, None for one. `sm_clock_hz`, `temperature_c` and `throttle` (words joined by
    commas, empty for none) were read on a GPU while the kernel ran. `registers` (per thread), `spill_b` (per thread) and
    `shared_b` (per block) are what the compiler of a tiled kernel said.
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
    """UTC, ISO 8601."""
    software: str | None = None
    """Driver, power limit, versions, microcode: see `software`. The store fills it in from the block's provenance."""

    @property
    def case_id(self) -> str:
        """The spec's content hash; with `device`, what a case is skipped by on resume."""
        return self.spec.case_id


_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_SPEC_COLUMNS = (("family", str), ("device", str), ("dtype", str), ("kv_dtype", str), ("variant", str), ("impl", str),
                 ("threads", int), ("cache_state", str))  # fmt: skip
_RESULT_COLUMNS = (("status", str), ("latency_s", float), ("latency_q1_s", float), ("latency_q3_s", float),
                   ("latency_min_s", float), ("n_samples", int), ("first_call_s", float), ("converged", bool),
                   ("noisy", bool), ("rejected_samples", int), ("power_w", float), ("power_limit_w", float),
                   ("energy_j", float), ("energy_source", str), ("energy_mode", str), ("net_energy_j", float),
                   ("idle_power_w", float), ("power_integrated_w", float), ("steady_latency_s", float),
                   ("energy_windows", int),
                   ("energy_spread", float), ("sm_clock_hz", float), ("temperature_c", float), ("throttle", str),
                   ("registers", float), ("spill_b", float), ("shared_b", float), ("source", str),
                   ("split", str), ("message", str),
                   ("measured_at", str), ("block", str), ("software", str), ("case_id", str))  # fmt: skip

LABEL_COLUMNS = frozenset({"latency_s", "latency_q1_s", "latency_q3_s", "latency_min_s", "power_w", "energy_j",
                           "net_energy_j", "power_integrated_w", "steady_latency_s", "energy_spread", "sm_clock_hz",
                           "temperature_c", "throttle"})  # fmt: skip
"""Columns a prediction must never read."""


def arrow_schema(family: str) -> pa.Schema:
    """Columns and types of one family's table, in order.

    Raises:
        SpecError: unknown family.
    """
    fam = get_family(family)
    sizes = [(name, int) for name in (*fam.dim_names, *fam.config)]
    return pa.schema([pa.field(name, _ARROW[kind]) for name, kind in (*_SPEC_COLUMNS, *sizes, *_RESULT_COLUMNS)])


def to_row(measurement: Measurement) -> dict[str, Any]:
    """The measurement as one flat row of its family's table."""
    spec = measurement.spec
    row: dict[str, Any] = {name: getattr(spec, name) for name, _ in _SPEC_COLUMNS if name != "device"}
    row.update(spec.dims)
    row.update(spec.config)
    row.update({f.name: getattr(measurement, f.name) for f in fields(measurement) if f.name != "spec"})
    return row | {"case_id": spec.case_id}


def to_table(measurements: list[Measurement], family: str) -> pa.Table:
    """Rows of one family as an Arrow table of `arrow_schema(family)`."""
    schema = arrow_schema(family)
    rows = [to_row(m) for m in measurements]
    return pa.table({name: pa.array([row.get(name) for row in rows], schema.field(name).type) for name in schema.names},
                    schema=schema)  # fmt: skip


def spec_of(row: Mapping[str, Any]) -> KernelSpec:
    """The spec a row describes; missing optional columns take their defaults.

    Raises:
        SpecError: the row names something kernelcast does not know, or a size is out of range.
    """
    family = get_family(row.get("family", ""))
    if (dtype := row.get("dtype")) is None:
        raise SpecError("dtype is missing", field="dtype")
    given = {name: row[name] for name in family.dim_names if row.get(name) is not None}
    knobs = {name: row[name] for name in family.config if row.get(name) is not None}
    return KernelSpec.of(
        family.name, dtype, variant=row.get("variant") or "", impl=row.get("impl") or "",
        kv_dtype=row.get("kv_dtype"), config=knobs, threads=row.get("threads"),
        cache_state=row.get("cache_state") or "hot", **given,
    )  # fmt: skip


def from_row(row: Mapping[str, Any]) -> Measurement:
    """The measurement a stored row describes.

    Raises:
        SpecError: see `spec_of`.
    """
    names = {f.name for f in fields(Measurement)} - {"spec"}
    return Measurement(spec=spec_of(row), **{name: row[name] for name in names if name in row})


def all_columns() -> frozenset[str]:
    """Every column name any family's table may have."""
    return frozenset(name for family in families() for name in arrow_schema(family).names)
