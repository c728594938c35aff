"""Made-up rows to replay, a model that is off on them by a known factor, and homes in which nights are run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from kernelcast import cli
from kernelcast.datasets.rows.schema import Measurement, to_table
from kernelcast.datasets.store.parquet_files import file_metadata
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import default_model_dir, save_artifact
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.registry.registry import promote_directory
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.training import train
from kernelcast.nightly import challenger_process as making
from kernelcast.nightly.context import Budget
from kernelcast.nightly.gate import judge as judging
from kernelcast.nightly.record.record import NightRecord
from kernelcast.nightly.stages import train as stage_train

DEVICE = "amd-epyc-9005-vm-2c"


def made_up_specs(n: int, seed: int) -> list[KernelSpec]:
    """`n` different softmax cases of one thread."""
    rng = np.random.default_rng(seed)
    result: dict[KernelSpec, None] = {}
    while len(result) < n:
        rows, cols = (int(size) for size in np.exp2(rng.uniform(5, 11, 2)))
        result[KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=rows, cols=cols)] = None
    return list(result)


def latencies(specs: list[KernelSpec], factor: float, seed: int) -> Any:
    """Seconds by a law: a launch and three times the lower bound, times `factor`, with 2 % of noise."""
    bound = work(Cases.from_specs(specs, [DEVICE] * len(specs)), catalogue()).lower_bound_s
    return factor * (5e-6 + 3 * bound) * np.exp(0.02 * np.random.default_rng(seed).normal(size=len(specs)))


def made_up_rows(n: int, *, factor: float = 1.5, seed: int = 1, **given: Any) -> list[Measurement]:
    """Rows as a CPU campaign stores them."""
    specs = made_up_specs(n, seed)
    rows = []
    for spec, latency in zip(specs, latencies(specs, factor, seed).tolist(), strict=True):
        values = {"latency_q1_s": latency, "latency_q3_s": latency, "latency_min_s": latency, "n_samples": 30,
                  "noisy": False, "measured_at": "2026-11-22T01:00:00+00:00"} | given  # fmt: skip
        rows.append(Measurement(spec, DEVICE, "ok", "b1", latency, **values))
    return rows


def write_rows(rows: list[Measurement], path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    table = to_table(rows, "softmax").replace_schema_metadata(file_metadata({"b1": {"host": "made up"}}))
    pq.write_table(table, path)
    return path


@pytest.fixture(scope="session")
def champion_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the law without the factor: 1.5 times too fast on the rows that are replayed."""
    specs = made_up_specs(160, seed=7)
    cases = Cases.from_specs(specs, [DEVICE] * len(specs))
    rows = LabelledCases(cases, latencies(specs, 1.0, 7), np.full(len(specs), np.nan), np.full(len(specs), "made up"))
    path = tmp_path_factory.mktemp("champion") / "model"
    save_artifact(train([rows], regressor="analytic"), path)
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows to replay."""
    return write_rows(made_up_rows(200), tmp_path_factory.mktemp("recorded") / "softmax.parquet")


@dataclass
class Home:
    """A KERNELCAST_HOME with a champion, and plans to run in it."""

    path: Path
    recorded: Path
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def plan(self, **changes: Any) -> Path:
        """A plan file that replays; `changes` are its keys."""
        content = {
            "name": "rehearsal", "minutes": 1, "collector": "replay", "device": DEVICE,
            "replay": {"rows": str(self.recorded)}, "choose": {"repeats": 0},
            "train": {"regressors": ["analytic"], "with_shipped": False, "challengers": ["adapted"]},
        }  # fmt: skip
        path = self.path.parent / "plan.yaml"
        path.write_text(yaml.safe_dump({**content, **changes}))
        return path

    def run(self, *options: object, **changes: Any) -> int:
        """Run a night; its exit code."""
        code = cli.main(["nightly", str(self.plan(**changes)), *map(str, options)])
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        assert "Traceback" not in self.err
        return code

    @property
    def folders(self) -> list[Path]:
        return sorted(path for path in (self.path / "nights").iterdir() if path.is_dir())

    def record(self, name: str = "report.json") -> NightRecord:
        """The newest night's report."""
        return NightRecord.read(self.folders[-1] / name)

    def said(self, kind: str) -> str:
        """What the newest night's findings of a kind say."""
        return " | ".join(item.message for item in self.record().findings if item.kind == kind)

    def still_serves(self, version: str) -> None:
        """The state before the night serves, and loads."""
        assert self.served["version"] == version
        load_predictor(default_model_dir()).load_all()

    @property
    def served(self) -> dict[str, Any]:
        """The champion pointer."""
        return dict(json.loads((self.path / "champion.json").read_text()))


@pytest.fixture
def home(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    champion_dir: Path,
    recorded: Path,
) -> Home:
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("KERNELCAST_HOME", str(place))
    monkeypatch.chdir(tmp_path)
    promote_directory(champion_dir)
    return Home(place, recorded, capsys)


@pytest.fixture(autouse=True)
def quick_training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Challengers are made in this process, but for tests that ask for `in_a_process`."""
    if "in_a_process" not in request.fixturenames:
        monkeypatch.setattr(stage_train, "_run_process", made_here)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that runs other tests as well, how fast a model answers says nothing of the model."""
    monkeypatch.setattr(judging, "seconds_per_answer", lambda predictors, cases: [0.0 for _ in predictors])


@pytest.fixture(autouse=True)
def unspent(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a night's time is left whenever it is asked: what a night comes to must not depend on how busy the machine is.

    Budgets with a clock of their own follow that clock.
    """
    monkeypatch.setattr(Budget, "ends", property(unspent_ends))


def unspent_ends(budget: Any, ends: Any = Budget.ends.fget) -> float:  # type: ignore[attr-defined]
    return float(budget.clock() + budget.total_s if budget.clock is time.monotonic else ends(budget))


def made_here(night: Any, process: str, names: Any, seconds: float) -> None:
    """What `_run_process` does, without a process."""
    for made in making.make(night.folder, process):
        making.write_challenger(night.folder, made.name, made)


@pytest.fixture
def in_a_process() -> None:
    """Challengers are made in a process of their own, as they are outside of tests."""


@pytest.fixture
def rows() -> Callable[..., list[Measurement]]:
    return made_up_rows


@pytest.fixture
def write() -> Callable[..., Path]:
    return write_rows
