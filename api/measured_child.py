"""The process that reads measured rows, so that the server needs no Arrow and a damaged table brings nothing else down.

It gets one question at a time on standard input and answers on standard output; `measured_reader.py` is the other side and
`measured_wire.py` what they say. It ends by itself when its input does, and when nobody asked anything for a while.
"""

from __future__ import annotations

import logging
import os
import resource
import select
import signal
import sys

import msgspec
import pyarrow as pa

from ..features.errors import SpecError
from .measured_query import answer
from .measured_tables import HeldTables
from .measured_wire import HEAD, Question, Refused

_MEMORY_B = 8 << 30
"""Most address space, most of it reserved rather than used: the shipped rows take about 150 MB in all."""

_LONGEST_S = 30
"""It ends by itself when a question takes longer, should its parent no longer be there to end it."""


def main(idle_s: float) -> None:
    """Answer questions until standard input ends, or none came for `idle_s` seconds."""
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, _MEMORY_B)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    questions, replies = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the replies
    pa.set_cpu_count(1)
    held = HeldTables()
    held.sets()
    replies.write(HEAD.pack(200, 0))
    replies.flush()
    while select.select([questions], [], [], idle_s)[0]:
        head = _exactly(questions.fileno(), HEAD.size)
        if head is None:
            return
        question = _exactly(questions.fileno(), HEAD.unpack(head)[1])
        if question is None:
            return
        signal.alarm(_LONGEST_S)
        status, reply = _reply(held, question)
        signal.alarm(0)
        replies.write(HEAD.pack(status, len(reply)) + reply)
        replies.flush()


def _reply(held: HeldTables, raw: bytes) -> tuple[int, bytes]:
    try:
        found = answer(held, msgspec.json.decode(raw, type=Question))
        return 200, msgspec.json.encode(found)
    except SpecError as error:
        return 422, msgspec.json.encode(Refused(error.field or "", str(error)))
    except MemoryError:
        return 503, msgspec.json.encode(Refused("", "the measured rows do not fit into the memory they may take"))
    except Exception:  # whatever a table brings up, the next question is answered
        logging.getLogger(__name__).exception("a question about measured rows failed")
        return 500, msgspec.json.encode(Refused("", "the measured rows could not be read; it has been logged"))


def _exactly(handle: int, size: int) -> bytes | None:
    """The next `size` bytes of the input; None where it ends before."""
    parts = bytearray()
    while len(parts) < size:
        more = os.read(handle, size - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)


if __name__ == "__main__":
    main(float(sys.argv[1]))
