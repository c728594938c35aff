"""All dialects together: rules by operation name, found as plug-ins once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ..kernel import discover
from .site import STRUCTURES, Dialect, Rule

_MOST_NAMES = 16384
"""Names looked up that are remembered, those of no dialect included; a text may have as many as it likes."""


class Entry(NamedTuple):
    """What is known of an operation: its rule, the word for its regions, and what its cost depends on besides types."""

    rule: Rule | None
    structure: str
    reads: str


class DialectRules(dict[str, Entry]):
    """Entries by operation name, filled as names are met.

    A name with an overload, `torch.aten.add.Tensor`, is also found without it.
    """

    def __init__(self, rules: Mapping[str, Rule], structure: Mapping[str, str]) -> None:
        super().__init__()
        self._rules, self._structure = rules, structure

    def __missing__(self, name: str) -> Entry:
        rule = self._rules.get(name)
        if rule is None and name.startswith("torch."):
            rule = self._rules.get(name.rpartition(".")[0])
        entry = Entry(rule, self._structure.get(name, ""), rule.reads if rule is not None else "")
        if len(self) < _MOST_NAMES:
            self[name] = entry
        return entry


@cache
def dialect_rules() -> DialectRules:
    """The tables of all plug-ins in `dialects/`.

    Raises:
        ValueError: two of them have a rule for the same operation, or one has a word that means nothing.
    """
    from . import dialects as package

    rules: dict[str, Rule] = {}
    structure: dict[str, str] = {}
    found: Mapping[str, Dialect] = discover(package, "DIALECT")
    for dialect in found.values():
        twice = (rules.keys() | structure.keys()) & (dialect.rules.keys() | dialect.structure.keys())
        strange = set(dialect.structure.values()) - set(STRUCTURES)
        if twice or strange:
            raise ValueError(
                f"dialect {dialect.name} has rules for what another has, or strange words: {sorted(twice | strange)}"
            )
        rules |= dialect.rules
        structure |= dialect.structure
    return DialectRules(rules, structure)
