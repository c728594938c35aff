"""What the page needs first, joined into one script and one style sheet: on a slow network two requests in place of twenty.

The files in `static/` are modules that a browser runs as they are. In the joined script each becomes a function that returns
its exports. Modules that are loaded later take what they import of joined ones from that script.
"""

from __future__ import annotations

import re
from pathlib import Path

_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "(\.[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_AS = re.compile(r"(\w+) as (\w+)")
_COMMENT = re.compile(r"^ *//.*\n|^ */\*\*(?:(?!\*/).|\n)*\*/\n", re.MULTILINE)
_LATER = re.compile(r'\bimport\("\.')
_JOINED = "globalThis.joinedModules"


class Bundle:
    """The modules of a page.

    Args:
        entry: The module that the page starts with. It is joined with all that its `import` statements reach, not with what
            `import()` loads later.
    """

    def __init__(self, entry: Path) -> None:
        self._root = entry.resolve().parent
        self._names: dict[Path, str] = {}
        self._parts: list[str] = []
        self._join(entry.resolve(), ())

    @property
    def script(self) -> bytes:
        """The joined modules as one script beside `entry`.

        Raises:
            ValueError: modules import each other in a circle, or have an `import` or `export` of a form that is not read here.
        """
        entries = ", ".join(f'"{self._key(path)}": {name}' for path, name in self._names.items())
        return "\n".join(['"use strict";', *self._parts, f"{_JOINED} = {{ {entries} }};\n"]).encode()

    def module(self, path: Path) -> bytes:
        """A module that comes later: what it imports of joined ones is taken from these, so that none runs twice."""

        def from_joined(match: re.Match[str]) -> str:
            target = (path.parent / match[3]).resolve()
            return _as_constant(match, f'{_JOINED}["{self._key(target)}"]') if target in self._names else match[0]

        return _COMMENT.sub("", _IMPORT.sub(from_joined, path.read_text(encoding="utf-8"))).encode()

    def _key(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _join(self, path: Path, above: tuple[Path, ...]) -> str:
        """The name of a module's exports; the module is put behind those that it imports, once."""
        if path in above:
            circle = ", ".join(link.name for link in above[above.index(path) :])
            raise ValueError(f"{path.name} imports itself through {circle}")
        if path in self._names:
            return self._names[path]
        text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
        body = _IMPORT.sub(
            lambda match: _as_constant(match, self._join((path.parent / match[3]).resolve(), (*above, path))), text
        )
        exports = ", ".join(_EXPORT.findall(body))
        body = _EXPORT.sub("", body)
        if wrong := re.search(r"^(?:import|export)\b(?!\().*", body, re.MULTILINE):
            raise ValueError(
                f"{path.name}: cannot join {wrong[0]!r}; modules import by name or whole, and export declarations"
            )
        if _LATER.search(body) and path.parent != self._root:
            raise ValueError(f"{path.name}: imports later what is beside it; only modules beside the first may")
        name = self._names[path] = f"module{len(self._names)}"
        self._parts.append(f"const {name} = (() => {{\n{body}return {{ {exports} }};\n}})();")
        return name


def _as_constant(match: re.Match[str], module: str) -> str:
    """An import as a constant that is taken from a module's exports."""
    names = match[1] or "{" + _AS.sub(r"\1: \2", match[2]) + "}"
    return f"const {names} = {module};\n"


def joined_styles(folder: Path, names: tuple[str, ...]) -> bytes:
    """One style sheet of several, in the order given."""
    return b"\n".join((folder / name).read_bytes() for name in names)
