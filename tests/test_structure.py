"""The tree: few entries a folder, arrows one way, a sentence for each folder, plain names, tests that mirror it."""

from __future__ import annotations

import ast
import graphlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "features", "datasets", "collectors", "models", "workloads", "api", "nightly", "client", "python", "plugins", "commands",
)  # fmt: skip
MOST_ENTRIES = 12
# One file here is one thing to add; a new one changes nothing else.
GROWTH = {"families", "devices", "dialects", "regressors", "importers", "runners", "kinds", "meters", "readers"}
# Names that say nothing of what they hold, and the metaphors of earlier modules, classes and functions.
RETIRED = {
    "found", "one", "said", "told", "given", "own", "asked", "held",
    "kept", "gone", "looked", "made", "looking", "watching", "holding", "making",
    "keeping", "standing", "doors", "door", "turns", "lingering", "gathering",
    "strangeness", "carry_over", "carried_over", "look_at", "nowhere", "with_base", "on_paper",
    "founded", "settle", "bury", "set_ballast", "paper_base", "twin", "throng", "harvest",
    "sieve", "void", "replacing", "committing",
}  # fmt: skip
MOST_FILES = 640
# A field of the JSON that nights write.
STORED = {("nights_folder.py", "said")}
NOT_MIRRORED = {"deploy", "page", "reliability", "benchmarks"}


@cache
def product_files() -> tuple[Path, ...]:
    return (*sorted(ROOT.glob("*.py")), *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))))


def folders() -> list[Path]:
    """Every folder of the product that holds Python files, the rooms first."""
    return sorted({path.parent for path in product_files()} | {ROOT})


@cache
def read(path: Path) -> tuple[frozenset[Path], tuple[tuple[int, str], ...]]:
    """Files of the product that a file imports, and (line, name) of all that `names_given` is of.

    Both from one reading, whose tree is not kept: looking for garbage among trees takes longer than to make them.
    """
    files: set[Path] = set()
    names: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*filter(None, (node.module or "").split(".")))
            for alias in node.names:
                places = (base / f"{alias.name}.py", base / alias.name / "__init__.py", base.with_suffix(".py"))
                files.update([place for place in places if place.is_file()][:1] or [base / "__init__.py"])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.attr))
    return frozenset(files), tuple(names)


def imported_files(path: Path) -> frozenset[Path]:
    """Files of the product that a file imports."""
    return read(path)[0]


def names_given(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, name) of every function, class, parameter, variable and attribute that a file names."""
    return read(path)[1]


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_arrows_inside_a_folder_go_one_way(folder: Path) -> None:
    arrows: dict[str, set[str]] = defaultdict(set)
    for path in product_files():
        if folder in path.parents:
            source = path.relative_to(folder).parts[0]
            for target in imported_files(path):
                if folder in target.parents and target.name != "__init__.py":
                    arrows[source].add(target.relative_to(folder).parts[0])
    for source, targets in arrows.items():
        targets.discard(source)
    graphlib.TopologicalSorter(arrows).prepare()


def test_no_file_imports_itself_through_others() -> None:
    arrows = {path: {target for target in imported_files(path) if target != path} for path in product_files()}
    graphlib.TopologicalSorter(arrows).prepare()


@pytest.mark.parametrize("folder", folders()[1:], ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_has_few_entries_and_says_its_idea(folder: Path) -> None:
    text = (
        ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        if _is_package(folder)
        else "."
    )
    assert text, f"{folder.relative_to(ROOT)}/__init__.py says nothing of the folder"
    if folder.name not in GROWTH:
        # A header and its source are one entry; the compiled engine is no file of ours.
        entries = {
            path.stem
            for path in folder.iterdir()
            if path.name not in ("__init__.py", "__pycache__") and path.suffix not in (".so", ".pyd")
        }
        assert len(entries) <= MOST_ENTRIES, f"{folder.relative_to(ROOT)} has {len(entries)} entries"


def _is_package(folder: Path) -> bool:
    # Stands in for a package that Ray looks for; it is put on the path alone.
    return folder.name != "no_amdsmi"


def test_the_product_stays_small_in_files() -> None:
    assert len(product_files()) <= MOST_FILES


def test_retired_names_do_not_come_back() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in product_files()
        for line, name in names_given(path)
        if name.strip("_").lower() in RETIRED and (path.name, name) not in STORED
    ]
    assert not wrong, f"{len(wrong)} names say nothing of what they hold; say the thing's own name: {wrong[:20]}"


def test_tests_lie_where_what_they_test_lies() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts and folder.parts[0] not in NOT_MIRRORED:
            assert (ROOT / folder).is_dir(), f"{path.relative_to(ROOT)} tests a folder that is not there"
