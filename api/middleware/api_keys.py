"""API keys: how they are made, how their hashes are kept in a file or a variable, and the ring that knows the current ones.

A key is `kc_` and 256 random bits. Only its SHA-256 is kept, as a line `name:scope:hash:day`, so whoever reads the file or a
backup of it cannot ask anything. A fast hash without salt is right here and would be wrong for a password: there is no list of
likely keys to try. NIST SP 800-63B (2017), 5.1.2.2: look-up secrets with at least 112 bits of entropy are hashed with an
approved one-way function; salt and a slow derivation are for those with fewer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...features.errors import SpecError
from ...files import lock, whole_file
from ..telemetry.request_log import KEY_PREFIX

READ, ADMIN = "read", "admin"
SCOPES = (READ, ADMIN)
"""What a key opens: `read` every question, `admin` also what changes the service."""

MAX_KEYS = 1000
"""Most keys of a file or a variable; every one is compared at every request."""

_KEY_B = 32
_MAX_FILE_B = 1 << 20
_MAX_TOKEN = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_FORM = (
    "name:scope:hash, where the hash is 64 hex digits (the SHA-256 of a key) as `kernelcast serve keys new` writes it"
)
_log = logging.getLogger("kernelcast.api")


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key; the key itself is not kept.

    Attributes:
        name: The name by which it is revoked and logged.
        scope: What it allows, one of `SCOPES`.
        digest: Its SHA-256.
        created: The day it was created, ISO 8601; empty where that is unknown.
    """

    name: str
    scope: str
    digest: bytes
    created: str = ""

    def line(self) -> str:
        """The key's line in a file; `read_key` reads it."""
        return ":".join(filter(None, (self.name, self.scope, self.digest.hex(), self.created)))


def new_key(name: str, scope: str) -> tuple[str, Key]:
    """A new key, to be shown once, and what is kept of it.

    Raises:
        SpecError: the name or the scope is not possible.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"--name is {name[:80]!r}; a key's name is 1 to 64 letters, digits and . _ - and begins with a letter or digit",
            field="name",
        )
    if scope not in SCOPES:
        raise SpecError(f"--scope is {scope[:80]!r}; choose one of {', '.join(SCOPES)}", field="scope")
    token = KEY_PREFIX + secrets.token_urlsafe(_KEY_B)
    return token, Key(name, scope, _digest(token), datetime.now(UTC).date().isoformat())


def read_key(text: str) -> Key:
    """The key of `name:scope:hash` or `name:scope:hash:day`.

    Raises:
        ValueError: it is of another form. The message does not repeat the text, which may be a key put there by mistake.
    """
    if text.startswith(KEY_PREFIX):
        raise ValueError(f"it contains a key instead of the hash of one; the form is {_FORM}; make a new key")
    name, scope, digest, created = (*text.split(":"), "", "", "", "")[:4]
    if text.count(":") > 3 or not _NAME.fullmatch(name) or not _HASH.fullmatch(digest):
        raise ValueError(f"a key is {_FORM}")
    if scope not in SCOPES:
        raise ValueError(f"the scope of key {name} is none of {', '.join(SCOPES)}")
    if created and not _DAY.fullmatch(created):
        raise ValueError(f"the day of key {name} is not of the form 2026-01-31")
    return Key(name, scope, bytes.fromhex(digest), created)


def read_keys(text: str) -> tuple[Key, ...]:
    """The keys of a variable: several between commas or spaces.

    Raises:
        ValueError: one is of another form, or two have one name.
    """
    return _with_distinct_names([read_key(part) for part in re.split(r"[,\s]+", text) if part])


def _with_distinct_names(keys: Sequence[Key]) -> tuple[Key, ...]:
    if len(keys) > MAX_KEYS:
        raise ValueError(f"there are {len(keys)} keys, at most {MAX_KEYS} are allowed")
    names: set[str] = set()
    for key in keys:
        if key.name in names:
            raise ValueError(f"two keys are named {key.name}; keys are revoked by name, so names must differ")
        names.add(key.name)
    return tuple(keys)


def read_key_file(path: Path) -> tuple[Key, ...]:
    """The keys of a file: one a line, blank lines and lines with `#` in front left out. It may hold none.

    Raises:
        SpecError: it cannot be read, others may write to it, or a line is of another form.
    """

    def unusable(problem: str, part: str = "") -> SpecError:
        return SpecError(f"{part}the key file {path}{problem}", field="api_keys_file")

    try:
        # Not to wait for the other end of a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            raw = file.read(_MAX_FILE_B + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        reason = error.strerror or error
        raise unusable(
            f" cannot be read: {reason}; `kernelcast serve keys new --name NAME --file {path}` makes one"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise unusable(" is no regular file")
    if sys.platform != "win32" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise unusable(f" may be written by others, who could add keys to it; run: chmod 600 {path}")
    if len(raw) > _MAX_FILE_B:
        raise unusable(f" is longer than {_MAX_FILE_B} bytes; that is no key file")
    keys = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if (text := line.strip()) and not text.startswith("#"):
            try:
                keys.append(read_key(text))
            except ValueError as error:
                raise unusable(f": {error}", f"line {number} of ") from error
    try:
        return _with_distinct_names(keys)
    except ValueError as error:
        raise unusable(f": {error}") from error


def add_key(path: Path, key: Key) -> None:
    """Append a key to the file, which is made (mode 0600) where there is none.

    Raises:
        SpecError: the name is taken, the file is full, or it is none.
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _file_lock(path):
        known = read_key_file(path) if path.exists() else ()
        if any(key.name == other.name for other in known):
            raise SpecError(
                f"{path} has a key named {key.name}; choose another name, or revoke that one first", field="name"
            )
        if len(known) >= MAX_KEYS:
            raise SpecError(f"{path} holds {MAX_KEYS} keys, the maximum; revoke some first", field="name")
        _write(path, [*_lines(path), key.line()])


def revoke_key(path: Path, name: str) -> Key:
    """Take a key out of the file and return it; the file may end up with none, and then lets nobody in.

    Raises:
        SpecError: there is no such key, or the file is none.
        OSError: it cannot be written.
    """
    with _file_lock(path):
        known = {key.name: key for key in read_key_file(path)}
        if name not in known:
            names = ", ".join(known) or "none"
            raise SpecError(f"{path} has no key named {name[:80]!r}; it has: {names}", field="name")
        _write(path, [line for line in _lines(path) if line.strip().split(":")[0] != name])
        return known[name]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _file_lock(path: Path) -> contextlib.AbstractContextManager[object]:
    """Holds others that change the file off: of two that read, change and replace it at once, one would undo the other."""
    # The folder, as the file itself is replaced.
    return lock(path.resolve().parent, wait_s=None)


def _write(path: Path, lines: Iterable[str]) -> None:
    """Replace the file in one step: a reader, or a machine that loses power, has the old or the new one, never a part."""
    place = path.resolve()
    with whole_file(place, mode=0o600) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if sys.platform != "win32" and place.exists() and os.geteuid() == 0:
            owner = place.stat()  # root changes the file of a service's user: that user has to read it on
            os.chown(temporary, owner.st_uid, owner.st_gid)


class KeyRing:
    """The keys that open a service: those given, and those of a file that is looked at again at every `refresh`.

    A file that cannot be read leaves the keys as they were, at the start none, and the log says so. `is_set` is true where a
    file or a key was given at all: with its last key revoked a service is closed, not open.
    """

    def __init__(self, keys: Sequence[Key] = (), file: Path | None = None) -> None:
        self.is_set = bool(keys) or file is not None
        self.file = file
        self._configured = tuple(keys)
        self._file_keys: tuple[Key, ...] = ()
        self._signature: tuple[object, ...] | None = None
        self._empty: tuple[object, ...] | None = None
        self._problem: str | None = None
        if file is not None:
            self.refresh()

    def refresh(self) -> bool:
        """Read the file again if it has changed; True where other keys count now. Reads a disk: call it off the event loop."""
        if self.file is None:
            return False
        signature = _signature(self.file)
        if signature is not None and signature == self._signature:
            return False
        try:
            keys = read_key_file(self.file)
        except SpecError as error:
            self._report_problem(str(error))
            return False
        if not keys and self._file_keys and signature != self._empty:
            # Whoever writes the file in place empties it first: that it has no key counts once it stays so for a look.
            self._empty = signature
            return False
        self._signature, self._problem = signature, None
        if keys == self._file_keys:
            return False
        self._file_keys = keys
        _log.info("%d keys of %s are in use now", len(keys), self.file)
        return True

    def find(self, token: str) -> Key | None:
        """The key that the text is, None where it is none of them."""
        if len(token) > _MAX_TOKEN:
            return None
        digest = _digest(token)
        match = None
        for key in (*self._configured, *self._file_keys):
            # All of them, each in constant time: how long it takes says nothing about the hashes that are kept.
            if hmac.compare_digest(digest, key.digest):
                match = key
        return match

    def _report_problem(self, problem: str) -> None:
        """Go on with what there is, and say why; once, not at every look."""
        self._signature = None
        if problem != self._problem:
            _log.error("the keys were not read: %s; the %d keys read before stay in use", problem, len(self._file_keys))
        self._problem = problem


def _signature(path: Path) -> tuple[object, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
