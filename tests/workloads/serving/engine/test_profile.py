"""Engine profiles: regimes of steps, versions, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.serving.engine.profile import (
    EngineProfile,
    LayerCounts,
    StepColumns,
    engine_name,
    profile_text,
    read_profile,
    shipped_profile,
    shipped_profiles,
)

PROFILE = EngineProfile(
    engine="vllm", version="1", impl="", decode_s=1e-3, decode_factor=1.1, collective_share=0.5, small_share=0.25,
    prompt_s=2e-3, prompt_factor=0.9, layer_host_s=1e-4, moe_layer_host_s=1e-3, linear_layer_host_s=5e-4,
    captured_tokens=512, batches=(1, 2, 4, 8), decode_spread=0.1, prompt_spread=0.2, expert_factor=1.5,
)  # fmt: skip


def columns(
    *, tokens: float, sequences: float, prompt: bool, main_s: float = 8e-3, experts_s: float = 0.0
) -> StepColumns:
    one = np.ones(1)
    return StepColumns(main_s * one, 2e-3 * one, 4e-3 * one, tokens * one, sequences * one, np.array([prompt]),
                       experts_s * one, 0 * one, 40 * one, 30 * one)  # fmt: skip


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        (columns(tokens=8, sequences=8, prompt=False), 1e-3 + 1.1 * (8e-3 + 0.5 * 4e-3 + 0.25 * 2e-3)),
        (columns(tokens=9, sequences=9, prompt=False), 1e-3 + 40e-3),
        (columns(tokens=512, sequences=2, prompt=True), 2e-3 + 15e-3),
        (columns(tokens=513, sequences=2, prompt=True), 2e-3 + 40e-3),
        (columns(tokens=8192, sequences=2, prompt=True, main_s=94e-3), 2e-3 + 0.9 * 100e-3),
        (columns(tokens=8192, sequences=2, prompt=True, main_s=94e-3, experts_s=40e-3), 2e-3 + 0.9 * 120e-3),
        (columns(tokens=8, sequences=8, prompt=False, experts_s=4e-3), 1e-3 + 1.1 * (8e-3 + 0.5 * 4e-3 + 0.25 * 2e-3)),
    ],
    ids=[
        "graph",
        "beyond the graphs",
        "captured pieces",
        "launched layers",
        "busy GPU",
        "experts",
        "experts in a graph",
    ],
)
def test_a_step_takes_what_its_regime_says(step: StepColumns, seconds: float) -> None:
    assert PROFILE.seconds(step) == pytest.approx([seconds])


def test_decode_steps_are_padded_to_the_next_graph() -> None:
    assert [PROFILE.padded(count) for count in (1, 3, 8, 9)] == [1, 4, 8, 9]


def test_layers_are_counted_by_what_the_host_launches() -> None:
    assert LayerCounts.of(model_facts("Qwen/Qwen3.6-35B-A3B")) == LayerCounts(dense=0, moe=40, linear=30)
    assert LayerCounts.of(model_facts("Qwen/Qwen3-32B")) == LayerCounts(dense=64, moe=0, linear=0)


def test_shipped_profiles_are_found_by_any_name_and_the_nearest_version() -> None:
    assert {item.engine for item in shipped_profiles()} == {"vllm", "sglang", "trtllm", "other"}
    assert shipped_profile("TensorRT-LLM", "1.0.0rc3").engine == "trtllm"
    with pytest.raises(SpecError, match="it is a release, such as"):
        shipped_profile("vllm", "newest")
    with pytest.raises(SpecError, match="vllm, sglang, trtllm, other") as refused:
        engine_name("tgi")
    assert refused.value.field == "engine"


def test_the_nearest_version_is_nearest_in_its_first_number_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    items = tuple(replace(PROFILE, version=version) for version in ("0.9.2", "0.20.1"))
    monkeypatch.setattr("kernelcast.workloads.serving.engine.profile.shipped_profiles", lambda: items)
    assert [shipped_profile("vllm", version).version for version in ("0.11", "0.19.0", None)] == [
        "0.9.2",
        "0.20.1",
        "0.20.1",
    ]


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(profile_text([PROFILE], "# mine\n"))
    assert read_profile(path) == PROFILE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: [", "no YAML"),
        ("steps: 1", "no list `profiles`"),
        ("profiles: [{engine: vllm}]", "missing or unknown"),
        (profile_text([PROFILE]).replace("decode_s: 0.001", "decode_s: -1"), "decode_s is -1"),
        (profile_text([PROFILE]).replace("[1, 2, 4, 8]", "[2, 1]"), "ascending"),
        (profile_text([PROFILE, PROFILE]), "has 2 profiles"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_profile(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        read_profile(tmp_path / "none.yaml")
