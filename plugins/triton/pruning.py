"""Functions for `triton.autotune(..., prune_configs_by=...)`: all configurations scored in one batch, the best kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...features.device import catalogue
from ...features.errors import SpecError, listed
from ...features.tuning.gpu_block import BLOCK_THREADS, given_warps
from ...features.tuning.kind import Candidates, Task, TuningKind, get_kind
from ...features.tuning.kinds import triton_attention, triton_gemm
from ..cost_model import CostModel, warn_once
from .kernel_maps import GEMM, Arguments, KernelMap, UnreadError, current_gpu

Config = TypeVar("Config")
"""A `triton.Config`: something with `all_kwargs()`."""

_STAGED_B = {triton_gemm.KIND.name: triton_gemm.staged_b, triton_attention.KIND.name: triton_attention.staged_b}

logger = logging.getLogger("kernelcast.plugins.triton")


def prune(
    top_k: int | float = 5,
    device: str | None = None,
    maps: KernelMap = GEMM,
    model: CostModel | Path | str | None = None,
) -> Pruner:
    """The hook for `triton.autotune(..., prune_configs_by={"early_config_prune": …})` that scores all at once.

    Args:
        top_k: how many configurations are kept: a whole number, or a fraction of them up to 1.0, at least one.
        device: name of a device of the catalogue, or None for the current GPU.
        maps: how the kernel's arguments are read.
        model: the cost model, the path of its file, or None for the one that is installed.

    Raises:
        SpecError: `top_k` is neither, the device is not in the catalogue, or the map is none.
    """
    return Pruner(_checked_top_k(top_k), device, maps, model)


class Pruner:
    """Keeps the configurations that are predicted fastest; called by Triton's autotuner for every new key.

    Configurations its map cannot read are kept beside them, and all are where there is no model; both are said once. Those
    that cannot fit the device come last, and are kept only if the others do not fill `top_k`.
    """

    def __init__(
        self, top_k: int | float, device: str | None, maps: KernelMap, model: CostModel | Path | str | None
    ) -> None:
        """The arguments of `prune`, `top_k` checked."""
        if not isinstance(maps, KernelMap):
            raise SpecError(f"maps is {maps!r}; give GEMM, FLASH_ATTENTION or a KernelMap of your own", field="maps")
        self._top_k = top_k
        self._kind = get_kind(maps.kind)
        _check_names(maps, self._kind)
        self._device = None if device is None else catalogue().get(device).name
        self._maps = maps
        self._model = model
        self._loaded: dict[str, CostModel] = {}
        self._shown: set[str] = set()
        self.note: str | None = None
        """What is worth knowing of the model: that none of its rows were measured on this device."""

    def __call__(self, configs: Sequence[Config], named_args: Arguments, /, **kwargs: Any) -> list[Config]:
        """The configurations to time, those predicted fastest first; at least one where there is one."""
        distinct: list[Any] = list(dict.fromkeys(configs))
        if not distinct:
            return []
        arguments = {**named_args, **kwargs}
        # A configuration's meta-parameters hold its warps, stages, blocks per cluster and register limit.
        score = self._score([{**arguments, **config.all_kwargs()} for config in distinct], arguments)
        if score is None:
            return distinct
        unread = np.isnan(score)
        order = [int(i) for i in np.argsort(score, kind="stable") if not unread[i]]
        remaining = order[: _count(self._top_k, len(distinct))]
        return [distinct[i] for i in (*remaining, *np.flatnonzero(unread))]

    def _score(self, settings: Sequence[Arguments], arguments: Arguments) -> NDArray[np.float64] | None:
        """Seconds `(n,)` of a launch with each of `settings`: infinite for what cannot fit, NaN for what cannot be read.

        None where nothing can be predicted.
        """
        try:
            device = self._device or current_gpu()
            task = Task(self._kind.name, self._maps.read_sizes(arguments), self._maps.read_dtype(arguments), device)
            model = self._model_of(device)
            knobs, unread = self._read(settings)
            if len(unread) == len(settings):
                raise UnreadError(f"none of the {len(settings)} configurations could be read ({unread[0]})")
            candidates = Candidates.of(task, knobs)
            seconds = np.where(self._fits(candidates), model.predict(candidates), np.inf)
        except SpecError as error:
            warn_once(f"Triton configurations are not ranked and all are kept: {error}", self._shown)
            return None
        if unread:
            first = next(iter(unread.values()))
            sentence = f"{len(unread)} of {len(settings)} Triton configurations could not be read and are kept: {first}"
            warn_once(sentence, self._shown)
        out = np.full(len(settings), np.nan)
        out[[i for i in range(len(settings)) if i not in unread]] = seconds
        return out

    def _read(self, settings: Sequence[Arguments]) -> tuple[list[dict[str, int]], dict[int, UnreadError]]:
        """Knobs of the configurations that can be read, and what is wrong with the others, by their place."""
        knobs, unread = [], {}
        for i, setting in enumerate(settings):
            try:
                knobs.append(self._maps.read_knobs(setting))
            except UnreadError as error:
                unread[i] = error
        return knobs, unread

    def _fits(self, candidates: Candidates) -> NDArray[np.bool_]:
        """Whether a block's threads and shared memory are within the device's limits, `(n,)`."""
        staged_b = _STAGED_B.get(self._kind.name)
        if staged_b is None:
            return np.ones(len(candidates), dtype=np.bool_)
        task = candidates.task
        facts = self._kind.facts_of(catalogue().get(task.device), task.dtype)
        values: dict[str, Any] = {**task.sizes, **facts, **dict.fromkeys(self._kind.knobs, np.zeros(len(candidates)))}
        values |= {name: column.astype(np.float64) for name, column in candidates.knobs.items()}
        few = given_warps(values["warps"]) * facts["lanes"] <= BLOCK_THREADS
        fits: NDArray[np.bool_] = few & (staged_b(values) <= facts["shared_block_b"])
        return fits

    def _model_of(self, device: str) -> CostModel:
        if self._model is not None and not isinstance(self._model, str | Path):
            return self._model
        if device not in self._loaded:
            self._loaded[device] = model = CostModel.load(self._kind.name, device, self._model)
            if model.caveat:
                self.note = model.caveat
                logger.info(self.note)
        return self._loaded[device]


def _checked_top_k(top_k: object) -> int | float:
    """A count of at least 1 or a fraction above 0 up to 1.0, as Triton's own `top_k`."""
    if not isinstance(top_k, bool):
        if isinstance(top_k, int) and top_k >= 1:
            return top_k
        if isinstance(top_k, float) and 0.0 < top_k <= 1.0:
            return top_k
    raise SpecError(
        f"top_k is {top_k!r}; give a whole number from 1, or a fraction above 0 and up to 1.0 of the configurations",
        field="top_k",
    )


def _count(top_k: int | float, n: int) -> int:
    return top_k if isinstance(top_k, int) else max(1, int(top_k * n))


def _check_names(maps: KernelMap, kind: TuningKind) -> None:
    """Refuse a map that leaves a size out, or names a size or knob the kind has not."""
    if missing := [name for name in kind.sizes if name not in maps.sizes]:
        raise SpecError(
            f"the map says nothing of {missing[0]}; {kind.name} has sizes {listed(kind.sizes)}", field=missing[0]
        )
    for what, item, known in (("size", maps.sizes, kind.sizes), ("knob", maps.knobs, kind.knobs)):
        if unknown := [name for name in item if name not in known]:
            raise SpecError(
                f"{kind.name} has no {what} {unknown[0]!r}; {what}s: {listed(known)}", field=str(unknown[0])
            )
