"""Runs a command for which the kernel has no io_uring.

Run as `python -P -m kernelcast.collectors.mlir.measure.without_io_uring COMMAND ...`.

valgrind (3.19) blocks for ever in `io_uring_enter`, which IREE's runtime waits in; refused it, the runtime uses poll instead. A
seccomp filter does that for this process and what it becomes (seccomp(2), and linux/filter.h for the instructions).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_IO_URING_SETUP = 425  # the same number on every architecture
_SET_SECCOMP, _MODE_FILTER, _NO_NEW_PRIVILEGES = 22, 2, 38  # prctl(2)
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def refuse_io_uring() -> None:
    """Let `io_uring_setup` fail in this process from now on, as on a kernel that does not have it.

    Raises:
        OSError: the kernel takes no filter.
    """
    instructions = ((_LOAD_WORD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, _IO_URING_SETUP), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
                    (_RETURN, 0, 0, _ALLOW))  # fmt: skip
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
    program = _Program(len(instructions), ctypes.addressof(packed))
    library = ctypes.CDLL(None, use_errno=True)
    # A filter is allowed without being root where no privileges can be gained any more.
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(
        _SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")


if __name__ == "__main__":
    refuse_io_uring()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  what the caller asks for, without a shell
