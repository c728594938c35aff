"""A child process that compiles one case at a time for its labels; one that hangs or crashes is replaced."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .pipe import ChildProcess


class CompilingChild:
    """The parent's side: `ask` sends a request to `python -m MODULE` and gets columns of a row, whatever happens there."""

    def __init__(self, module: str, deadline_s: float, command: Sequence[str] | None = None) -> None:
        """`command` replaces the child's command line."""
        self._deadline_s = deadline_s
        self._child = ChildProcess(
            "compiling", command or [sys.executable, "-P", "-m", module],
            # It needs no GPU, and must not wake one.
            {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def start(self) -> Mapping[str, Any]:
        """Start the child, unless it runs; returns what it says of itself: the compilers' versions.

        Raises:
            WorkerStartError: it does not start.
        """
        self._child.start()
        return self._child.ready

    def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The label of what `request` describes; a status and a message when the compiler hung or crashed.

        Raises:
            WorkerStartError: no child can be started.
        """
        self.start()
        try:
            self._child.write(request)
            label: Mapping[str, Any] = self._child.read(self._deadline_s)["label"]
        except TimeoutError:
            self.close()
            return {"status": "timeout", "message": f"not compiled within {self._deadline_s:g} s"}
        except (EOFError, BrokenPipeError):
            return {"status": "crashed", "message": self._child.last_words()}
        return label

    def close(self) -> None:
        """End the child and the compilers it started."""
        self._child.close()
