"""The wheel holds the whole product: built, unpacked elsewhere and used from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest
from kernelcast.datasets.shipped import shipped_families

ROOT = Path(__file__).parents[1]


def packages_on_disk() -> set[str]:
    tracked = subprocess.run(["git", "ls-files", "*/__init__.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    # What `benchmarks/` keeps in folders is of its scripts, and ships nowhere.
    folders = {ROOT / Path(name).parent for name in tracked.stdout.split() if not name.startswith("benchmarks/")}
    return {"kernelcast", *(".".join(("kernelcast", *folder.relative_to(ROOT).parts)) for folder in folders)}


def test_every_package_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert packages_on_disk() <= listed


def test_every_data_file_is_of_the_wheel() -> None:
    # Quick, beside the slow test of a wheel that was built: a file that is not Python ships only where a pattern names it.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [name.removeprefix("kernelcast.").replace(".", "/") for name in settings["packages"] if "." in name]
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {
        name for name in listed.stdout.split("\0") if name and not name.endswith(".py") and (ROOT / name).is_file()
    }
    shipped = {
        str(path.relative_to(ROOT))
        for package, patterns in settings["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    assert {name for name in tracked - shipped if not name.startswith("models/engine/native/")} == set()


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # From a copy of what git tracks or would: setuptools leaves a build folder beside what it builds.
    source = out / "source"
    source.mkdir()
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, files):
        origin, target = ROOT / name.decode(), source / name.decode()
        if origin.is_file() and not name.startswith((b"tests/", b"docs/")):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(origin.read_bytes())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(build, cwd=out, check=True, capture_output=True, timeout=180)
    (wheel,) = out.glob("*.whl")
    site = out / "site"
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.mark.slow
def test_the_wheel_predicts_from_its_own_files(unpacked: Path) -> None:
    script = (
        "import kernelcast, sys\n"
        f"assert kernelcast.__file__.startswith({str(unpacked)!r}), kernelcast.__file__\n"
        "from kernelcast.features.device import catalogue\n"
        "from kernelcast.datasets.shipped import shipped_families\n"
        f"assert len(catalogue().names()) >= 24 and shipped_families() == {shipped_families()!r}\n"
        "answer = kernelcast.predict('softmax', device='amd-epyc-9005-vm-2c', dtype='fp32', rows=64, cols=64, threads=1)\n"
        "assert answer.in_domain and answer.latency_s.lower <= answer.latency_s.value\n"
    )
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(unpacked)!r})\n{script}"]
    result = subprocess.run(command, cwd=unpacked.parent, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("g++"), reason="without a C++ compiler the wheel is built without the compiled engine"
)
def test_the_wheel_holds_the_compiled_engine(unpacked: Path) -> None:
    script = (
        "import kernelcast\n"
        "answer = kernelcast.predict('softmax', device='amd-epyc-9005-vm-2c', dtype='fp32', rows=64, cols=64, threads=1)\n"
        "assert answer.latency_s.value > 0 and 'onnxruntime' not in sys.modules\n"
    )
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(unpacked)!r})\n{script}"]
    env = {**os.environ, "KERNELCAST_ENGINE": "native"}
    result = subprocess.run(
        command, cwd=unpacked.parent, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_wheel_puts_one_name_into_site_packages(unpacked: Path) -> None:
    names = {path.name.split("-")[0] for path in unpacked.iterdir()}
    assert names == {"kernelcast"}
    # One marker types every package beneath it (PEP 561).
    assert (unpacked / "kernelcast" / "py.typed").is_file()
    assert (unpacked / "kernelcast" / "api" / "page" / "static").is_dir()
    assert (unpacked / "kernelcast" / "models" / "evaluation" / "reports.py").is_file()


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(unpacked: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    missing = {name for name in tracked if not (unpacked / "kernelcast" / name).is_file()}
    # The sources of the compiled engine are in the wheel as the engine.
    assert {name for name in missing if not name.startswith("models/engine/native/")} == set()


def no_files() -> None:
    import resource

    # As in a container whose root is read-only; unlike file modes it stops root as well.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_the_wheel_serves_where_nothing_can_be_written(unpacked: Path, tmp_path: Path) -> None:
    start = f"import sys; sys.path.insert(0, {str(unpacked)!r})\nfrom kernelcast.cli import main\nsys.exit(main(sys.argv[1:]))"
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KERNELCAST_HOME": "/nonexistent/kernelcast",
           "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    process = subprocess.Popen([sys.executable, "-P", "-c", start, "serve", "--port", "0", "--json"], cwd=tmp_path, env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=no_files)  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=120)[1][-2000:]
        address = json.loads(line)["address"]
        for path in ("/", "/readyz", "/openapi.json", "/metrics"):
            assert urllib.request.urlopen(f"{address}{path}", timeout=120).status == 200
        spec = {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 64, "k": 64}}
        query = urllib.request.Request(
            f"{address}/v1/predict", json.dumps(spec).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(query, timeout=120) as answer:
            assert json.load(answer)["latency_s"]["value"] > 0
    finally:
        process.terminate()
        message = process.communicate(timeout=120)[1]
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []
    assert not Path("/nonexistent").exists()
