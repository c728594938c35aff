"""What was asked of MLIR text: one reading of bodies, of query parameters, and of the command line's words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ..features.device import Catalogue, Device
from ..features.errors import SpecError, listed
from ..features.mlir.limits import MAX_TEXT_B
from ..models.intervals import check_coverage
from .model_request import MAX_DEVICES
from .problems import MAX_LISTED, FieldProblem, ProblemError, field_problem
from .requests import DEFAULT_COVERAGE, MAX_TEXT, invalid, kind_of, read_object, refuse_duplicate_names, shown_name

PARAMETERS = ("device", "function", "bind", "compiler", "threads", "coverage")
"""Query parameters of a body that is the text itself; `device` and `bind` may be given again."""
FIELDS = ("text", "devices", *PARAMETERS)
"""Fields of a JSON body."""
MAX_FUNCTION = 1024
"""Longest name of a function; mangled names are long."""
MAX_BINDS = 1000
MAX_THREADS = 4096
_WHOLE = re.compile("-?[0-9]{1,18}")
SHORTEN = (
    "print weights short (--mlir-elide-elementsattrs-if-larger=4 --mlir-elide-resource-strings-if-larger=4; in Python "
    "large_elements_limit=4 and large_resource_limit=4)"
)
"""What to do about a text that is too long: it is nearly always weights, which torch-mlir prints as resources."""
_LONGEST_PATH = 4096
_PATH_SUFFIXES = (".mlir", ".ttir", ".ttgir", ".stablehlo")
_REPEATED = ("device", "bind")
_MAX_PAIRS = MAX_DEVICES + MAX_BINDS + len(PARAMETERS)


@dataclass(frozen=True, slots=True)
class ProgramRequest:
    """A text and what to do with it; `devices` are catalogue names, `compiler` is empty and `threads` None where not given."""

    text: str | bytes
    devices: list[str]
    function: str | None
    bind: dict[str, int]
    compiler: str
    threads: int | None
    coverage: float


def read_text_request(body: bytes, query: bytes, catalogue: Catalogue, max_text_b: int) -> ProgramRequest:
    """The request of a body that is MLIR text, its settings in the query.

    Raises:
        ProblemError: 413 for text of more than `max_text_b` bytes, 422 naming the parameter that is wrong.
    """
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_PAIRS)
    except ValueError as error:
        raise ProblemError(422, f"the address has more than {_MAX_PAIRS} parameters") from error
    given: dict[str, Any] = {"text": body}
    for name, value in pairs:
        if name not in PARAMETERS:
            raise _wrong(name, f"unknown parameter; text takes {listed(PARAMETERS)}")
        if name in _REPEATED:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise _wrong(name, "is given twice")
        else:
            given[name] = value
    try:
        if "bind" in given:
            given["bind"] = read_bind(given["bind"])
        for name, kind in (("threads", _whole), ("coverage", _number)):
            if name in given:
                given[name] = kind(name, given[name])
    except SpecError as error:
        raise invalid([field_problem(error, error.field or "")]) from error
    if "device" in given:
        given["devices"] = given.pop("device")
    return _checked(given, catalogue, max_text_b, one="device")


def read_json_request(body: bytes, query: bytes, catalogue: Catalogue, max_text_b: int) -> ProgramRequest:
    """The request of a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for text of more than `max_text_b` bytes, 422 naming what is wrong.
    """
    if query:
        raise ProblemError(422, "a JSON body has its settings inside; the address takes none then")
    if not body.strip():
        raise ProblemError(400, 'the body is empty; send {"text": "…", "device": "…"}')
    root = read_object(body)
    if unknown := [name for name in root if name not in FIELDS]:
        raise _wrong(unknown[0], f"unknown field; MLIR takes {listed(FIELDS)}")
    refuse_duplicate_names(body, root, [])
    given = {name: value for name, value in root.items() if value is not None}
    if not isinstance(given.get("text"), str):
        raise _wrong("text", f"must be MLIR text, not {kind_of(root['text'])}" if "text" in root else "is missing")
    if "device" in given and "devices" in given:
        raise _wrong("device", "give either device or devices")
    one = "device" if "device" in given else "devices"
    if "device" in given:
        given["devices"] = [given.pop("device")]
    return _checked(given, catalogue, max_text_b, one)


def read_bind(words: Iterable[str]) -> dict[str, int]:
    """Sizes for dynamic dimensions from words such as `dim0:128` or `dim0=128`.

    Raises:
        SpecError: a word is neither, its size is no whole number, or a name is given twice.
    """
    found: dict[str, int] = {}
    for word in words:
        name, mark, size = word.replace("=", ":").rpartition(":")
        if not mark or not name:
            raise SpecError(f"bind takes name=size, such as dim0=128, got {word[:MAX_TEXT]!r}", field="bind")
        if name in found:
            raise SpecError(f"bind names {shown_name(name)} twice", field="bind")
        found[name] = _whole("bind", size)
    return found


def read_file(path: Path | None) -> bytes:
    """The MLIR text of a file, or of stdin where there is none; a text that is too long is not read to its end.

    Raises:
        SpecError: the file cannot be read, holds too much, or stdin is closed.
    """
    if path is None:
        if sys.stdin is None:
            raise SpecError("cannot read stdin: it is closed; name a file", field="file")
        text = sys.stdin.buffer.read(MAX_TEXT_B + 1)
    else:
        try:
            with path.open("rb") as file:
                text = file.read(MAX_TEXT_B + 1)
        except (OSError, ValueError) as error:
            # A path with a null character is a ValueError.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            named = "".join(one if one.isprintable() else "�" for one in str(path))
            raise SpecError(f"cannot read {named}: {reason}", field="file") from error
    if len(text) > MAX_TEXT_B:
        raise SpecError(f"the MLIR text is longer than {MAX_TEXT_B:,} bytes; {SHORTEN}", field="file")
    return text


def threads_on(devices: Sequence[Device], threads: int | None) -> list[int | None]:
    """The thread count of each device: those asked for are the CPUs', where there is one among the devices."""
    has_cpu = any(device.kind == "cpu" for device in devices)
    return [threads if device.kind == "cpu" or not has_cpu else None for device in devices]


def text_of(text_or_path: str | Path) -> str | bytes:
    """Text as it is; of a path, or text that is the path of a file or ends like one, what is in the file.

    Raises:
        SpecError: the file cannot be read.
    """
    if isinstance(text_or_path, Path):
        return read_file(text_or_path)
    if len(text_or_path) > _LONGEST_PATH or "\n" in text_or_path:
        return text_or_path
    path = Path(text_or_path)
    try:
        is_path = path.is_file() or path.suffix in _PATH_SUFFIXES
    except OSError:
        # What the system takes for no path is text.
        is_path = False
    return read_file(path) if is_path else text_or_path


def _checked(given: Mapping[str, Any], catalogue: Catalogue, max_text_b: int, one: str) -> ProgramRequest:
    """The request of plain values; `one` is what the devices are called where they come from."""
    text = given["text"]
    length_b = len(text) if isinstance(text, bytes) else len(text.encode())
    if length_b > max_text_b:
        raise ProblemError(413, f"the text is {length_b} bytes long; at most {max_text_b} are read, {SHORTEN}")
    function, compiler = given.get("function"), given.get("compiler", "")
    if function is not None and (not isinstance(function, str) or len(function) > MAX_FUNCTION):
        raise _wrong("function", f"must be a name of at most {MAX_FUNCTION} characters")
    if not isinstance(compiler, str) or len(compiler) > MAX_TEXT:
        raise _wrong("compiler", f"must be a name of at most {MAX_TEXT} characters")
    threads = given.get("threads")
    if threads is not None and not (_is_whole(threads) and 1 <= threads <= MAX_THREADS):
        raise _wrong("threads", f"must be a whole number between 1 and {MAX_THREADS}")
    coverage = given.get("coverage", DEFAULT_COVERAGE)
    try:
        coverage = check_coverage(coverage)
    except SpecError as error:
        raise _wrong("coverage", str(error)) from error
    return ProgramRequest(
        text, _devices(given.get("devices"), catalogue, one), function, _sizes(given.get("bind", {})), compiler, threads,
        coverage,
    )  # fmt: skip


def _devices(names: Any, catalogue: Catalogue, one: str) -> list[str]:
    if names is None:
        raise _wrong(one, "is missing; name a device, /v1/devices lists them")
    if not isinstance(names, Sequence) or isinstance(names, str) or not 1 <= len(names) <= MAX_DEVICES:
        raise _wrong(one, f"must be a list of one to {MAX_DEVICES} device names")
    found: list[str] = []
    errors: list[FieldProblem] = []
    for index, name in enumerate(names):
        path = one if one == "device" else f"devices[{index}]"
        if not isinstance(name, str) or len(name) > MAX_TEXT:
            errors.append(FieldProblem(path, f"must be a name of at most {MAX_TEXT} characters"))
            continue
        try:
            found.append(catalogue.get(name).name)
        except SpecError as error:
            errors.append(field_problem(error, path))
    if errors:
        raise invalid(errors[:MAX_LISTED])
    return found


def _sizes(given: Any) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise _wrong("bind", f"must be an object of sizes, such as {{'dim0': 128}}, not {kind_of(given)}")
    if len(given) > MAX_BINDS:
        raise _wrong("bind", f"binds {len(given)} sizes; at most {MAX_BINDS} are taken")
    for name, size in given.items():
        if not _is_whole(size):
            raise _wrong(f"bind.{shown_name(name)}", f"must be a whole number, not {kind_of(size)}")
    return dict(given)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(name: str, word: str) -> int:
    if not _WHOLE.fullmatch(word):
        raise SpecError(f"{name} must be a whole number, got {word[:40]!r}", field=name)
    return int(word)


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise SpecError(f"{name} must be a number, got {word[:40]!r}", field=name) from error


def _wrong(field: str, detail: str) -> ProblemError:
    return invalid([FieldProblem(shown_name(field), detail)])
