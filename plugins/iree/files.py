"""What a tuned module is compiled with: the files, the flags that name them, and whether the compiler does as they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .compiler import CONFIGURED, CompileError, compile_file, compile_text
from .dispatches import CONTRACTION, Dispatch, read_dispatches, symbol, walk
from .hook_text import HOOK_NAME, hook_program
from .spec_text import DATA_TILING, Config, data_tiling_hints, is_tiled, lowering_config, tuning_spec

SPEC_NAME, HINTS_NAME, MODULE_NAME = "tuning_spec.mlir", "data_tiling.mlir", "module.vmfb"

Chosen = Sequence[tuple[Dispatch, Config]]


@dataclass(frozen=True, slots=True)
class Instructions:
    """Configurations of dispatches in the form the compiler takes.

    Attributes:
        spec: A tuning spec, valid and empty where nothing is tiled.
        hook: A program that does the same.
        hints: The preprocessing spec that says which products are packed, empty where all or none are.
        tiled: Whether any dispatch is tiled.
        packs: Whether any product is packed.
        large_vectors: Whether the flag for large vectors is needed.
    """

    spec: str
    hook: str
    hints: str
    tiled: bool
    packs: bool
    large_vectors: bool

    @classmethod
    def of(cls, chosen: Chosen) -> Instructions:
        """What `chosen` asks for; dispatches without a configuration are the compiler's own affair."""
        packed = [dispatch for dispatch, config in chosen if DATA_TILING in config]
        products = sum(dispatch.kind == CONTRACTION for dispatch, _ in chosen)
        return cls(
            spec=tuning_spec(chosen),
            hook=hook_program(chosen),
            hints=data_tiling_hints(packed) if 0 < len(packed) < products else "",
            tiled=any(is_tiled(config) for _, config in chosen),
            packs=bool(packed),
            # Slices of the sum make IREE zero a whole block at once, which it refuses to unroll unless it is told to.
            large_vectors=any(config.get("tile_k") for _, config in chosen),
        )

    def flags(self, folder: Path, *, by_hook: bool = False) -> tuple[str, ...]:
        """The compiler's flags, with files in `folder`; `by_hook` configures by the hook instead of the tuning spec."""
        items = []
        if self.packs:
            items.append("--iree-opt-data-tiling")
        if self.hints:
            items.append(f"--iree-preprocessing-transform-spec-filename={folder / HINTS_NAME}")
        if self.tiled:
            by_spec = f"--iree-codegen-tuning-spec-path={folder / SPEC_NAME}"
            items.append(f"--iree-hal-preprocess-executables-with={HOOK_NAME}" if by_hook else by_spec)
        if self.large_vectors:
            items.append("--iree-llvmcpu-fail-on-large-vector=false")
        return tuple(items)

    def write(self, folder: Path) -> list[Path]:
        """Write the spec and the hook (and the hints, where there are any) into `folder`, which is made if need be.

        Raises:
            OSError: they cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / SPEC_NAME, folder / HOOK_NAME]
        written[0].write_text(self.spec)
        written[1].write_text(self.hook)
        written[1].chmod(0o755)
        if self.hints:
            written.append(folder / HINTS_NAME)
            written[-1].write_text(self.hints)
        return written


def imposed(chosen: Chosen, folder: Path) -> tuple[str, ...]:
    """Write what makes the compiler take the configurations `chosen` into `folder`, and give the flags that name it.

    Raises:
        OSError: the files cannot be written.
    """
    instructions = Instructions.of(chosen)
    instructions.write(folder)
    return instructions.flags(folder)


def compile_with(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> Path:
    """Compile `text` with configurations imposed, into a module file in `folder`.

    Raises:
        CompileError: the compiler refused or failed.
        OSError: files cannot be written.
    """
    flags = imposed(chosen, folder)
    path = folder / MODULE_NAME
    compile_file(text, (*target, *flags), path)
    return path


def packed_as_told(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> bool:
    """Whether the compiler packs just the products it is told to; hints may be lost when it rewrites an operation.

    Raises:
        CompileError: the compiler refused.
    """
    flags = imposed(chosen, folder)
    flow = compile_text(text, *target, *flags, "--compile-to=flow", brief=True)
    wanted = {dispatch.key: DATA_TILING in config for dispatch, config in chosen}
    result = {item.key: all("#iree_encoding" in each for each in item.types) for item in read_dispatches(flow).tunable}
    return all(result.get(key, packed) == packed for key, packed in wanted.items())


def not_applied(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> list[int]:
    """Positions of configurations with tile sizes that the compiler does not apply.

    Raises:
        CompileError: the compiler refused.
    """
    tiled = [i for i, (_, config) in enumerate(chosen) if is_tiled(config)]
    if not tiled:
        return []
    configured = compile_text(text, *target, *imposed(chosen, folder), CONFIGURED, brief=True)
    return [i for i in tiled if not _has(configured, chosen[i][0].names, lowering_config(*chosen[i]))]


def _has(configured: str, names: Sequence[str], wanted: str) -> bool:
    """Whether every function of these names has an operation that is configured as `wanted`.

    A function that is not there any more was found equal to another.
    """
    from iree.compiler import ir

    module = ir.Module.parse(configured, ir.Context())
    attribute = ir.Attribute.parse(wanted, module.context)
    return all(
        any(
            "lowering_config" in op.attributes and op.attributes["lowering_config"] == attribute
            for op in walk(function)
        )
        for function in walk(module.operation, "func.func")
        if symbol(function) in names
    )


def failing(text: str, target: Sequence[str], chosen: Chosen, folder: Path) -> list[int]:
    """Positions of configurations with tile sizes that do not compile, found by compiling with one of them at a time.

    All of them where each compiles alone and they do not together.

    Raises:
        CompileError: the module does not compile without any of them either.
    """
    without = [(dispatch, {} if is_tiled(config) else config) for dispatch, config in chosen]
    compile_with(text, target, without, folder)
    tiled = [i for i, (_, config) in enumerate(chosen) if is_tiled(config)]
    items = []
    for i in tiled:
        try:
            compile_with(text, target, [*without[:i], chosen[i], *without[i + 1 :]], folder)
        except CompileError:
            items.append(i)
    return items or tiled
