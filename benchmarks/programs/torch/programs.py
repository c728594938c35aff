"""The modules that torch-mlir writes: structures of its families, in a few sizes and dialects."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

from kernelcast.datasets.records.mlir_modules import ModuleText

from ..families import Sizes, Structure, all_structures, draw_sizes
from .blocks import FAMILIES

DIALECTS = {"torch": "torch", "linalg": "linalg-on-tensors", "tosa": "tosa", "stablehlo": "stablehlo"}
"""What torch-mlir calls them, by the dialect's name."""


def modules(seed: int) -> Iterator[list[ModuleText]]:
    """Per program the modules of its variants, until every structure was used."""
    for structure in all_structures(FAMILIES, seed):
        yield variants(structure, seed)


def variants(structure: Structure, seed: int) -> list[ModuleText]:
    """The variants of one structure: two sizes, each in one or two dialects, no dialect twice."""
    program = f"torch/{structure.name}"
    rng = random.Random(f"{seed}/{program}")
    dialects = [dialect for dialect in rng.sample(tuple(DIALECTS), 4) if dialect != "tosa" or _in_tosa(structure)]
    result: dict[str, ModuleText] = {}
    for _ in range(2):
        dtype = rng.choices(("f32", "f16", "bf16"), (90, 5, 5))[0]
        text = export(structure, draw_sizes(structure, rng, 1.0 if dtype == "f32" else 8.0), dtype)
        for _ in range(min(rng.choice((1, 2)), len(dialects))):
            dialect = dialects.pop()
            module = ModuleText(lower(text, dialect), program, "torch", dialect)
            result.setdefault(module.module_id, module)
    return list(result.values())


def _in_tosa(structure: Structure) -> bool:
    """Whether tosa has it: torch-mlir computes layer norms and its own attention partly in f64, which tosa does not have."""
    choices = vars(structure.choices)
    return choices.get("norm") != "layernorm" and choices.get("form") != "sdpa"


def lower(text: str, dialect: str) -> str:
    """Text of the torch dialect in another dialect; the text itself where that is the torch dialect."""
    if dialect == "torch":
        return text
    from torch_mlir import ir
    from torch_mlir.compiler_utils import OutputType, lower_mlir_module
    from torch_mlir.dialects import torch as torch_dialect

    with ir.Context() as context:
        torch_dialect.register_dialect(context)
        module = lower_mlir_module(False, OutputType.get(DIALECTS[dialect]), ir.Module.parse(text))
        if dialect != "tosa":
            return str(module)
        # How tosa's operations are printed changes between versions of MLIR; their generic form is read by all of them.
        return _with_plain_function(str(module.operation.get_asm(print_generic_op_form=True)))


def _with_plain_function(text: str) -> str:
    """A module of one function in generic form, its module and function as they are usually written."""
    block = re.search(r"\^bb0\((.*)\):\n", text)
    result = re.search(r'"func.return"\((.*)\) : \((.*)\) -> \(\)\n', text)
    if block is None or result is None:
        raise ValueError("torch-mlir wrote no function of one block")
    head = f"module {{\n  func.func @main({block[1]}) -> ({result[2]}) {{\n"
    return f"{head}{text[block.end() : result.start()]}return {result[1]} : {result[2]}\n  }}\n}}\n"


def export(structure: Structure, sizes: Sizes, dtype: str) -> str:
    """The text of a structure in a size, in the torch dialect. Weights and inputs are arguments of `@main`, in that order."""
    import torch
    from torch_mlir import fx

    element = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]

    def make(shape: tuple[Any, ...], device: str) -> Any:
        if shape[0] == "ids":
            return torch.zeros(shape[1:], dtype=torch.int32, device=device)
        return torch.zeros(shape, dtype=element, device=device)

    shapes: dict[str, tuple[int, ...]] = {}

    def declare(name: str, *shape: int) -> Any:
        shapes[name] = shape
        return make(shape, "meta")

    family = structure.family
    inputs = family.inputs(structure.choices, sizes)
    with torch.device("meta"):
        family.forward(declare, structure.choices, sizes, *(make(shape, "meta") for shape in inputs))
    names = list(shapes)

    class Program(torch.nn.Module):
        def forward(self, *arrays: Any) -> Any:
            held_out = dict(zip(names, arrays, strict=False))
            return family.forward(lambda name, *_: held_out[name], structure.choices, sizes, *arrays[len(names) :])

    arrays = [make(shape, "cpu") for shape in (*shapes.values(), *inputs)]
    with warnings.catch_warnings():
        # torch.export copies tree specifications in a way that torch itself deprecates.
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*", category=FutureWarning)
        return str(fx.export_and_import(Program(), *arrays, output_type="torch", func_name="main"))
