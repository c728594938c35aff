"""A pass for the Python bindings of MLIR: writes onto every operation what it costs on a device, as attributes.

>>> from iree.compiler import ir, passmanager                              # doctest: +SKIP
>>> from kernelcast.plugins.python_pass import annotate
>>> manager = passmanager.PassManager("builtin.module", context=context)   # doctest: +SKIP
>>> manager.add(annotate("amd-epyc-9005-vm-2c", threads=1))                # doctest: +SKIP
>>> manager.run(module.operation)                                          # doctest: +SKIP

The same call serves the bindings of IREE, torch-mlir and jaxlib: a pass there is a function of an operation and a handle of
the pass. All that differs between them is the module that attributes come from, which is that of the operation's own class.

On operations: `kernelcast.latency_s`, `kernelcast.lower_s` and `kernelcast.upper_s` (its 90 % interval), `kernelcast.energy_j`
where energy is known, `kernelcast.bound` (the limit that binds on paper), `kernelcast.kernel` (what it was taken for),
`kernelcast.stand_in` (how that differs from it), `kernelcast.runs` where it runs more than once, and `kernelcast.skipped`
(why there is no cost). On functions: `kernelcast.total_latency_s` where any operation has a cost, `kernelcast.total_energy_j`
where the energy of all those is known, `kernelcast.ops_covered` and `kernelcast.ops_skipped`, operations of called functions
included. An array of one number that products and reductions of linalg alone start from has none: no kernel of its own fills
it. They mean nothing to a compiler. Every operation is taken as a kernel of its own, so a total is more than what is
left of it once a compiler fuses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..features.errors import SpecError
from ..features.kernel import MAX_THREADS, KernelSpec
from .cost_model import warn_once
from .operation_costs import ModuleFunction, ModuleOperation, OperationCost, OperationCosts, functions_in

PREFIX = "kernelcast."

Pass = Callable[..., None]
"""What `PassManager.add` takes: called with an operation and a handle of the pass."""

_LARGEST_CONSTANT = 16
_LARGEST_RESOURCE = 4
"""Most elements and characters of constants that are printed: paddings and permutations are needed, weights are not."""


def annotate(device: str, *, threads: int = 0, models: Path | str | None = None) -> Pass:
    """A pass that annotates operations with their cost on a device. It changes nothing else and never fails.

    Args:
        device: a device by name or alias, one that the models know.
        threads: CPU threads; 0 for all cores.
        models: a folder of `op-FAMILY.kcm` files; default: the user's own under `KERNELCAST_HOME`, else the shipped ones.

    Where a model is missing or damaged, or the module cannot be read, one sentence says so as a warning, once, and what
    cannot be told is left off.

    Raises:
        SpecError: `threads` is no number of threads.
    """
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= MAX_THREADS:
        raise SpecError(
            f"threads must be a whole number from 0 (all cores) to {MAX_THREADS}, got {threads!r}", field="threads"
        )
    costs = OperationCosts(device, threads, models)
    shown: set[str] = set()

    def kernelcast_annotate(op: Any, pass_: Any = None) -> None:  # noqa: ARG001  the bindings give the pass's handle
        try:
            problems = _annotate(op.operation, costs)
        except Exception as error:  # noqa: BLE001  an exception would pass through the compiler's C++, which may not survive it
            problems = [_sentence(error)]
        for problem in problems:
            warn_once(f"{problem}; operations are left without annotations", shown)

    return kernelcast_annotate


def _annotate(op: Any, costs: OperationCosts) -> Sequence[str]:
    """Annotate what is in an operation; sentences for models that could not be used.

    Raises:
        SpecError: no model can be used, or the module is too large.
        NotGenericForm: the bindings print another generic form than is read here.
    """
    generic = op.get_asm(
        print_generic_op_form=True, use_local_scope=True, large_elements_limit=_LARGEST_CONSTANT,
        large_resource_limit=_LARGEST_RESOURCE,
    )  # fmt: skip
    result = functions_in(generic)
    functions = list(_functions(op))
    inside = [list(_inside(function)) for function in functions]
    if [[item.name for item in ops] for ops in inside] != [list(function.names) for function in result]:
        raise SpecError("the operations of the module are not those of its text")
    specs = list(
        dict.fromkeys(
            operation.spec for function in result for operation in function.operations if operation.spec is not None
        )
    )
    answers = dict(zip(specs, costs.of(specs), strict=True))
    attributes = _Attributes(op)
    for handle, ops, function in zip(functions, inside, result, strict=True):
        for place, item in function.by_place().items():
            attributes.write(ops[place - function.first], _cost_attributes(item, answers))
        attributes.write(handle, _totals(function, answers) if function.operations else {})
    return costs.problems()


def _cost_attributes(operation: ModuleOperation, answers: Mapping[KernelSpec, OperationCost | str]) -> dict[str, Any]:
    """What is written onto an operation; None is left out."""
    answer = operation.why if operation.spec is None else answers[operation.spec]
    if operation.spec is None or isinstance(answer, str):
        return {"skipped": answer}
    return {
        "kernel": title(operation.spec),
        "latency_s": answer.latency_s,
        "lower_s": answer.lower_s,
        "upper_s": answer.upper_s,
        "energy_j": answer.energy_j,
        "bound": answer.bound,
        "stand_in": operation.stand_in or None,
        "runs": int(operation.runs) if operation.runs != 1.0 else None,
    }


def _totals(function: ModuleFunction, answers: Mapping[KernelSpec, OperationCost | str]) -> dict[str, Any]:
    """What is written onto a function; None is left out. Energy only where it is known of all operations with a cost."""
    items = [
        (operation.runs, answers[operation.spec]) for operation in function.operations if operation.spec is not None
    ]
    covered = [(runs, answer) for runs, answer in items if isinstance(answer, OperationCost)]
    joules = [runs * answer.energy_j for runs, answer in covered if answer.energy_j is not None]
    return {
        "total_latency_s": sum(runs * answer.latency_s for runs, answer in covered) if covered else None,
        "total_energy_j": sum(joules) if joules and len(joules) == len(covered) else None,
        "ops_covered": len(covered),
        "ops_skipped": len(function.operations) - len(covered),
    }


def title(spec: KernelSpec) -> str:
    """A kernel in words, as the pass for mlir-opt writes it."""
    sizes = " ".join(f"{name}={size}" for name, size in spec.dims)
    return " ".join(word for word in (spec.family, spec.variant, sizes, spec.dtype) if word)


class _Attributes:
    """Writes attributes with the classes of the binding that an operation comes from."""

    def __init__(self, op: Any) -> None:
        self._ir = sys.modules[type(op).__module__]
        self._context = op.context
        self._f64 = self._ir.F64Type.get(self._context)
        self._i64 = self._ir.IntegerType.get_signless(64, self._context)
        self._unknown_location = self._ir.Location.unknown(self._context)
        self._makers: Mapping[type, Callable[[Any], Any]] = {
            float: lambda value: self._ir.FloatAttr.get(self._f64, value, loc=self._unknown_location),
            int: lambda value: self._ir.IntegerAttr.get(self._i64, value),
            str: lambda value: self._ir.StringAttr.get(value, self._context),
        }

    def write(self, op: Any, values: Mapping[str, Any]) -> None:
        """Put what is known onto an operation, in place of what an earlier run of the pass put there."""
        attributes = op.attributes
        # Bindings of some days give names, of others pairs with a name.
        for name in [getattr(attribute, "name", attribute) for attribute in attributes]:
            if name.startswith(PREFIX):
                del attributes[name]
        for name, value in values.items():
            if value is not None:
                attributes[PREFIX + name] = self._makers[type(value)](value)


def _functions(op: Any) -> Iterator[Any]:
    """The functions with a body in an operation, itself included, in order; none that is inside another."""
    attributes = op.attributes
    named = "sym_name" in attributes and (op.name.endswith(".func") or "function_type" in attributes)
    if named:
        if any(len(region.blocks) for region in op.regions):
            yield op
        return
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _functions(inner.operation)


def _inside(op: Any) -> Iterator[Any]:
    """Every operation inside a function's first region, each before those inside it."""
    for region in list(op.regions)[:1]:
        yield from _in_order(region)


def _in_order(region: Any) -> Iterator[Any]:
    for block in region.blocks:
        for inner in block.operations:
            item = inner.operation
            yield item
            for deeper in item.regions:
                yield from _in_order(deeper)


def _sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    message = " ".join(str(error).split())
    return (
        message
        if isinstance(error, SpecError) and message
        else f"the module could not be read: {message or type(error).__name__}"
    )
