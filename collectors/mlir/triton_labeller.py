"""The child process that compiles Triton programs for a target and reads their binaries, driven by JSON lines over its pipes.

    parent -> child   {"case": {...}, "target": "sm_90"}
    child  -> parent  {"ready": {...}}  once;  {"label": {...}}  per request

A fresh process for the sake of its end: compilers hang and crash, and what they started goes with the process group.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...features.occupancy import LIMITS, WARP_SIZE, occupancy
from ..child import die_with_parent, private_stdout, send
from ..gpu.labeller import capability_of
from ..runner import UnsupportedCaseError
from .opcode_book import OpcodeBook
from .triton_build import build_text, ttir_of
from .triton_programs.case import TritonCase, case_of

_KEPT_FOLDERS = 50
"""Compiled kernels that Triton's cache may hold before it is emptied: each is compiled once and never asked for again."""

_LONGEST_MESSAGE = 300
_TELLING = re.compile(r"^ptxas (?:fatal|error)\s*:|(?:^|: )error:")


Books = defaultdict[int, OpcodeBook]
"""What instructions are called, by compute capability; grows with what is compiled."""


def label(case: TritonCase, target: str, folder: Path, books: Books) -> dict[str, Any]:
    """The text of a case and its compile-only columns: an outcome and its reason, or what the binary is like.

    `folder` is where sources and texts may be written. Whatever a compiler raises becomes the outcome.

    Raises:
        OSError: a file cannot be written or a tool not started, which says nothing of the program.
    """
    said: dict[str, Any] = {}
    try:
        capability = capability_of(target)
        if capability not in LIMITS:
            raise UnsupportedCaseError(f"no limits known of {target}")
        said["text"] = ttir_of(case, capability, folder)
        said |= label_text(
            said["text"], capability, num_warps=case.num_warps, num_stages=case.num_stages, folder=folder, books=books
        )
    except UnsupportedCaseError as error:
        said |= {"status": "unsupported", "message": str(error)}
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  a compiler may raise anything; the row says what
        said |= {"status": "failed", "message": _reason(error)}
    return said


def label_text(
    text: str, capability: int, *, num_warps: int, num_stages: int, folder: Path, books: Books
) -> dict[str, Any]:
    """The compile-only columns of Triton IR as text.

    Raises:
        Exception: whatever Triton, ptxas or cuobjdump raise.
    """
    began = time.monotonic()
    cubin, shared_b, warps = build_text(text, capability, num_warps=num_warps, num_stages=num_stages, folder=folder)
    compile_s = time.monotonic() - began
    code = books[capability].read_code(cubin)
    threads = WARP_SIZE * warps
    fits = occupancy(capability, threads=threads, registers=code.registers, shared_b=shared_b)
    return {
        "status": "ok", "registers": code.registers, "spill_b": code.stack_b, "shared_b": shared_b,
        "threads_per_block": threads, "blocks_per_sm": fits.blocks, "warps_per_sm": fits.warps, "occupancy": fits.share,
        **code.mix, "instructions": code.total, "compiler": f"triton {version('triton')}", "compile_s": compile_s,
    }  # fmt: skip


def compilers() -> dict[str, str]:
    """Versions of what compiles here.

    Raises:
        ImportError: Triton is not installed.
    """
    from triton import knobs

    return {"triton": f"triton {version('triton')}", "ptxas": f"ptxas {knobs.nvidia.ptxas.version}"}


def _reason(error: Exception) -> str:
    """The line of an error that tells: what the assembler or a pass calls an error, or the last, after the source shown."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    telling = [line for line in lines if _TELLING.search(line)] or lines[-1:] or [""]
    return f"{type(error).__name__}: {telling[0]}"[:_LONGEST_MESSAGE]


def main() -> None:
    """Label what standard input asks for, until it closes."""
    die_with_parent()
    requests, replies = sys.stdin, private_stdout()
    with tempfile.TemporaryDirectory(prefix="kernelcast-triton-") as name:
        folder, cache, books = Path(name), Path(name) / "cache", Books(OpcodeBook)
        os.environ |= {"TRITON_CACHE_DIR": str(cache), "TRITON_STORE_BINARY_ONLY": "1"}
        send(replies, {"ready": {"compilers": compilers()}})
        for count, line in enumerate(requests, start=1):
            request = json.loads(line)
            send(replies, {"label": label(case_of(request["case"]), request["target"], folder, books)})
            if count % _KEPT_FOLDERS == 0:
                shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main()
