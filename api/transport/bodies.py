"""Bodies between the socket and the routes: requests read and unpacked within their limits, JSON decoded, answers sent.

JSON is decoded to plain values rather than typed structs because a typed decoder stops at the first error and cannot name the
size that is wrong.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from anyio.to_thread import run_sync
from starlette.types import Message, Receive

from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import KernelFamily, get_family
from ...features.spec_io.reading import DEFAULT_COVERAGE, MAX_TEXT, kind_of, shown_name
from ...models.family_model.intervals import COVERAGE_RANGE
from .problems import FieldProblem, ProblemError, field_problem, invalid, invalid_field

JSON = frozenset({"application/json"})
"""The media type of a body that is JSON."""


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str = "send the specs in parts"
) -> bytes:
    """The body, read no further than its limit; `advice` says what to do about one that is longer.

    A gzip body is unpacked on a thread, and is within the limit both packed and unpacked.

    Raises:
        ProblemError: 413 as soon as the body is known to be longer, and the connection is closed. 415 for a body packed with
            something else than gzip, 400 for one that is no gzip or cut short.
    """
    packed = b"content-encoding" in headers and is_packed(headers)
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > limit_b:
        raise _too_large(limit_b, advice)
    parts: list[bytes] = []
    length = 0
    message: Message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > limit_b:
            raise _too_large(limit_b, advice)
    if len(parts) > 1 and message["type"] == "http.disconnect":
        raise ProblemError(400, "the connection was closed before the whole body arrived")
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    return await run_sync(unpack, body, limit_b, advice) if packed else body


async def read_json_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit_b: int, advice: str = "send the specs in parts"
) -> bytes:
    """The body of a request that must be JSON, as `read_body` reads it.

    Raises:
        ProblemError: 415 for another media type, else see `read_body`.
    """
    media_type(headers, JSON)
    return await read_body(headers, receive, limit_b, advice)


def _too_large(limit_b: int, advice: str) -> ProblemError:
    return ProblemError(413, f"the body is longer than {limit_b} bytes; {advice}", headers={"connection": "close"})


def media_type(headers: Mapping[bytes, bytes], taken: Collection[str]) -> str:
    """The media type of a body, one of those `taken`.

    Raises:
        ProblemError: 415 for another, and for text that is not UTF-8.
    """
    header = headers.get(b"content-type", b"").decode("latin-1")
    name, _, parameters = header.partition(";")
    if (media := name.strip().lower()) not in taken:
        shown = f"got {header[:100]!r}" if header else "none was given"
        raise ProblemError(415, f"send the header content-type: {' or '.join(sorted(taken))} ({shown})")
    charset = parameters.strip().lower().partition("charset=")[2].strip('"')
    if charset not in ("", "utf-8", "utf8"):
        raise ProblemError(415, f"bodies are UTF-8; got charset {charset[:40]!r}")
    return media


MAX_VALUES = 64
"""Most parameters of a query, those given more than once among them."""


def parameters(
    query: bytes, known: Sequence[str], most: int = MAX_VALUES, longest: int = MAX_TEXT
) -> dict[str, list[str]]:
    """The values of every parameter that has one; `longest` is the length of a value, in characters.

    Raises:
        ProblemError: 422 for a parameter not `known`, one too long, too many, and text that is not UTF-8.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError as error:
        raise ProblemError(422, "the query is not percent-encoded UTF-8") from error
    except ValueError as error:
        raise ProblemError(422, f"the query has more than {most} parameters") from error
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            possible = f"possible are: {listed(known)}" if known else "this address takes none"
            raise invalid_field(shown_name(name), f"unknown parameter; {possible}")
        if len(value) > longest:
            raise invalid_field(name, f"is {len(value)} characters long; values have at most {longest}")
        if value:
            values.setdefault(name, []).append(value)
    return values


def integer_parameter(values: Mapping[str, Sequence[str]], name: str, default: int, low: int, high: int) -> int:
    """A whole number among the parameters of a query.

    Args:
        values: The values of every parameter, from `parameters`.
        name: The parameter.
        default: Its value where it is not set.
        low: The smallest value allowed.
        high: The largest value allowed.

    Raises:
        ProblemError: 422, it is set more than once, or is not a whole number in the range.
    """
    texts = values.get(name, [str(default)])
    if len(texts) > 1:
        raise invalid_field(name, "is given more than once")
    if not texts[0].isascii() or not texts[0].isdigit() or not low <= int(texts[0][:20]) <= high:
        raise invalid_field(name, f"must be a whole number between {low} and {high}, got {texts[0][:60]!r}")
    return int(texts[0])


REQUEST_ENCODINGS = "gzip"
"""What a request's body may be packed with, for the Accept-Encoding of a refusal (RFC 7694)."""

_GZIP_WINDOW = 31  # zlib's largest window, 15 bits, + 16 for a gzip header instead of a zlib one


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request's body is gzip.

    Raises:
        ProblemError: 415, it is packed with something else.
    """
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding in (b"gzip", b"x-gzip"):
        return True
    if encoding in (b"identity", b""):
        return False
    shown = encoding.decode("latin-1")[:40]
    raise ProblemError(
        415, f"a body may be uncompressed or have content-encoding gzip; got {shown!r}",
        headers={"accept-encoding": REQUEST_ENCODINGS},
    )  # fmt: skip


def unpack(body: bytes, limit_b: int, advice: str) -> bytes:
    """The body of one gzip member; no more than `limit_b` + 1 bytes of it are ever made.

    Raises:
        ProblemError: 413 where it is longer unpacked than `limit_b`; 400 where it is no gzip, is cut short or goes on after it.
    """
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        unpacked = unpacker.decompress(body, limit_b + 1)
    except zlib.error as error:
        raise ProblemError(400, f"the body is not valid gzip, although content-encoding says so: {error}") from error
    if len(unpacked) > limit_b:
        raise ProblemError(413, f"the body is longer than {limit_b} bytes when it is unpacked; {advice}")
    if not unpacker.eof:
        raise ProblemError(400, "the gzip body is cut short; send all of it")
    if unpacker.unused_data:
        raise ProblemError(400, f"{len(unpacker.unused_data)} bytes follow the gzip body; send it as one gzip member")
    return unpacked


_COVERAGE_WORDS = (
    f"must be a number between {COVERAGE_RANGE[0]:g} and {COVERAGE_RANGE[1]:g}, such as {DEFAULT_COVERAGE:g}"
)


def read_object(
    body: bytes, wanted: str = 'one spec, or {"requests": [...]}', what: str = "the body"
) -> dict[str, Any]:
    """The JSON object of a body; `wanted` says what to send instead of an empty body, `what` names the object.

    Raises:
        ProblemError: 400 for a body that is no JSON, 422 for JSON that is no object.
    """
    if not body.strip():
        raise ProblemError(400, f"the body is empty; send {wanted}")
    try:
        root = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise ProblemError(400, f"the body is not valid UTF-8: {error.reason}") from error
    except RecursionError as error:
        raise ProblemError(400, "the body is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise ProblemError(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(root, dict):
        raise ProblemError(422, f"{what} must be a JSON object, not {kind_of(root)}")
    return root


MAX_NUMBER = 1e15
"""Largest number taken, so that products of several stay finite."""


def is_number(value: Any) -> bool:
    """Whether a value is a number that is taken, not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def read_coverage(root: Mapping[str, Any], field: str = "coverage") -> float:
    """The coverage that a request wants; `field` is its path.

    Raises:
        ProblemError: 422 where it is no number between 0 and 1.
    """
    coverage = root.get("coverage", DEFAULT_COVERAGE)
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise invalid_field(field, _COVERAGE_WORDS)
    return float(coverage)


def refuse_duplicate_names(body: bytes, root: dict[str, Any], items: list[Any]) -> None:
    """Refuse a name given twice in one object: which of the two was meant cannot be known.

    The decoder keeps the last one silently. Without escapes, a body has at least one colon per name, so a body with as
    many colons as names has none twice; only a body with more is read again, slowly, to find out.
    """
    names = len(root)
    for item in items:
        if isinstance(item, dict):
            if item is not root:
                names += len(item)
            for inner in (item.get("sizes"), item.get("config")):
                if isinstance(inner, dict):
                    names += len(inner)
    if b"\\" not in body and body.count(b":") == names:
        return

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise invalid([FieldProblem(shown_name(twice), "is given twice in one object")])
        return mapping

    try:
        json.loads(body, object_pairs_hook=unique)
    except RecursionError as error:
        raise ProblemError(400, "the body is nested too deeply") from error


MAX_DEVICES = 200
"""Most devices of one request: more than any catalogue has, so that a body cannot be spent on names."""


def named_family(name: Any) -> KernelFamily:
    """The family of a request's `family`.

    Raises:
        ProblemError: 422, it is no text, or not known.
    """
    if not isinstance(name, str):
        raise invalid_field("family", f"family must be text, not {kind_of(name)}")
    try:
        return get_family(name[:MAX_TEXT])
    except SpecError as error:
        raise invalid([field_problem(error, "family")]) from error


def named_devices(names: Sequence[Any], catalogue: Catalogue, field: str | None = None) -> list[Device]:
    """The devices of a list of names; a problem is of `devices[i]`, or of `field` where that is given.

    Raises:
        ProblemError: 422 naming every one that is no name, or not known.
    """
    devices: list[Device] = []
    errors: list[FieldProblem] = []
    for index, name in enumerate(names):
        path = field or f"devices[{index}]"
        if not isinstance(name, str) or len(name) > MAX_TEXT:
            errors.append(FieldProblem(path, f"must be text of at most {MAX_TEXT} characters"))
            continue
        try:
            devices.append(catalogue.get(name))
        except SpecError as error:
            errors.append(field_problem(error, path))
    if errors:
        raise invalid(errors)
    return devices
