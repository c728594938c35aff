"""What goes wrong at a URL, as one sentence that says what to do and holds no secret."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from .committing import StoreError, UnreachableError

_LIBRARY_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"), ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"), ("gcsfs.retry", "HttpError"), ("azure.core.exceptions", "AzureError"),
    ("fsspec.exceptions", "FSTimeoutError"),
)  # fmt: skip
"""Errors of the packages behind fsspec that are no OSError. A package that is not loaded cannot have raised one."""

_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
                "ProfileNotFound", "NoAuthTokenError", "TokenRetrievalError")  # fmt: skip
_UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ClientConnectorError", "FSTimeoutError",
                "ConnectionClosedError", "ConnectionError", "ConnectionRefusedError", "TimeoutError", "HTTPClientError",
                "ProxyConnectionError", "SSLError", "gaierror")  # fmt: skip
_S3_HINT = " (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)"


def plain_url(url: str) -> str:
    """The URL as messages may show it: without user, password and query."""
    head, _, path = url.partition("://")
    return f"{head}://{path.partition('?')[0].rpartition('@')[2].rstrip('/')}"


def refuse_secrets(url: str) -> None:
    """Raise a `StoreError` for a URL with a password in it: URLs end up in logs, reports and shell histories."""
    try:
        password = urlsplit(url).password
    except ValueError as error:
        raise StoreError(f"the store's URL cannot be understood: {plain_url(url)}") from error
    if password is not None:
        raise StoreError(
            f"the URL of {plain_url(url)} holds a password; give credentials by the environment instead{_S3_HINT}"
        )


@contextlib.contextmanager
def clear_url_errors(where: str, doing: str, *, missing: type[StoreError] = UnreachableError,
                     also: tuple[type[Exception], ...] = ()) -> Iterator[None]:  # fmt: skip
    """Turn what a filesystem of fsspec says into a `StoreError`.

    `missing` is raised for a file that is not there. `also` are further errors to turn, where only fsspec can raise them.
    """
    try:
        yield
    except (*_url_errors(), *also) as error:
        # The cause is cut off: libraries put signed requests into their messages, and a traceback would print them.
        raise _told(where, doing, error, missing) from None


def _url_errors() -> tuple[type[Exception], ...]:
    found = (getattr(sys.modules.get(module), name, None) for module, name in _LIBRARY_ERRORS)
    loaded = (one for one in found if isinstance(one, type) and issubclass(one, Exception))
    # A protocol that only reads (`http://`) has not implemented the rest.
    return (OSError, ImportError, ValueError, NotImplementedError, *loaded)


def _told(where: str, doing: str, error: BaseException, missing: type[StoreError]) -> StoreError:
    protocol = where.partition("://")[0]
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    start = f"cannot {doing} {where}: "
    if isinstance(error, ImportError):
        return UnreachableError(
            f"{start}the package for {protocol}:// is not installed; pip install 'kernelcast[storage]' brings fsspec and that "
            "of S3, fsspec's documentation names those of other places"
        )
    if kinds & set(_CREDENTIALS):
        return UnreachableError(f"{start}no credentials were found; set them in the environment{_S3_HINT}")
    if "PermissionError" in kinds:
        return UnreachableError(
            f"{start}permission denied; check that the credentials are right and allow to {doing} there"
        )
    if "FileNotFoundError" in kinds:
        return missing(f"{start}there is no such bucket, or no such file in it")
    if kinds & set(_UNREACHABLE):
        return UnreachableError(
            f"{start}the server does not answer; check the network and, for a server of your own, AWS_ENDPOINT_URL"
        )
    if isinstance(error, ValueError) and "Invalid endpoint" in str(error):
        return UnreachableError(f"{start}the endpoint that is set is no URL; check AWS_ENDPOINT_URL")
    if "ParamValidationError" in kinds:
        return UnreachableError(f"{start}no bucket can have that name, or no file in it")
    if isinstance(error, TypeError | AttributeError | NotImplementedError):
        return UnreachableError(f"{start}fsspec cannot do that with {protocol}://, which is no place for a store")
    if isinstance(error, ValueError) and "rotocol" in str(error):
        return UnreachableError(
            f"{start}fsspec knows no protocol {protocol!r}; stores lie in folders, s3://, gs://, memory://, …"
        )
    return UnreachableError(f"{start}{type(error).__name__}; nothing that was stored before is changed")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
