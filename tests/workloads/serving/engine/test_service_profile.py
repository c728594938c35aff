"""What services add to steps: the profile of a question, and what it says of devices and servers."""

from __future__ import annotations

import pytest
from kernelcast.workloads.serving.engine.service_profile import ELSEWHERE, service_profile


def test_the_profile_of_a_client_of_a_version_and_of_any() -> None:
    sources = [
        service_profile(*question).source
        for question in (
            ("vllm", "0.5", "nvidia", "mlenergy"), ("vllm", "0.2", "nvidia"), ("vllm", "0.17.0", "nvidia"),
            ("llama.cpp", None, "amd"),
        )
    ]  # fmt: skip
    for word, source in zip(("ML.ENERGY", "Splitwise", "InferenceX", "no service"), sources, strict=True):
        assert word in source


def test_every_further_device_takes_time() -> None:
    profile = service_profile("vllm", "0.2", "nvidia")
    more_s = profile.overhead_of(8).step_s - profile.overhead_of(1).step_s
    assert more_s == pytest.approx(7 * profile.rank_s)
    assert more_s > 0
    assert profile.overhead_of(1) == profile.overhead


def test_a_full_server_runs_fewer_than_it_is_set_to() -> None:
    profile = service_profile("vllm", "0.5", "nvidia", "mlenergy")
    running = profile.running(1024, 482)
    # They run for 482 steps and wait for admission · 1024.
    assert running == pytest.approx(1024 * 482 / (482 + profile.admission * 1024), abs=1)
    assert service_profile("vllm", None, "nvidia").running(1024, 482) == 1024


def test_intervals_are_wider_on_other_architectures() -> None:
    profile = service_profile("vllm", None, "nvidia")
    assert profile.half_width("tpot", "cdna3") == pytest.approx(ELSEWHERE * profile.half_width("tpot", "hopper"))
