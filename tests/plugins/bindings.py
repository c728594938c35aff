"""MLIR bindings of other projects, and what the annotating pass left on their operations."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest


class Binding:
    """The MLIR bindings of one project."""

    def __init__(self, name: str) -> None:
        package = {"iree": "iree.compiler", "torch-mlir": "torch_mlir", "jaxlib": "jaxlib.mlir"}[name]
        pytest.importorskip(package)
        self.name = name
        self.ir: Any = importlib.import_module(f"{package}.ir")
        self.passes: Any = importlib.import_module(f"{package}.passmanager")

    def context(self) -> Any:
        context = self.ir.Context()
        if self.name == "torch-mlir":
            from torch_mlir._mlir_libs import _stablehlo
            from torch_mlir.dialects import torch

            torch.register_dialect(context)
            _stablehlo.register_dialect(context)
        if self.name == "jaxlib":
            from jaxlib.mlir._mlir_libs import _jax_mlir_ext
            from jaxlib.mlir.dialects import stablehlo

            registry = self.ir.DialectRegistry()
            _jax_mlir_ext.register_dialects(registry)
            context.append_dialect_registry(registry)
            context.load_all_available_dialects()
            stablehlo.register_dialect(context)
        return context

    def run(self, text: str, *passes: Any, anchor: str = "builtin.module") -> Any:
        """The module of a text after the passes."""
        context = self.context()
        module = self.ir.Module.parse(text, context)
        manager = self.passes.PassManager("builtin.module", context=context)
        if anchor == "builtin.module":
            for each in passes:
                manager.add(each)
            manager.run(module.operation)
        else:
            for op in module.body.operations:
                nested = self.passes.PassManager(anchor, context=context)
                for each in passes:
                    nested.add(each)
                nested.run(op.operation)
        return module


def inside(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from inside(inner.operation)


def told(module: Any) -> dict[str, dict[str, Any]]:
    """What stands on each operation, by `kernelcast.kernel` or the operation's name; functions by theirs."""
    result: dict[str, dict[str, Any]] = {}
    for op in inside(module.operation):
        names = [getattr(item, "name", item) for item in op.attributes]
        own = {
            name[11:]: getattr(op.attributes[name], "value", None) for name in names if name.startswith("kernelcast.")
        }
        if own:
            name = op.attributes["sym_name"].value if "sym_name" in op.attributes else op.name
            result[own.get("kernel", name)] = own
    return result
