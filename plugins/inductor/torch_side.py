"""Everything asked of torch itself: its hooks, its versions, its clock, and which device it compiles for."""

from __future__ import annotations

import inspect
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...features.device import catalogue, known_by, known_machine, machine_id, machine_name
from ...features.errors import SpecError
from .choices import Surroundings

TESTED_TORCH = "2.13"
"""The torch this was written against and is tested with."""

_HOOKS = ("add_preprocessing_fn", "add_feedback_saver", "get_algorithm_selector_cache")
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Hooks:
    """Lists of functions that Inductor calls with every list of choices, before and after it times them.

    Attributes:
        module: The module of torch that holds them.
    """

    module: Any

    def add(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        """Have `before` and `after` called."""
        self.module.add_preprocessing_fn(before)
        self.module.add_feedback_saver(after)

    def remove(self, before: Callable[..., Any], after: Callable[..., Any]) -> None:
        """Take them out again; torch has no call for one function, only for all, and others may have theirs there."""
        cache = self.module.get_algorithm_selector_cache()
        for functions, ours in ((cache.preprocessing_fns, before), (cache.feedback_saver_fns, after)):
            if ours in functions:
                functions.remove(ours)


def find_hooks() -> Hooks:
    """Torch's hooks.

    Raises:
        SpecError: there is no torch, or none with these hooks; the sentence says which torch has them.
    """
    try:
        import torch
        from torch._inductor import select_algorithm
    except ImportError as error:
        raise SpecError(
            f"there is no usable torch here ({error}); install torch {TESTED_TORCH}", field="torch"
        ) from error
    missing = [name for name in _HOOKS if not hasattr(select_algorithm, name)]
    if not missing:
        cache = select_algorithm.get_algorithm_selector_cache()
        missing = [name for name in ("preprocessing_fns", "feedback_saver_fns") if not hasattr(cache, name)]
    if missing:
        raise SpecError(
            f"torch {torch.__version__} lacks {missing[0]} in torch._inductor.select_algorithm, so Inductor tunes as it does "
            f"without kernelcast; this plug-in works with torch {TESTED_TORCH}", field="torch"
        )  # fmt: skip
    return Hooks(select_algorithm)


def surroundings() -> Surroundings:
    """What decides times beside a choice, as torch is set now; sizes may be symbolic."""
    import torch

    # Above `highest`, libraries may round fp32 operands of a product to tf32 (torch.set_float32_matmul_precision).
    return Surroundings(torch.get_num_threads(), torch.get_float32_matmul_precision() != "highest", _size_hints)


def times_come_back() -> bool:
    """Whether Inductor hands measured times back: its pipelined autotuning (2.13) does not."""
    from torch._inductor import config

    return not getattr(config, "pipeline_max_autotune_gemm", False)


def versions() -> dict[str, str]:
    """Versions of what compiles and what is timed."""
    import torch

    result = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name, value in (("cuda", torch.version.cuda), ("hip", torch.version.hip)):
        if value is not None:
            result[name] = str(value)
    try:
        import triton
    except ImportError:
        return result
    return result | {"triton": str(triton.__version__)}


def timing_facts(device_type: str) -> dict[str, Any]:
    """How Inductor times choices on a device, for the provenance of rows: which statistic, with which caches."""
    import torch
    from torch._inductor import config
    from torch._inductor.runtime.benchmarking import benchmarker

    if device_type == "cpu":
        statistic, caches = "median of calls in 0.1 s", "as the call before left them"
    else:
        mode = inspect.signature(benchmarker.benchmark_gpu).parameters.get("return_mode")
        statistic = f"{'median' if mode is None else mode.default} of calls in 25 ms"
        caches = "L2 written over before every call"
    return {
        "timed_by": type(benchmarker).__name__,
        "statistic": statistic,
        "caches": caches,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "autotune_in_subproc": bool(config.autotune_in_subproc),
    }


def takes_minimum(device_type: str) -> bool:
    """Whether the time handed back is the least of the samples."""
    return device_type != "cpu" and str(timing_facts(device_type)["statistic"]).startswith("min ")


def device_name(device_type: str, index: int | None) -> tuple[str, str]:
    """The device's name in the catalogue, or a folder-safe name of its own; and what it calls itself."""
    called = machine_name() if device_type == "cpu" else _board(device_type, index)
    device = known_machine(catalogue()) if device_type == "cpu" else known_by(called, catalogue())
    if device is not None:
        return device.name, called
    local = machine_id() if device_type == "cpu" else called
    return _UNFIT.sub("-", local.lower()).strip("-.") or device_type, called


def _size_hints(sizes: Sequence[Any], hint: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in sizes)
    except (TypeError, ValueError):
        from torch._inductor.virtualized import V

        optimization_hints_with_override = V.graph.sizevars.optimization_hints_with_override(
            list(sizes), hint_override=hint
        )
        return tuple(int(size) for size in optimization_hints_with_override)


def _board(device_type: str, index: int | None) -> str:
    import torch

    module = getattr(torch, device_type)
    return str(module.get_device_name(module.current_device() if index is None else index))
