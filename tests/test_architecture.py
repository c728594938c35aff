"""Imports go one way; files keep one idea; names say something."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "features": set(),
    "datasets": {"features"},
    "collectors": {"features", "datasets"},
    "models": {"features", "datasets"},
    # What is predicted from many kernels: programs and whole models.
    "workloads": {"features", "datasets", "models", "client"},
    "api": {"features", "models", "workloads", "client"},
    # What `import kernelcast` gives.
    "python": {"features", "models", "workloads", "client"},
    "plugins": {"features", "models"},
    # It takes a machine through a night, with everything that measures and everything that learns.
    "nightly": {"features", "datasets", "collectors", "models"},
    # It asks a service, needs nothing of what is behind one, and has the types of the answers that the service encodes.
    "client": set(),
}
# What a compiler measured becomes rows: the one part of a plug-in that writes to the store.
# Measured rows are read in a process of their own; this module runs there only, and the server never imports it.
ALSO_MAY_IMPORT = {"plugins/inductor/row_store.py": {"datasets"}, "api/browse/measurements_reader.py": {"datasets"}}
CHILD_ONLY = {"api/browse/measurements_reader.py"}
NEVER_SERVED = {"torch", "pandas", "sklearn", "mlflow", "xgboost", "onnx", "optuna"}
# They subclass PyTorch's own modes. Only functions import them, and only where a PyTorch program is estimated.
RECORDS_TORCH = {
    f"workloads/torch_program/record/{name}.py"
    for name in (
        "arguments",
        "data_parallel",
        "fused",
        "launcher",
        "modules",
        "recorder",
        "restore",
        "runtime",
        "stand_ins",
        "substitutes",
        "value_sizes",
    )
}
TRAINING_SIDE = {"datasets"}
# What a service predicts with; everything these import is on the serving side too.
SERVED_FROM = (
    "models/predict/predictor.py",
    "workloads/whole_model.py",
    "workloads/mlir/predictor.py",
    "workloads/mlir/triton/predictor.py",
)
# The command line and the scripts use the rooms; no room knows of them.
NEVER_IMPORTED = {"commands", "cli", "benchmarks", "docs", "tests"}
LONGEST_FILE, LONGEST_CLASS = 400, 200


def product_files() -> list[Path]:
    folders = [*MAY_IMPORT, "commands"]
    return [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]


class Import(NamedTuple):
    """An import: `module` is None for one without `from`, whose `names` are modules."""

    line: int
    is_top: bool
    level: int
    module: str | None
    names: tuple[str, ...]


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every import of a file, however deep. Trees are not kept: looking for garbage among them takes longest."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    top, outcome = set(waiting[0].body), []  # type: ignore[attr-defined]
    # Imports are statements, and most of a tree is expressions.
    for node in waiting:
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            waiting += getattr(node, block, ())
        if isinstance(node, ast.Import | ast.ImportFrom):
            level, module = (node.level, node.module or "") if isinstance(node, ast.ImportFrom) else (0, None)
            names = tuple(alias.name for alias in node.names)
            outcome.append(Import(node.lineno, node in top, level, module, names))
    return tuple(outcome)


def imported_rooms(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top folder) of every import of the product's own modules, relative dots resolved."""
    package = ("kernelcast", *path.relative_to(ROOT).parent.parts)
    for line, _, level, module, names in imports_of(path):
        base = ".".join(package[: len(package) - level + 1]) if level else ""
        for name in names:
            parts = ".".join(filter(None, (base, module, name))).split(".")
            if parts[0] == "kernelcast" and len(parts) > 1:
                yield line, parts[1]


def top_level_imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, package) of every import that runs when the module is imported."""
    for line, is_top, level, module, names in imports_of(path):
        if is_top and module is None:
            yield from ((line, name.split(".")[0]) for name in names)
        elif is_top and level == 0 and module:
            yield line, module.split(".")[0]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        allowed = MAY_IMPORT[room] | ALSO_MAY_IMPORT.get(str(path.relative_to(ROOT)), set())
        for line, target in imported_rooms(path):
            assert target not in NEVER_IMPORTED, f"{path.relative_to(ROOT)}:{line} imports {target}"
            if target in MAY_IMPORT and target != room:
                assert target in allowed, (
                    f"{path.relative_to(ROOT)}:{line} imports {target}; {room} may import {sorted(allowed)}"
                )


def test_serving_side_of_models_reads_no_datasets() -> None:
    served = served_models()
    assert {"predictor.py", "program_model.py", "code_model.py"} <= {path.name for path in served}
    for path in served:
        for line, target in imported_rooms(path):
            assert target not in TRAINING_SIDE, (
                f"{path.relative_to(ROOT)}:{line} imports {target}, which serving does not need"
            )


def served_models() -> set[Path]:
    """The modules of `models/` and `workloads/` that those of `SERVED_FROM` import, directly or not."""
    result: set[Path] = set()
    waiting = [ROOT / name for name in SERVED_FROM]
    while waiting:
        path = waiting.pop()
        if path in result:
            continue
        result.add(path)
        for _, _, level, module, names in imports_of(path):
            if level:
                base = path.parents[level - 1].joinpath(*filter(None, (module or "").split(".")))
                named = [base.with_suffix(".py"), *(base / f"{name}.py" for name in names)]
                waiting += [
                    item
                    for item in named
                    if item.is_file() and item.relative_to(ROOT).parts[0] in ("models", "workloads")
                ]
    return result


def test_the_server_imports_nothing_of_the_process_that_reads_tables() -> None:
    inside = {Path(name).stem for name in CHILD_ONLY}
    assert all((ROOT / name).is_file() for name in CHILD_ONLY)
    for path in (ROOT / "api").rglob("*.py"):
        if str(path.relative_to(ROOT)) not in CHILD_ONLY:
            for line, _, _, module, names in imports_of(path):
                named = {*(module or "").split("."), *names} if module is not None else set()
                assert not named & inside, f"{path.relative_to(ROOT)}:{line} imports {sorted(named & inside)}"


def test_no_heavy_library_is_imported_at_module_level() -> None:
    # These are imported by regressors only when they fit, so they may import onnx at the top.
    for path in product_files():
        if path.name == "onnx_writer.py" or str(path.relative_to(ROOT)) in RECORDS_TORCH:
            continue
        for line, package in top_level_imports(path):
            assert package not in NEVER_SERVED, f"{path.relative_to(ROOT)}:{line} imports {package} at module level"


def test_what_needs_torch_is_imported_by_functions_alone() -> None:
    assert all((ROOT / name).is_file() for name in RECORDS_TORCH)
    for path in (ROOT / "workloads").rglob("*.py"):
        if str(path.relative_to(ROOT)) in RECORDS_TORCH:
            continue
        for line, is_top, _, module, _ in imports_of(path):
            if is_top:
                assert "record" not in (module or "").split("."), f"{path.relative_to(ROOT)}:{line} imports {module}"


def test_files_are_short_and_names_say_something() -> None:
    beside = [
        path
        for folder in ("tests", "benchmarks", "deploy", "docs", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for path in (*product_files(), *beside):
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        assert lines <= LONGEST_FILE, f"{path.relative_to(ROOT)} has {lines} lines; split it by idea"
        # A class is not longer than its file.
        for node in ast.walk(ast.parse(text)) if lines > LONGEST_CLASS and "class " in text else ():
            if isinstance(node, ast.ClassDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= LONGEST_CLASS, f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {lines} lines"
        assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}, f"{path} says nothing"
