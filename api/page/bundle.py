"""The page's modules and style sheets joined into one file each, so that a slow network is asked twice and not forty times.

Modules stay what a browser could run as they are; joining them is all that is done, when the server starts. A module becomes a
function that returns its exports, and the imports of others names that are taken from what those returned.
"""

from __future__ import annotations

import re
from pathlib import Path

_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "(\.[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_AS = re.compile(r"(\w+) as (\w+)")


def joined_modules(entry: Path) -> bytes:
    """One script that does what the module `entry` and those that it imports do.

    Raises:
        ValueError: modules import each other in a circle, or one has an `import` or `export` of a form that is not read here.
    """
    names: dict[Path, str] = {}
    parts: list[str] = []
    _join(entry.resolve(), (), names, parts)
    return "\n".join(['"use strict";', *parts]).encode()


def _join(path: Path, above: tuple[Path, ...], names: dict[Path, str], parts: list[str]) -> str:
    """The name of a module's exports; the module is put behind those that it imports, once."""
    if path in above:
        raise ValueError(f"{path.name} imports itself through {', '.join(one.name for one in above[above.index(path) :])}")
    if path in names:
        return names[path]
    text = path.read_text(encoding="utf-8")

    def taken(match: re.Match[str]) -> str:
        whole, some, source = match.groups()
        module = _join((path.parent / source).resolve(), (*above, path), names, parts)
        taken_names = whole or "{" + _AS.sub(r"\1: \2", some) + "}"
        return f"const {taken_names} = {module};\n"

    body = _IMPORT.sub(taken, text)
    exports = ", ".join(_EXPORT.findall(body))
    body = _EXPORT.sub("", body)
    if wrong := re.search(r"^(?:import|export)\b.*", body, re.MULTILINE):
        raise ValueError(f"{path.name}: cannot join {wrong.group()!r}; modules import by name or whole, and export declarations")
    names[path] = f"module{len(names)}"
    parts.append(f"const {names[path]} = (() => {{\n{body}return {{ {exports} }};\n}})();")
    return names[path]


def joined_styles(folder: Path, names: tuple[str, ...]) -> bytes:
    """One style sheet of several, in the order given."""
    return b"\n".join((folder / name).read_bytes() for name in names)
