"""From a Triton program to its Triton IR, for GPUs that need not be there."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .case import GENERATED, POINT, TritonCase
from .elementwise import short_hash

_ALIGNMENT = 16
"""What Triton calls divisible: bytes of an address, elements of a size."""

_WARP_SIZE = 32
_MODULES = MappingProxyType({
    "rows": "row_kernels", "reductions": "reductions", "matmul": "matmul", "attention": "attention", "data": "data_movement",
    "updates": "updates",
})  # fmt: skip
"""Modules in the names of kernels, which stored rows carry, and the files they are."""


def ttir_of(case: TritonCase, capability: int, folder: Path) -> str:
    """The case as Triton IR (`tt` dialect), after Triton's own first stage, `make_ttir`, and without source locations.

    That stage inlines, canonicalises, combines and unrolls what asks for it; warps and pipeline stages come
    into play after it, so they are no part of the text. `folder` is where generated source may be written.

    Raises:
        triton.compiler.errors.CompilationError: Triton refuses the program.
    """
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    target = _target(capability)
    backend = make_backend(target)
    options = backend.parse_options({"num_warps": case.num_warps, "num_stages": case.num_stages})
    function, constants = _function(case, folder)
    source = ASTSource(
        function,
        signature=dict(case.arguments) | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(function.arg_names.index(name),): [["tt.divisibility", _ALIGNMENT]] for name in case.aligned},
    )
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](module, {}).str_nodebug())


def _target(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, _WARP_SIZE)


def _function(case: TritonCase, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The decorated function of a case and its constants, the functions they name looked up."""
    generated = _module(case.source, folder) if case.source else None
    module, _, name = case.kernel.partition(".")
    if module != GENERATED and module not in _MODULES:
        raise ValueError(f"no module of kernels {module!r}")
    home = generated if module == GENERATED else importlib.import_module(f"{__package__}.{_MODULES[module]}")
    constants = {key: getattr(generated, str(value)) if key == POINT and value is not None else value
                 for key, value in case.constants}  # fmt: skip
    return getattr(home, name), constants


def _module(source: str, folder: Path) -> Any:
    """Generated source as an imported module; Triton reads a function's source from its file."""
    path = folder / f"generated_{short_hash(source)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
