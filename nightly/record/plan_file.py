"""Reading a plan: YAML, checked key by key, so that a typing error is one sentence and never a night without effect."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ...features.dtypes import DTYPES
from ...features.errors import SpecError, listed
from ...features.kernel import CACHE_STATES, families
from .plan import Plan

_MOST_B = 64_000
_SHOWN, _MOST_ERROR_CHARS = 60, 300
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
CHALLENGERS = ("adapted", "retrained", "past")

Read = Callable[[object], Any]
"""From a YAML value to what the plan holds; a ValueError says what is possible."""


class PlanError(SpecError):
    """A plan that cannot be followed; the message says which key, what was given and what is possible."""


def read_plan(path: Path) -> Plan:
    """The plan in a YAML file; its name is the file's unless it says another.

    Raises:
        PlanError: no such file, no YAML, or a key or value that is not possible.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_B + 1)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror or error}", field="plan") from error
    if len(raw) > _MOST_B:
        raise PlanError(f"{path} is larger than {_MOST_B} bytes; a plan is a few lines of YAML", field="plan")
    try:
        content = yaml.load(raw, Loader=_Loader)  # noqa: S506 - a SafeLoader that refuses more
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"{path} is no YAML that can be read: {_first_lines(error)}", field="plan") from error
    if not isinstance(content, dict):
        raise PlanError(f"{path} holds no keys; a plan of one line is: minutes: 20", field="plan")
    if "name" not in content:
        content["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")[:40] or "nightly"
    return plan_of(content, str(path))


def plan_of(content: Mapping[object, object], source: str = "the plan") -> Plan:
    """The plan that plain data describe; `source` names it in errors.

    Raises:
        PlanError: a key or value that is not possible.
    """
    plan: Plan = _section(Plan, content, "", source)
    if plan.collector == "replay" and not plan.replay.rows:
        raise _wrong(source, "replay.rows", "", "a file or folder of recorded rows, since collector is replay")
    if plan.collector != "replay" and plan.replay.rows:
        raise _wrong(source, "collector", plan.collector, "replay, since replay.rows is given")
    if plan.collector != "gpu" and plan.energy_minutes:
        raise _wrong(source, "energy_minutes", plan.energy_minutes, "0 where collector is not gpu")
    if plan.energy_minutes > plan.minutes / 2:
        raise _wrong(source, "energy_minutes", plan.energy_minutes, f"at most half of minutes, {plan.minutes / 2:g}")
    chosen = plan.choose
    if (shares := chosen.usage + chosen.repeats) > 1:
        raise _wrong(source, "choose", f"{shares:g} in all", "shares that add up to 1 at most")
    return plan


def _section(kind: Any, content: object, under: str, source: str) -> Any:
    """A dataclass of the plan from a mapping; what is not given has its default."""
    if content is None:
        content = {}
    known = {plan_field.name: plan_field for plan_field in fields(kind)}
    if not isinstance(content, dict):
        raise _wrong(source, under.rstrip("."), content, f"keys with values, of {listed(known)}")
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise PlanError(
                f"{source} has an unknown key {_shown(f'{under}{name}')}: {_meant(str(name), under, known)}"
                f"The keys there are: {listed(known)}",
                field=f"{under}{name}"[:_SHOWN],
            )
        values[name] = _value(known[name], value, f"{under}{name}", source)
    return kind(**values)


def _meant(name: str, under: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """What an unknown key may have been meant for: a near name, or a key that belongs into a part of the plan."""
    for key in _READ:
        part, _, key_in_part = key.partition(".")
        if key_in_part and name in (key, key_in_part) and part != under.rstrip("."):
            return f"{key} is written as {part}: {{{key_in_part}: …}}. "
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {under}{near[0]}? " if near else ""


def _value(plan_field: Field[Any], value: object, key: str, source: str) -> Any:
    part = None if plan_field.default_factory is MISSING else plan_field.default_factory
    if part is not None and is_dataclass(part):
        return _section(part, value, f"{key}.", source)
    try:
        return _READ[key](value)
    except PlanError:
        raise
    except ValueError as error:
        raise _wrong(source, key, value, str(error)) from error


def _wrong(source: str, key: str, raw: object, possible: str) -> PlanError:
    return PlanError(f"{source}: {key} is {_shown(raw)}; it must be {possible}", field=key)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text[:_SHOWN]) if isinstance(value, str) else text[:_SHOWN]


def _number(low: float, high: float, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"a number from {low:g} to {high:g}")
    return float(value)


def _whole(low: int, high: int, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"a whole number from {low} to {high}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.strip().isprintable():
        raise ValueError("text that is not empty, on one line")
    return value.strip()


def _text_or_none(value: object) -> str | None:
    return None if value is None or value == "none" else _text(value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        quoted = " in quotes" if not isinstance(value, str) else ""
        raise ValueError(f"text{quoted} of 1 to 40 letters, digits, '.', '_' or '-', since it names a folder")
    return value


def _one_of(words: Sequence[str], value: object) -> str:
    if value not in words:
        near = difflib.get_close_matches(str(value)[:_SHOWN], words, 1, 0.5)
        raise ValueError(f"one of {listed(words)}" + (f"; did you mean {near[0]}?" if near else ""))
    return str(value)


def _list(read: Read, value: object) -> tuple[Any, ...]:
    """A list, or one value alone; `none` and an empty list are no values."""
    if value is None:
        return ()
    entries = value if isinstance(value, list) else [value]
    read_all = [read(entry) for entry in entries]
    if len(set(read_all)) < len(read_all):
        raise ValueError("a list with nothing in it twice")
    return tuple(read_all)


def _family(value: object) -> str:
    return _one_of(tuple(families()), value)


def _regressor(value: object) -> str:
    from ...models.regressor import get_regressor

    name = _text(value)
    try:
        get_regressor(name)
    except SpecError as error:
        raise ValueError(f"a regressor: {str(error)[:_MOST_ERROR_CHARS]}") from error
    return name


_share: Read = partial(_number, 0.0, 1.0)

_READ: Mapping[str, Read] = {
    "name": _name,
    "minutes": partial(_number, 0.1, 1440.0),
    "device": _text_or_none,
    "collector": partial(_one_of, ("cpu", "gpu", "fleet", "replay")),
    "store": _text_or_none,
    "families": partial(_list, _family),
    "dtypes": partial(_list, partial(_one_of, tuple(DTYPES))),
    "threads": partial(_list, partial(_whole, 1, 4096)),
    "impls": partial(_list, _text),
    "cache_states": partial(_list, partial(_one_of, CACHE_STATES)),
    "drift": partial(_number, 0.0, 100.0),
    "seed": partial(_whole, 0, 2**32 - 1),
    "energy_minutes": partial(_number, 0.0, 1440.0),
    "registry": _text_or_none,
    "characterise.every_days": partial(_number, 0.0, 3650.0),
    "choose.space_filling": _share,
    "choose.usage": _share,
    "choose.repeats": _share,
    "choose.usage_log": _text_or_none,
    "train.regressors": partial(_list, _regressor),
    "train.data": partial(_list, _text),
    "train.with_shipped": _flag,
    "train.most_rows": partial(_whole, 100, 10**7),
    "train.retrain_rows": partial(_whole, 0, 10**7),
    "train.challengers": partial(_list, partial(_one_of, CHALLENGERS)),
    "train.software": partial(_one_of, ("all", "current")),
    "gate.hold_out": partial(_number, 0.02, 0.5),
    "gate.confidence": partial(_number, 0.5, 0.999),
    "gate.may_forget": _flag,
    "keep.nights": partial(_whole, 1, 10_000),
    "keep.models": partial(_whole, 1, 1000),
    "fleet.address": _text_or_none,
    "fleet.devices": partial(_list, _text),
    "replay.rows": _text,
    "replay.speed": partial(_number, 0.0, 1e6),
}
"""How each key is read."""


_MERGE, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("merge", "int", "float"))


class _Loader(yaml.SafeLoader):
    """A safe loader that also refuses a key given twice, and aliases, which a plan of some lines has no use for."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses aliases: a few of them inside each other describe more than any memory holds."""
        if self.check_event(yaml.events.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"aliases (*{event.anchor}) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that is given twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                raise yaml.YAMLError(f"merge keys (<<) are not read; write the keys out{_at(key)}")
            if key.value in seen if isinstance(key.value, str) else True:
                what = f"{_shown(key.value)} is given twice" if isinstance(key.value, str) else "a key is no plain text"
                raise yaml.YAMLError(f"{what}{_at(key)}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _plain_digits(loader: Any, node: Any) -> int | float:
    """A number as it looks: YAML 1.1 has 1:30 for 90 and 020 for 16, which nobody means."""
    read = loader.construct_yaml_int if node.tag == _INT else loader.construct_yaml_float
    if ":" in node.value or re.match(r"[+-]?0[0-9_xb]", node.value):
        raise yaml.YAMLError(f"{_shown(node.value)} is not read as a number; write it in plain digits{_at(node)}")
    return float(read(node)) if node.tag != _INT else int(read(node))


for _tag in (_INT, _FLOAT):
    _Loader.add_constructor(_tag, _plain_digits)


def _at(node: Any) -> str:
    return _line(getattr(node, "start_mark", None))


def _line(mark: Any) -> str:
    return "" if mark is None else f" (line {mark.line + 1})"


def _first_lines(error: BaseException) -> str:
    mark = getattr(error, "problem_mark", None)
    message = f"{error.problem}{_line(mark)}" if isinstance(error, yaml.MarkedYAMLError) and mark else str(error)
    words = " ".join(message.replace('in "<byte string>", ', "").split())
    return words[:200] or type(error).__name__
