"""Whether a library that a question names was ever measured: one that never was is no answer with a note, but an error.
One that was, but not as the question has it, is answered with a note.

A predictor itself takes every name, as rows of a new library are judged and calibrated before it is known. A version that was
never measured is read as the nearest of its library (`nearest_impl`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ...features.batch.cases import Cases
from ...features.batch.category import described, nearest_impl
from ...features.errors import SpecError, listed
from ...features.kernel import KernelSpec
from .prediction import Predictor

_CLOSE = 3
"""Most names that a message proposes."""


def check_specs(predictor: Predictor, specs: Iterable[KernelSpec]) -> None:
    """That the libraries that specs name were measured.

    Raises:
        SpecError: the family is not known, or nothing of it was measured in any version of the library.
    """
    for family, impl in {(spec.family, spec.impl) for spec in specs if spec.impl}:
        check_impl(predictor, family, impl)


def check_impls(predictor: Predictor, cases: Cases) -> None:
    """That the libraries that cases name were measured.

    Raises:
        SpecError: the family is not known, or nothing of it was measured in any version of the library.
    """
    for impl in {category.impl for category in cases.categories.distinct}:
        check_impl(predictor, cases.family.name, impl)


def check_impl(predictor: Predictor, family: str, impl: str) -> None:
    """That the library of an implementation was measured for a family; an empty one is the usual one.

    Raises:
        SpecError: the family is not known, or nothing of it was measured in any version of the library.
    """
    if impl:
        check_name(impl, predictor.impls(family), family)


def check_name(impl: str, known: Sequence[str], what: str) -> None:
    """That an implementation or another version of its library is among `known`, which are those of `what`.

    Raises:
        SpecError: it is not.
    """
    names = list(filter(None, known))
    if impl in names or nearest_impl(impl, names) in names:
        return
    if close := difflib.get_close_matches(impl.lower(), names, n=_CLOSE):
        advice = f"did you mean {listed(close)}? Without impl, the usual one answers"
    else:
        more = f" and {len(names) - _CLOSE} others, see `kernelcast devices kernels`" if len(names) > _CLOSE else ""
        advice = f"measured: {listed(names[:_CLOSE]) or 'none with a name'}{more}; without impl, the usual one answers"
    raise SpecError(f"no {what} of impl {impl!r} was measured", field="impl", advice=advice)


def never_together(settings: Iterable[str], label: str, impl: str) -> str:
    """Why a category is new all of whose words are known by themselves.

    Args:
        settings: what was measured of the family, as `described`.
        label: the category's, as `measured_label`.
        impl: the implementation it is read as.
    """
    kernel, _, knobs = described(label.partition(" ")[2]).partition(" with ")
    known = [setting for setting in settings if setting.split(" ")[0] == impl]
    configured = [
        setting.partition(" with ")[2].split(",") for setting in known if setting.startswith(f"{kernel} with ")
    ]
    lacks = [[knob for knob in each if knob not in knobs.split(",")] for each in configured]
    fewest = min(lacks, key=len, default=[])
    if fewest:
        return (
            f"{kernel!r} was measured in configurations that also say {listed(fewest)}; "
            "`kernelcast compare rank` lists such, the fastest first"
        )
    more = f"{kernel} with {knobs}" if knobs else kernel
    return f"{more!r} was never measured; measured of {impl}: {listed(known) or 'nothing'}"
