"""Every command of docs/plugins.md runs, in the order of the page, from the root of a clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
NEEDS = {"import triton": "triton", "import torch": "torch", "from torch_mlir": "torch_mlir", "import jax": "jax",
         "from iree": "iree.compiler"}  # fmt: skip


def blocks() -> Iterator[tuple[str, str, str]]:
    """(route, language, text) of every block of the page."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        for language, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL):
            yield title, language, text


def steps() -> list[tuple[str, str, str]]:
    result = []
    for title, language, text in blocks():
        if language == "sh":
            result += [(title, "sh", line) for line in text.splitlines()]
        elif language == "python":
            result.append((title, "python", text))
    return result


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the clone's root, with the page's module in it; what the page writes stays out of the clone."""
    folder = tmp_path_factory.mktemp("clone")
    (ROOT / "build").mkdir(exist_ok=True)
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    (module,) = (text for _, language, text in blocks() if language == "mlir")
    (folder / "model.mlir").write_text(module)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """As a user's, with the programs of this environment on the path, and a home of its own."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KERNELCAST_HOME": str(folder / "home"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_INTERPRET": "1",
    }  # fmt: skip


def run(kind: str, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # From a file: what Triton compiles it reads back from where it stands.
    (folder / "step.py").write_text(text)
    command = ["bash", "-c", text] if kind == "sh" else [sys.executable, "-P", "step.py"]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False, timeout=240
    )


# One worker runs them all: later commands use what earlier ones wrote.
@pytest.mark.xdist_group("plugins-page")
def test_every_command_of_the_page_runs(clone: Path) -> None:
    for title, kind, text in steps():
        if title == "mlir-opt" and shutil.which("mlir-opt-19") is None:
            continue
        if any(mark in text and not importable(name) for mark, name in NEEDS.items()):
            continue
        done = run(kind, text, clone)
        assert done.returncode == 0, f"{title}: {text}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        assert "Warning" not in done.stderr, f"{title}: {text}\n{done.stderr[-2000:]}"
        check = CHECKS.get(title)
        assert check is None or kind != "python" or check in done.stdout, f"{title}: {done.stdout[-1500:]}"
        if "kernelcast-annotate" in text:
            assert "kernelcast.latency_s" in done.stdout
        if "kernelcast-tile" in text:
            assert "scf.for" in done.stdout


CHECKS = {"Python passes": "kernelcast.latency_s", "Triton": "BLOCK_SIZE_M", "TorchInductor": "choices"}


def importable(name: str) -> bool:
    return (
        subprocess.run([sys.executable, "-P", "-c", f"import {name}"], capture_output=True, check=False).returncode == 0
    )


def test_the_page_names_every_route() -> None:
    headings = {heading.lower() for heading in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)}
    names = {"inductor": "torchinductor", "mlir_opt": "mlir-opt"}
    for route in (path.name for path in (ROOT / "plugins").iterdir() if (path / "__init__.py").is_file()):
        assert names.get(route, route) in headings, route
