"""The parameters of a query string, for routes that read theirs alone and refuse those they do not know."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

from ..features.errors import listed
from .problems import FieldProblem, ProblemError
from .requests import MAX_TEXT, invalid, shown_name

MAX_VALUES = 64
"""Most parameters of a query, those given more than once among them."""


def parameters(query: bytes, known: Sequence[str]) -> dict[str, list[str]]:
    """The values of every parameter that has one.

    Raises:
        ProblemError: 422 for a parameter not `known`, one too long, too many, and text that is not UTF-8.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_VALUES)
    except UnicodeDecodeError as error:
        raise ProblemError(422, "the query is not percent-encoded UTF-8") from error
    except ValueError as error:
        raise ProblemError(422, f"the query has more than {MAX_VALUES} parameters") from error
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            possible = f"possible are: {listed(known)}" if known else "this address takes none"
            raise invalid([FieldProblem(shown_name(name), f"unknown parameter; {possible}")])
        if len(value) > MAX_TEXT:
            wrong = f"is {len(value)} characters long; values have at most {MAX_TEXT}"
            raise invalid([FieldProblem(name, wrong)])
        if value:
            found.setdefault(name, []).append(value)
    return found
