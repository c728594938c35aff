"""Requests as they are sent: specs from keywords, and many specs in parts that the service takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

SPEC_FIELDS = ("family", "device", "dtype", "sizes", "variant", "impl", "kv_dtype", "config", "threads", "cache_state")
"""Fields of a spec; any other keyword is one of its sizes."""

PART_B = 900_000
"""Longest part of a batch in bytes: the service takes 1 MiB unless set otherwise."""

PART_SPECS = 5000
"""Most specs in a part: the service takes 10,000 unless set otherwise."""


def spec(values: Mapping[str, Any]) -> dict[str, Any]:
    """A spec with its sizes in an object of their own, whether they were given so or beside the other fields.

    What is None is left out.

    Raises:
        ClientError: it is no mapping, nor is its `sizes`; or a size is given in both ways.
    """
    if not isinstance(values, Mapping):
        raise ClientError(f"a spec must be a mapping of fields, not {type(values).__name__}")
    sizes = values.get("sizes") or {}
    if not isinstance(sizes, Mapping):
        raise ClientError(f"sizes must be a mapping of names to whole numbers, not {type(sizes).__name__}")
    named = {name: values[name] for name in SPEC_FIELDS if values.get(name) is not None}
    beside = {name: value for name, value in values.items() if name not in SPEC_FIELDS and value is not None}
    if twice := sorted(beside.keys() & sizes.keys()):
        raise ClientError(f"the size {twice[0]} is given twice: in `sizes` and beside it")
    return {**named, "sizes": {**sizes, **beside}}


def names(devices: Sequence[str] | None) -> list[str] | None:
    """Names of devices as they are sent; text alone is one name, as it is a sequence of its letters otherwise."""
    if devices is None:
        return None
    return [devices] if isinstance(devices, str) else list(devices)


def encode(request: Any) -> bytes:
    """The JSON of a request; numpy's columns and numbers are taken as lists and numbers.

    Raises:
        ClientError: it holds what JSON has no form of.
    """
    try:
        return msgspec.json.encode(request, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ClientError(f"the request cannot be sent: {error}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def parts(specs: Sequence[Mapping[str, Any]], coverage: float | None) -> Iterator[tuple[int, bytes]]:
    """Bodies of `/v1/predict` that hold the specs in order, each with the position of its first spec."""
    end = b"]}" if coverage is None else b'],"coverage":' + encode(coverage) + b"}"
    items: list[bytes] = []
    first = length = 0
    for position, item in enumerate(specs):
        text = encode(spec(item))
        if items and (length + len(text) > PART_B or len(items) == PART_SPECS):
            yield first, b'{"requests":[' + b",".join(items) + end
            items, first, length = [], position, 0
        items.append(text)
        length += len(text) + 1
    if items:
        yield first, b'{"requests":[' + b",".join(items) + end


def moved(error: ClientError, by: int) -> ClientError:
    """A part's error with positions in the whole batch."""

    def moved_part(field_error: FieldError) -> FieldError:
        if field_error.index is None:
            return field_error
        index = field_error.index + by
        return FieldError(
            field_error.field.replace(f"[{field_error.index}]", f"[{index}]", 1), field_error.detail, index
        )

    errors = [moved_part(field_error) for field_error in error.errors]
    detail = error.detail
    if errors and errors[0].field != error.errors[0].field:
        detail = detail.replace(error.errors[0].field, errors[0].field, 1)
    return ClientError(detail, error.status, errors, error.request_id)


class FieldError(msgspec.Struct, frozen=True):
    """One input that was not accepted: its path (`sizes.m`, `requests[3].device`), and what is wrong with it.

    `index` is the position of the spec in `predict_many`, None elsewhere.
    """

    field: str
    detail: str
    index: int | None = None


class ClientError(Exception):
    """A request that was not answered with a prediction.

    `status` is the HTTP status, None where no answer came (no connection, a timeout, an answer that is not one).
    `detail` says what went wrong and what to do; `errors` names the inputs at fault. `request_id` is the one the service
    gave, for its log, None where it gave none.
    """

    def __init__(
        self, detail: str, status: int | None = None, errors: Sequence[FieldError] = (), request_id: str | None = None
    ) -> None:
        super().__init__(detail if status is None else f"{status}: {detail}")
        self.detail = detail
        self.status = status
        self.errors = tuple(errors)
        self.request_id = request_id

    def __reduce__(self) -> tuple[type[ClientError], tuple[object, ...]]:
        return type(self), (self.detail, self.status, self.errors, self.request_id)
