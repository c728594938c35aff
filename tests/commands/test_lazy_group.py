"""The tree of commands: twelve that are listed, older names that still work, defaults, and completion in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import typer
from kernelcast.commands import ALIASES, COMMANDS, app
from kernelcast.commands.lazy_group import LazyGroup
from typer.cli import get_docs_for_click

BEFORE = {
    "predict-model": "predict model", "predict-code": "predict code", "kernels": "devices kernels",
    "collect": "measure cpu", "collect-gpu": "measure gpu", "collect-mlir": "measure mlir",
    "compile-labels": "measure labels", "compile-triton-programs": "measure triton", "characterize": "measure machine",
    "trace-launches": "measure launches", "count-traffic": "measure traffic", "import": "data import",
    "train-mlir": "train mlir", "train-triton": "train triton", "train-tuning": "train tuning",
    "export-ops": "train export-ops", "calibrate": "train calibrate", "suggest": "measure suggest",
    "nightly": "measure nightly", "nights": "measure nights", "learning-curve": "evaluate curve",
    "fleet": "measure fleet", "keys": "serve keys", "models": "serve models", "best-cap": "compare best-cap",
    "predict": "predict", "estimate": "estimate", "devices": "devices", "serve": "serve", "train": "train", "tune": "tune",
    "measure": "measure", "adapt": "adapt", "evaluate": "evaluate", "llm": "llm", "data": "data",
}  # fmt: skip
"""Every name that stood in the list of commands before there were groups, and where it is now."""


def command_of(path: str) -> tuple[typer.Context, object]:
    """The command that words lead to, and its context."""
    context = typer.Context(typer.main.get_command(app), info_name="kernelcast")
    for word in path.split():
        command = context.command.get_command(context, word)  # type: ignore[attr-defined]
        assert command is not None, path
        if isinstance(command, LazyGroup) and path.endswith(word):
            command = command._default_command() if command._default else command
        context = typer.Context(command, info_name=word, parent=context)
    return context, context.command


def test_twelve_commands_are_listed_in_three_panels(run):
    shown = run("--help").out
    listed = re.findall(r"^│ ([a-z][a-z-]*)  ", shown, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert len(listed) == 12
    assert re.findall(r"─ (Ask|Improve|Run) ─", shown) == ["Ask", "Improve", "Run"]
    assert not any(re.search(rf"\b{name}\b", shown.split("─ Ask")[1]) for name in ("collect", "characterize", "nights"))


@pytest.mark.parametrize("name", BEFORE)
def test_older_names_are_the_same_commands(name):
    assert name in ALIASES or name in COMMANDS
    (_, older), (_, newer) = command_of(name), command_of(BEFORE[name])
    if isinstance(older, LazyGroup) or hasattr(older, "commands"):
        assert list(older.commands) == list(newer.commands)
    else:
        assert [param.opts for param in older.params] == [param.opts for param in newer.params]
        assert older.callback.__wrapped__ is newer.callback.__wrapped__


@pytest.mark.parametrize("name", [name for name in BEFORE if name in ALIASES])
def test_older_names_are_hidden_and_have_their_help(run, name):
    done = run(name, "--help")
    assert done.code == 0
    assert f"Usage: kernelcast {name} " in done.out


@pytest.mark.parametrize("path", [f"{verb} {word}" for verb, entry in COMMANDS.items() for word in entry.inner or ()])
def test_every_command_has_a_help_that_fits_80_columns(run, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run(*path.split(), "--help")
    assert f"Usage: kernelcast {path} " in done.out
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.inner])
def test_a_default_is_shown_with_the_commands_beside_it(run, name):
    shown = run(name, "--help").out
    inner = COMMANDS[name].inner
    assert inner is not None
    assert "--json" in shown
    for word, entry in inner.items():
        assert re.search(rf"│ {word} +{re.escape(entry.doc.split()[0])}", shown)


@pytest.mark.parametrize("path", ["llm", "data", "serve keys", "serve models", "measure fleet"])
def test_a_group_without_a_word_shows_its_help_and_no_error(run, path):
    done = run(*path.split())
    assert done.code == 2
    assert f"Usage: kernelcast {path} " in done.out + done.err
    assert "error:" not in done.err


@pytest.mark.parametrize("path", ["llm", "data", "serve keys", "serve models", "measure fleet"])
def test_completion_is_installed_at_the_top_alone(run, path):
    assert "--install-completion" in run("--help").out
    assert "--install-completion" not in run(*path.split(), "--help").out


@pytest.mark.parametrize(
    "words",
    [("llm", "predict", "meta-llama/Llama-3.1-8B"), ("compare", "best-cap", "gemm"), ("compare", "rank", "gemm")],
)
def test_a_second_device_is_refused_where_one_is_taken(run, words):
    done = run(*words, "--device", "h100", "--device", "mi300x")
    assert "answers for one device, and --device is there 2 times" in done.error


def test_paragraphs_of_a_help_fill_their_lines(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paragraph = run("adapt", "--help").out.split("╭")[0].split("\n" + " " * 80 + "\n")[-2].splitlines()
    assert len(paragraph) > 2
    # A word of the next line would not have fitted.
    ends = pairwise(paragraph)
    assert all(len(line.rstrip()) + len(after.split()[0]) >= 79 for line, after in ends)


def test_optional_words_have_one_pair_of_brackets(run):
    assert "[WORD]..." in run("predict", "--help").out
    for path in ("predict", "train", "estimate", "llm predict", "serve models rollback"):
        assert "[[" not in run(*path.split(), "--help").out


def test_a_reference_of_all_commands_can_be_written():
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    page = get_docs_for_click(obj=root.help_page(), ctx=typer.Context(root), name="kernelcast", title="Command line")
    headings = re.findall(r"^#+ `kernelcast (.*)`$", page, re.MULTILINE)
    for verb, entry in COMMANDS.items():
        assert verb in headings
        assert {f"{verb} {word}" for word in entry.inner or ()} <= set(headings)
    assert not set(ALIASES) & set(headings)
    assert "--skip-bad-rows" in page.split("`kernelcast predict`")[1].split("`kernelcast predict model`")[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("devces",), "no command 'devces'; did you mean devices?; see `kernelcast --help`"),
        (("colect",), "did you mean measure cpu, "),
        (("kernel", "gemm"), "did you mean devices kernels?"),
        (("sweep", "gemm"), "did you mean compare sweep?"),
        (("triton",), "did you mean measure triton, train triton?"),
        (("zzz",), "no command 'zzz'; see `kernelcast --help`"),
        (("serve", "keys", "mak"), "No such command 'mak'"),
        (("predict", "gemm", "--devise", "x"), "see `kernelcast predict --help`"),
        (("compare", "sweep"), "see `kernelcast compare sweep --help`"),
        (("predict", "model"), "Missing argument 'FILE'; see `kernelcast predict model --help`"),
    ],
)
def test_wrong_words_are_said_with_where_to_look(run, args, said):
    assert said in run(*args).error


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("", list(COMMANDS)),
        ("pre", ["predict"]),
        ("predict mo", ["model", "moe"]),
        ("predict gem", ["gemm"]),
        ("predict gemm dtype=b", ["dtype=bf16"]),
        ("predict gemm --device nvidia-h100-s", ["nvidia-h100-sxm-80gb"]),
        ("compare sweep gemm --device l40", ["l40", "l40s"]),
        ("devices nvidia-rtx-509", ["nvidia-rtx-5090"]),
        ("serve k", ["keys"]),
        ("predict --devi", ["--device", "--device-file"]),
    ],
)
def test_completion(line, offered, monkeypatch, capsys):
    words = ["kernelcast", *line.split(" ")]
    monkeypatch.setenv("_KERNELCAST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        app(prog_name="kernelcast", standalone_mode=False)
    assert capsys.readouterr().out.split() == offered


def test_a_command_imports_no_other():
    code = (
        "import sys; from kernelcast.cli import main; main(['devices', '--help']); "
        "print([name for name in sys.modules if name.startswith('kernelcast.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
        env=os.environ,
    )
    assert "kernelcast.commands.catalogue" in done.stderr
    for name in ("commands.train", "commands.measure", "commands.predict", "kernelcast.models"):
        assert name not in done.stderr


def test_an_unknown_word_of_data_has_the_commands(run):
    assert "no command 'chek'; there are list, " in run("data", "chek").error
    assert "no command 'verfy'; did you mean verify" in run("data", "verfy").error
