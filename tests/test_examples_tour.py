"""The notebook runs from top to bottom, what its cells end in is drawn, and it is stored without outputs."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(TOUR.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    result: list[dict[str, Any]] = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return result


def run(source: str, names: dict[str, Any]) -> Any:
    """What a cell ends in: the value of its last line where that is an expression, as a notebook shows it."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(TOUR), "exec"), names)
    return None if last is None else eval(compile(last, str(TOUR), "eval"), names)


def test_the_notebook_runs() -> None:
    names: dict[str, Any] = {}
    has_pandas = importlib.util.find_spec("pandas") is not None
    values = [
        run("".join(cell["source"]), names)
        for cell in cells()
        if has_pandas or "pandas" not in cell["metadata"].get("tags", ())
    ]
    shown = [value for value in values if value is not None]
    assert all(repr(value) for value in shown)
    pictures = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pictures) >= 8
    assert sum("<svg" in picture for picture in pictures) >= 7


def test_it_is_stored_without_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())
