"""Services in closed form, for sweeps over thousands of plans: static batches, and closed loops in a steady state.

A static batch computes its prompts in steps of at most `chunk` tokens and then decodes; its times are sums of the same steps
that the simulation runs. In a closed loop of `n` sequences, spread evenly over their answers, every step on average finishes
`n / output` answers and starts as many prompts. Over the `output` steps of one answer

    TPOT = decode(n, input + output / 2) + n / output · (what a prompt adds to the steps that compute it)

It is valid where the cache holds all `n`, lengths are alike and the load is long beside an answer; the opening burst
is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....features.errors import SpecError
from .simulation import Scheduling
from .step_table import StepTable


@dataclass(frozen=True, slots=True)
class Steady:
    """Means of a service.

    Attributes:
        ttft_s: Time to the first token.
        tpot_s: Time per token after it.
        throughput_tok_s: Tokens of answers per second.
    """

    ttft_s: float
    tpot_s: float
    throughput_tok_s: float


def static_batch(table: StepTable, batch: int, input_tokens: int, output_tokens: int, how: Scheduling) -> Steady:
    """A batch of equal requests, all at once, which the cache holds.

    Raises:
        SpecError: a prompt is longer than a step.
    """
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
    context = input_tokens + output_tokens / 2
    decode_s = table.decoding(concurrency)(context)
    beside = concurrency - 1 if how.mixes else 0
    left, prompt_s, more_s = input_tokens, 0.0, 0.0
    while left > 0:
        new = min(left, max(how.chunk - beside, 1)) if how.splits else left
        step_s = table.mixed(beside, context if beside else 0.0, [(new, input_tokens - left)])
        prompt_s += step_s
        more_s += step_s - (decode_s if how.mixes else 0.0)
        left -= new
    tpot_s = decode_s + concurrency / output_tokens * max(more_s, 0.0)
    # A request waits for half of the step that runs when it comes, and for the one that is formed by then.
    ttft_s = prompt_s + tpot_s * (1.5 if how.ahead else 0.5)
    return Steady(ttft_s + how.between_s, tpot_s, concurrency * output_tokens / (ttft_s + tpot_s * (output_tokens - 1)))
