"""Services in closed form, for sweeps over thousands of plans: static batches, and closed loops in a steady state.

A static batch computes its prompts in steps of at most `chunk` tokens and then decodes; its times are sums of the same steps
that the simulation runs. In a closed loop of `n` sequences, spread evenly over their answers, every step on average finishes
`n / output` answers and starts as many prompts. Over the `output` steps of one answer

    TPOT = decode(n, input + output / 2) + n / output · (what a prompt adds to the steps that compute it)

where as many prompts share a step as start in one. Where prompts and decoding share steps, no more sequences run than
start while steps have room for their prompts. Where guesses give a step `E` tokens of a sequence in the mean
(`Scheduling.tokens`), an answer takes `output / E` steps in place of `output`, and TPOT is a step's time over `E`. It is valid
where the cache holds all `n`, lengths are alike and the load is long beside an answer; the opening burst is not in it, nor that
requests answered together come back together, which makes prompts wait longer for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....features.errors import SpecError
from .simulation import Scheduling
from .step_table import StepTable


@dataclass(frozen=True, slots=True)
class Steady:
    """Means of a service.

    Attributes:
        ttft_s: Time to the first token.
        tpot_s: Time per token after it; 0 of answers of one token, which have none.
        throughput_tok_s: Tokens of answers per second.
        energy_per_token_j: Joules of all devices per token of an answer; NaN where the table knows none.
    """

    ttft_s: float
    tpot_s: float
    throughput_tok_s: float
    energy_per_token_j: float = float("nan")


def static_batch(table: StepTable, batch: int, input_tokens: int, output_tokens: int, how: Scheduling) -> Steady:
    """A batch of equal requests, all at once, which the cache holds.

    Raises:
        SpecError: a prompt is longer than a step, or steps give more than a token, so that answers end at different steps.
    """
    if how.tokens > 1:
        raise SpecError(
            "answers of accepted guesses end at different steps; such a batch is simulated", field="speculate"
        )
    if input_tokens > how.chunk:
        raise SpecError(
            f"input_tokens {input_tokens} are more than the {how.chunk} of a step; a prompt in chunks is simulated",
            field="input_tokens",
        )
    if how.splits and (how.chunk % input_tokens or how.mixes) and batch * input_tokens > how.chunk:
        raise SpecError("the last prompt of a step would be split; such a batch is simulated", field="chunk")
    per_step, finished, done_s, first_s = how.chunk // input_tokens, 0, 0.0, 0.0
    while finished < batch:
        count = min(per_step, batch - finished)
        done_s += table.mixed(0, 0.0, [(input_tokens, 0)] * count)
        finished += count
        first_s += count * done_s / batch
    steps = output_tokens - 1
    whole_s = done_s + steps * table.decoding(batch)(input_tokens + max(steps - 1, 0) / 2)
    tpot_s = (whole_s - first_s) / steps if steps else 0.0
    return Steady(first_s + how.between_s, tpot_s, batch * output_tokens / whole_s)


def closed_loop(table: StepTable, concurrency: int, input_tokens: int, output_tokens: int, how: Scheduling) -> Steady:
    """A closed loop in its steady state."""
    steps = output_tokens / how.tokens
    left = max(input_tokens - int(how.cached * input_tokens), 1)
    if how.mixes:
        # As many run as start answers for whose prompts steps have room beside them; by Little's law the others wait.
        scored = how.guesses + 1
        most = max(int((how.chunk + scored) / (left / steps + scored)), 1)
        if concurrency > most:
            service = closed_loop(table, most, input_tokens, output_tokens, how)
            wait_s = (concurrency - most) * output_tokens / service.throughput_tok_s
            return replace(service, ttft_s=service.ttft_s + wait_s)
    context = input_tokens + output_tokens / 2
    beside = concurrency - 1 if how.mixes else 0
    decode_s, decode_j = (table.decoding(concurrency, energy=energy)(context) for energy in (False, True))
    prompt_s = more_s = more_j = 0.0
    # As many prompts share a step as start in one, while it has room: what one adds depends on how many there are.
    budget = max(how.chunk - beside * (how.guesses + 1), 1)
    together = max(min(round(concurrency / steps), budget // left), 1)
    while left > 0:
        new = min(left, budget) if how.splits else left
        step = beside, context if beside else 0.0, [(new, input_tokens - left)] * together
        step_s = table.mixed(*step)
        prompt_s += step_s
        more_s += (step_s - (decode_s if how.mixes else 0.0)) / together
        more_j += (table.mixed(*step, energy=True) - (decode_j if how.mixes else 0.0)) / together
        left -= new
    per_step = concurrency / steps
    between_s = decode_s + per_step * max(more_s, 0.0)
    step_j = (decode_j + per_step * max(more_j, 0.0)) if table.knows_energy else float("nan")
    # A request waits for half of the step that runs when it comes, and for the one that is formed by then.
    ttft_s = prompt_s + between_s * (1.5 if how.ahead else 0.5)
    # Answers of few tokens wait for each other's prompts longer than that; steps still give no more than this.
    request_s = max(ttft_s + between_s * (output_tokens - 1) / how.tokens, between_s * steps)
    # As in a batch, an answer of one token has no time after it, and keeps any limit on that.
    tpot_s = between_s / how.tokens if output_tokens > 1 else 0.0
    return Steady(
        ttft_s + how.between_s, tpot_s, concurrency * output_tokens / request_s,
        step_j / concurrency / how.tokens,
    )  # fmt: skip
