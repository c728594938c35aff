"""From a module's text to a result: what is chosen, what is dropped, and what is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.tuning.kind import Candidates
from kernelcast.plugins.iree import compiler
from kernelcast.plugins.iree.compiler import CompileError
from kernelcast.plugins.iree.dispatches import CONTRACTION
from kernelcast.plugins.iree.tuning import command_line, hook_command_line, summary, tune

from .conftest import DEVICE, LaidDown, function

pytestmark = pytest.mark.slow

pytest.importorskip("iree.compiler")

TEXT = function("main", "linalg.matmul", "32x32xf32", "32x64xf32", "32x64xf32")


def tuned(model: LaidDown, text: str = TEXT, **options: Any) -> Any:
    return tune(text, DEVICE, 1, {CONTRACTION: model}.__getitem__, **options)


def no_model(kind: str) -> Any:
    raise SpecError(f"there is no model of kind {kind}")


def test_tiles_that_are_predicted_fastest_are_imposed(tmp_path: Path) -> None:
    result = tuned(LaidDown(4e-5, 3e-5, {32: 1e-5}))
    (choice,) = result.choices
    assert result.variant == "tuned"
    assert choice.config["tile_m"] == 32
    assert (choice.default_s, choice.data_tiling_s, choice.chosen_s) == (4e-5, 3e-5, 1e-5)
    assert "distribution = [32," in result.instructions.spec
    assert f"--iree-codegen-tuning-spec-path={tmp_path / 'tuning_spec.mlir'}" in command_line(
        result, "m.mlir", tmp_path
    )
    assert str(hook_command_line(result, "m.mlir", tmp_path)).startswith(f"PATH={tmp_path}:$PATH iree-compile m.mlir ")
    messages = summary(result, "m.mlir", tmp_path)
    assert (messages["variant"], messages["tuned"][0]["config"]) == ("tuned", dict(choice.config))


def test_a_device_that_was_not_measured_is_tuned_and_said_so() -> None:
    result = tuned(LaidDown(4e-5, 3e-5, {32: 1e-5}, caveat="nothing was measured here"))
    assert result.variant == "tuned"
    assert result.notes == ("nothing was measured here",)


@pytest.mark.parametrize(("model", "variant", "flags"), [
    (LaidDown(1e-5, 3e-5, {}), "default", ()),
    (LaidDown(4e-5, 3e-5, {}), "data tiling", ("--iree-opt-data-tiling",)),
])  # fmt: skip
def test_the_compilers_own_ways_need_no_files(
    model: LaidDown, variant: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    result = tuned(model)
    assert result.variant == variant
    assert result.instructions.flags(tmp_path) == flags
    assert hook_command_line(result, "m.mlir", tmp_path) is None


def test_without_a_model_everything_is_left_and_the_reason_said_once() -> None:
    result = tune(TEXT, DEVICE, 1, no_model)
    assert (result.variant, result.choices) == ("default", ())
    assert len(result.notes) == 1
    assert "no model of kind" in result.notes[0]
    assert len(result.left) == 1


def test_what_does_not_compile_is_dropped_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiler.compile_file

    def compile_file(text: str, flags: Sequence[str], path: Path) -> None:
        if any("tuning-spec" in flag for flag in flags):
            raise CompileError("iree-compile: large vectors")
        compiled(text, flags, path)

    monkeypatch.setattr(compiler, "compile_file", compile_file)
    result = tuned(LaidDown(4e-5, 5e-5, {32: 1e-5}))
    assert (result.variant, dict(result.choices[0].config)) == ("default", {})
    assert "dropped for the compiler's own choice (iree-compile: large vectors)" in result.notes[0]


def test_measured_configurations_and_modules_decide() -> None:
    model = LaidDown(4e-5, 3e-5, {32: 1e-5, 16: 2e-5})

    def measure(tried: Sequence[Candidates]) -> list[list[float]]:
        # The model is wrong: the compiler's own choice is the fastest but one.
        (item,) = tried
        return [
            [
                5e-6 if not item.config(i) else 4e-6 if item.config(i).get("data_tiling") else 9e-6
                for i in range(len(item))
            ]
        ]

    def race(modules: Mapping[str, Path]) -> dict[str, float]:
        assert all(path.is_file() for path in modules.values())
        return {name: {"default": 2.0, "data tiling": 1.0}[name] for name in modules}

    result = tuned(model, top=3, measure=measure, race=race)
    assert result.variant == "data tiling"
    assert result.choices[0].measured
    assert dict(result.raced_s) == {"default": 2.0, "data tiling": 1.0}
    assert len(model.learnt) == 5
    assert ({}, 5e-6) in model.learnt


def test_the_default_wins_a_race_that_it_wins() -> None:
    result = tuned(LaidDown(4e-5, 3e-5, {32: 1e-5}), race=lambda modules: {n: float(n != "default") for n in modules})
    assert (result.variant, dict(result.choices[0].config)) == ("default", {})


def test_a_race_that_did_not_take_place_is_said() -> None:
    result = tuned(LaidDown(4e-5, 3e-5, {32: 1e-5}), race=lambda modules: {})
    assert result.variant == "tuned"
    assert "could not be timed" in result.notes[-1]


def test_a_gpu_is_refused() -> None:
    with pytest.raises(SpecError, match="is a gpu"):
        tune(TEXT, "nvidia-h200-sxm-141gb")
