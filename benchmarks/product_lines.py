"""How much there is to read: code lines (no blank lines, comments or docstrings) and files of the product, by room.

Run `python3 benchmarks/product_lines.py [FOLDER]`; tests, benchmarks, docs, examples and vendored files are left out. A string
that stands alone, as under a constant, is a docstring too.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

OUTSIDE = {"tests", "benchmarks", "docs", "examples", "deploy", ".ci"}
OTHER = {".js", ".css", ".html", ".cpp", ".hpp", ".cu", ".sh"}
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def main() -> None:
    """Print a line per room and the sums."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    lines: Counter[tuple[str, str]] = Counter()
    files: Counter[str] = Counter()
    for name in listed:
        path = root / name
        room = name.split("/")[0] if "/" in name else "root"
        if room in OUTSIDE or "vendor" in path.parts or not path.is_file():
            continue
        if path.suffix == ".py":
            files[room] += 1
            lines[room, "Python"] += python_lines(path.read_text(encoding="utf-8"))
        elif path.suffix in OTHER:
            lines[room, "other"] += other_lines(path.read_text(encoding="utf-8"))
    print(f"{'room':12}{'files':>7}{'Python':>9}{'other':>8}")
    for room in sorted(files):
        print(f"{room:12}{files[room]:7}{lines[room, 'Python']:9,}{lines[room, 'other']:8,}")
    by_kind = [sum(n for (_, kind), n in lines.items() if kind == wanted) for wanted in ("Python", "other")]
    print(f"{'all':12}{sum(files.values()):7}{by_kind[0]:9,}{by_kind[1]:8,}{sum(by_kind):9,} together")


def python_lines(source: str) -> int:
    """Lines that hold code."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(numbers)


def other_lines(source: str) -> int:
    """Lines that are neither blank nor a comment of their own."""
    stripped = (line.strip() for line in source.splitlines())
    return sum(1 for line in stripped if line and not line.startswith(("//", "/*", "*", "<!--", "#!")))


if __name__ == "__main__":
    main()
