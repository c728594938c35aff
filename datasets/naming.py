"""Names of stored files: when they were written and the digest of their content, so that damage shows without a list beside.

    20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.parquet            rows as they were appended
    20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.packed.parquet     rows of many such files
    20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.blocks.parquet     the provenance of packed rows
    20250131T101500.123456Z-2c26b46b68ffc68ff99b453c1d304134-9f86d081.replaces.json      which files packed ones replace

Files of kernelcast 0.1 end in 12 salted digits, `20250131T101500.123456Z-9f86d081884c.parquet`, which say nothing of them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime

ROWS, PACKED, BLOCKS, RECORD = ".parquet", ".packed.parquet", ".blocks.parquet", ".replaces.json"
DIGEST_DIGITS = 32
"""128 bits of SHA-256: no two files meet by accident, and a name stays short enough for every filesystem."""

_NAME = re.compile(
    rf"(?P<stamp>\d{{8}}T\d{{6}}\.\d{{6}}Z)-(?P<digest>[0-9a-f]{{{DIGEST_DIGITS}}})-[0-9a-f]{{8}}(?P<kind>\.[a-z.]+)"
)
_STAMP = "%Y%m%dT%H%M%S.%fZ"


def digest_of(chunks: Iterable[bytes]) -> str:
    """The digest of a file's content, as names carry it."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()[:DIGEST_DIGITS]


def new_name(digest: str, kind: str, *, stamp: str | None = None) -> str:
    """A name no other file has: two collectors that store equal rows in the same microsecond still get two."""
    return f"{stamp or new_stamp()}-{digest}-{os.urandom(4).hex()}{kind}"


def new_stamp() -> str:
    """Now, as names begin with it; later files sort after earlier ones."""
    return datetime.now(UTC).strftime(_STAMP)


def kind_of(name: str) -> str | None:
    """`ROWS`, `PACKED`, `BLOCKS` or `RECORD` by the last part of a path; None for what is none of them or hidden."""
    if name.startswith("."):
        return None
    return next((kind for kind in (PACKED, BLOCKS, RECORD, ROWS) if name.endswith(kind)), None)


def digest_in(name: str) -> str | None:
    """The digest a name carries; None for names without one."""
    found = _NAME.fullmatch(name)
    return found["digest"] if found else None


def stamp_in(name: str) -> str:
    """The beginning of a name, by which names sort in the order they were given."""
    return name.partition("-")[0]


def age_s(name: str, now: datetime | None = None) -> float:
    """Seconds since the file was named; 0 for a name that does not say."""
    try:
        given = datetime.strptime(stamp_in(name), _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return 0.0
    return ((now or datetime.now(UTC)) - given).total_seconds()
