"""Peak memory of a recorded program, and what is in it at that moment."""

from __future__ import annotations

from dataclasses import dataclass

from .operation import ACTIVATIONS, GRADIENTS, INPUTS, OPTIMIZER_STATE, WEIGHTS, Recording

_ALWAYS = frozenset({WEIGHTS, OPTIMIZER_STATE})
"""What stays from one step to the next: a later step starts with the state that the first one makes."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the moment at which most are needed, of a step that is not the first.

    The allocator's fragments and what the runtime itself takes are not counted: some hundred MB of a GPU.

    Attributes:
        peak_b: All together.
        weights_b: Parameters and buffers.
        gradients_b: Gradients of parameters.
        optimizer_state_b: State of optimisers.
        activations_b: Everything else the program makes: what is kept for the backward pass, and what is soon dropped.
        inputs_b: Tensors the program was given.
        at: The operator that runs at that moment, with its module.
    """

    peak_b: int
    weights_b: int
    gradients_b: int
    optimizer_state_b: int
    activations_b: int
    inputs_b: int
    at: str


def peak_memory(recording: Recording) -> Memory:
    """The peak of a recording: at each operation, the storages that have come and not yet gone."""
    earlier = _compiled_ends(recording)
    changes = [0] * (len(recording.operations) + 2)
    steady: dict[str, int] = dict.fromkeys((WEIGHTS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS), 0)
    passing: list[tuple[int, int, int, str]] = []
    for storage, (size_b, came, went) in recording.lifetimes.items():
        role = recording.roles.get(storage, ACTIVATIONS)
        if role in _ALWAYS:
            steady[role] += size_b
            continue
        until = len(recording.operations) + 1 if went is None else went
        until = max(came + 1, min(until, earlier.get(storage, until)))
        passing.append((came, until, size_b, role))
        changes[came] += size_b
        changes[until] -= size_b
    now = most = at = 0
    for i, change in enumerate(changes):
        now += change
        if now > most:
            most, at = now, i
    for came, until, size_b, role in passing:
        if came <= at < until:
            steady[role] += size_b
    operation = recording.operations[min(at, len(recording.operations) - 1)]
    return Memory(
        peak_b=sum(steady.values()),
        weights_b=steady[WEIGHTS],
        gradients_b=steady[GRADIENTS],
        optimizer_state_b=steady[OPTIMIZER_STATE],
        activations_b=steady[ACTIVATIONS],
        inputs_b=steady[INPUTS],
        at=f"{operation.name} in {operation.module}" if operation.module else operation.name,
    )


def _compiled_ends(recording: Recording) -> dict[int, int]:
    """Where storages that compiled code makes and reads last end: with that read, whatever names of the program still hold it;
    before it where a pass element by element has a result of as many bytes, which takes their place (`inplace_buffers` in
    torch/_inductor/config.py).
    """
    last: dict[int, int] = {}
    for i, operation in enumerate(recording.operations):
        last.update(dict.fromkeys((tensor.storage for tensor in operation.inputs), i))
    compiled = {
        tensor.storage for operation in recording.operations if operation.compiled for tensor in operation.outputs
    }
    ends = {}
    for storage in compiled & last.keys():
        reader = recording.operations[last[storage]]
        if reader.compiled:
            size_b = recording.lifetimes[storage][0]
            in_place = reader.pointwise and any(recording.lifetimes[t.storage][0] == size_b for t in reader.outputs)
            ends[storage] = last[storage] + (not in_place)
    return ends
