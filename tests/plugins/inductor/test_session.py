"""What Inductor's two hooks do to lists of choices, and what they learn from the times that come back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kernelcast.plugins.cost_model import PluginWarning
from kernelcast.plugins.inductor.ranking import Measured
from kernelcast.plugins.inductor.session import Session, Settings

TILES = [(16, 16, 16), (32, 32, 16), (64, 64, 16), (128, 128, 16), (128, 256, 32)]
INF = float("inf")


def session_of(load: Any, keeper: Any, *, top_k: int = 2, **devices: str) -> Session:
    return Session(Settings(devices, top_k, keep_extern=True), load, keeper)


def tiles_of(choices: list[Any]) -> list[str]:
    return [getattr(choice, "log_info", {"tile_shape": choice.name})["tile_shape"] for choice in choices]


def test_the_model_is_asked_once_for_all_templates_of_a_list(
    make: Any, torch_played: Any, model: Any, kept: Any
) -> None:
    session = session_of(lambda device: model, kept)
    choices = make.mm_list(512, 768, 1024, TILES)
    assert tiles_of(session.before(choices)) == ["mm", "(128, 16, 128)", "(128, 32, 256)"]
    (query,) = model.asked
    assert (query.task.kind, query.task.dtype, query.task.device) == ("triton-gemm", "bf16", make.GPU)
    assert dict(query.task.sizes) == {"batch": 1, "m": 512, "n": 768, "k": 1024}
    assert query.config(0) == {"tile_m": 16, "tile_n": 16, "tile_k": 16, "group_m": 8, "warps": 4, "stages": 3,
                               "split_k": 1}  # fmt: skip
    assert len(query) == 5
    counts = session.counts
    assert (counts.lists, counts.choices, counts.pruned_by_model, counts.pruned) == (1, 6, 3, 3)


def test_every_time_becomes_a_row_and_teaches_the_model(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    session = session_of(lambda device: model, kept)
    stay = session.before(make.mm_list(512, 768, 1024, TILES))
    session.after(dict(zip(stay, [0.02, 0.5, INF], strict=True)), "mm", [], stay, None, {})
    assert [(row.spec.impl, row.status, row.latency_s) for row in kept.rows] == [
        ("torch", "ok", 0.02e-3), ("triton", "ok", 0.5e-3), ("triton", "failed", None)
    ]  # fmt: skip
    assert {row.device for row in kept.rows} == {make.GPU}
    assert kept.rows[0].least
    assert kept.rows[0].stack == "torch 2.13.0, triton 3.6.0"
    # Another list of the same product has only one template measured: the model is asked, and was told.
    session.before(make.mm_list(512, 768, 1024, TILES))
    ((messages, times),) = model.told
    assert (messages.config(0)["tile_n"], times) == (128, [0.5e-3])
    assert (session.counts.measured, session.counts.failed) == (2, 1)


def test_the_next_process_knows_what_this_one_measured(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    first = session_of(lambda device: model, kept)
    stay = first.before(make.mm_list(512, 768, 1024, TILES))
    # The model's favourite turned out to be slow.
    first.after(dict(zip(stay, [0.02, 0.5, 0.9], strict=True)), "mm")
    later = session_of(lambda device: model, kept)
    assert tiles_of(later.before(make.mm_list(512, 768, 1024, TILES))) == ["mm", "(128, 16, 128)"]
    assert later.counts.pruned_by_memory == 4
    # A like shape: the model was told what the product before took.
    later.before(make.mm_list(512, 768, 2048, TILES))
    assert [len(messages) for messages, _ in model.told] == [2]


def test_a_template_that_did_not_compile_is_a_failed_row(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    session = session_of(lambda device: model, kept)
    stay = session.before(make.mm_list(512, 768, 1024, TILES))
    stay[1].failed = True
    # do_autotuning takes out what failed to compile before it times the rest.
    session.after({stay[0]: 0.02, stay[2]: 0.03}, "mm", [], [stay[0], stay[2]], None, {})
    assert sorted((dict(row.spec.config).get("tile_n", 0), row.status) for row in kept.rows) == [
        (0, "ok"), (128, "failed"), (256, "ok")
    ]  # fmt: skip


def test_wrapped_choices_of_a_cpu_are_kept(make: Any, torch_played: Any, no_model: Any, kept: Any) -> None:
    session = session_of(no_model, kept)
    choices = make.cpu_list(48, 80, 96)
    assert session.before(choices) == choices
    session.after({choices[0]: 0.005, choices[1]: 0.015}, "packed_linear", [], choices, None, {})
    assert [(row.spec.impl, row.device, row.least) for row in kept.rows] == [
        ("cpp", make.CPU, False), ("torch-mkl-linear", make.CPU, False)
    ]  # fmt: skip
    # Three times slower than the best: on a CPU the library call stays, being one.
    assert len(session.before(make.cpu_list(48, 80, 96))) == 2


def test_without_a_model_everything_is_timed_and_the_reason_is_said_once(
    make: Any, torch_played: Any, no_model: Any, kept: Any
) -> None:
    session = session_of(no_model, kept)

    def compile_two() -> list[int]:
        return [len(session.before(make.mm_list(512, 768, k, TILES))) for k in (1024, 2048)]

    with pytest.warns(PluginWarning, match="there is no model for nvidia-h200") as message:
        assert compile_two() == [6, 6]
    assert len(message) == 1


def test_the_device_given_is_meant_for_its_own_kind(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    query = []

    def load(device: str) -> Any:
        query.append(device)
        return model

    session = session_of(load, kept, gpu="nvidia-a100-sxm-80gb")
    stay = session.before(make.mm_list(512, 768, 1024, TILES))
    session.after(dict.fromkeys(stay, 0.1), "mm")
    on_cpu = make.cpu_list(48, 80, 96)
    session.after(dict.fromkeys(session.before(on_cpu), 0.1), "mm")
    assert query == ["nvidia-a100-sxm-80gb"]
    assert {row.device for row in kept.rows} == {"nvidia-a100-sxm-80gb", make.CPU}


def test_templates_of_other_operations_are_left_alone_and_that_is_said(
    make: Any, torch_played: Any, model: Any, kept: Any
) -> None:
    session = session_of(lambda device: model, kept)
    nodes = [make.Node((8, 3, 32, 32)), make.Node((16, 3, 3, 3))]
    conv = [make.triton((64, 64, 16), nodes, (8, 16, 30, 30), template="convolution2d", number=n) for n in range(9)]
    with pytest.warns(PluginWarning, match="triton_convolution2d are no matrix products"):
        assert session.before(conv) is conv
    session.after(dict.fromkeys(conv, 1.0), "convolution")
    assert (session.counts.other_lists, session.counts.lists, kept.rows) == (1, 0, [])


def test_lists_without_templates_are_left_alone_in_silence(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    session = session_of(lambda device: model, kept)
    call = make.extern("convolution", [make.Node((8, 3, 32, 32))], (8, 16, 30, 30))
    assert session.before([call]) == [call]
    assert session.before([]) == []


def test_a_template_without_readable_knobs_stays_and_that_is_said(
    make: Any, torch_played: Any, model: Any, kept: Any
) -> None:
    session = session_of(lambda device: model, kept)
    choices = make.mm_list(512, 768, 1024, TILES)
    choices[1].log_info = {}
    with pytest.warns(PluginWarning, match="kept and timed"):
        assert choices[1] in session.before(choices)


def test_what_no_row_can_stand_for_is_counted(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    session = session_of(lambda device: model, kept)
    nodes = [make.Node((16, 24)), *make.operands(16, 24, 32)]
    choice = make.extern("addmm", nodes, (16, 24))
    session.after({choice: 0.1}, "addmm")
    zero = make.extern("mm", make.operands(16, 24, 32), (16, 24))
    session.after({zero: 0.0}, "mm")
    assert (session.counts.not_kept, kept.rows) == (2, [])


@pytest.mark.parametrize("timings", [None, {}])
def test_nothing_measured_is_nothing_learnt(torch_played: Any, model: Any, kept: Any, timings: Any) -> None:
    session = session_of(lambda device: model, kept)
    session.after(timings, "mm", [], [], None, {})
    assert session.counts.measured == 0


@pytest.mark.parametrize("time", [math.nan, -INF, INF])
def test_times_that_are_none_are_failures(make: Any, torch_played: Any, model: Any, kept: Any, time: float) -> None:
    session = session_of(lambda device: model, kept)
    session.after({make.extern("mm", make.operands(16, 24, 32), (16, 24)): time}, "mm")
    assert [(row.status, row.latency_s) for row in kept.rows] == [("failed", None)]


def test_pipelined_autotuning_is_said_to_teach_nothing(make: Any, torch_played: Any, model: Any, kept: Any) -> None:
    torch_played.comes_back = False
    session = session_of(lambda device: model, kept)
    with pytest.warns(PluginWarning, match="hands no times back"):
        assert len(session.before(make.mm_list(512, 768, 1024, TILES))) == 3


def test_rows_of_other_versions_teach_the_model_but_settle_nothing(
    make: Any, torch_played: Any, model: Any, kept: Any
) -> None:
    first = session_of(lambda device: model, kept)
    first.after(dict.fromkeys(first.before(make.mm_list(512, 768, 1024, TILES)), 0.1), "mm")
    assert isinstance(kept.rows[0], Measured)
    torch_played.stack = "2.14.0"
    later = session_of(lambda device: model, kept)
    later.before(make.mm_list(512, 768, 1024, TILES))
    assert (later.counts.pruned_by_memory, later.counts.pruned_by_model, len(model.told)) == (0, 3, 1)
