"""The process that runs MLIR parsers made by others, so that a text which crashes one of them crashes nothing else.

It gets one text at a time on standard input and answers on standard output; `parser_process.py` is the other side. A frame is a
head, the lengths of what follows, and that: a JSON object and a text.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
from typing import IO

from ....process import private_stdout
from .native_parsers import ReaderRefusal, installed, read_native

HEAD = struct.Struct(">II")
"""Bytes of JSON and bytes of text that follow."""

_MEMORY_B = 2 << 30
"""Most address space. The parsers and their contexts take about half of it; a text that wants more is refused by a crash."""

_RESIDENT_B = 1 << 30
"""Memory in use after which it ends between two texts, for another to take its place."""

_LONGEST_S = 20
"""It ends by itself when a text takes longer, should its parent no longer be there to end it."""

_FILE_B = 64 << 20

_SMALLEST = "module {}"


def main() -> None:
    """Answer texts until standard input ends."""
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE_B), (resource.RLIMIT_AS, _MEMORY_B)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    requests = os.fdopen(os.dup(0), "rb")
    replies = private_stdout()
    _answer(_SMALLEST, None, replies)  # imports the first parser
    for reader in installed():  # the others while nobody waits; what nobody left time for is imported when it is needed
        if select.select([requests], [], [], 0)[0]:
            break
        with contextlib.suppress(ReaderRefusal):
            reader.to_generic(_SMALLEST)
    while head := requests.read(HEAD.size):
        about, size = HEAD.unpack(head)
        names = json.loads(requests.read(about))["names"]
        text = requests.read(size).decode()
        signal.alarm(_LONGEST_S)
        _answer(text, names, replies)
        signal.alarm(0)
        if _resident_b() > _RESIDENT_B:
            return


def _answer(text: str, names: list[str] | None, replies: IO[bytes]) -> None:
    reading = read_native(text, names)
    about = json.dumps({
        "reader": reading.reader, "refusals": reading.refusals, "took": reading.generic is not None,
        "installed": [reader.name for reader in installed()],
    }).encode()  # fmt: skip
    generic = (reading.generic or "").encode()
    replies.write(HEAD.pack(len(about), len(generic)) + about + generic)
    replies.flush()


def _resident_b() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  the file is one of the kernel's
        return int(file.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
