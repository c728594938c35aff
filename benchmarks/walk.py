"""How far one prediction walks: files, functions, changes of file and calls between a request's bytes and its answer.

Run `.venv/bin/python -P benchmarks/walk.py`. It sends one warm `POST /v1/predict` through the ASGI application, in this
process, and counts with `sys.setprofile`. Only the product's own files count; comprehensions, lambdas and generator
expressions are part of the function around them. A change of file is a call at which control enters another file of the
product than the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernelcast
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue

ROOT = Path(kernelcast.__file__).resolve().parent
ROOMS = ("features", "models", "workloads", "api")
REQUESTS: dict[str, dict[str, Any]] = {
    "softmax on a measured CPU": {
        "family": "softmax",
        "device": "amd-epyc-9005-vm-2c",
        "dtype": "fp32",
        "sizes": {"rows": 4096, "cols": 1024},
    },
    "gemm on a device never measured": {
        "family": "gemm",
        "device": "nvidia-l4",
        "dtype": "bf16",
        "sizes": {"m": 1024, "n": 1024, "k": 1024},
    },
}
TARGETS = {"softmax on a measured CPU": (20, 60, 60), "gemm on a device never measured": (25, 80, 100)}
WARM_UP = 3


@dataclass
class Walk:
    """What one request passed through.

    Attributes:
        calls: Every call of a product function, as (file, function), in order.
    """

    calls: list[tuple[str, str]] = field(default_factory=list)
    _names: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """Record a call; the hook of `sys.setprofile`."""
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and (file := self._file_of(code.co_filename)):
            self.calls.append((file, f"{code.co_qualname}:{code.co_firstlineno}"))

    def _file_of(self, name: str) -> str | None:
        """A path below the package, None for files of others."""
        if name not in self._names:
            path = Path(name).resolve()
            # Generated code (`<string>`) lies in no file.
            inside = not name.startswith("<") and path.is_relative_to(ROOT)
            inside = inside and path.relative_to(ROOT).parts[0] in (*ROOMS, path.name)
            self._names[name] = str(path.relative_to(ROOT)) if inside else None
        return self._names[name]

    def changes(self) -> Counter[str]:
        """How many times control enters each file from another one."""
        files = [file for file, _ in self.calls]
        return Counter(file for before, file in zip([None, *files], files, strict=False) if file != before)


async def post(app: Any, body: bytes, walk: Walk | None = None) -> bytes:
    """The body of the answer to one `POST /v1/predict`."""
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        message = next(received, None)
        return message if message is not None else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/predict", "raw_path": b"/v1/predict", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    sys.setprofile(walk)
    try:
        await app(scope, receive, send)
    finally:
        sys.setprofile(None)
    if sent[0]["status"] != 200:
        sys.exit(f"the service answered {sent[0]['status']}: {sent[-1]}")
    return b"".join(message.get("body", b"") for message in sent[1:])


def warm_walk(request: dict[str, Any]) -> Walk:
    """The walk of a request that was answered before."""

    async def run() -> Walk:
        app = create_app(FixedSource(kernelcast.load(), catalogue()))
        body, walk = json.dumps(request).encode(), Walk()
        for _ in range(WARM_UP):
            await post(app, body)
        await post(app, body, walk)
        return walk

    return asyncio.run(run())


def described(walk: Walk, most: int) -> str:
    """The counts by room, then the files and the functions that are entered most."""
    lines = []
    changes = walk.changes()
    for room in (*ROOMS, ""):
        inside = [call for call in walk.calls if call[0].startswith(room)]
        files, functions = {file for file, _ in inside}, set(inside)
        entered = sum(count for file, count in changes.items() if file.startswith(room))
        lines.append(
            f"  {room or 'all':10} {len(files):4} files {len(functions):4} functions {entered:4} changes of file "
            f"{len(inside):5} calls"
        )
    lines += [f"  {count:4} times into {file}" for file, count in changes.most_common(most)]
    lines += [f"  {count:4} calls of {file} {name}" for (file, name), count in Counter(walk.calls).most_common(most)]
    return "\n".join(lines)


def main() -> None:
    """Count and print; exit status 1 where a walk is longer than its target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=8, help="How many files and functions to list.")
    parser.add_argument("--calls", action="store_true", help="List every call in order.")
    options = parser.parse_args()
    missed = False
    for title, request in REQUESTS.items():
        walk = warm_walk(request)
        counts = (len({file for file, _ in walk.calls}), len(set(walk.calls)), sum(walk.changes().values()))
        missed |= any(count > most for count, most in zip(counts, TARGETS[title], strict=True))
        files, functions, changes = TARGETS[title]
        print(f"{title}: at most {files} files, {functions} functions, {changes} changes of file")
        print(described(walk, options.most))
        if options.calls:
            print("\n".join(f"  {file:40} {name}" for file, name in walk.calls))
    sys.exit(missed)


if __name__ == "__main__":
    main()
