"""What was learned of a family, with what its graphs read, and the measured device that says most of another.

The nearest counts alone among them: averages of several erred alike on devices left out, at several times the cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.batch.category import CaseCategories, CaseCategory, CategoryCache, MeasuredLabels, measured_label
from ...features.cost.bounds import BOUNDS, TERMS, Work, counts, counts_of, n_counts
from ...features.cost.device_limits import DeviceLimits, limit_numbers
from ...features.device import Catalogue, Device
from ...features.kernel import TIMINGS, View, get_family
from ...features.vector.extract import CategoryEncoder, CategoryFeatures, Features, derive, knob_features
from ...features.vector.schema import FeatureSchema
from ..engine.program import GraphColumns, Program
from ..engine.runtime import Runtime
from ..regressor import Matrix
from .analytic import AnalyticModel

Members = Mapping[str, tuple[tuple[int, int, float], ...]]

_FACTS = ("compute_units", "boost_clock_hz", "memory_bandwidth_b_per_s", "l2_b", "tdp_w")

_OTHER_ARCHITECTURE = 0.5
_OTHER_VENDOR = 1.0
"""What another architecture or vendor adds, in doublings of every fact: kernels are written anew for each. Chosen once, on
devices left out of public tables (docs/decisions/009-unseen-devices.md)."""

_OTHER_CAPABILITY = 0.05
"""What another compute capability of one architecture adds: a GB200's chip is a B200's, not a B300's, though that is a little
nearer by its limits. With 0.1 an A100 would be answered from an H100, not an RTX 3090: attention 25.1 instead of 19.9 %."""

_DUPLICATE_WITHIN, _STRANGER_BEYOND = 0.15, 0.5
"""Devices this near are one chip in two editions (another memory, another board: A100 40 and 80 GB are 0.10 apart, H100 and
H200 SXM 0.16); beyond the second figure only the general laws carry over."""


@dataclass(frozen=True, slots=True)
class CategoryInputs:
    """What the inputs of the graphs take from a case's category.

    Attributes:
        features: Its features.
        numbers: Limits of its device, and ln of the analytic model's weights where there is one, as `GraphInputs` takes them.
        constants: The inputs of the graphs that follow from the category, float32, shape `(n_inputs,)`.
    """

    features: CategoryFeatures
    numbers: Floats
    constants: Matrix


@dataclass(frozen=True, slots=True)
class Source:
    """The nearest device on which the like of a category was measured.

    Attributes:
        device: Its name.
        distance: How far it is, see `distance`.
        near_duplicate: How far it is another edition of the same chip, 0 to 1.
        is_same: Whether all of the category was measured there, with the same impl: of another one it says less.
        weight: How far its answer is taken alone, 0 to 1: an edition's where the same was measured, the device's own always.
        targets: The targets of which it is the nearest.
        inputs: The inputs of the category on that device.
    """

    device: str
    distance: float
    near_duplicate: float
    is_same: bool
    weight: float
    targets: frozenset[str]
    inputs: CategoryInputs


@dataclass(frozen=True, slots=True)
class Query:
    """Cases as a family's graphs meet them.

    Attributes:
        cases: The cases.
        columns: Their operand counts and sizes, as `GraphInputs` takes them.
        categories: Their categories, under catalogue names.
        inputs: What the inputs take from each category.
        features: Their features.
        log_base: ln of what latency is learned as a ratio to, in seconds, shape `(n,)`.
        x: What the graphs read, float32 `(n, n_inputs)`.
    """

    cases: Cases
    columns: Floats
    categories: CaseCategories
    inputs: Sequence[CategoryInputs]
    features: Features
    log_base: Floats
    x: Matrix


class GraphInputs:
    """From counts, sizes and categories to what the graphs of a family read.

    Args:
        schema: Names the features.
        has_analytic: Whether latency is a ratio to an analytic model, whose seconds are then the graphs' last input.
    """

    def __init__(self, schema: FeatureSchema, has_analytic: bool) -> None:
        self._schema, self._family = schema, get_family(schema.family)
        self._counting: dict[tuple[str, str, str], Program] = {}
        self._columns = np.array(schema.size_columns + [len(schema.names)] * has_analytic)
        self._has_analytic, self._n_sized = has_analytic, len(schema.size_columns)
        self._program = Program(
            self._formula,
            (n_counts(self._family), len(self._family.dim_names)),
            (len(fields(DeviceLimits)), len(TERMS) if has_analytic else 0),
        )

    def _formula(self, counted: Any, sizes: Any, limits: Any, log_weights: Any) -> Any:
        sized, work, terms = derive(counted, sizes, limits)
        if self._has_analytic:
            parts = np.log(terms) + log_weights
            top = parts.max(axis=0)
            base = top + np.log(np.exp(parts - top).sum(axis=0))
        else:
            base = np.log(work.lower_bound_s)
        bounds_s = np.stack(list(work.bounds_s.values()))
        single = np.stack([base / np.log(2.0), base, work.lower_bound_s, work.dram_all_s])
        return np.concatenate([sized, single, bounds_s, terms])

    def columns(self, cases: Cases) -> Floats:
        """Counts and sizes of cases, one under the other, shape `(k, n)`."""
        sizes = np.array(list(cases.sizes.values()))
        if self._family.looks_at_sizes:
            return np.concatenate([counts(cases), sizes])
        categories, code = cases.categories.distinct, cases.categories.code
        kinds = [category[1:4] for category in categories]
        if len(set(kinds)) == 1:
            return self._count(kinds[0], sizes)
        table = np.empty((n_counts(self._family) + len(sizes), len(code)))
        for kind in set(kinds):
            here = np.flatnonzero(np.array([other == kind for other in kinds])[code])
            table[:, here] = self._count(kind, np.ascontiguousarray(sizes[:, here]))
        return table

    def _count(self, kind: tuple[str, str, str], sizes: Floats) -> Floats:
        """Counts and sizes of cases of one dtype, kv_dtype and variant."""
        if kind not in self._counting:
            family = self._family

            def formula(sizes: Any, _: Any) -> Any:
                return np.concatenate(
                    [counts_of(family, View(*kind, dict(zip(family.dim_names, sizes, strict=True)))), sizes]
                )

            self._counting[kind] = Program(formula, (len(sizes),), (0,))
        return self._counting[kind].run(sizes)[0]

    def of(
        self,
        cases: Cases,
        columns: Floats,
        inputs: Sequence[CategoryInputs],
        code: Indices,
        rows: Indices | None = None,
    ) -> tuple[Floats, Matrix, Mapping[str, Floats]]:
        """What follows from the cases, as `derived` reads it; what graphs read, float32 `(n, n_inputs)`; features of knobs.

        Args:
            cases: The cases.
            columns: Their counts and sizes, one under the other, shape `(k, n)`.
            inputs: The categories.
            code: Which of them each row has.
            rows: Which case each row is; None: every case once. A case may stand on several devices.
        """
        numbers, constants = (
            (inputs[0].numbers[None], inputs[0].constants[None]) if len(inputs) == 1
            else (np.array([each.numbers for each in inputs]), np.array([each.constants for each in inputs]))
        )  # fmt: skip
        out, x = self._program.run(columns, numbers, code, rows, GraphColumns(self._columns, constants))
        knobs = knob_features(cases, self._schema, [each.features for each in inputs], code, rows)
        for name, column in knobs.items():
            x[:, self._schema.names.index(name)] = column
        return out, x, knobs

    def derived(self, out: Floats, columns: Floats, numbers: Any) -> tuple[Floats, Work, Floats, Floats]:
        """Features and work and terms, see `extract.derive`, and ln of what latency is learned as a ratio to, in seconds."""
        n, m = self._n_sized, self._n_sized + 4 + len(BOUNDS)
        _, base, lower, dram_all, *bounds_s = out[n:m]
        flops, _, moved, footprint = columns[:4]
        work = Work(flops, moved, footprint, dict(zip(BOUNDS, bounds_s, strict=True)), lower, dram_all, *numbers[:2])
        return out[:n], work, out[m:], base


class FamilyRegressor:
    """What was learned of one family, ready to answer under a catalogue of devices."""

    def __init__(
        self,
        schema: FeatureSchema,
        runtime: Runtime,
        members: Members,
        analytic: AnalyticModel | None,
        free: int | None,
        measured: Mapping[str, Iterable[str]],
        devices: Catalogue,
        shift: float = 0.0,
    ) -> None:
        """What was learned.

        Args:
            schema: Names the features.
            runtime: Runs the graphs.
            members: Each target's (graph, column, weight) triples in `runtime`.
            analytic: The fitted analytic model that latency is a ratio to, if any.
            free: The graph of the scale-free trees, which answer ln(latency / lower bound).
            measured: For each target the `measured_label`s of what was measured where.
            devices: The devices known.
            shift: Added to ln(latency) of devices without a near duplicate.
        """
        self.schema = schema
        self.runtime = runtime
        self.members = members
        self.free = free
        self.shift = shift
        self.devices = devices
        self._unit = get_family(schema.family).unit
        self.analytic = analytic
        self.measured = {target: MeasuredLabels(labels) for target, labels in measured.items()}
        latencies = self.measured.get("latency")
        self.n_gpus = 0 if latencies is None else sum(devices.get(name).kind == "gpu" for name in latencies.devices)
        """GPUs on which latencies were measured."""
        self._encoder = CategoryEncoder(schema, devices, () if latencies is None else latencies.whole)
        self._inputs = CategoryCache(self._find_inputs)
        self.averages: dict[tuple[str, ...], Program] = {}
        """Programs of `device_transfer`, by targets."""
        self.graph_inputs = GraphInputs(schema, analytic is not None)

    def inputs_of(self, categories: Sequence[CaseCategory]) -> list[CategoryInputs]:
        """What the inputs take from each category.

        Raises:
            SpecError: unknown device, or a dtype a device has no peak for.
        """
        return [self._inputs[category] for category in categories]

    def _find_inputs(self, category: CaseCategory) -> CategoryInputs:
        features = self._encoder.encode([category])[0]
        weights = () if self.analytic is None else self.analytic.log_weights(features.read, features.read_as)
        numbers = np.array([*limit_numbers(features.limits), *weights])
        constants = np.append(features.constant, [] if self.analytic is None else [np.nan]).astype(np.float32)
        return CategoryInputs(features, numbers, constants)

    def sources_of(self, category: CaseCategory) -> tuple[Source, ...]:
        """For each target the nearest measured device that says something of a category, a catalogue name's."""
        here = self._encoder.read(category)
        # What is read as another dtype of the same rate here is so on every source.
        category = category._replace(dtype=here.dtype, kv_dtype=here.kv_dtype)
        device = self.devices.get(category.device)
        origins = {name: self.devices.get(name) for name in self.schema.devices}
        apart = {name: distance(device, origin) for name, origin in origins.items() if origin.kind == device.kind}
        waiting = set(self.measured)
        nearest: dict[str, Source] = {}
        for name in sorted(apart, key=apart.__getitem__):
            source = self._source(category, here, name, apart[name]) if waiting else None
            if source is not None and not waiting.isdisjoint(source.targets):
                nearest[name] = replace(source, targets=frozenset(waiting & source.targets))
                waiting -= source.targets
        return tuple(nearest[name] for name in apart if name in nearest)

    def _source(self, category: CaseCategory, here: CaseCategory, name: str, apart: float) -> Source | None:
        """What a measured device, so far apart, says of the category, which is read as `here`; None for nothing measured."""
        device, origin = self.devices.get(category.device), self.devices.get(name)
        # It may lack the hardware, or have been measured under a catalogue that knew a peak for it.
        if not origin.runs(category.dtype, self._unit):
            return None
        # The base of the answer has what is wanted. So the other timing will do, and of the device itself whatever runs there.
        impls = [category.impl] if category.impl else [here.impl, ""]
        ways = [
            (impl, timing) for impl in impls for timing in sorted(TIMINGS, key=lambda timing: timing != here.timing)
        ]
        if device.name == origin.name:
            ways = [*ways[1:], *(("", timing) for _, timing in ways if not category.knobs)]
        tried = []
        for impl, timing in ways:
            moved = category._replace(device=name, impl=impl, timing=timing)
            read = self._encoder.read(moved)
            tried.append((covered_targets(self.measured, read), moved, read))
            if "latency" in tried[-1][0]:
                break
        # Latency if there is any, else what the first way has.
        targets, moved, read = max(tried, key=lambda way: ("latency" in way[0], len(way[0])))
        # A share of the power limit carries over from whatever dtype and variant it was measured in.
        if "power" in self.measured and name in self.measured["power"].devices:
            targets = targets | {"power"}
        if not targets:
            return None
        has_same_impl = (
            read.impl == here.impl if device.name == origin.name else not category.impl or read.impl == here.impl
        )
        is_same = has_same_impl and measured_label(read, read.impl) in self.measured["latency"].whole
        near = near_duplicate(apart)
        weight = near if is_same or device.name == origin.name else 0.0
        return Source(name, apart, near, is_same, weight, targets, self.inputs_of([moved])[0])

    def query(self, cases: Cases, inputs: Sequence[CategoryInputs], code: Indices) -> Query:
        """The cases as the graphs meet them; `inputs` are those of their categories, `code` says which each case has."""
        columns = self.graph_inputs.columns(cases)
        out, x, knobs = self.graph_inputs.of(cases, columns, inputs, code)
        numbers = (
            inputs[0].numbers[:, None] if len(inputs) == 1 else np.array([each.numbers[:2] for each in inputs])[code].T
        )
        sized, work, terms, base = self.graph_inputs.derived(out, columns, numbers)
        encoded = [entry.features for entry in inputs]
        constants = np.array([entry.constant for entry in encoded])
        features = Features(
            self.schema, sized, constants, code, knobs, work, terms, [entry.read_as for entry in encoded]
        )
        categories = CaseCategories(tuple(entry.category for entry in encoded), code)
        return Query(cases, columns, categories, inputs, features, base, x)


def covered_targets(measured: Mapping[str, MeasuredLabels], read: CaseCategory) -> frozenset[str]:
    """The targets for which the like of a category was measured on its device; `read` is what it is read as.

    A call's time does not tell that of the kernel, nor the other way round. Power depends on what a kernel keeps busy, and
    hardly on what launched it: it is covered by any impl.
    """
    label = measured_label(read, read.impl)
    other = measured_label(read._replace(timing="device" if read.timing == "call" else "call"), read.impl)

    def has_latency(labels: MeasuredLabels) -> bool:
        known = labels.is_known(label) or labels.is_known(other)
        return label in labels.whole if known else labels.has_kernel(read)

    return frozenset(
        target for target, labels in measured.items()
        if (has_latency(labels) if target == "latency" else labels.has_kernel(read))
    )  # fmt: skip


def distance(a: Device, b: Device) -> float:
    """Mean difference of the datasheet facts both have, in doublings, and more for another architecture or vendor, or another
    compute capability of one architecture.
    """
    steps = [
        abs(math.log2(a.required(name) / b.required(name)))
        for name in _FACTS
        if a.fact(name) is not None and b.fact(name) is not None
    ]
    apart = sum(steps) / len(steps) if steps else 1.0
    if a.architecture != b.architecture:
        apart += _OTHER_ARCHITECTURE
    elif a.compute_capability != b.compute_capability:
        apart += _OTHER_CAPABILITY
    return apart + (_OTHER_VENDOR if a.vendor != b.vendor else 0.0)


def near_duplicate(apart: float) -> float:
    """1 for devices that are editions of one chip, 0 for strangers, linear between."""
    return min(max((_STRANGER_BEYOND - apart) / (_STRANGER_BEYOND - _DUPLICATE_WITHIN), 0.0), 1.0)
