"""What callers of Python functions give, checked before it is used: names, numbers, families in the words of a person."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..features.errors import SpecError, listed
from ..features.kernel import families
from ..features.spec_io.reading import SPEC_FIELDS
from ..features.spec_io.words import read_family


def named_family(name: Any, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The family of a name such as `matmul`, and the settings with the variant that it means and sizes as whole numbers.

    Raises:
        SpecError: it is no name of a family; the message has the closest.
    """
    if not isinstance(name, str):
        raise SpecError(f"a family is named by text, such as 'gemm', got {type(name).__name__}", field="family")
    family, variant = read_family(name)
    plain = {key: _whole(value) if key in family.dim_names else value for key, value in settings.items()}
    return family.name, {"variant": variant, **plain} if variant else plain


def _whole(value: Any) -> Any:
    """A number such as `64.0`, which tables and quotients give, as the whole number it is; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def names_of(devices: Any) -> list[Any]:
    """Names of devices; text alone is one name, as it is a sequence of its letters otherwise.

    Raises:
        SpecError: it is neither a name nor a collection.
    """
    if not isinstance(devices, Iterable):
        raise SpecError(f"a device is named by text, several by a list, got {type(devices).__name__}", field="device")
    return _list_of(devices)


def _list_of(names: Iterable[Any]) -> list[Any]:
    return [names] if isinstance(names, str) else list(names)


def check_fields(row: Mapping[str, Any]) -> None:
    """That the fields of a spec whose sizes stand beside the others are known.

    Raises:
        SpecError: there is no family among them, or a field that no spec of it has.
    """
    if "family" not in row:
        raise SpecError("the family is missing; give a `family` field, such as 'gemm'", field="family")
    family = families().get(row["family"]) if isinstance(row["family"], str) else None
    if family is None or "sizes" in row:
        return
    possible = ["device", "family", "dtype", *family.dim_names, *SPEC_FIELDS, *family.config]
    for name in row:
        if name not in possible:
            taken = listed(dict.fromkeys(field for field in possible if field not in ("sizes", "config")))
            raise SpecError(f"{family.name} has no field {name!r}; leave it out, or name one of {taken}", field=name)


_NOT_BY_NAME = ("facts", "device", "catalogue", "others", "speculation", "setting")
"""Parameters of the functions below that callers do not give by name."""


def check_names(names: Iterable[str], *takers: Callable[..., Any]) -> None:
    """That functions have parameters of these names.

    Raises:
        SpecError: they have not; the message has the closest.
    """
    possible = [name for taker in takers for name in inspect.signature(taker).parameters if name not in _NOT_BY_NAME]
    for name in names:
        if name not in possible:
            close = difflib.get_close_matches(name, possible, n=1)
            hint = f"did you mean {close[0]}?" if close else f"possible are {listed(dict.fromkeys(possible))}"
            raise SpecError(f"there is no argument {name!r}", field=name, advice=hint)


def check_numbers(values: Mapping[str, Any]) -> None:
    """That values are numbers, or None.

    Raises:
        SpecError: one is not.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise SpecError(f"{name} must be a number, got {value!r}", field=name)


_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "str": (str, "text"),
}
_LISTS = ("Sequence[str]", "tuple[str, ...]")


def checked_settings(settings: Mapping[str, Any], *takers: Callable[..., Any]) -> dict[str, Any]:
    """Settings of a service as functions take them: of the kinds that their annotations say, and a draft model as its facts.

    Whole numbers may be given as `2.0`, and one of several texts alone.

    Raises:
        SpecError: one is unknown, missing, or of another kind.
    """
    check_names(settings, *takers)
    known = {name: item for taker in takers for name, item in inspect.signature(taker).parameters.items()}
    for name, parameter in known.items():
        by_name_alone = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        if by_name_alone and name not in settings:
            raise SpecError(f"{name} is missing; give it by name, such as {name}=1024", field=name)
    return {name: _checked(name, value, known[name]) for name, value in settings.items()}


def _checked(name: str, value: Any, parameter: inspect.Parameter) -> Any:
    """A value of the kind that a parameter's annotation says; None where that is its default."""
    from ..workloads.serving.batching.load import Load

    kind = str(parameter.annotation).removesuffix(" | None")
    if value is None and parameter.default is None:
        return None
    if kind == "ModelFacts":
        return _draft(name, value)
    if kind in _LISTS:
        texts = _list_of(value) if isinstance(value, Iterable) else [value]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise SpecError(f"{name} is text, or a list of texts, got {wrong[0]!r}", field=name)
        return texts
    value = _whole(value) if kind == "int" else value
    possible, title = (_KINDS | {"Load": (Load, "a Load")})[kind]
    if isinstance(value, bool) or not isinstance(value, possible):
        raise SpecError(f"{name} must be {title}, got {value!r}", field=name)
    return value


def _draft(name: str, model: Any) -> Any:
    """The facts of a draft model, which is given like the model; errors name this argument in place of `model`."""
    from ..workloads.architectures.config.catalogue import facts_of

    try:
        return facts_of(model)
    except SpecError as error:
        raise SpecError(f"{name}: {error}", field=name) from error
