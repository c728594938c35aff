"""Speculative decoding: tokens of steps, their times and memory, in the simulation and in closed form alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import kernelcast
import numpy as np
import pytest
from kernelcast.features.batch.cases import Floats
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Step
from kernelcast.workloads.serving.batching.closed_form import closed_loop, static_batch
from kernelcast.workloads.serving.batching.simulation import Arrivals, Scheduling, simulate
from kernelcast.workloads.serving.batching.step_table import StepTable
from kernelcast.workloads.serving.predict import ServingPredictor
from kernelcast.workloads.serving.request import ServingRequest, serving_request
from kernelcast.workloads.serving.speculation import Speculation, SpeculativeSteps

from .batching.test_step_table import LinearSteps

K = 4
GUESS = Speculation(K, 0.7)


class Model(LinearSteps):
    """Steps of a model whose times grow with tokens and positions, and which rests at 50 W; `scale` times as long."""

    resting_w = 50.0

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        value, lower, upper = super().seconds(steps)
        return self.scale * value, self.scale * lower, self.scale * upper

    def parts(self, steps: Sequence[Step]) -> dict[str, Floats]:
        return {"gemm": self.seconds(steps)[0]}


def table(times: SpeculativeSteps) -> StepTable:
    return StepTable(
        times, batch=64, length=4096, prompt=2048, chunk=2048, guesses=times.tokens, drafting=times.drafting
    )


def drawn_tokens(guesses: int, acceptance: float, count: int) -> Floats:
    """Tokens of steps, guess by guess."""
    accepted = np.random.default_rng(3).random((count, guesses)) < acceptance
    return 1 + np.cumprod(accepted, axis=1).sum(axis=1)


@pytest.mark.parametrize(("guesses", "acceptance"), [(1, 0.5), (4, 0.7), (8, 0.9), (3, 0.0), (5, 1.0)])
def test_tokens_of_a_step_are_those_of_leviathan(guesses: int, acceptance: float) -> None:
    item = Speculation(guesses, acceptance)
    wanted = guesses + 1 if acceptance == 1 else (1 - acceptance ** (guesses + 1)) / (1 - acceptance)
    assert item.tokens_per_step == pytest.approx(wanted)
    assert item.tokens_per_step == pytest.approx(drawn_tokens(guesses, acceptance, 100_000).mean(), rel=0.01)


@pytest.mark.parametrize("tokens", [2, 10, 256])
def test_steps_of_answers_are_those_of_guesses_drawn_one_by_one(tokens: int) -> None:
    steps = GUESS.steps(np.full(4000, tokens), np.random.default_rng(0))
    drawn = drawn_tokens(K, 0.7, 4000 * (tokens - 1)).reshape(4000, tokens - 1)
    exact = (np.cumsum(drawn, axis=1) < tokens - 1).sum(axis=1) + 1
    assert steps.mean() == pytest.approx(exact.mean(), rel=0.02)
    assert steps.mean() == pytest.approx(GUESS.mean_steps(tokens), rel=0.02)
    assert steps.std() == pytest.approx(exact.std(), rel=0.15, abs=0.05)
    assert GUESS.steps(np.array([1]), np.random.default_rng(0)).tolist() == [0]


def test_a_step_verifies_what_the_draft_guesses() -> None:
    times = SpeculativeSteps(Model(), Model(0.1), K)
    wanted = Model().seconds([Step.verify(8, K, 1000)])[0] + K * Model(0.1).seconds([Step.decode(8, 1000)])[0]
    assert times.seconds([Step.decode(8, 1000)])[0] == pytest.approx(wanted)
    assert sum(times.parts([Step.decode(8, 1000)]).values()) == pytest.approx(wanted)
    assert times.energy_j([Step.decode(8, 1000)]) == pytest.approx(300 * wanted)
    # Prompts pass both once.
    assert times.seconds([Step.prefill(1, 512)])[0] == pytest.approx(1.1 * Model().seconds([Step.prefill(1, 512)])[0])
    mixed = Model().seconds([Step.prefill(1, 512)])[0] * 1.1 - 1.1e-3 + wanted
    # Of a mixed step the constant of the model and of the draft's prompt are counted once, those of its decode steps apart.
    assert table(times).mixed(8, 1000, [(512, 0)]) == pytest.approx(float(mixed[0]) + 1e-4, rel=0.02)


@pytest.mark.parametrize("draft", [None, Model(0.05)])
@pytest.mark.parametrize(("concurrency", "inputs", "outputs"), [(4, 256, 256), (16, 512, 512), (32, 2048, 256)])
def test_the_closed_form_agrees_with_the_simulation(
    draft: Model | None, concurrency: int, inputs: int, outputs: int
) -> None:
    steps = table(SpeculativeSteps(Model(), draft, K))
    how = Scheduling(2048, 256, 1e9, guesses=K, tokens=(outputs - 1) / GUESS.mean_steps(outputs))
    random = np.random.default_rng(0)
    drawn = random.integers(outputs // 2, outputs * 3 // 2, 40 * concurrency)
    arrivals = Arrivals(np.full(len(drawn), inputs), drawn, None, concurrency, GUESS.steps(drawn, random))
    service = simulate(steps, arrivals, how)
    settled = slice(10 * concurrency, 30 * concurrency)
    tpot = (service.last_s - service.first_s)[settled].sum() / (drawn[settled] - 1).sum()
    steady = closed_loop(steps, concurrency, inputs, outputs, how)
    # Prompts that fill whole steps share them in the simulation.
    assert steady.tpot_s == pytest.approx(tpot, rel=0.08 if inputs == 2048 else 0.05)
    assert steady.throughput_tok_s == pytest.approx(drawn.sum() / service.duration_s, rel=0.1)
    assert steady.energy_per_token_j == pytest.approx(service.energy_j / drawn.sum(), rel=0.1)
    with pytest.raises(SpecError, match="simulated"):
        static_batch(steps, 4, 512, 64, how)


def test_guesses_that_are_never_accepted_only_cost() -> None:
    def tpot_s(acceptance: float) -> float:
        item, steps = Speculation(K, acceptance), table(SpeculativeSteps(Model(), None, K))
        outputs = np.full(8, 128)
        arrivals = Arrivals(np.full(8, 512), outputs, None, 8, item.steps(outputs, np.random.default_rng(0)))
        service = simulate(steps, arrivals, Scheduling(2048, 256, 1e9, guesses=K))
        return float((service.last_s - service.first_s).mean() / 127)

    plain = table(SpeculativeSteps(Model(), None, K)).decoding(8)(576)
    assert tpot_s(0.0) == pytest.approx(plain, rel=0.1)
    assert tpot_s(1.0) < 0.3 * tpot_s(0.0)


def test_preempted_sequences_go_on_with_their_steps() -> None:
    outputs = np.full(24, 400)
    steps = GUESS.steps(outputs, np.random.default_rng(0))
    how = Scheduling(2048, 256, 2304, reserved=0.0, guesses=K)
    service = simulate(
        table(SpeculativeSteps(Model(), None, K)), Arrivals(np.full(24, 100), outputs, None, 12, steps), how
    )
    assert service.preemptions > 0
    assert service.weights.sum() == pytest.approx(steps.sum())


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return kernelcast.load()


def ask(**others: object) -> ServingRequest:
    load = {"input_tokens": 512, "output_tokens": 128, "concurrency": 4} | others
    return serving_request(model_facts("llama-3.1-8b"), "h100-sxm", **load)  # type: ignore[arg-type]


def test_a_service_with_guesses(predictor: ArtifactPredictor) -> None:
    service, draft = ServingPredictor(predictor), model_facts("llama-3.2-1b")
    plain = service.predict(ask())
    grams = service.predict(ask(speculate=K, acceptance=0.7))
    drafted = service.predict(ask(speculate=K, acceptance=0.7, draft=draft))
    assert grams.tpot_s.mean.value < drafted.tpot_s.mean.value < plain.tpot_s.mean.value
    assert plain.speculation is None
    assert drafted.speculation is not None
    tokens = drafted.speculation.tokens_per_step
    assert tokens.lower < tokens.value < tokens.upper
    assert tokens.value == pytest.approx(GUESS.tokens_per_step, rel=0.05)
    assert drafted.parts["draft"] > 0.1
    assert sum(drafted.parts.values()) == pytest.approx(1)
    # The draft's 1.24 billion parameters in two bytes each, and its cache: 16 layers of 8 heads of 64, keys and values.
    assert drafted.memory.weights_b - plain.memory.weights_b == pytest.approx(2 * 1.236e9, rel=0.01)
    assert drafted.memory.cache_per_token_b - plain.memory.cache_per_token_b == 2 * 16 * 8 * 64 * 2
    assert drafted.fitting is not None
    assert plain.fitting is not None
    assert drafted.fitting < plain.fitting

    def width(answer: object) -> float:
        interval = answer.tpot_s.mean  # type: ignore[attr-defined]
        return float(np.log(interval.upper / interval.lower))

    assert width(drafted) == pytest.approx(1.5 * width(plain))
    assert any("measured" in note for note in drafted.notes)
    assert any("n-grams" in note for note in grams.notes)
    # Guesses pay less the more sequences share a step.
    many = service.predict(ask(speculate=K, acceptance=0.3, draft=draft, concurrency=256, requests=256))
    assert many.speculation is not None
    assert many.speculation.best_tokens < drafted.speculation.best_tokens


def test_logits_are_of_all_guesses_and_a_step_is_a_graph(predictor: ArtifactPredictor) -> None:
    times = ServingPredictor(predictor).times(ask(speculate=K, acceptance=0.7))
    assert isinstance(times, SpeculativeSteps)
    decode, verify = (times.target.seconds([step])[0][0] for step in (Step.decode(8, 1024), Step.verify(8, K, 1024)))
    assert decode < verify < 2 * decode
    assert Step.verify(8, K, 1024).scored == 40
    assert Step.verify(8, K, 1024).share(2) == Step.verify(4, K, 1024)


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        ({"speculate": 4}, "acceptance", "no model predicts it"), ({"acceptance": 0.5}, "speculate", "how many"),
        ({"speculate": 0, "acceptance": 0.5}, "speculate", "between 1 and 32"),
        ({"speculate": 2, "acceptance": 1.5}, "acceptance", "between 0 and 1"),
        ({"speculate": 2, "acceptance": float("nan")}, "acceptance", "between 0 and 1"),
        ({"draft": "qwen3-32b"}, "draft", "vocabulary"),
        ({"draft": "google-bert/bert-base-uncased"}, "draft", "generates no text"),
        ({"draft": "llama-3.2-1b", "pp": 2}, "draft", "pipeline"),
    ],
)  # fmt: skip
def test_bad_guesses_are_refused(change: dict[str, object], field: str, word: str) -> None:
    if isinstance(name := change.get("draft"), str):
        change = change | {"draft": model_facts(name), "speculate": 2, "acceptance": 0.5}
    with pytest.raises(SpecError, match=word) as refused:
        ask(**change)
    assert refused.value.field == field


def test_a_draft_that_cannot_be_split_or_is_too_short() -> None:
    draft = model_facts("llama-3.2-1b")
    with pytest.raises(SpecError, match="cannot be split like"):
        with_draft(draft).check(model_facts("llama-3.1-70b"), ParallelPlan(tp=64), 1024)
    with pytest.raises(SpecError, match="longer than"):
        with_draft(replace(draft, max_length=512)).check(model_facts("llama-3.1-70b"), ParallelPlan(), 1024)


def with_draft(draft: object) -> Speculation:
    return replace(GUESS, draft=draft)  # type: ignore[arg-type]
