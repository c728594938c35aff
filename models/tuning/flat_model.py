"""One kind's model as a value: formula, facts of devices, trees, and what was measured; read from and written to a file.

`prediction_s = bound_s * exp(latency forest)`, and where a model has a second forest,
`energy_j = prediction_s * exp(energy forest)`: the second forest is the logarithm of the mean power in watts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...features.errors import SpecError, listed
from ...features.tuning.formula import MOST_EXP, Formula
from ...features.tuning.kind import BOUND
from ...files import write_whole
from . import model_file as form
from .forest import Column, Forest, ForestEvaluator
from .model_file import Cursor, Measured, ModelFileError

SUFFIX = ".kcm"
"""What the name of a model file ends in; its stem is the kind's name."""


@dataclass(frozen=True, slots=True)
class FlatModel:
    """The model of one kind. Nothing of it changes, so threads may share it.

    Attributes:
        kind: Name of the kind.
        sizes: Names of its sizes.
        knobs: Names of its knobs.
        facts: Names of its facts.
        table: Facts of every `(device, dtype)` it knows, in the order of `facts`.
        formula: Reads sizes, knobs and facts, in this order, and gives the features, `bound_s` among them.
        latency: Trees of ln(latency / bound).
        energy: Trees of ln(mean power in watts); None where nothing is known of it.
        metadata: What the file says of the model's making.
        measured: Measurements the model remembers; None for none.
    """

    kind: str
    sizes: tuple[str, ...]
    knobs: tuple[str, ...]
    facts: tuple[str, ...]
    table: Mapping[tuple[str, str], tuple[float, ...]]
    formula: Formula
    latency: Forest
    energy: Forest | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    measured: Measured | None = None
    _bound: int = field(init=False, repr=False, compare=False)
    _evaluators: tuple[ForestEvaluator, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        forests = [self.latency] if self.energy is None else [self.latency, self.energy]
        object.__setattr__(self, "_bound", self.formula.names.index(BOUND))
        object.__setattr__(self, "_evaluators", tuple(ForestEvaluator(forest) for forest in forests))

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices the model knows, sorted."""
        return tuple(sorted({device for device, _ in self.table}))

    def dtypes(self, device: str) -> tuple[str, ...]:
        """The dtypes it knows of a device, sorted."""
        return tuple(sorted(dtype for name, dtype in self.table if name == device))

    def facts_for(self, device: str, dtype: str) -> dict[str, float]:
        """The facts of a device and a canonical dtype, by name.

        Raises:
            ModelFileError: the model does not know them; the sentence says what it knows.
        """
        known = self.table.get((device, dtype))
        if known is None:
            if device not in self.devices:
                raise ModelFileError(
                    f"the model of {self.kind} does not know the device {device!r}; it knows: {listed(self.devices)}",
                    field="device",
                )
            raise ModelFileError(
                f"the model of {self.kind} does not know {dtype} on {device}; it knows: {listed(self.dtypes(device))}",
                field="dtype",
            )
        return dict(zip(self.facts, known, strict=True))

    def features(self, inputs: Mapping[str, Any]) -> list[float | Column]:
        """The features in the formula's order, each a float or a column `(n,)`.

        `given` has all sizes, knobs and facts by name, numbers or columns of one length.
        """
        return self.formula.values(inputs)

    def seconds(self, features: Sequence[float | Column], n: int) -> Column:
        """Predicted seconds `(n,)` from what `features` gave.

        Raises:
            SpecError: the numbers are too large to give a time that is finite and greater than 0.
        """
        with np.errstate(all="ignore"):
            latency_s: Column = features[self._bound] * np.exp(
                np.minimum(self._evaluators[0].sums(features, n), MOST_EXP)
            )
        return self._checked(latency_s, "time")

    def joules(self, features: Sequence[float | Column], seconds: Column) -> Column:
        """Predicted joules `(n,)` of runs that take `seconds` `(n,)`.

        Raises:
            SpecError: the model has no second forest, or the numbers are too large.
        """
        if self.energy is None:
            raise SpecError(f"the model of {self.kind} predicts no energy", field="energy_j")
        with np.errstate(all="ignore"):
            energy_j = seconds * np.exp(np.minimum(self._evaluators[1].sums(features, len(seconds)), MOST_EXP))
        return self._checked(energy_j, "energy")

    @property
    def evaluator(self) -> ForestEvaluator:
        """The latency forest, made ready."""
        return self._evaluators[0]

    def _checked(self, checked: Column, what: str) -> Column:
        if len(checked) and not (checked.min() > 0.0 and checked.max() < np.inf):
            raise SpecError(
                f"the model of {self.kind} has no {what} for these sizes; they may be too large", field="sizes"
            )
        return checked


def write_model(model: FlatModel, path: Path | str) -> None:
    """Write a model file; a process that reads it at the same time sees the old or the new one whole.

    Raises:
        ModelFileError: it cannot be written.
    """
    try:
        write_whole(Path(path), encode(model))
    except OSError as error:
        raise ModelFileError(f"cannot write the model file {path}: {error}", field="model") from error


def read_model(path: Path | str, kind: str | None = None) -> FlatModel:
    """The model a file holds; every length, number and reference in it is checked.

    Raises:
        ModelFileError: missing, no model file, another format, cut short, damaged, or of another kind than `kind`.
    """
    return decode(_read_bytes(Path(path)), str(path), kind)


def _read_bytes(path: Path) -> bytes:
    """The bytes of a model file.

    Raises:
        ModelFileError: there is no such file, it cannot be read, or it is larger than any model.
    """
    try:
        with path.open("rb") as file:
            # What says it is too large need not be read to be refused; what does not say is read no further than that.
            too_large = os.fstat(file.fileno()).st_size > form.MOST_BYTES
            content = b"" if too_large else file.read(form.MOST_BYTES + 1)
    except FileNotFoundError:
        raise ModelFileError(
            f"there is no model file {path}; train one with `kernelcast train tuning` (kinds named op-…: "
            "`kernelcast train export-ops`), or give the path of one",
            field="model",
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read the model file {path}: {error}", field="model") from error
    if too_large or len(content) > form.MOST_BYTES:
        raise ModelFileError(f"{path} is larger than {form.MOST_BYTES} bytes, which no model file is", field="model")
    return content


def encode(model: FlatModel) -> bytes:
    """The bytes of a model file."""
    strings = form.Strings()
    sections = {
        "KIND": form.names_bytes(strings, model.kind, model.sizes, model.knobs, model.facts),
        "FACT": form.table_bytes(strings, model.table, len(model.facts)),
        "FORM": form.formula_bytes(strings, model.formula),
        "TREE": form.forest_bytes(model.latency),
    }
    if model.energy is not None:
        sections["TRE2"] = form.forest_bytes(model.energy)
    sections["META"] = json.dumps(dict(model.metadata), sort_keys=True, allow_nan=False).encode()
    if model.measured is not None and len(model.measured):
        sections["SEEN"] = form.measured_bytes(strings, model.measured)
    return form.pack({**sections, "STRS": strings.content()})


def decode(content: bytes, origin: str, kind: str | None = None) -> FlatModel:
    """The model in the bytes of a file that `origin` names; see `read_model`."""
    sections = form.unpack(content, origin)

    def section(tag: str) -> Cursor:
        return Cursor(sections, tag, origin)

    strings = form.read_strings(section("STRS"))
    name, sizes, knobs, facts = form.read_names(section("KIND"), strings)
    if kind is not None and name != kind:
        raise ModelFileError(f"{origin} is a model of {name}, not of {kind}", field="kind")
    formula = form.read_formula(section("FORM"), (*sizes, *knobs, *facts), strings)
    n_features = len(formula.outputs)
    return FlatModel(
        kind=name,
        sizes=sizes,
        knobs=knobs,
        facts=facts,
        table=form.read_table(section("FACT"), len(facts), strings),
        formula=formula,
        latency=form.read_forest(section("TREE"), n_features),
        energy=form.read_forest(section("TRE2"), n_features) if "TRE2" in sections else None,
        metadata=form.read_metadata(section("META")),
        measured=form.read_measured(section("SEEN"), len(sizes), len(knobs), strings) if "SEEN" in sections else None,
    )
