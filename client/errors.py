"""What a client raises: one error, with the status, the words of the service, and the fields at fault."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


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
