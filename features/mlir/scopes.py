"""Which value a name means, while a module is read: names are good for the region they are defined in."""

from __future__ import annotations

from .graph import ValueType
from .value_types import value_type

UNTYPED = value_type("")
"""The type of a value that a reader found no type for."""


class Scopes:
    """Values by name and types by value.

    `ids` are the names that can be seen here. `hidden` is what names defined in the current region meant before it, to be
    restored at its end; None where all names are new, in a function's body. `awaited` are values used before they were defined,
    as blocks and graph regions allow.
    """

    def __init__(self) -> None:
        self.types: list[ValueType] = []
        self.ids: dict[str, int] = {}
        self.hidden: list[tuple[str, int | None]] | None = None
        self.awaited: dict[str, int] = {}
        self._outer: list[tuple[dict[str, int], list[tuple[str, int | None]] | None]] = []

    def enter(self, *, is_isolated: bool) -> None:
        """Begin the regions of an operation; of one that is isolated they see no values from outside."""
        self._outer.append((self.ids, self.hidden))
        self.ids, self.hidden = ({}, None) if is_isolated else (self.ids, [])

    def next_region(self) -> None:
        """A region ends: names it defined mean again what they meant before it."""
        if self.hidden is None:
            self.ids.clear()
            return
        for name, before in reversed(self.hidden):
            if before is None:
                self.ids.pop(name, None)
            else:
                self.ids[name] = before
        self.hidden.clear()

    def leave(self) -> None:
        """The regions of an operation end."""
        self.ids, self.hidden = self._outer.pop()

    def define(self, name: str, kind: ValueType) -> int:
        """A value of type `kind`, called `name` from here on."""
        value = self.awaited.pop(name, None) if self.awaited else None
        if self.hidden is not None:
            self.hidden.append((name, None if value is not None else self.ids.get(name)))
        if value is None:
            value = len(self.types)
            self.types.append(kind)
        elif kind is not UNTYPED:
            self.types[value] = kind
        self.ids[name] = value
        return value

    def use(self, name: str, kind: ValueType = UNTYPED) -> int:
        """The value that `name` means; one of type `kind` that is defined further down, if none yet."""
        value = self.ids.get(name)
        if value is None:
            value = self.ids[name] = self.awaited[name] = len(self.types)
            self.types.append(kind)
        return value
