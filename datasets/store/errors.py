"""What goes wrong with a store: one sentence that says what to do, whether a disk, a network or a library reports it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from urllib.parse import urlsplit


class StoreError(RuntimeError):
    """The store cannot do what was asked; the message says why and what to do. Rows stored before are untouched."""


class StoreFullError(StoreError):
    """No space is left where the store writes."""


class StoreBusyError(StoreError):
    """Another process holds a lock of the store, such as that of a device it measures."""


class UnreachableError(StoreError):
    """The location cannot be reached or refuses access: that says nothing about the files in it."""


class MissingFileError(StoreError):
    """A file that was listed is not there any more: somebody removed it or put it in quarantine."""


class FormatError(StoreError):
    """A file of another row format; the message says how to bring its rows in."""


class StoreWarning(UserWarning):
    """A file of the store could not be read and was skipped; it is never deleted."""


_LIBRARY_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"), ("aiohttp", "ClientError"),
    ("google.auth.exceptions", "GoogleAuthError"), ("gcsfs.retry", "HttpError"), ("azure.core.exceptions", "AzureError"),
    ("fsspec.exceptions", "FSTimeoutError"),
)  # fmt: skip
"""Errors of the packages behind fsspec that are no OSError. A package that is not loaded cannot have raised one."""

_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
                "ProfileNotFound", "NoAuthTokenError", "TokenRetrievalError"}  # fmt: skip
_UNREACHABLE = {"EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ClientConnectorError", "FSTimeoutError",
                "ConnectionClosedError", "ConnectionError", "ConnectionRefusedError", "TimeoutError", "HTTPClientError",
                "ProxyConnectionError", "SSLError", "gaierror"}  # fmt: skip
_S3, _ENDPOINT = ("s3", "s3a"), "AWS_ENDPOINT_URL"
_S3_HINT = " (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)"


@contextlib.contextmanager
def clear_os_errors(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn what the operating system says about `path` into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise os_error(path, error, doing) from error


def os_error(path: Path | str, error: OSError, doing: str = "write") -> StoreError:
    """The `StoreError` for what the operating system says about `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(
            f"no space left to write {path}; nothing of this was stored, earlier rows are safe. Free some space, or name "
            "another place (KERNELCAST_HOME or the command's own option), then run again"
        )
    able = "readable" if doing == "read" else "writable"
    return StoreError(f"cannot {doing} {path}: {error.strerror or error}; check that it is {able}")


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

    Args:
        where: What messages call the location or file.
        doing: `read`, `write`, `list` …
        missing: Raised for a file that is not there.
        also: Further errors to turn, where only fsspec can raise them.
    """
    try:
        yield
    except (*_url_errors(), *also) as error:
        # The cause is cut off: libraries put signed requests into their messages, and a traceback would print them.
        raise _url_error(where, doing, error, missing) from None


def _url_errors() -> tuple[type[Exception], ...]:
    named = (getattr(sys.modules.get(module), name, None) for module, name in _LIBRARY_ERRORS)
    loaded = (kind for kind in named if isinstance(kind, type) and issubclass(kind, Exception))
    # A protocol that only reads (`http://`) has not implemented the rest.
    return (OSError, ImportError, ValueError, NotImplementedError, *loaded)


def _url_error(where: str, doing: str, error: BaseException, missing: type[StoreError]) -> StoreError:
    protocol = where.partition("://")[0]
    kinds = {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}
    if "FileNotFoundError" in kinds and not isinstance(error, ImportError) and not kinds & _CREDENTIALS:
        return missing(f"cannot {doing} {where}: there is no such bucket, or no such file in it")
    if isinstance(error, ImportError):
        reason = (
            f"the package for {protocol}:// is not installed; pip install 'kernelcast[storage]' brings fsspec and that of S3, "
            "fsspec's documentation names those of other places"
        )
    elif kinds & _CREDENTIALS:
        reason = f"no credentials were found; set them in the environment{_S3_HINT}"
    elif "PermissionError" in kinds:
        reason = f"permission denied; check that the credentials are right and allow to {doing} there"
    elif kinds & _UNREACHABLE:
        reason = "the server does not answer; check the network and, for a server of your own, AWS_ENDPOINT_URL"
    elif isinstance(error, ValueError) and protocol in _S3 and not _is_endpoint(os.environ.get(_ENDPOINT)):
        reason = "the endpoint that is set is no URL; check AWS_ENDPOINT_URL"
    elif "ParamValidationError" in kinds:
        reason = "no bucket can have that name, or no file in it"
    elif isinstance(error, TypeError | AttributeError | NotImplementedError):
        reason = f"fsspec cannot do that with {protocol}://, which is no place for a store"
    elif isinstance(error, ValueError) and protocol not in _known_protocols():
        reason = f"fsspec knows no protocol {protocol!r}; stores lie in folders, s3://, gs://, memory://, …"
    else:
        reason = f"{type(error).__name__}; nothing that was stored before is changed"
    return UnreachableError(f"cannot {doing} {where}: {reason}")


def _is_endpoint(text: str | None) -> bool:
    """Whether the address of an S3 server is a URL with a host; no address is the default one."""
    try:
        parts = urlsplit(text) if text is not None else None
        return parts is None or (parts.scheme in ("http", "https") and bool(parts.hostname))
    except ValueError:
        return False


def _known_protocols() -> Container[str]:
    """Protocols that fsspec knows."""
    from fsspec import available_protocols

    protocols: Container[str] = available_protocols()
    return protocols


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
