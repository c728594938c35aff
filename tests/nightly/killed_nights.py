"""Runs nights that are killed on their way, each in a fork of this process, which has everything imported already.

Reads requests as JSON lines ({"plan", "home", "stage", "when"}) and answers each with the signal that ended the night.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kernelcast import cli
from kernelcast.collectors.collector import ReplayCollector
from kernelcast.nightly import challenger_process as making
from kernelcast.nightly import run_night as night
from kernelcast.nightly.context import Budget
from kernelcast.nightly.gate import challengers, promotion  # noqa: F401 - so that no fork has to import them
from kernelcast.nightly.gate import judge as judging
from kernelcast.nightly.stages import train

_BLOCKS = 5


def made_here(one: Any, process: str, names: Any, seconds: float) -> None:
    """Challengers made in this process."""
    for made in making.make(one.folder, process):
        making.write_challenger(one.folder, made.name, made)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def rigged(stage: str, when: str) -> Any:
    """The stage's function, which ends the process before or after it does anything."""
    original = night.RUN[stage]

    def run(one: Any) -> Any:
        if when == "before":
            kill()
        did = original(one)
        kill()
        return did

    return run


def killed_midway() -> None:
    """The fifth block of rows is the last that is measured."""
    original, calls = ReplayCollector.collect, 0

    def collect(self: Any, specs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == _BLOCKS:
            kill()
        return original(self, specs)

    ReplayCollector.collect = collect  # type: ignore[method-assign]


def run(request: dict[str, str]) -> None:
    os.environ["KERNELCAST_HOME"] = request["home"]
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open for as long as the process
    if request["when"] == "midway":
        killed_midway()
    else:
        table = {**night.RUN, request["stage"]: rigged(request["stage"], request["when"])}
        night.run_night.__defaults__ = (table,)
    os._exit(cli.main(["nightly", request["plan"]]))


Budget.ends = property(lambda budget: budget.clock() + budget.total_s)  # type: ignore[assignment]
judging.seconds_per_answer = lambda predictors, cases: [0.0 for _ in predictors]  # type: ignore[assignment]
train._run_process = made_here  # type: ignore[assignment]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.waitstatus_to_exitcode(status), flush=True)
