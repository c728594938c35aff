"""Child processes: deadlines, crashes, restarts, and what is left of them."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kernelcast.process import (
    ChildEndedError,
    ChildLostError,
    ChildStartError,
    ChildTimeoutError,
    FrameChild,
    JsonChild,
    python_command,
    small_environment,
)

HEAD = struct.Struct(">I")

PARENT = """
import json, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(json.dumps({"ready": {"started": child.pid}}), flush=True)
time.sleep(600)
"""


def test_what_a_child_started_ends_with_it() -> None:
    child = JsonChild("played", [sys.executable, "-c", PARENT], {})
    child.start()
    started = Path(f"/proc/{child.ready['started']}/stat")
    assert started.exists()
    child.close()
    until = time.monotonic() + 60
    while started.exists() and started.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < until, "what the child started still runs"
        time.sleep(0.05)


def test_a_child_stuck_in_the_driver_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    child = JsonChild("played", [sys.executable, "-c", "print('{\"ready\": {}}', flush=True); input()"], {})
    child.start()
    process, wait = child.process, subprocess.Popen.wait
    assert process is not None

    def stuck(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        assert timeout is not None, "would wait for good"
        raise subprocess.TimeoutExpired("played", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", stuck)
    child.close()
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    assert process.wait(60) == -9
    child.start()
    assert child.ready == {}
    child.close()


ECHO = """
import json, os, sys, time
print(json.dumps({"ready": {"pid": os.getpid()}}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message == {"do": "hang"}:
        time.sleep(600)
    if message == {"do": "die"}:
        print("first", "last words", sep="\\n", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(message), flush=True)
"""


def echo() -> JsonChild:
    return JsonChild("echo", [sys.executable, "-c", ECHO], {})


def test_messages_larger_than_a_pipe_go_both_ways() -> None:
    child = echo()
    child.start()
    large = {"text": "x" * 1_000_000}
    child.write(large)
    child.write({"second": 2})
    assert child.read(120.0) == large
    assert child.read(120.0) == {"second": 2}
    child.start()
    assert child.starts == 1
    child.close()
    assert child.process is None


def test_a_silent_child_is_killed_after_the_deadline_and_another_starts() -> None:
    child = echo()
    child.start()
    process = child.process
    child.write({"do": "hang"})
    with pytest.raises(ChildTimeoutError, match=r"took longer than 0\.3 s") as lost:
        child.read(0.3)
    assert lost.value.kind == "timeout"
    assert process is not None
    assert process.returncode == -signal.SIGKILL
    child.start()
    child.write({"a": 1})
    assert child.read(120.0) == {"a": 1}
    assert child.starts == 2
    child.close()


def test_a_child_that_ends_says_with_which_status_and_last_line() -> None:
    child = echo()
    child.start()
    child.write({"do": "die"})
    with pytest.raises(ChildEndedError, match=r"^ended with status 3: last words$") as lost:
        child.read(120.0)
    assert (lost.value.kind, lost.value.code) == ("crashed", 3)


def test_a_signal_is_named() -> None:
    child = echo()
    child.start()
    os.kill(child.ready["pid"], signal.SIGSEGV)
    with pytest.raises(ChildEndedError, match=r"ended with signal 11 \(SIGSEGV\)"):
        child.read(120.0)


def test_a_pending_read_sees_a_kill_from_another_thread() -> None:
    child = echo()
    child.start()
    threading.Timer(0.2, child.kill).start()
    with pytest.raises(ChildEndedError, match="SIGKILL"):
        child.read(120.0)


def test_a_child_that_cannot_start_says_why() -> None:
    missing = JsonChild("played", [sys.executable, "-c", "raise SystemExit('no library here')"], {})
    with pytest.raises(
        ChildStartError, match="the played worker did not start: it ended with status 1: no library here"
    ):
        missing.start()
    with pytest.raises(ChildStartError, match="could not be started: No such file or directory"):
        JsonChild("played", ["/nowhere/python"], {}).start()


def test_reading_without_a_process_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="start it first"):
        echo().read(1.0)


FRAMES = """
import os, struct, sys
head = struct.Struct(">I")
replies = os.fdopen(os.dup(1), "wb")
replies.write(head.pack(0)); replies.flush()
while size := sys.stdin.buffer.read(head.size):
    body = sys.stdin.buffer.read(*head.unpack(size))
    if body == b"die":
        sys.exit(4)
    body = os.environ.get("SOME_TOKEN", "none").encode() if body == b"token" else body
    replies.write(head.pack(len(body)) + body); replies.flush()
"""


def frames() -> FrameChild:
    return FrameChild([sys.executable, "-c", FRAMES], small_environment(), HEAD, body_b=sum, stderr="discard")


def framed(body: bytes) -> bytes:
    return HEAD.pack(len(body)) + body


def test_frames_larger_than_a_pipe_come_back_whole() -> None:
    child = frames()
    assert child.start()
    assert not child.start()
    for body in (b"", b"abc", b"\n" * 3_000_000):
        assert child.ask(framed(body), 120.0) == ((len(body),), body)
    assert child.starts == 1
    child.close()


def test_a_lost_frame_child_is_replaced_by_the_next_question() -> None:
    child = frames()
    with pytest.raises(ChildEndedError, match="ended with status 4"):
        child.ask(framed(b"die"), 120.0)
    assert child.ask(framed(b"x"), 120.0)[1] == b"x"
    assert child.starts == 2
    child.close()


def test_a_small_environment_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    child = frames()
    assert child.ask(framed(b"token"), 120.0)[1] == b"none"
    child.close()
    assert small_environment("SOME_TOKEN")["SOME_TOKEN"] == "secret"


def test_a_frame_child_that_cannot_start_is_a_lost_one() -> None:
    child = FrameChild(["/nowhere/python"], {}, HEAD, body_b=sum, stderr="discard")
    with pytest.raises(ChildLostError, match="could not be started: No such file or directory"):
        child.ask(framed(b""), 1.0)


def test_the_working_directory_shadows_no_package() -> None:
    assert python_command("a.b", "c") == [sys.executable, "-P", "-m", "a.b", "c"]
