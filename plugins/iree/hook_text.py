"""The external hook for `--iree-hal-preprocess-executables-with`: a program that configures executables on their way.

IREE hands it one executable after another as MLIR on standard input and goes on with what it writes to standard output. The
program has the tuning spec in it and runs it with IREE's own interpreter of the transform dialect, so that a hook and a spec
choose the same. It must never break a compilation: what it does not know passes through as it came, at once (the types of an
operation's operands are looked for first, which needs no parser), and the work is done in a forked child, so that whatever
goes wrong there leaves the input as it was and one sentence on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .dispatches import Dispatch
from .spec_text import Config, is_tiled, tuning_spec

HOOK_NAME = "kernelcast-iree-hook"

_PROGRAM = '''\
#!/bin/sh
""":"
[ -x {python} ] || {{ echo "{name}: {python} is gone; executables are compiled as they were" >&2; exec cat; }}
exec {python} -I "$0" "$@"
":"""
"""IREE executables with configurations chosen by kernelcast: MLIR on stdin, MLIR on stdout; see `iree-compile --help` for
--iree-hal-preprocess-executables-with. What is not known passes through unchanged."""
import os
import signal
import sys

LIMIT_S = 60
OPERANDS = {operands}
SPEC = r"""
{spec}"""


def main():
    source = sys.stdin.buffer.read()
    text = source.decode("utf-8", "replace")
    if any(all(name in text for name in types) for types in OPERANDS):
        output = configured(source)
        if output is not None:
            source = output
        else:
            sys.stderr.write("{name}: an executable could not be configured and is compiled as it was\\n")
    sys.stdout.buffer.write(source)
    sys.stdout.buffer.flush()


def configured(source):
    """The executable with its configurations, None where a child process could not make it in time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.alarm(LIMIT_S)
            output = apply_spec(source)
            with os.fdopen(writer, "wb") as sent:
                sent.write(output)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as received:
        output = received.read()
    _, status = os.waitpid(child, 0)
    return output if status == 0 and output else None


def apply_spec(source):
    from iree.compiler import ir
    from iree.compiler.dialects.transform import interpreter

    context = ir.Context()
    payload = ir.Module.parse(source, context)
    spec = ir.Module.parse(SPEC, context)
    entry = [op for op in spec.body.operations if op.operation.attributes["sym_name"].value == "__kernel_config"][0]
    interpreter.apply_named_sequence(payload.operation, entry.operation, spec.operation)
    if not payload.operation.verify():
        raise ValueError("not valid")
    return str(payload).encode()


try:
    main()
except BrokenPipeError:
    os._exit(1)
'''


def hook_program(chosen: Sequence[tuple[Dispatch, Config]]) -> str:
    """The hook for dispatches with configurations, as a program for this Python, in which IREE's compiler is."""
    tiled = [(dispatch, config) for dispatch, config in chosen if is_tiled(config)]
    operands = [list(dict.fromkeys(dispatch.types)) for dispatch, _ in tiled]
    return _PROGRAM.format(python=_quoted(sys.executable), operands=operands, spec=tuning_spec(chosen), name=HOOK_NAME)


def _quoted(path: str) -> str:
    """A path as the shell takes it."""
    return "'" + path.replace("'", "'\\''") + "'"
