"""Speculative decoding: a step verifies guesses of a draft model beside the token that it decodes.

Before each step the draft generates guesses for every sequence, one after the other; the model then runs once over them all and
keeps those up to the first that it rejects, and one token of its own. Where each guess is accepted with the same probability a,
whatever came before it, a step of k guesses gives

    E = 1 + a + … + a^k = (1 - a^(k+1)) / (1 - a)

tokens in the mean (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1).
Prompts pass through the draft too, which keeps keys and values of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats
from ...features.errors import SpecError
from ...models.predict.prediction import Interval
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.memory import Memory, memory
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats, Step
from .batching.simulation import Arrivals

MAX_GUESSES = 32
"""Most guesses a step verifies; engines' examples have 1 to 8."""
PADDED = 0.01
"""Vocabularies of one tokenizer differ by no more than this share: sizes of Qwen2.5 are padded to 151,936 and 152,064."""
UNMEASURED = 1.5
"""Half-widths grow so much under speculative decoding, with which no service was measured: as on a device of another
architecture. A judgement."""
BEST_OF = 8
"""Most guesses among which the best number is chosen."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a service speculates.

    Attributes:
        tokens: Guesses that a step verifies for each sequence.
        acceptance: Probability that a guess is accepted where those before it were.
        draft: The model that makes them; None: guesses cost nothing, as those that are looked up in the prompt (n-grams).
    """

    tokens: int
    acceptance: float
    draft: ModelFacts | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tokens, bool) or not isinstance(self.tokens, int) or not 1 <= self.tokens <= MAX_GUESSES:
            raise SpecError(
                f"speculate must be a whole number of guesses between 1 and {MAX_GUESSES}, got {self.tokens!r}",
                field="speculate",
            )
        if not 0 <= self.acceptance <= 1:
            raise SpecError(f"acceptance must be a share between 0 and 1, got {self.acceptance!r}", field="acceptance")

    def __str__(self) -> str:
        return f"{self.tokens} guesses by {'n-grams' if self.draft is None else self.draft.name}"

    def check(self, facts: ModelFacts, plan: ParallelPlan, length: float) -> None:
        """That the draft can guess for a model under a plan, with sequences of up to `length` tokens.

        Raises:
            SpecError: it generates no text, has another vocabulary, is made for shorter sequences, or cannot be split so.
        """
        draft = self.draft
        if draft is None:
            return
        if not draft.generates:
            raise SpecError(
                f"{draft.name} generates no text; a draft is a smaller model of the same family", field="draft"
            )
        if abs(draft.vocabulary - facts.vocabulary) > PADDED * facts.vocabulary:
            raise SpecError(
                f"{draft.name} has a vocabulary of {draft.vocabulary} tokens and {facts.name} one of {facts.vocabulary}; a "
                "draft has its model's tokenizer", field="draft",
            )  # fmt: skip
        if draft.max_length is not None and length > draft.max_length:
            raise SpecError(
                f"{length:.0f} tokens are longer than the {draft.max_length} that {draft.name} is made for; shorten the "
                "prompts or the answers, or leave the draft out", field="draft",
            )  # fmt: skip
        if plan.pp > 1:
            raise SpecError(
                f"a draft model is not estimated beside a pipeline (pp {plan.pp}); use pp 1, or leave the draft out",
                field="draft",
            )
        try:
            draft.check_plan(draft_plan(plan))
        except SpecError as error:
            raise SpecError(f"{draft.name} cannot be split like {facts.name}: {error}", field="draft") from error

    @property
    def notes(self) -> list[str]:
        """What to know of an answer."""
        notes = [f"the acceptance of {self.acceptance:g} is taken as given, and of every guess alike"]
        if self.draft is None:
            notes.append("guesses without a draft model, as of n-grams, are taken to cost nothing")
        return [*notes, f"no service with guesses was measured: intervals are {UNMEASURED:g} times as wide"]

    def with_draft(self, model: Memory, step: Step, formats: Formats, plan: ParallelPlan) -> Memory:
        """Memory of a model with that of its draft, which runs `step` for it; neither keeps activations for the other."""
        if self.draft is None:
            return model
        draft = memory(self.draft, step, draft_formats(self.draft, formats), draft_plan(plan))
        return replace(
            model, weights_b=model.weights_b + draft.weights_b, cache_b=model.cache_b + draft.cache_b,
            cache_per_token_b=model.cache_per_token_b + draft.cache_per_token_b,
            cache_per_sequence_b=model.cache_per_sequence_b + draft.cache_per_sequence_b,
            activations_b=max(model.activations_b, draft.activations_b),
        )  # fmt: skip

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a step for a sequence, the module's E."""
        return float(sum(self.acceptance**i for i in range(self.tokens + 1)))

    @property
    def _square(self) -> float:
        """Mean of the square of a step's tokens, Σ (2i + 1) P(more than i tokens)."""
        return float(sum((2 * i + 1) * self.acceptance**i for i in range(self.tokens + 1)))

    def mean_steps(self, output_tokens: float) -> float:
        """Mean steps that decode an answer after its first token.

        By Wald's identity: its tokens, and those of its last step beyond its end, over those of a step. In the mean these are
        (E[X²] - E[X]) / 2 E[X], as in a renewal process (Feller, "An Introduction to Probability Theory", volume 2, XI.4).
        """
        rest, mean = output_tokens - 1, self.tokens_per_step
        if rest <= 0:
            return 0.0
        beyond = (self._square - mean) / (2 * mean)
        return max((rest + beyond) / mean, min(rest, 1.0))

    def steps(self, outputs: npt.NDArray[np.int64], random: np.random.Generator) -> npt.NDArray[np.int64]:
        """Steps that decode each answer after its first token, drawn; shape `(n,)`.

        For `m` tokens a normal distribution of variance m·Var[X] / E[X]³, the limit of a renewal process (Feller, XI.1); no
        fewer steps than if all guesses were accepted, and no more than if none was.
        """
        mean = self.tokens_per_step
        rest = outputs - 1
        spread = np.sqrt(rest * max(self._square - mean**2, 0.0) / mean**3)
        centre = np.array([self.mean_steps(float(tokens)) for tokens in outputs])
        drawn = np.rint(random.normal(centre, spread)).astype(np.int64)
        return np.clip(drawn, -(-rest // (self.tokens + 1)), rest)


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """What guesses give a service.

    Attributes:
        speculation: What they are.
        tokens_per_step: Tokens that a step gives a sequence; 90 % of answers have a mean within the interval.
        best_tokens: Guesses, up to 8, of the least time per token at the mean batch, by the times of steps alone; 0: none.
    """

    speculation: Speculation
    tokens_per_step: Interval
    best_tokens: int


def speculation_of(tokens: int | None, acceptance: float | None, draft: ModelFacts | None) -> Speculation | None:
    """How a service speculates, of what a user says of it; None where nothing is said.

    Raises:
        SpecError: guesses or their acceptance are missing or impossible.
    """
    if tokens is None:
        if acceptance is None and draft is None:
            return None
        raise SpecError("say how many tokens a step guesses (speculate), such as 4", field="speculate")
    if acceptance is None:
        raise SpecError(
            "say what share of guesses is accepted (acceptance), such as 0.7: it depends on the draft and on what is asked, "
            "and no model predicts it", field="acceptance",
        )  # fmt: skip
    return Speculation(tokens, acceptance, draft)


def draft_formats(draft: ModelFacts, formats: Formats) -> Formats:
    """A draft's number formats: weights as it ships, activations and cache as its model's."""
    return formats_of(draft, dtype=formats.dtype, kv=formats.kv)


def draft_plan(plan: ParallelPlan) -> ParallelPlan:
    """How a draft is split: over the ranks that split a layer of its model, as in vLLM."""
    return ParallelPlan(tp=plan.tp, dp=plan.dp)


class Times(Protocol):
    """Times, parts and energies of steps; `ServiceSteps` has them."""

    resting_w: float

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each part, each of shape `(n,)`."""

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""


class DraftSteps:
    """What a draft takes for a step of its model: `tokens` decode steps for decoding sequences, prompts once."""

    def __init__(self, draft: Times, tokens: int) -> None:
        self.draft, self.tokens = draft, tokens

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""
        times = self._times(steps)
        value, lower, upper = self.draft.seconds(steps)
        return value * times, lower * times, upper * times

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""
        return self.draft.energy_j(steps) * self._times(steps)

    def _times(self, steps: Sequence[Step]) -> Floats:
        return np.array(
            [self.tokens if all(group.decodes for group in step) else 1 for step in steps], dtype=np.float64
        )


class SpeculativeSteps:
    """Steps under speculative decoding: a decode step stands for the guesses of the draft and the step that verifies them.

    Steps are of prompts or of decoding sequences, as a `StepTable` asks for them.
    """

    def __init__(self, target: Times, draft: Times | None, tokens: int) -> None:
        self.target, self.tokens = target, tokens
        self.drafting = None if draft is None else DraftSteps(draft, tokens)
        self.resting_w = target.resting_w

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""
        value, lower, upper = self.target.seconds(self._verifying(steps))
        if self.drafting is None:
            return value, lower, upper
        more, more_lower, more_upper = self.drafting.seconds(steps)
        return value + more, lower + more_lower, upper + more_upper

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each part, and of the `draft`."""
        parts = dict(self.target.parts(self._verifying(steps)))
        return parts if self.drafting is None else parts | {"draft": self.drafting.seconds(steps)[0]}

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""
        joules = self.target.energy_j(self._verifying(steps))
        return joules if self.drafting is None else joules + self.drafting.energy_j(steps)

    def _verifying(self, steps: Sequence[Step]) -> list[Step]:
        return [
            Step.verify(step.sequences, self.tokens, step.longest - 1) if all(group.decodes for group in step) else step
            for step in steps
        ]  # fmt: skip

    def best_tokens(self, acceptance: float, batch: int, context: int) -> int:
        """Guesses, up to `BEST_OF`, that take the least time per token for `batch` sequences of `context` positions; 0: none.

        Of the times of steps alone, without prompts and what a service adds.
        """
        numbers = range(1, BEST_OF + 1)
        steps = [Step.decode(batch, context), *(Step.verify(batch, guesses, context) for guesses in numbers)]
        times_s = self.target.seconds(steps)[0]
        draft_s = 0.0 if self.drafting is None else self.drafting.draft.seconds(steps[:1])[0][0]
        tokens = [1.0, *(Speculation(guesses, acceptance).tokens_per_step for guesses in numbers)]
        return int(np.argmin((times_s + draft_s * np.arange(BEST_OF + 1)) / tokens))


def speculation_result(
    speculation: Speculation | None, arrivals: Arrivals, times: object, batch: int, context: int
) -> SpeculationResult | None:
    """What guesses gave the answers of a simulation; None without them.

    Args:
        speculation: how the service speculates.
        arrivals: its requests with the steps of each.
        times: of its steps.
        batch: sequences that decode together in the mean.
        context: their mean positions.
    """
    if speculation is None or arrivals.steps is None or not isinstance(times, SpeculativeSteps):
        return None
    decoded = arrivals.steps > 0
    rest, steps = arrivals.outputs[decoded] - 1, arrivals.steps[decoded]
    mean = float(rest.sum() / steps.sum()) if len(steps) else speculation.tokens_per_step
    lower, upper = np.quantile(rest / steps, (0.05, 0.95)) if len(steps) else (mean, mean)
    return SpeculationResult(
        speculation, Interval(mean, min(float(lower), mean), max(float(upper), mean)),
        times.best_tokens(speculation.acceptance, batch, context),
    )  # fmt: skip
