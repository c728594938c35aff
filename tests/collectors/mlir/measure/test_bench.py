"""Measuring a chunk of modules in this process, with a fake compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelcast.collectors.cpu.timing import Clock, StoppingRule
from kernelcast.collectors.meters.protocol import NoMeter
from kernelcast.collectors.mlir.compiler import Built, Job, ModuleRunner
from kernelcast.collectors.mlir.measure.bench import ModuleBench, measure_modules
from kernelcast.collectors.mlir.operands import Argument, Array
from kernelcast.datasets.records.mlir_modules import ModuleText

QUICK = StoppingRule(samples_per_block=2, fewest_per_block=1, warm_up_s=0.0, warm_up_calls=1, rewarm_s=0.0, extra_blocks=0,
                     attempts=50)  # fmt: skip


class Played:
    """A loaded module that notes where it is called and on which operands."""

    arguments: Sequence[Argument] = (Argument((3,), "f32"),)
    built = Built(objects=(Path("a.o"),))

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def place(self, operands: Sequence[Array]) -> Callable[[], Any]:
        self.log.append(f"place {self.name}")

        def call() -> list[Array]:
            self.log.append(f"call {self.name}")
            return list(operands)

        return call

    def results(self, call: Callable[[], Any]) -> list[Array]:
        return list(call())


def runner(log: list[str]) -> ModuleRunner:
    return ModuleRunner("fake", lambda *_: None, lambda job: Played(job.module.program, log), dict)


def jobs(*names: str) -> list[Job]:
    return [Job(ModuleText(name, name, "test", "stablehlo"), "fake", 1) for name in names]


def test_modules_take_turns_on_fresh_operands() -> None:
    log: list[str] = []
    beats: list[str] = []
    measured = measure_modules(jobs("a", "b"), ModuleBench(runner(log), "d", QUICK, NoMeter(), Clock()), beats.append)
    assert [item.row.status for item in measured] == ["ok", "ok"]
    assert {item.objects for item in measured} == {("a.o",)}
    assert len(set(beats)) == 2
    assert log.count("place a") == 2 + QUICK.blocks  # twice to check its results, then before every block
    called = [line for line in log if line.startswith("call")]
    blocks = "".join(name[-1] for name, before in zip(called, ["", *called], strict=False) if name != before)
    assert blocks == "ab" + "ab" * QUICK.blocks


class AlwaysPreempted(Clock):
    """A clock that saw a preemption whenever it is asked."""

    count = 0

    def preemptions(self) -> int:
        self.count += 1
        return self.count


def test_a_module_whose_own_threads_preempt_each_other_is_measured_all_the_same() -> None:
    bench = ModuleBench(runner([]), "d", QUICK, NoMeter(), AlwaysPreempted())
    (measured,) = measure_modules(jobs("a"), bench, lambda _: None)
    assert measured.row.status == "ok"
    assert measured.row.n_samples == QUICK.blocks * QUICK.samples_per_block
    assert measured.row.message == "every call switches between threads, so preempted samples count"
