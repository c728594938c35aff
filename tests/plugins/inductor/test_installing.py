"""Switching on and off: Inductor's hooks, its versions, and trouble that must never reach a compilation."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.plugins import inductor
from kernelcast.plugins.cost_model import PluginWarning
from kernelcast.plugins.inductor import torch_side

TILES = [(16, 16, 16), (32, 32, 16), (64, 64, 16), (128, 128, 16)]


class Selector:
    """torch._inductor.select_algorithm, as far as it is used."""

    def __init__(self) -> None:
        self.preprocessing_fns: list[Any] = [len]
        self.feedback_saver_fns: list[Any] = []
        self.add_preprocessing_fn = self.preprocessing_fns.append
        self.add_feedback_saver = self.feedback_saver_fns.append

    def get_algorithm_selector_cache(self) -> Selector:
        return self


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch, torch_played: Any) -> Selector:
    made = Selector()
    monkeypatch.setattr(torch_side, "find_hooks", lambda: torch_side.Hooks(made))
    return made


def test_installed_and_removed(selector: Selector, make: Any, model: Any, kept: Any) -> None:
    handle = inductor.install(top_k=1, store=kept, model=model)
    assert handle.active
    before, after = selector.preprocessing_fns[-1], selector.feedback_saver_fns[-1]
    stay = before(make.mm_list(512, 768, 1024, TILES))
    after(dict.fromkeys(stay, 0.1), "mm", [], stay, None, {})
    assert (len(stay), len(kept.rows)) == (2, 2)
    assert inductor.report().pruned_by_model == 3
    handle.remove()
    handle.remove()
    assert not handle.active
    assert (selector.preprocessing_fns, selector.feedback_saver_fns, kept.flushed) == ([len], [], 1)
    # What it did can still be asked.
    assert inductor.report().measured == 2


def test_a_with_block_removes_it(selector: Selector, model: Any, kept: Any) -> None:
    with inductor.install(store=kept, model=model) as handle:
        assert len(selector.preprocessing_fns) == 2
    assert not handle.active
    assert selector.preprocessing_fns == [len]


def test_a_second_installation_replaces_the_first(selector: Selector, model: Any, kept: Any) -> None:
    first = inductor.install(store=kept, model=model)
    second = inductor.install(store=kept, model=model)
    assert (first.active, second.active) == (False, True)
    assert (len(selector.preprocessing_fns), len(selector.feedback_saver_fns)) == (2, 1)


def test_cleared_by_someone_else_it_is_removed_without_trouble(selector: Selector, model: Any, kept: Any) -> None:
    handle = inductor.install(store=kept, model=model)
    selector.preprocessing_fns.clear()
    selector.feedback_saver_fns = []
    handle.remove()
    assert kept.flushed == 1


def test_report_without_an_installation_is_all_zero() -> None:
    assert inductor.report() == inductor.Counts()
    assert str(inductor.report()).startswith("0 choices in 0 lists")


@pytest.mark.parametrize("top_k", [0, -1, 2.5, True, "8", None])
def test_a_top_k_that_is_no_count_is_refused(top_k: Any) -> None:
    with pytest.raises(SpecError, match="top_k"):
        inductor.install(top_k=top_k)


def test_an_unknown_device_is_refused_before_anything_changes(selector: Selector) -> None:
    with pytest.raises(SpecError, match="no device 'h2000'"):
        inductor.install("h2000")
    assert selector.preprocessing_fns == [len]


def test_an_error_of_ours_leaves_the_list_as_it_was_and_is_said_once(selector: Selector, make: Any, kept: Any) -> None:
    class Broken:
        def rank(self, candidates: Any, k: int) -> Any:
            raise ZeroDivisionError("in the model")

    inductor.install(top_k=1, store=kept, model=Broken())  # type: ignore[arg-type]
    choices = make.mm_list(512, 768, 1024, TILES)

    def compile_twice() -> None:
        assert selector.preprocessing_fns[-1](choices) is choices
        assert selector.preprocessing_fns[-1](choices) is choices

    with pytest.warns(PluginWarning, match="as it was: ZeroDivisionError: in the model") as message:
        compile_twice()
    assert len(message) == 1


@pytest.mark.parametrize("given", [(), ("nonsense", 3), ({"choice": "fast"}, "mm"), ({None: 1.0}, "mm")])
def test_hooks_called_in_another_way_end_no_compilation(selector: Selector, model: Any, kept: Any, given: Any) -> None:
    inductor.install(store=kept, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        assert selector.feedback_saver_fns[-1](*given) is None
        assert selector.preprocessing_fns[-1]([None]) == [None]
    assert kept.rows == []


def test_where_warnings_are_errors_a_compilation_still_goes_on(
    selector: Selector, make: Any, kept: Any, no_model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    inductor.install(top_k=1, store=kept, model=Path("nowhere.kcm"))
    choices = make.mm_list(512, 768, 1024, TILES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(selector.preprocessing_fns[-1](choices)) == 5
    assert capsys.readouterr().err.startswith("kernelcast: ")


def test_a_keeper_that_fails_does_not_end_a_compilation(selector: Selector, make: Any, model: Any, kept: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    kept.keep = full
    inductor.install(store=kept, model=model)
    stay = selector.preprocessing_fns[-1](make.mm_list(512, 768, 1024, TILES))
    with pytest.warns(PluginWarning, match="did not keep the times .* No space left"):
        selector.feedback_saver_fns[-1](dict.fromkeys(stay, 0.1), "mm")


def test_a_store_that_cannot_be_written_is_one_sentence(
    selector: Selector, tmp_path: Path, make: Any, model: Any
) -> None:
    (tmp_path / "file").write_text("")
    handle = inductor.install(store=tmp_path / "file" / "store", model=model)
    stay = selector.preprocessing_fns[-1](make.mm_list(512, 768, 1024, TILES))
    with pytest.warns(PluginWarning, match="did not keep the times of a list of choices"):
        selector.feedback_saver_fns[-1](dict.fromkeys(stay, 0.1), "mm")
    handle.remove()


def test_a_file_in_place_of_a_store_is_one_sentence(selector: Selector, tmp_path: Path, model: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(PluginWarning, match="not installed in Inductor: .*file is a file; a store is a folder"):
        handle = inductor.install(store=tmp_path / "file", model=model)
    assert not handle.active


@pytest.mark.parametrize("missing", ["add_preprocessing_fn", "add_feedback_saver", "get_algorithm_selector_cache"])
def test_a_torch_without_the_hooks_is_told_which_one_has_them(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    select = types.ModuleType("torch._inductor.select_algorithm")
    cache = types.SimpleNamespace(preprocessing_fns=[], feedback_saver_fns=[])
    for name in ("add_preprocessing_fn", "add_feedback_saver", "get_algorithm_selector_cache"):
        if name != missing:
            setattr(select, name, lambda *_: cache)
    old, package = types.ModuleType("torch"), types.ModuleType("torch._inductor")
    old.__version__ = "2.6.0"  # type: ignore[attr-defined]
    package.select_algorithm = select  # type: ignore[attr-defined]
    for name, module in (("torch", old), ("torch._inductor", package), (select.__name__, select)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.warns(
        PluginWarning, match=f"torch 2.6.0 lacks {missing} .* works with torch {torch_side.TESTED_TORCH}"
    ):
        handle = inductor.install()
    assert not handle.active


def test_without_torch_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.warns(PluginWarning, match="no usable torch here"):
        handle = inductor.install()
    assert not handle.active
    handle.remove()


def test_only_what_is_needed_is_imported() -> None:
    import subprocess

    code = (
        "import sys, kernelcast.plugins.inductor\n"
        "print([n for n in ('torch', 'pyarrow', 'pandas', 'xgboost', 'triton') if n in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stderr
