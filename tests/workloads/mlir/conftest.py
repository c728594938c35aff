"""Made-up programs whose latency follows a law, and models of them that train in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.mlir.program import Group, Node, Program
from kernelcast.features.mlir.types.graph import ValueType
from kernelcast.features.mlir.vectors.program_vector import extract
from kernelcast.workloads.mlir.learned.measured_programs import CHARACTERISTICS, MeasuredPrograms
from kernelcast.workloads.mlir.learned.network_training import Schedule
from kernelcast.workloads.mlir.learned.program_model import ProgramModel, save_models
from kernelcast.workloads.mlir.learned.ragged_batch import to_ragged_batch
from kernelcast.workloads.mlir.learned.training import TrainingConfig, train_programs

CPU = "amd-epyc-9005-vm-2c"
SETTINGS = (("iree", 1), ("iree", 2), ("xla", 1), ("xla", 2))
QUICK = TrainingConfig(folds=2, network=Schedule(epochs=4), tree_rounds=60)


class Maker:
    """Builds a program value by value."""

    def __init__(self) -> None:
        self.types: list[ValueType] = []
        self.nodes: list[Node] = []
        self.groups: list[Group] = []
        self.arguments: list[int] = []

    def value(self, *shape: int, dtype: str = "fp32") -> int:
        self.types.append(ValueType("tensor", shape, dtype, f"tensor<{shape}x{dtype}>"))
        return len(self.types) - 1

    def argument(self, *shape: int) -> int:
        self.arguments.append(self.value(*shape))
        return self.arguments[-1]

    def product(self, x: int, m: int, k: int, n: int, dialect: str = "stablehlo") -> int:
        w, y = self.argument(k, n), self.value(m, n)
        node = Node(
            f"{dialect}.dot_general", "contraction", (x, w), (y,), "fp32", flops=2.0 * m * n * k,
            bytes_in=4.0 * (m * k + k * n), bytes_out=4.0 * m * n, loops=(1.0, float(m), float(n), float(k)),
            detail={"operator": "dot_general"}, line=len(self.nodes) + 1,
        )  # fmt: skip
        return self._group([node], KernelSpec.of("gemm", "fp32", m=m, n=n, k=k), y)

    def elementwise(self, x: int, m: int, n: int, operators: tuple[str, ...], *, runs: float = 1.0) -> int:
        nodes, y = [], x
        for operator in operators:
            y = self.value(m, n)
            nodes.append(Node(
                f"stablehlo.{operator}", "elementwise", (x,), (y,), "fp32", flops=float(m * n),
                transcendentals=float(m * n) * (operator == "exp"), bytes_in=4.0 * m * n, bytes_out=4.0 * m * n,
                loops=(1.0, float(m * n), 1.0, 1.0), runs=runs, detail={"operator": operator}, line=len(self.nodes) + 1,
            ))  # fmt: skip
            x = y
        return self._group(nodes, None, y, runs=runs)

    def unknown(self, x: int, m: int, n: int) -> int:
        y = self.value(m, n)
        size = 4.0 * m * n
        node = Node("mystery.op", "unknown", (x,), (y,), "fp32", bytes_in=size, bytes_out=size, note="no rule for it")
        return self._group([node], None, y)

    def _group(self, nodes: list[Node], spec: KernelSpec | None, last: int, runs: float = 1.0) -> int:
        first = len(self.nodes)
        self.nodes += nodes
        self.groups.append(Group(
            tuple(range(first, len(self.nodes))), nodes[-1].kind, "fp32", sum(node.flops for node in nodes),
            sum(node.transcendentals for node in nodes), nodes[0].bytes_in, nodes[-1].bytes_out, runs, nodes[-1].parallelism,
            spec, "", (len(self.groups) - 1,) if self.groups else (), nodes[-1].op,
        ))  # fmt: skip
        return last

    def program(self, *outputs: int) -> Program:
        return Program("main", "made up", self.nodes, self.groups, self.types, tuple(self.arguments), outputs, 0.0, ())


def random_program(rng: np.random.Generator, n_groups: int) -> Program:
    make = Maker()
    m, k = (int(2 ** rng.uniform(3, 9)) for _ in range(2))
    x = make.argument(m, k)
    for _ in range(n_groups):
        if rng.random() < 0.4:
            n = int(2 ** rng.uniform(3, 9))
            x, k = make.product(x, m, k, n), n
        else:
            operators = rng.choice(["add", "exp", "mul"], size=int(rng.integers(1, 4)))
            x = make.elementwise(x, m, k, tuple(map(str, operators)))
    return make.program(x)


def law_s(program: Program, compiler: str, threads: int) -> float:
    """A call, and for every group a dispatch and the larger of its arithmetic and its traffic."""
    speed = {"iree": 1.0, "xla": 1.6}[compiler] * threads**0.8
    total = {"iree": 4e-6, "xla": 8e-6}[compiler]
    for group in program.groups:
        rate = 6e10 if group.kind == "contraction" else 1e10
        work = max(group.flops / rate + group.transcendentals / 2e9, (group.bytes_in + group.bytes_out) / 4e10) / speed
        total += (work + 1e-6) * group.runs
    return total


def _measured(n: int = 160, *, noise: float = 0.02, seed: int = 0) -> MeasuredPrograms:
    rng = np.random.default_rng(seed)
    programs = [random_program(rng, int(rng.integers(1, 10))) for _ in range(n)]
    seconds = np.array([[law_s(program, *setting) for setting in SETTINGS] for program in programs])
    log_latency = np.log(seconds) + rng.normal(0, noise, seconds.shape)
    code = np.array([[200.0 * len(program.nodes)] * len(SETTINGS) for program in programs])
    characteristics = {name: np.full(seconds.shape, np.nan) for name in CHARACTERISTICS} | {"code_instructions": code}
    device = catalogue().get(CPU)
    dialects = tuple("linalg" if i % 4 == 0 else "stablehlo" for i in range(n))
    # XLA takes no linalg.
    log_latency[::4, 2:] = np.nan
    return MeasuredPrograms(
        CPU, to_ragged_batch([extract(program, device) for program in programs]),
        tuple(f"made/up-{i // 2}#{i % 2}" for i in range(n)), ("generated",) * n, dialects, ("",) * n, SETTINGS, log_latency,
        np.ones_like(log_latency), characteristics,
    )  # fmt: skip


@pytest.fixture(scope="session")
def measured() -> MeasuredPrograms:
    return _measured()


@pytest.fixture(scope="session")
def trained(measured: MeasuredPrograms) -> ProgramModel:
    return train_programs(measured, QUICK)


@pytest.fixture(scope="session")
def model_path(trained: ProgramModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "model"
    save_models({CPU: trained}, {"rows": 1}, path)
    return path


@pytest.fixture(scope="session")
def maker() -> type[Maker]:
    return Maker


@pytest.fixture(scope="session")
def random_programs() -> Callable[[np.random.Generator, int], Program]:
    return random_program


@pytest.fixture(scope="session")
def law() -> Callable[[Program, str, int], float]:
    return law_s
