"""`suggest` and `calibrate` with what the extra `calibrate` installs: neither torch nor anything else that trains."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

ROOT = Path(__file__).parents[2]
TRAINING = ("torch", "xgboost", "mlflow", "sklearn", "onnx", "sqlalchemy", "alembic", "pandas")
PROGRAM = """
import sys
blocked = set(sys.argv[1].split(","))
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from kernelcast.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def without(tmp_path: Path):
    def without(blocked: tuple[str, ...], *args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", PROGRAM, ",".join(blocked), *map(str, args)]
        env = {**os.environ, "KERNELCAST_HOME": str(tmp_path / "home")}
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120)

    return without


@pytest.mark.slow
def test_suggest_and_calibrate_need_nothing_that_trains(without, tmp_path: Path) -> None:
    form = tmp_path / "cases.csv"
    done = without(TRAINING, "suggest", "--device", "nvidia-l4", "--family", "softmax", "--n", 4, "--out", form)
    assert done.returncode == 0, done.stderr
    table = pa_csv.read_csv(form)
    filled = table.set_column(table.column_names.index("latency_s"), "latency_s", pa.array([1e-4] * table.num_rows))
    pa_csv.write_csv(filled, form)
    done = without(TRAINING, "calibrate", "--data", form, "--out", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "manifest.json").is_file()


@pytest.mark.parametrize(
    "command", [("suggest", "--device", "nvidia-l4"), ("calibrate", "--data", "x.csv", "--out", "m")]
)
def test_without_its_packages_the_error_names_the_extra(without, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "x.csv").write_text("family,device,dtype,rows,cols,latency_s\nsoftmax,nvidia-l4,fp32,64,64,1e-4\n")
    done = without(("scipy", "threadpoolctl"), *command)
    assert done.returncode == 2
    assert "pip install 'kernelcast[calibrate]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extra_is_part_of_what_trains() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["calibrate"]) <= set(extras["train"])
