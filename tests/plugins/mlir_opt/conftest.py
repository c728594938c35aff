"""The plug-in, built once; models made up for it; and mlir-opt to run it in."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.family_kinds import HAS_POWER
from kernelcast.features.tuning.kind import Task, TuningKind, get_kind
from kernelcast.models.tuning.flat_model import FlatModel, write_model
from kernelcast.models.tuning.forest import Forest
from numpy.typing import NDArray

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"
HEADERS = Path("/usr/lib/llvm-19/include/mlir/Tools/Plugins/PassPlugin.h")


# The made-up models know power where they have a forest for it.
TAUGHT = {HAS_POWER: 1.0}


@dataclass(frozen=True)
class Run:
    """What mlir-opt said: exit status, the module, diagnostics."""

    status: int
    module: str
    message: str


RunPass = Callable[..., Run]


@pytest.fixture(scope="session")
def plugin() -> Path:
    """The built plug-in; built again only where a source is newer."""
    for tool in ("mlir-opt-19", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not HEADERS.is_file():
        pytest.skip(f"{HEADERS} is not there: libmlir-19-dev is not installed")
    built = ROOT / "build" / "libkernelcast-mlir.so"
    sources = [*(ROOT / "plugins" / "mlir_opt").iterdir(), *(ROOT / "plugins" / "cpp").glob("*.hpp")]
    built.parent.mkdir(exist_ok=True)
    # Several test processes may want it at once.
    with (built.parent / ".mlir-plugin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
            done = subprocess.run(
                ["sh", ROOT / "plugins/mlir_opt/build.sh", built], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]
    return built


@pytest.fixture
def run_pass(plugin: Path) -> RunPass:
    """Run a pipeline of function passes, and more mlir-opt passes after it, over a file here or a text."""

    def run(passes: str, code: str | Path, after: str = "", flags: Sequence[str] = ()) -> Run:
        text = (HERE / code).read_text() if isinstance(code, str) and code.endswith(".mlir") else str(code)
        pipeline = f"builtin.module(func.func({passes}){',' + after if after else ''})" if passes else ""
        command = ["mlir-opt-19", f"--load-pass-plugin={plugin}", *flags]
        command += [f"--pass-pipeline={pipeline}"] if pipeline else []
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=240)
        return Run(done.returncode, done.stdout, done.stderr)

    return run


def random_forest(features: NDArray[np.float64], depth: int, trees: int, seed: int, bias: float) -> Forest:
    """A forest whose splits lie among the values of some rows, so that different operations reach different leaves."""
    rng = np.random.default_rng(seed)
    pairs = sorted({
        (feature, float(np.float32(np.quantile(features[:, feature], quantile))))
        for feature in range(features.shape[1])
        for quantile in (0.2, 0.4, 0.6, 0.8)
    })  # fmt: skip
    return Forest(
        bias=bias,
        depth=depth,
        features=np.array([feature for feature, _ in pairs], np.uint32),
        thresholds=np.array([threshold for _, threshold in pairs], np.float32),
        splits=rng.integers(0, len(pairs), (2**depth - 1, trees)).astype(np.uint32),
        leaves=rng.normal(0.0, 0.2, (trees, 2**depth)).astype(np.float32),
    )


def made_up(kind: TuningKind, devices: Sequence[str], *, energy: bool, seed: int = 3) -> FlatModel:
    """A model of a kind with random trees; what it says means nothing, but it is something definite."""
    formula = kind.formula()
    table = {
        (device, dtype): tuple(
            ({**kind.facts_of(catalogue().get(device), dtype), **TAUGHT})[name] for name in kind.facts
        )
        for device in devices
        for dtype in ("fp32", "bf16")
    }
    facts = dict(zip(kind.facts, table[(devices[0], "fp32")], strict=True))
    rng = np.random.default_rng(seed)
    names = (*kind.sizes, *kind.knobs)
    rows = {name: np.exp2(rng.uniform(0.0, 9.0, 200)).round() for name in names} | facts
    columns = formula.columns(rows, 200)
    return FlatModel(
        kind=kind.name, sizes=kind.sizes, knobs=kind.knobs, facts=kind.facts, table=table, formula=formula,
        latency=random_forest(columns, 4, 20, seed, 0.7),
        energy=random_forest(columns, 3, 5, seed + 1, 4.0) if energy else None,
        metadata={"note": "made up for a test"},
    )  # fmt: skip


FAMILIES = ("gemm", "conv2d", "elementwise", "reduction", "softmax", "copy")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: every family an operation can be read as, of products and softmax with energy; tiles."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        kind = get_kind(f"op-{family}")
        write_model(made_up(kind, (CPU, GPU), energy=family in ("gemm", "softmax")), folder / f"{kind.name}.kcm")
    kind = get_kind("mlir-opt-tiles")
    write_model(made_up(kind, (CPU,), energy=False), folder / f"{kind.name}.kcm")
    return folder


def tile_task(m: int, n: int, k: int, batch: int = 1, a_transposed: int = 0, b_transposed: int = 0) -> Task:
    sizes = {"batch": batch, "m": m, "n": n, "k": k, "a_transposed": a_transposed, "b_transposed": b_transposed}
    return Task("mlir-opt-tiles", sizes, "fp32", CPU)
