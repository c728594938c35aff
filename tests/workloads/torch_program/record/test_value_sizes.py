"""Results as large as values say are as large as known values say, else as large as they can be, which is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.workloads.torch_program.answers import answer
from kernelcast.workloads.torch_program.captured import Program, as_data, read_program
from kernelcast.workloads.torch_program.run import Run
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

Recorded = Callable[..., Run]
CPU = "amd-epyc-9005-vm-2c"


def answer_again(run: Run, program: Program) -> Any:
    """The time of a program that was kept, by the model of a run."""
    priced = answer(run._predictor, program, run._devices)
    (total,) = priced.totals.values()
    return total.latency_s


def mask(known: bool) -> torch.Tensor:
    return torch.tensor([True, False] * 50) if known else torch.rand(100) > 0.5


@pytest.mark.parametrize(
    ("program", "known", "most"),
    [
        (lambda known: torch.ones(100, 8)[mask(known)], (50, 8), (100, 8)),
        (lambda known: torch.ones(3, 100)[:, mask(known)], (3, 50), (3, 100)),
        (lambda known: torch.ones(100, 8)[torch.where(mask(known))], (50, 8), (100, 8)),
        (lambda known: torch.nonzero(mask(known)), (50, 1), (100, 1)),
        (lambda known: torch.ones(4, 100).masked_select(mask(known)), (200,), (400,)),
        (lambda known: torch.unique(mask(known)), (2,), (100,)),
        (lambda known: torch.unique(mask(known).long(), return_counts=True)[1], (2,), (100,)),
        (lambda known: torch.bincount(mask(known).long(), minlength=5), (5,), (5,)),
    ],
)
def test_sizes_that_values_decide_are_known_or_the_most_there_can_be(
    program: Callable[[bool], torch.Tensor], known: tuple[int, ...], most: tuple[int, ...], recorded: Recorded
) -> None:
    for is_known, shape in ((True, known), (False, most)):
        seen = []
        run = recorded(lambda is_known=is_known, seen=seen: seen.append(program(is_known)))
        assert seen[0].shape == shape
        notes = [note for note in run.recording.notes if "as large as values say" in note]
        assert len(notes) == (not is_known)
        assert not notes or __file__ in notes[0]


def test_the_interval_of_what_a_mask_leaves_reaches_from_next_to_nothing_to_all(recorded: Recorded) -> None:
    layer, x = nn.Linear(1024, 16384), torch.ones(8192, 1024)
    kept = torch.zeros(8192, dtype=torch.bool)
    kept[:1000] = True

    def step(is_known: bool) -> None:
        (layer(x[kept if is_known else torch.rand(8192) > 0.9]) * 2).sum().backward()

    unknown, known = (recorded(lambda is_known=is_known: step(is_known)) for is_known in (False, True))
    most, exact = (run.totals["nvidia-h200-sxm-141gb"].latency_s for run in (unknown, known))
    assert most is not None
    assert exact is not None
    assert most.lower < exact.lower < exact.upper < most.value
    again = answer_again(unknown, read_program(as_data(unknown.program)))
    assert again == most
    bounded = {item.name for item in unknown.recording.operations if item.upper_bound}
    assert bounded == {"aten.index", "aten.addmm", "aten.mul", "aten.sum", "aten.mm"}
    assert not any(item.upper_bound for item in known.recording.operations)


def test_values_a_program_was_given_are_followed_until_they_are_written(recorded: Recorded) -> None:
    given = torch.tensor([3, 0, 2, 1])

    def program() -> list[int]:
        lengths, kept = given.sort().values, torch.arange(6)[None] < given[:, None]
        sizes = [int(lengths.max().item()), len(torch.ones(4, 6)[kept]), len(torch.ones(4)[given > 0])]
        repeated = torch.ones(4).repeat_interleave(given)
        given[1:].add_(torch.randint(0, 9, (3,)))
        return [*sizes, len(repeated), len(torch.ones(4)[given > 0])]

    seen: list[int] = []
    recorded(lambda: seen.extend(program()))
    assert seen == [3, 6, 3, 6, 4]
    assert given.tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences_are_as_long_as_they_are(layer: type[nn.Module], is_sorted: bool, recorded: Recorded) -> None:
    lengths = [7, 5, 5, 2] if is_sorted else [5, 7, 2, 5]
    net, x = layer(16, 32), torch.ones(4, 7, 16, requires_grad=True)

    def step() -> None:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), True, is_sorted)
        padded, back = nn.utils.rnn.pad_packed_sequence(net(packed)[0], True)
        assert padded.shape == (4, 7, 32)
        assert back.tolist() == lengths
        padded.sum().backward()

    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
    forward = 2 * gates * 32 * sum(lengths) * (16 + 32)
    on_gpu, on_cpu = recorded(step), recorded(step, CPU)
    (operation,) = (each for each in on_gpu.recording.operations if each.name == "kernelcast.recurrent_layer")
    assert operation.flops == forward
    assert on_gpu.flops == 3 * forward
    # The first step has no gradient to give to the state before it, which is zeros.
    assert 3 * forward * 0.9 < on_cpu.flops < 3 * forward
    assert on_gpu.recording.notes == on_cpu.recording.notes == []


def test_sequences_of_unknown_lengths_are_as_long_as_they_can_be(recorded: Recorded) -> None:
    def step() -> None:
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.ones(7, 4, 16), torch.randint(1, 8, (4,)), enforce_sorted=False
        )
        assert packed.data.shape == (28, 16)
        nn.LSTM(16, 32)(packed)

    (note,) = recorded(step).recording.notes
    assert "all 4 sequences as long as the longest there can be, 7" in note


@pytest.mark.parametrize(("lengths", "longest"), [((10, 4, 6, 10), 10), (torch.tensor([3, 4, 3, 3]), 4), (None, 12)])
def test_the_loss_of_ctc_has_sums_for_the_longest_target(lengths: Any, longest: int, recorded: Recorded) -> None:
    scores, targets = torch.ones(50, 4, 20, requires_grad=True), torch.ones(4, 12, dtype=torch.int64)

    def step() -> None:
        ends = torch.randint(1, 12, (4,)) if lengths is None else lengths
        F.ctc_loss(scores.log_softmax(2), targets, (50,) * 4, ends).backward()

    run = recorded(step, "h200", CPU)
    names = [each.name for each in run.recording.operations]
    assert "aten._ctc_loss_backward" in names
    loss = run.recording.operations[names.index("aten._ctc_loss")]
    assert loss.outputs[1].shape == (4, 50, 2 * longest + 1)
    assert len(run.recording.notes) == (lengths is None)
    gpu, _ = run.totals.values()
    (share,) = (each for each in gpu.by_operator if each.name == "aten._ctc_loss")
    # Fifty steps that wait for each other.
    assert share.latency_s > 50e-6


def test_sizes_are_the_same_on_the_meta_device(recorded: Recorded) -> None:
    seen = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            net, x = nn.LSTM(16, 20), torch.ones(7, 4, 16, requires_grad=True)

        def step(net: nn.Module = net, x: torch.Tensor = x) -> None:
            packed = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 5, 2])
            padded, _ = nn.utils.rnn.pad_packed_sequence(net(packed)[0])
            ends = torch.tensor([7, 5, 5, 2])
            F.ctc_loss(padded.log_softmax(2), torch.ones(4, 2, dtype=torch.int64), ends, ends.clamp(max=2)).backward()

        seen.append(recorded(step, CPU).flops)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: torch.bincount(x.long().flatten()), "pass minlength="),
        (lambda x: torch.repeat_interleave(x, x[0].long(), 0), "pass output_size="),
        (lambda x: F.one_hot(x.long()), "pass num_classes="),
        (lambda x: x[x[0].argmax().item()], "needs the values of a tensor"),
        (lambda x: torch.tensor_split(x, x[0].long().cpu()), "give it numbers in place of the tensor"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "call the one to be priced"),
    ],
)
def test_what_nothing_bounds_is_refused_with_what_to_do(
    program: Callable[[torch.Tensor], object], message: str, recorded: Recorded
) -> None:
    x = torch.eye(4)
    with pytest.raises(SpecError, match=message) as error:
        recorded(lambda: program(x))
    assert error.value.field == "program"
    assert str(error.value).startswith(__file__)


def test_what_pytorch_checks_of_values_is_taken_to_be_right(recorded: Recorded) -> None:
    def program() -> None:
        window = torch.hann_window(400)
        spectrum = torch.stft(torch.ones(2, 4000), 400, 100, window=window, return_complex=True)
        assert torch.istft(spectrum, 400, 100, window=window).shape == (2, 4000)
        torch.corrcoef(torch.rand(4, 20))
        F.gaussian_nll_loss(torch.ones(8), torch.rand(8), torch.rand(8))
        nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))

    assert recorded(program).recording.operations


def test_every_cluster_of_an_adaptive_softmax_is_taken_for_every_row(recorded: Recorded) -> None:
    loss = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10])
    run = recorded(lambda: loss(torch.ones(8, 16), torch.randint(0, 20, (8,))).loss.backward())
    assert any("every cluster for every row" in note for note in run.recording.notes)
    assert {each.module for each in run.recording.operations} > {"AdaptiveLogSoftmaxWithLoss.head"}


def test_copies_into_what_a_program_makes_are_no_copies_between_devices(recorded: Recorded) -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)

    def program() -> None:
        torch.zeros(4, 16)[:, :8].copy_(layer(x))

    names = [each.name for each in recorded(program).recording.operations]
    assert (names.count("aten.copy_"), names.count("host.copy")) == (1, 0)
