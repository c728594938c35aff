"""Tables that fit: columns without room follow below, numbers are whole, and lines of a terminal break between words."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest
from kernelcast.commands import console
from rich.console import Console

MODEL = Path(__file__).parents[3] / "examples" / "config.json"
HEADS = ("latency", "interval", "tokens/s", "power", "J/token", "weights", "cache", "memory")


def rendered(width: int) -> list[str]:
    table = console.new_table("device", *HEADS, "fits", numbers=HEADS, title="of two devices")
    for name in ("NVIDIA H100 SXM5 80 GB", "NVIDIA L40S"):
        table.add_row(name, *(f"{i}{i} {head}" for i, head in enumerate(HEADS)), "yes, up to 116 sequences")
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_columns_without_room_follow_below() -> None:
    lines = rendered(80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.count("NVIDIA L40S") == text.count("device") - 1 > 1, "each table has the names"
    for i, head in enumerate(HEADS):
        assert text.count(f"{i}{i} {head}") == 2, "no number is cut or folded"
    assert "yes, up to 116 sequences" in text
    assert sum("of two devices" in line for line in lines) == 1


def test_nothing_is_cut_on_a_narrow_screen() -> None:
    numbers = ("latency", "interval")
    table = console.new_table("device", *numbers, numbers=numbers)
    table.add_row("NVIDIA H100 SXM5 80 GB", "45.2 ms", "[41.2 ms … 50.5 ms]")
    out = io.StringIO()
    Console(file=out, width=40).print(table)
    assert "50.5" in out.getvalue()
    assert out.getvalue().count("ms") == 3


def test_a_wide_screen_has_one_table() -> None:
    lines = rendered(160)
    assert len(lines) == 4
    assert sum("NVIDIA L40S" in line for line in lines) == 1


def printed(columns: int, *arguments: str) -> list[str]:
    """Lines of the command on a terminal of so many columns."""
    leader, follower = pty.openpty()
    ioctl(follower, TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-P", "-m", "kernelcast", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(follower)
        parts = []
        while part := _read(leader):
            parts.append(part)
    os.close(leader)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", b"".join(parts).decode()).splitlines()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        # So Linux says that no process has the terminal any more.
        return b""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("estimate", str(MODEL), "--prefill", "1k", "--device", "h100-sxm", "--device", "l40s"),
        (
            "llm",
            "predict",
            str(MODEL),
            "--device",
            "h100-sxm",
            "--input",
            "1k",
            "--output",
            "128",
            "--concurrency",
            "4",
        ),
        ("predict", str(MODEL.with_name("mlp.mlir")), "--device", "h100-sxm"),
        ("devices", "h100-sxm"),
    ],
)
def test_answers_fit_a_terminal_of_80_columns(arguments: tuple[str, ...]) -> None:
    lines = printed(80, *arguments)
    assert len(lines) > 5
    assert not [line for line in lines if len(line.rstrip()) > 80]
