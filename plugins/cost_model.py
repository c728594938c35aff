"""The one thing every compiler's plug-in talks to: a model of one kind on one device that ranks configurations.

>>> import numpy as np
>>> from kernelcast.features.tuning.kind import Candidates, Task
>>> from kernelcast.plugins.cost_model import CostModel
>>> model = CostModel.load("iree-contraction", "amd-epyc-9005-vm-2c")           # doctest: +SKIP
>>> task = Task("iree-contraction", {"batch": 1, "m": 512}, "fp32", model.device)   # doctest: +SKIP
>>> best = model.rank(Candidates.of(task, [{"tile_m": 32}, {"tile_m": 64}]), k=1)   # doctest: +SKIP
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features.dtypes import parse_dtype
from ..features.errors import SpecError, listed
from ..features.tuning.kind import Candidates, check_sizes
from ..files import home_dir
from ..models.pretrained import TUNING as SHIPPED
from ..models.tuning.corrections import Memory, TaskKey, configurations
from ..models.tuning.flat_model import SUFFIX, FlatModel, read_model, write_model
from ..models.tuning.model_file import ModelFileError

MOST_MEASURED = 2**18
"""Measurements a model remembers; beyond, the oldest are forgotten."""

Floats = NDArray[np.float64]
__all__ = ["CostModel", "ModelFileError", "PluginWarning", "model_path", "warn_once"]


def model_path(kind: str) -> Path:
    """The file of a kind's model: the user's own under `KERNELCAST_HOME`, else the shipped one.

    Raises:
        ModelFileError: there is neither; the sentence lists kinds that have one.
    """
    folders = (own_path(kind).parent, SHIPPED)
    for folder in folders:
        path = folder / f"{kind}{SUFFIX}"
        if path.is_file():
            return path
    known = sorted({path.stem for folder in folders for path in folder.glob(f"*{SUFFIX}")})
    raise ModelFileError(
        f"there is no model of kind {kind!r}; there are: {listed(known) or 'none'}; train one with "
        "`kernelcast train tuning` (kinds named op-…: `kernelcast train export-ops`), or give the path of one",
        field="kind",
    )


def own_path(kind: str) -> Path:
    """Where the user's own model of a kind lies, whether there is one or not.

    Raises:
        ModelFileError: the name could not be that of a kind.
    """
    if not isinstance(kind, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", kind):
        raise ModelFileError(f"{kind!r} is no name of a kind of tuning problem", field="kind")
    return home_dir() / "tuning" / f"{kind}{SUFFIX}"


class CostModel:
    """Seconds of configurations of one kind on one device, learning from what is measured. Threads may share it."""

    def __init__(self, model: FlatModel, device: str) -> None:
        self.model = model
        self.device = _known_device(model, device)
        """The device's name as the model has it."""
        self._learning = Lock()
        self._memory = Memory.of(model)

    @classmethod
    def load(cls, kind: str, device: str, path: Path | str | None = None) -> CostModel:
        """The model of a kind for a device of the catalogue, by name or alias.

        Args:
            kind: such as `iree-contraction`.
            device: the device the configurations run on.
            path: a model file; default: the user's own under `KERNELCAST_HOME`, else the shipped one.

        Raises:
            ModelFileError: the file is missing, damaged, of another format or kind, or does not know the device.
        """
        return cls(read_model(model_path(kind) if path is None else path, kind), device)

    @property
    def kind(self) -> str:
        """The kind it is a model of."""
        return self.model.kind

    @property
    def caveat(self) -> str:
        """That nothing was measured on the device; empty where something was, or where the model does not tell."""
        measured = self.model.metadata.get("devices_measured", ())
        if not measured or self.device in measured:
            return ""
        return (
            f"the model of {self.kind} has no measurements of {self.device}, only of {listed(sorted(measured))}; it goes by "
            "the device's datasheet"
        )

    def save(self, path: Path | str | None = None) -> None:
        """Write the model with all it has learnt; default: where `load` looks first. Swapped in whole.

        Raises:
            ModelFileError: the file cannot be written.
        """
        write_model(replace(self.model, measured=self._memory.rows), own_path(self.kind) if path is None else path)

    def update(self, candidates: Candidates, measured_s: Any) -> None:
        """Learn from measurements `(n,)` in seconds: these are remembered, near configurations are corrected.

        Raises:
            SpecError: another number of measurements than configurations, a time that is not finite and greater than 0, or
                a task the model cannot answer; nothing is learnt then.
        """
        seconds = _checked_seconds(measured_s, len(candidates))
        key, knobs = self._key(candidates), self._knobs(candidates)
        self.model.facts_for(*key[:2])
        if len(seconds):
            with self._learning:
                self._memory = self._memory.after(key, knobs, seconds, MOST_MEASURED)

    def predict(self, candidates: Candidates) -> Floats:
        """Seconds of every configuration, shape `(n,)`: the median of its measurements where it was measured.

        Raises:
            SpecError: sizes are missing, unknown or too large, a knob is unknown, or the task is of another kind or device.
            ModelFileError: the model does not know the dtype on the device.
        """
        return self._memory.seconds(self._key(candidates), self._knobs(candidates))

    def predict_energy(self, candidates: Candidates) -> Floats:
        """Joules of every configuration, shape `(n,)`: the predicted seconds times the predicted mean power.

        Raises:
            SpecError: the model predicts no energy, or as for `predict`.
        """
        seconds = self.predict(candidates)
        query = configurations(self.model, self._key(candidates), self._knobs(candidates))
        return self.model.joules(query.features, seconds)

    def rank(self, candidates: Candidates, k: int) -> NDArray[np.intp]:
        """Indices of the `min(k, n)` fastest configurations, best first; of equals, the one given first.

        Raises:
            SpecError: `k` is negative, or as for `predict`.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise SpecError(f"k must be 0 or more and whole, got {k!r}", field="k")
        return np.argsort(self.predict(candidates), kind="stable")[:k]

    def _key(self, candidates: Candidates) -> TaskKey:
        task = candidates.task
        if task.kind != self.kind:
            raise SpecError(f"the task is of kind {task.kind!r}, and the model of {self.kind!r}", field="kind")
        if task.device != self.device and _known_device(self.model, task.device) != self.device:
            raise SpecError(f"the task is for {task.device}; the model was loaded for {self.device}", field="device")
        check_sizes(self.kind, self.model.sizes, task.sizes)
        return self.device, parse_dtype(task.dtype), tuple(int(task.sizes[name]) for name in self.model.sizes)

    def _knobs(self, candidates: Candidates) -> NDArray[np.int64]:
        out = np.zeros((len(candidates), len(self.model.knobs)), dtype=np.int64)
        for name, column in candidates.knobs.items():
            if name not in self.model.knobs:
                raise SpecError(
                    f"{self.kind} has no knob {name!r}; knobs: {listed(self.model.knobs) or 'none'}", field=name
                )
            out[:, self.model.knobs.index(name)] = column
        return out


def _checked_seconds(measured_s: Any, n: int) -> Floats:
    try:
        values = np.asarray(measured_s)
        if values.size and values.dtype.kind not in "iuf":
            raise TypeError
        astype = values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(
            "measured times must be numbers of seconds, one per configuration", field="measured_s"
        ) from None
    if astype.shape != (n,):
        raise SpecError(f"{n} configurations need {n} measured times, got shape {astype.shape}", field="measured_s")
    wrong = astype[~(np.isfinite(astype) & (astype > 0.0))]
    if len(wrong):
        raise SpecError(
            f"a measured time is {wrong[0]} s; times must be finite and greater than 0, leave failed runs out",
            field="measured_s",
        )
    return astype


def _known_device(model: FlatModel, device: str) -> str:
    """The name the model has for a device given by name or alias, case ignored.

    Raises:
        ModelFileError: the model does not know it; the sentence lists the devices it knows.
    """
    by_lower = {name.lower(): name for name in model.devices}
    asked_for = device.lower() if isinstance(device, str) else ""
    if asked_for not in by_lower:
        # The catalogue is YAML, which takes longer to import than all else; only a name that is no model's needs it.
        from ..features.device import catalogue

        try:
            asked_for = catalogue().get(device).name.lower()
        except SpecError:
            asked_for = ""
    if asked_for not in by_lower:
        raise ModelFileError(
            f"the model of {model.kind} does not know the device {device!r}; it knows: {listed(model.devices)}",
            field="device",
        )
    return by_lower[asked_for]


class PluginWarning(UserWarning):
    """Something kept a plug-in from its work; the compiler went on as it does without it."""


def warn_once(sentence: str, shown: set[str], about: str = "") -> None:
    """Warn with `sentence` and add it to `shown`, unless it is there; of sentences with the same `about`, the first.

    Where a user has made warnings errors, it goes to the terminal instead: a warning must not end a compilation.
    """
    if (about or sentence) in shown:
        return
    shown.add(about or sentence)
    try:
        warnings.warn(sentence, PluginWarning, stacklevel=3)
    except PluginWarning:
        sys.stderr.write(f"kernelcast: {sentence}\n")
