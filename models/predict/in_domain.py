"""How well the training data covers a case category, with the warnings that follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...features.batch.cases import Cases, Floats, Indices
from ...features.batch.category import (
    NO_THREADS,
    CaseCategory,
    MeasuredLabels,
    described,
    kv_pair,
    measured_label,
    thread_label,
)
from ...features.cost.bounds import Work
from ...features.errors import listed
from ...features.kernel import KernelFamily, get_family
from ...features.vector.extract import CategoryFeatures
from ...features.vector.schema import FeatureSchema
from ..family_model.artifact import FamilyModel
from ..family_model.device_correction import Adaptation
from ..family_model.domain import size_limits
from ..family_model.family_regressor import CategoryInputs, Source, covered_targets
from ..family_model.products import alignment_limits, unknown_sides
from ..family_model.utilisation import POWERED_KIND, power_limits_of
from .floors import log_call_s, log_column_s, log_rows_s, log_stream, log_streamed_s
from .named_impl import never_together
from .prediction import HOST_S, MOST_PASSES, ScoreRows

SCALED_BOUND = "scaled bound"
"""Method where no learned model applies: the lower bound times the family's median ratio to it."""

_RESHAPED_ERROR = math.log(2.0)
"""How much larger, in ln, errors are taken of vectors read as rows: without it 38 % of KernelBench's 13 are inside."""

_METHODS = {"seen": "{regressor}", "unseen_device": "{regressor}, carried over", "unseen_kind": SCALED_BOUND,
            "adapted": "{regressor}, calibrated"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainingSupport:
    """How well the training data covers one case category.

    Attributes:
        own_regime: Per target, how the model itself covers it before any adaptation: one of `intervals.REGIMES`.
        answer_regime: Per target, the regime whose interval scores apply.
        transferred: Targets answered from other devices instead.
        direct: Targets that the learned model answers.
        is_learned: Whether a learned model applies to latency.
        is_unseen: Whether the interval of latency is that of a device never measured.
        method: How latency is answered, in words.
        timing: What the time contains, one of `kernel.TIMINGS`.
        novelty: Number of the category's labels never seen in training.
        warnings: What the prediction's notes say of it.
        fallback_warning: What they say where there is nothing else to say; None where it was measured like this.
        alignments: Least and most common alignment of measured products, see `products.alignment`.
        largest_sizes: Largest measured size per dimension, shape `(n_dims,)`; inf where nothing was measured.
        unknown_vectors: Along which sides products with a vector were never measured, see `products.unknown_sides`.
    """

    own_regime: Mapping[str, str]
    answer_regime: Mapping[str, str]
    transferred: frozenset[str]
    direct: frozenset[str]
    is_learned: bool
    is_unseen: bool
    method: str
    timing: str
    novelty: float
    warnings: tuple[str, ...]
    fallback_warning: str | None
    alignments: tuple[float, float]
    largest_sizes: Floats
    unknown_vectors: tuple[bool, bool]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of a case that its sizes add nothing to."""
        return self.warnings or (() if self.fallback_warning is None else (self.fallback_warning,))


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The numbers of each case's record, shape `(n,)`, or `(1,)` where all cases share one.

    Attributes:
        limit_w: Power limits.
        memory_b: Bytes of memory.
        learned: Whether a learned model applies.
        log_call_s: ln of the least time of a call that the device file says, -inf where it says none.
        log_column_s: ln of the least time that a block takes for a column of its row, -inf where rows are not a block's.
        log_stream: ln of the least time over that of all bytes at the peak bandwidth, -inf where it may be less.
        least_alignment: Least common alignment of measured products.
        most_alignment: Most common alignment of them.
        unknown_vectors: Along which sides products with a vector were never measured, shape `(2, n)`.
        largest_sizes: Largest measured sizes, shape `(n_dims, n)`.
    """

    limit_w: Floats
    memory_b: Floats
    learned: Floats
    log_call_s: Floats
    log_column_s: Floats
    log_stream: Floats
    least_alignment: Floats
    most_alignment: Floats
    unknown_vectors: Floats
    largest_sizes: Floats

    @classmethod
    def of(cls, records: Sequence[CategoryRecord], code: Indices) -> RecordColumns:
        """The columns of cases whose category is `code` among `records`."""
        if len(records) == 1:
            return records[0].columns
        return cls.of_rows(np.array([record.numbers for record in records])[code].T)

    @classmethod
    def of_rows(cls, table: Floats) -> RecordColumns:
        """The columns in the rows of a table, in the order of the attributes."""
        limit_w, memory_b, learned, log_call, log_column, stream, least, most = table[:8]
        return cls(limit_w, memory_b, learned, log_call, log_column, stream, least, most, table[8:10], table[10:])

    def reshaped(self, cases: Cases) -> Cases:
        """Elementwise kernels with more rows or columns than any measured, as ones of as many elements inside what was.

        Only the number of elements counts for them, and a vector of millions is no row that anybody measured.
        """
        if cases.family.name != "elementwise":
            return cases
        sizes, limits = dict(cases.sizes), dict(zip(cases.sizes, self.largest_sizes, strict=True))
        for longer, other in (("cols", "rows"), ("rows", "cols")):
            parts = np.ceil(np.maximum(sizes[longer] / limits[longer], 1.0))
            fits = (parts > 1.0) & (sizes[other] * parts <= limits[other])
            sizes[longer] = np.where(fits, np.ceil(sizes[longer] / parts), sizes[longer])
            sizes[other] = np.where(fits, sizes[other] * parts, sizes[other])
        return cases.resized(sizes)

    @staticmethod
    def reshaped_error(before: Cases, cases: Cases) -> Floats | float:
        """What ln of the size of errors grows by where `reshaped` made `cases` of those `before`, shape `(n,)`."""
        return 0.0 if cases is before else _RESHAPED_ERROR * (cases.sizes["cols"] != before.sizes["cols"])

    def log_floor_s(self, cases: Cases, work: Work) -> Floats:
        """Ln of the times below which no answer falls, beside the bounds on paper, shape `(n,)`."""
        log_rows = log_rows_s(cases, self.log_column_s, self.largest_sizes[-1])
        floor = np.maximum(self.log_call_s, log_streamed_s(work, self.log_stream))
        return floor if log_rows is None else np.maximum(floor, log_rows)


_NEARER = 0.3
"""How much nearer another variant has to be measured for it to answer."""


@dataclass(frozen=True, slots=True)
class CategoryRecord:
    """Everything of a case but its sizes, as one family's model knows it.

    Attributes:
        inputs: What the graphs' inputs take from it, with the category and its device under catalogue names.
        sources: The measured devices whose answers can be transferred.
        support: How well the training data covers it.
        notes: The notes of a case that its sizes add nothing to.
        adaptations: What calibration taught of its device, by target.
        numbers: The numbers of `RecordColumns`.
        columns: These as columns of shape `(1,)`.
        scores: What its answers take from its category, by coverage.
    """

    inputs: CategoryInputs
    sources: tuple[Source, ...]
    support: TrainingSupport
    notes: tuple[str, ...]
    adaptations: Mapping[str, Adaptation]
    numbers: Floats
    columns: RecordColumns
    scores: ScoreRows

    @classmethod
    def of(
        cls, model: FamilyModel, inputs: CategoryInputs, sources: tuple[Source, ...], support: TrainingSupport
    ) -> CategoryRecord:
        """The record of a category."""
        device = inputs.features.device
        limit_w, idle_w = power_limits_of(device)
        memory_b = device.fact("memory_b") or math.inf
        numbers = np.array(
            [limit_w, memory_b, support.is_learned, log_call_s(inputs.features, support.own_regime["latency"] == "seen"),
             log_column_s(model.schema.family, inputs.features), log_stream(model.schema.family, inputs.features),
             *support.alignments, *support.unknown_vectors, *support.largest_sizes]
        )  # fmt: skip
        columns = RecordColumns.of_rows(numbers[:, None])
        adaptations = model.adaptations.get(inputs.features.category.device, {})
        is_bounded = support.is_unseen and device.kind == "gpu" and model.schema.family in MOST_PASSES
        host_s = HOST_S if is_bounded else math.inf
        case_numbers = (support.is_learned, support.novelty, limit_w, idle_w, host_s)
        scores = ScoreRows(model, support.answer_regime, adaptations, device, case_numbers)
        return cls(inputs, sources, support, support.notes, adaptations, numbers, columns, scores)

    @property
    def nearness(self) -> float:
        """How near its latency was measured, by its impl: 1 on the device, less on other editions of its chip, 0 elsewhere."""
        if self.support.own_regime.get("latency") == "seen":
            return 1.0
        impl = self.inputs.features.read.impl
        near = [
            source.near_duplicate for source in self.sources
            if source.is_same and "latency" in source.targets and source.inputs.features.read.impl == impl
        ]  # fmt: skip
        return max(near, default=0.0)

    def standing_for(self, model: FamilyModel, variant: str) -> CategoryRecord:
        """The record of another variant for one that it answers for, with a wider interval."""
        read = self.inputs.features.read
        words = (
            f"variant {variant or 'plain'} was not measured near {read.device} in {read.dtype}; read as {read.variant}"
        )
        support = self.support
        wider = replace(support, novelty=support.novelty + 1.0, warnings=(words, *support.warnings))
        return CategoryRecord.of(model, self.inputs, self.sources, wider)


def record_or_like(
    model: FamilyModel, category: CaseCategory, record_of: Callable[[CaseCategory], CategoryRecord]
) -> CategoryRecord:
    """What is known of a category; of one measured nowhere near what is known of a variant like it that was."""
    record = record_of(category)
    variant = get_family(model.schema.family).like_variants.get(category.variant)
    if variant is None or category.knobs or record.adaptations or record.nearness == 1.0:
        return record
    other = record_of(category._replace(variant=variant, timing=record.inputs.features.read.timing))
    is_nearer = category.impl in ("", other.inputs.features.read_as) and other.nearness - record.nearness >= _NEARER
    return other.standing_for(model, category.variant) if is_nearer else record


def training_support(
    model: FamilyModel,
    regressor: str,
    features: CategoryFeatures,
    family: KernelFamily,
    measured: Mapping[str, MeasuredLabels],
) -> TrainingSupport:
    """How well a model's training data covers a category.

    Args:
        model: The model of its family.
        regressor: The name of what was trained.
        features: Those of the category.
        family: Its family.
        measured: For each target what was measured where.
    """
    category, read, read_as, schema = features.category, features.read, features.read_as, model.schema
    learned = features.device.kind in model.kinds
    covered, label = covered_targets(measured, read), measured_label(read, read_as)
    local = {
        target: "unseen_kind" if not learned else "seen" if target in covered else "unseen_device"
        for target, parts in model.targets.items() if parts.members
    }  # fmt: skip
    transferred = {target for target in local if local["latency"] == "unseen_device" == local[target]}
    if local.get("power") == "unseen_device" and category.device not in measured["power"].devices:
        # Measured there in another dtype or variant, a device's own answer of its power stands.
        transferred.add("power")
    adapted = model.adaptations.get(category.device, {})
    regimes = {target: "adapted" if target in adapted else regime for target, regime in local.items()}
    if model.utilisation is not None:
        regimes["power"] = "unseen_device" if learned and features.device.kind == POWERED_KIND else "unseen_kind"
    unknown = _unknown_labels(schema, read._replace(impl=category.impl))
    knobs = [name for name in family.config if name in category.knobs and name not in schema.knobs]
    timings = adapted["latency"].timings(read, read_as) if "latency" in adapted else []
    is_together = read.timing in timings if timings else measured["latency"].is_known(label)
    other_timing = _other_timing(measured["latency"], read, read_as)
    if timings:
        other_timing = None if is_together else timings[0]
    novelty = float(learned and not is_together and not any(what != "impl" for what, _, _ in unknown))
    novelty += learned and category.impl not in ("", read_as)
    novelty += learned and (category.dtype, category.cache_state) != (read.dtype, read.cache_state)
    novelty += sum(what != "impl" for what, _, _ in unknown) + len(knobs)
    warnings = [
        *_place_warnings(
            model,
            category,
            regimes["latency"],
            described(label.partition(" ")[2]) if is_together else None,
            other_timing,
        ),
        *(_label_warning(*entry, read_as) for entry in unknown),
        *(f"{name} was never set in what was measured, and is left out of account" for name in knobs),
    ]
    if category.impl in schema.impls and category.impl != read_as:
        warnings.append(
            f"{category.impl} was never measured on {category.device} in {kv_pair(category)}; read as {read_as}"
        )
    if category.cache_state != read.cache_state:
        warnings.append(f"{read_as} was never measured with {category.cache_state} caches; read as {read.cache_state}")
    if category.dtype != read.dtype:
        warnings.append(
            f"{category.dtype} by {read_as} was not measured; read as {read.dtype}, which runs at the same rate"
        )
    return TrainingSupport(
        own_regime=local,
        answer_regime=regimes,
        transferred=frozenset(transferred),
        direct=frozenset(target for target in local if learned and target not in transferred),
        is_learned=regimes["latency"] != "unseen_kind",
        is_unseen=regimes["latency"] == "unseen_device",
        method=_method(regressor, category, read, regimes["latency"], schema.impls),
        timing=read.timing or "device",
        novelty=novelty,
        warnings=tuple(warnings),
        fallback_warning=never_together(schema.settings, label, read_as) if novelty > 0 else None,
        alignments=alignment_limits(category, model.largest),
        largest_sizes=size_limits(category, model.largest, family.dim_names),
        unknown_vectors=unknown_sides(read, read_as, model.vectors),
    )


def _method(regressor: str, category: CaseCategory, read: CaseCategory, regime: str, impls: Sequence[str]) -> str:
    """How latency is answered, what the impl was read as where that is another, and whether it is the time of a call.

    `impls` are those measured. One of another library is answered without what tells libraries apart.
    """
    name = _METHODS[regime].format(regressor=regressor)
    if regime == "unseen_kind":
        return name
    remarks = [f"{category.impl or 'impl not given'}: read as {read.impl}"] if read.impl != category.impl else []
    remarks += [f"{read.impl}: read as no impl in particular"] if read.impl not in (*impls, "") else []
    remarks += ["time of a call"] if read.timing == "call" else []
    return f"{name} ({'; '.join(remarks)})" if remarks else name


def _unknown_labels(schema: FeatureSchema, category: CaseCategory) -> list[tuple[str, str, Sequence[str]]]:
    """The category's labels that were never measured: what each is, the label, and those that were."""
    labels = (
        ("dtype", category.dtype, schema.dtypes),
        ("variant", category.variant, schema.variants),
        ("impl", category.impl, (*schema.impls, "")),
        ("dtype/kv_dtype", kv_pair(category), schema.kv_pairs),
        ("cache_state", category.cache_state, schema.cache_states),
        ("threads", thread_label(category), (*schema.threads, NO_THREADS)),
    )
    return [(what, label, known) for what, label, known in labels if label not in known]


def _other_timing(measured: MeasuredLabels, read: CaseCategory, impl: str) -> str | None:
    """How the category was timed on its own device, where not as wanted but the other way; None for neither."""
    timing = "device" if read.timing == "call" else "call"
    return timing if measured_label(read._replace(timing=timing), impl) in measured.whole else None


def _place_warnings(
    model: FamilyModel, category: CaseCategory, regime: str, label: str | None, other_timing: str | None
) -> list[str]:
    """What to say of where the category runs.

    Args:
        model: What was learned.
        category: The category.
        regime: That of its latency.
        label: All of it in words, None where no device was measured so.
        other_timing: How it was timed on its device, if in the other way.
    """
    if regime in ("unseen_device", "adapted") and other_timing is not None:
        timed, wanted = ("calls", "kernel alone") if other_timing == "call" else ("the kernel alone", "call")
        return [f"{category.device} was measured as {timed} only; the time of the {wanted} is derived"]
    if regime == "unseen_device" and category.device not in model.devices:
        return [
            f"{category.device} is not among the {len(model.devices)} devices on which {model.schema.family} was measured"
        ]
    if regime == "unseen_device":
        kernel = " ".join(word for word in (category.variant, kv_pair(category)) if word)
        return [f"{label or kernel} was measured on other devices only, never on {category.device}"]
    if regime == "unseen_kind":
        return [f"no {model.schema.family} was measured on a device of {category.device}'s kind"]
    return []


_MOST_LISTED = 12
"""Labels that a note names: dtypes, variants and threads are fewer, libraries with their versions more."""


def _label_warning(what: str, label: str, known: Sequence[str], read_as: str) -> str:
    """What to say of a label that was never measured; `read_as` is the impl that stands in, empty for none."""
    if what == "impl" and read_as in known and read_as:
        return f"impl {label!r} was never measured; {read_as} answers"
    measured = [other for other in known if other and other != NO_THREADS]
    more = f" and {len(measured) - _MOST_LISTED} others" if len(measured) > _MOST_LISTED else ""
    return f"{what} {label!r} was never measured; measured: {listed(measured[:_MOST_LISTED])}{more}"
