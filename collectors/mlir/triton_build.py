"""From a Triton program to its text and from the text to machine code, for GPUs that need not be there."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from .triton_programs.case import GENERATED, POINT, TritonCase

_ALIGNMENT = 16
"""What Triton calls divisible: bytes of an address, elements of a size."""

_WARP_SIZE = 32
_MODULES = frozenset({"rows", "reductions", "matmul", "attention", "data", "updates"})


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


def build_text(text: str, capability: int, *, num_warps: int, num_stages: int, folder: Path) -> tuple[Path, int, int]:
    """Compile Triton IR for a compute capability such as 90.

    Returns the binary's file, its shared memory in bytes and its warps:
    those asked for, and the ones that a warp-specialised kernel adds.

    Raises:
        RuntimeError: the text is no Triton IR.
        triton.errors.TritonError: Triton or ptxas refuses it.
    """
    import triton

    path = folder / "kernel.ttir"
    path.write_text(text, encoding="utf-8")
    kernel = triton.compile(
        str(path), target=_target(capability), options={"num_warps": num_warps, "num_stages": num_stages}
    )
    (cubin,) = (Path(file) for name, file in kernel.metadata_group.items() if name.endswith(".cubin"))
    return cubin, kernel.metadata.shared, kernel.metadata.num_warps


def _target(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, _WARP_SIZE)


def _function(case: TritonCase, folder: Path) -> tuple[Any, dict[str, Any]]:
    """The decorated function of a case and its constants, the functions they name looked up."""
    generated = _module(case.source, folder) if case.source else None
    module, _, name = case.kernel.partition(".")
    if module != GENERATED and module not in _MODULES:
        raise ValueError(f"no module of kernels {module!r}")
    home = generated if module == GENERATED else importlib.import_module(f"{__package__}.triton_programs.{module}")
    constants = {key: getattr(generated, str(value)) if key == POINT and value is not None else value
                 for key, value in case.constants}  # fmt: skip
    return getattr(home, name), constants


def _module(source: str, folder: Path) -> Any:
    """Generated source as an imported module; Triton reads a function's source from its file."""
    from .triton_programs.expressions import short_hash

    path = folder / f"generated_{short_hash(source)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
