"""The docs are true: generated pages are current, every name is in them, what they tell to run runs."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from kernelcast import cli
from kernelcast.api.settings import PREFIX, Settings
from kernelcast.models.regressor import regressors

ROOT = Path(__file__).parents[1]
PRETRAINED = ROOT / "models" / "pretrained" / "kernels" / "manifest.json"


def doc(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["families", "devices", "carbon"])
def test_generated_pages_are_current(page: str) -> None:
    written = runpy.run_path(str(ROOT / "docs" / "tables.py"))[f"{page}_page"]()
    assert doc(f"docs/{page}.md") == written, "run .venv/bin/python docs/tables.py"


def test_every_setting_and_regressor_is_named() -> None:
    service = doc("docs/service.md")
    for name in Settings.__slots__:
        assert f"`{PREFIX}{name.upper()}`" in service
    for name in regressors():
        assert f"`{name}`" in doc("docs/decisions/007-learners.md"), name


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def blocks(page: str, language: str) -> list[str]:
    outcome: list[str] = re.findall(rf"```{language}\n(.*?)```", doc(page), re.DOTALL)
    return outcome


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/compiler-pass.md",
        "docs/python.md",
        "docs/mlir.md",
        "docs/models-from-configs.md",
        "docs/pytorch.md",
    ],
)
def test_the_python_of_a_page_runs(page: str) -> None:
    assert PRETRAINED.exists(), "the shipped model is missing"
    (block,) = blocks(page, "python")
    result = subprocess.run(
        [sys.executable, "-P", "-c", block], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    assert any(float(word) > 0 for word in result.stdout.split() if re.fullmatch(r"[\d.]+(e-\d+)?", word))


HOW_TOS = sorted(f"docs/how-to/{path.name}" for path in (ROOT / "docs" / "how-to").glob("*.md"))
# What measures, or needs what an earlier line of the page makes.
NOT_ALONE = ("--table", "--model ", " adapt", " train ", " nightly ", " rollback")


def test_the_number_of_devices_in_the_readme_is_that_of_the_catalogue() -> None:
    shipped = len(list((ROOT / "features" / "devices").glob("*.yaml")))
    assert f"[{shipped}](docs/devices.md)" in doc("README.md")


def commands_that_answer() -> list[str]:
    pages = [doc("README.md"), doc("docs/mlir.md"), *map(doc, HOW_TOS)]
    lines = [line for page in pages for line in re.findall(r"^\$ (kernelcast .*)$", page, re.MULTILINE)]
    return [line for line in dict.fromkeys(lines) if not any(words in line for words in NOT_ALONE)]


# Seconds of processor time each.
LONG = ("llm plan", "measure suggest", "compare rank")
# The installed program itself; the others are run in this process, which has the imports.
AS_PROCESSES = (["predict", "gemm"], ["devices", "kernels"])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.slow] if any(words in line for words in LONG) else [])
        for line in commands_that_answer()
    ],
)
def test_the_commands_of_the_pages_run(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line, comments=True)[1:]
    (model,) = blocks("docs/mlir.md", "mlir")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "model.mlir").write_text(model)
    if words[:2] in AS_PROCESSES:
        program = Path(sys.executable).with_name("kernelcast")
        run = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
        code, out, err = run.returncode, run.stdout, run.stderr
    else:
        monkeypatch.chdir(tmp_path)
        code = cli.main(words)
        out, err = capsys.readouterr()
    assert code == 0, err
    assert out.strip()


def test_the_curl_with_mlir_is_one_the_service_takes() -> None:
    from kernelcast.api.predict.mlir import TEXT, read_text_request
    from kernelcast.features.device import catalogue

    lines = re.findall(r"^\$ (curl .*/v1/predict/mlir.*)$", doc("README.md") + doc("docs/mlir.md"), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        assert words[words.index("-H") + 1].removeprefix("content-type: ") in TEXT
        address, _, query = words[2].partition("?")
        assert address.endswith("/v1/predict/mlir")
        assert read_text_request(b"", query.encode(), catalogue(), 1).bind == {"dim0": 128}


def test_the_curl_of_the_readme_is_a_spec_the_service_takes() -> None:
    from kernelcast.api.predict.spec import read_request
    from kernelcast.features.device import catalogue

    (line,) = re.findall(r"^\$ (curl .*/v1/predict .*)$", doc("README.md"), re.MULTILINE)
    words = shlex.split(line)
    # Without it curl says that the body is a form, which the service refuses.
    assert words[words.index("-H") + 1] == "content-type: application/json"
    assert read_request(words[words.index("-d") + 1].encode(), catalogue(), 1).single


def cards() -> list[str]:
    names: list[str] = list(runpy.run_path(str(ROOT / "docs" / "cards.py"))["FOLDERS"])
    return names


@pytest.mark.parametrize("name", cards())
def test_the_cards_of_the_shipped_tables_are_current(name: str) -> None:
    outcome = runpy.run_path(str(ROOT / "docs" / "cards.py"))
    written = outcome["card"](name)
    assert (outcome["FOLDERS"][name] / name).read_text(encoding="utf-8") == written, (
        "run .venv/bin/python docs/cards.py"
    )


def test_the_card_of_the_measured_modules_is_current() -> None:
    outcome = runpy.run_path(str(ROOT / "docs" / "cards.py"))
    assert doc(f"datasets/data/programs/{outcome['MODULE_CARD']}") == outcome["module_card"](), (
        "run .venv/bin/python docs/cards.py"
    )


def test_the_card_of_the_measured_pytorch_programs_is_current() -> None:
    outcome = runpy.run_path(str(ROOT / "docs" / "cards.py"))
    assert doc(f"datasets/data/programs/{outcome['TORCH_PROGRAM_CARD']}") == outcome["torch_program_card"](), (
        "run .venv/bin/python docs/cards.py"
    )


def test_the_cards_of_the_measured_pairs_are_current() -> None:
    outcome = runpy.run_path(str(ROOT / "docs" / "cards.py"))
    for name in outcome["PAIR_CARDS"]:
        assert doc(f"datasets/data/pairs/{name}") == outcome["pair_card"](name), "run .venv/bin/python docs/cards.py"


def test_the_limits_of_mlir_text_are_those_it_has() -> None:
    from kernelcast.features.mlir.parse import text_limits as limits
    from kernelcast.features.mlir.walk.walk import MAX_STEPS

    page = doc("docs/mlir.md")
    mebibytes = f"{limits.MAX_TEXT_B >> 20} MiB of text"
    for words in (mebibytes, f"{limits.MAX_DEPTH} brackets deep", f"{limits.MAX_OPS:,} operations",
                  f"words of {limits.MAX_WORD:,} characters", f"followed to {MAX_STEPS:,}"):  # fmt: skip
        assert words in page, words
