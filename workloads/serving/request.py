"""What is asked of a service: a model on devices under a plan, in an engine, under a load of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from ...features.errors import SpecError, listed
from ...models.predict.power_law import PowerSetting, read_setting
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.plan import ONE_DEVICE, ParallelPlan
from ..architectures.step import Formats
from .host_experts import HOST_ENGINE, check_host_experts
from .speculation import Speculation, speculation_of

MAX_TOKENS = 10_000_000
"""Longest prompt or answer accepted."""
MAX_REQUESTS = 100_000
"""Most requests simulated."""
MIN_RATE = 1e-6
"""Fewest requests per second: with fewer, times of arrivals have too few digits beside those of steps."""
MAX_CLOSED = 4000
"""Most requests simulated unless a number is given; more change the mean of a closed loop by less than its interval."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How an engine schedules by default.

    Attributes:
        chunk: Most tokens of a step.
        sequences: Most sequences that run together.
        mixes: Whether prompts and decoding share a step.
        splits: Whether a prompt may be computed in chunks.
        reserved: Share of the tokens that sequences have yet to generate whose room is kept when a request is admitted. Below 1
            sequences are preempted where the cache has no room for what they generate.
        whole: Share of a device's memory that weights, workspaces and cache share.
        of_free: Share of what is free after the weights that the cache takes.
        ahead: Whether a step is formed while the one before it runs.
        source: Where the defaults come from.
    """

    chunk: int
    sequences: int
    mixes: bool
    splits: bool
    reserved: float
    whole: float
    of_free: float
    ahead: bool
    source: str


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(8192, 1024, True, True, 0.0, 0.9, 1.0, True,
                   "vLLM V1, gpu_memory_utilization 0.9, usage_context api_server on a data-centre GPU"),
    "vllm-v0": Engine(16384, 256, False, False, 0.0, 0.9, 1.0, False, "vLLM before 0.8: prompts first, none in chunks"),
    "sglang": Engine(
        8192, 1024, False, True, 0.1, 0.9, 1.0, True,
        "SGLang server arguments: chunked_prefill_size, no mixed chunks; new_token_ratio once it has decayed, 0.7 of 0.14",
    ),
    "trtllm": Engine(8192, 2048, True, False, 1.0, 0.98, 0.9, True,
                     "TensorRT-LLM: max_num_tokens, free_gpu_memory_fraction 0.9, GUARANTEED_NO_EVICT"),
    "pytorch": Engine(1 << 20, 4096, False, False, 1.0, 0.98, 1.0, False, "a static batch: one step for all prompts"),
}  # fmt: skip
"""By scheduler; `scheduler_of` says which an engine has."""

ALIASES: Mapping[str, str] = {
    "vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "trt-llm": "trtllm",
    "pytorch": "pytorch", "transformers": "pytorch", "pytorch-hf/fastchat": "pytorch", "deepspeed-mii": "deepspeed",
    "deepspeed": "deepspeed", "llama.cpp": "llama.cpp", "vllm (splitwise profiling)": "vllm",
}  # fmt: skip
"""Engines by the names users write."""

VENDORS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("nvidia", "amd", "intel"), "sglang": ("nvidia", "amd"), "trtllm": ("nvidia",),
}  # fmt: skip
"""Vendors of the devices on which an engine runs (its documentation's pages of supported hardware); others run on any."""

_V1_FROM = (0, 8)
"""vLLM's release in which the V1 engine, with chunked prefill, became the default."""


def engine_named(name: str) -> str:
    """An engine by any of its names.

    Raises:
        SpecError: there is none of that name.
    """
    engine = ALIASES.get(name.strip().lower())
    if engine is None:
        raise SpecError(f"no engine {name!r}; it is one of {listed(sorted(set(ALIASES.values())))}", field="engine")
    return engine


def scheduler_name(engine: str, version: str | None) -> str:
    """The scheduler of a version of an engine, one of `ENGINES`; without one, of its newest release."""
    if engine == "vllm" and version and _release(version) < _V1_FROM:
        return "vllm-v0"
    return engine if engine in ENGINES else "pytorch"


def scheduler_of(engine: str, version: str | None) -> Engine:
    """How a version of an engine schedules."""
    return ENGINES[scheduler_name(engine, version)]


def _release(version: str) -> tuple[int, int]:
    numbers = [int(digits) for word in version.split(".")[:2] if (digits := "".join(c for c in word if c.isdigit()))]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else _V1_FROM


@dataclass(frozen=True, slots=True)
class Load:
    """Requests and the client that sends them.

    Attributes:
        kind: `closed`: a number under way, each answered one followed by the next. `open`: a rate, at random times.
            `static`: one batch, all at once. `queued`: more than the engine takes, all at once.
        size: Requests under way; requests per second; sequences of the batch; unused for `queued`. All but a rate are whole.
        input_tokens: Mean tokens of a prompt.
        output_tokens: Mean tokens of an answer.
        rounds: Requests per request under way in a closed loop. 10 is what vLLM's and InferenceX's clients send, 1 is a burst.
        requests: Requests that are simulated, of each replica; None: what `rounds` gives.
        spread: Half the range of lengths, as a share of their mean.
        cached: Share of a prompt that the prefix cache already has, so that it is not computed.
        seed: Of random lengths and times.
        trace: Of an `open` load: when each request arrives in seconds, tokens of its prompt and of its answer, in the order of
            arrival; None: they are drawn.
    """

    kind: Literal["closed", "open", "static", "queued"]
    size: float
    input_tokens: float
    output_tokens: float
    rounds: float = 10.0
    requests: int | None = None
    spread: float = 0.0
    cached: float = 0.0
    seed: int = 0
    trace: tuple[tuple[float, int, int], ...] | None = None

    @classmethod
    def of_trace(
        cls, arrival_s: Sequence[float], inputs: Sequence[int], outputs: Sequence[int], cached: float = 0.0
    ) -> Load:
        """The requests of a trace, in any order; their rate and mean lengths are the load's.

        Raises:
            SpecError: there are fewer than 2 or too many requests, or one has no time, no tokens, or none that is a number.
        """
        if not 2 <= len(arrival_s) <= MAX_REQUESTS:
            raise SpecError(f"a trace has between 2 and {MAX_REQUESTS} requests, got {len(arrival_s)}", field="trace")
        for name, values, least in (("arrival_s", arrival_s, 0), ("input", inputs, 1), ("output", outputs, 1)):
            for row, value in enumerate(values, 1):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or not least <= value < math.inf or (least and value != int(value)):
                    what = "a whole number of at least 1" if least else "a time of at least 0"
                    raise SpecError(f"request {row} of the trace: {name} must be {what}, got {value!r}", field="trace")
        first = min(arrival_s)
        trace = tuple(sorted(
            (float(time) - first, int(new), int(answer)) for time, new, answer in zip(arrival_s, inputs, outputs, strict=True)
        ))  # fmt: skip
        if trace[-1][0] == 0:
            raise SpecError("all requests of the trace arrive at once; that is --batch or --concurrency", field="trace")
        n = len(trace)
        return cls(
            "open", (n - 1) / trace[-1][0], sum(inputs) / n, sum(outputs) / n, requests=n, cached=cached, trace=trace
        )

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if not math.isfinite(value) or not 1 <= value <= MAX_TOKENS:
                raise SpecError(f"{name} must be between 1 and {MAX_TOKENS}, got {value!r}", field=name)
        name = {"closed": "concurrency", "open": "rate", "static": "batch", "queued": "load"}[self.kind]
        if self.kind in ("closed", "static"):
            if not 1 <= self.size <= MAX_REQUESTS or self.size != int(self.size):
                raise SpecError(
                    f"{name} must be a whole number between 1 and {MAX_REQUESTS}, got {self.size!r}", field=name
                )
        elif not math.isfinite(self.size) or self.size <= 0:
            raise SpecError(f"{name} must be positive, got {self.size!r}", field=name)
        if not 0 <= self.spread < 1:
            raise SpecError(f"spread must be at least 0 and below 1, got {self.spread!r}", field="spread")
        if not 0 <= self.cached < 1:
            raise SpecError(f"cached must be at least 0 and below 1, got {self.cached!r}", field="cached")
        if not math.isfinite(self.rounds) or self.rounds < 1:
            raise SpecError(f"rounds must be at least 1, got {self.rounds!r}", field="rounds")
        if self.requests is not None and not (_is_whole(self.requests) and 1 <= self.requests <= MAX_REQUESTS):
            raise SpecError(
                f"requests must be a whole number between 1 and {MAX_REQUESTS}, got {self.requests!r}", field="requests"
            )
        if not _is_whole(self.seed) or self.seed < 0:
            raise SpecError(f"seed must be a whole number of at least 0, got {self.seed!r}", field="seed")

    def __str__(self) -> str:
        what = {
            "closed": f"{self.size:g} under way", "open": f"{self.size:g} per second", "static": f"a batch of {self.size:g}",
            "queued": "all queued",
        }[self.kind]  # fmt: skip
        return f"{what}, {self.input_tokens:g} tokens in, {self.output_tokens:g} out"

    @property
    def count(self) -> int | None:
        """Requests that are simulated; None of `queued`, whose number the cache decides unless it is given."""
        if self.trace is not None:
            return len(self.trace)
        if self.kind == "static":
            return round(self.size)
        if self.kind == "closed":
            return self.requests or min(round(self.size * self.rounds), max(MAX_CLOSED, round(self.size)))
        return self.requests or (1000 if self.kind == "open" else None)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer that may be drawn."""
        if self.trace is not None:
            return max(new + out for _, new, out in self.trace)
        return sum(round(mean * (1 + self.spread)) for mean in (self.input_tokens, self.output_tokens))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """A question: what a service of a model gives its users, and what it takes.

    Attributes:
        facts: The model.
        device: Name of the device in the catalogue.
        load: Requests.
        formats: Number formats.
        plan: How one replica is split.
        engine: Engine, one of `ALIASES`' values.
        engine_version: Its version; None: the newest known.
        replicas: Copies of the plan that share the load: those of a number of requests differ by at most one.
        chunk: Most tokens of a step; None: the engine's default.
        sequences: Most sequences that run together; None: the engine's default.
        client: A benchmark whose client and server are known (`service_profiles.yaml`); empty for others.
        events: Events per token of an answer that the client counts, and by which it divides times per token.
        speculation: How tokens are guessed; None: they are not.
        host_experts: Share of the routed experts that is in the host's memory.
        setting: How each device is set; None: as it comes.
    """

    facts: ModelFacts
    device: str
    load: Load
    formats: Formats
    plan: ParallelPlan = field(default=ONE_DEVICE)
    engine: str = "vllm"
    engine_version: str | None = None
    replicas: int = 1
    chunk: int | None = None
    sequences: int | None = None
    client: str = ""
    events: float = 1.0
    speculation: Speculation | None = None
    host_experts: float = 0.0
    setting: PowerSetting | None = None

    def __post_init__(self) -> None:
        self.facts.check_serves()
        self.facts.check_plan(self.plan)
        for name, title in (("replicas", "replicas"), ("chunk", "chunk"), ("sequences", "max_sequences")):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{title} must be at least 1, got {value!r}", field=title)
        load, longest = self.load, self.load.longest
        if load.kind == "open" and load.size < MIN_RATE:
            name = "rate" if load.trace is None else "trace"
            raise SpecError(
                f"{name} must have at least {MIN_RATE:g} requests per second, got {load.size!r}", field=name
            )
        if (most := self.facts.max_length) is not None and longest > most:
            drawn = f", the longest that spread {load.spread:g} draws," if load.spread else ""
            less = "shorten the prompts or the answers" + (", or give a smaller spread" if load.spread else "")
            means_fit = load.trace is None and load.input_tokens + load.output_tokens <= most
            raise SpecError(
                f"{longest} tokens{drawn} are longer than the {most} that {self.facts.name} is made for; {less}",
                field="spread" if means_fit else "input_tokens",
            )
        if self.speculation is not None:
            self.speculation.check(self.facts, self.plan, longest)
        check_host_experts(self.host_experts, self.facts)
        if self.host_experts and self.engine != HOST_ENGINE:
            raise SpecError(
                f"experts are kept in the host's memory by {HOST_ENGINE}, not by {self.engine}; use {HOST_ENGINE}",
                field="host_experts",
            )

    @property
    def is_like_measured(self) -> bool:
        """Whether services like it were measured: none was that guesses tokens or has experts in the host's memory."""
        return self.speculation is None and not self.host_experts

    @property
    def gpus(self) -> int:
        """Devices of all replicas."""
        return self.plan.devices * self.replicas


def replicas_of(plan: ParallelPlan, gpus: int | None) -> int:
    """Copies of a plan on so many devices; None: one.

    Raises:
        SpecError: the devices are no multiple of the plan's.
    """
    if gpus is None:
        return 1
    if gpus < 1 or gpus % plan.devices:
        fewer = gpus // plan.devices * plan.devices
        near = f"{fewer} or {fewer + plan.devices}" if fewer > 0 else str(plan.devices)
        raise SpecError(
            f"gpus {gpus} is no multiple of the {plan.devices} that the plan takes ({plan}); use {near}", field="gpus"
        )
    return gpus // plan.devices


def serving_request(
    facts: ModelFacts, device: str, *, input_tokens: float, output_tokens: float, concurrency: float | None = None,
    rate: float | None = None, batch: float | None = None, load: Load | None = None, gpus: int | None = None, tp: int = 1,
    pp: int = 1, ep: int = 1, dp: int = 1, rounds: float | None = None, requests: int | None = None, spread: float = 0.0,
    cached: float = 0.0, seed: int = 0, engine: str = "vllm", engine_version: str | None = None, chunk: int | None = None,
    max_sequences: int | None = None, dtype: str | None = None, weights: str | None = None, kv_dtype: str | None = None,
    speculate: int | None = None, acceptance: float | None = None, draft: ModelFacts | None = None, host_experts: float = 0.0,
    power_limit_w: float | None = None, clock_hz: float | None = None,
) -> ServingRequest:  # fmt: skip
    """A question in plain numbers and names, as commands and requests give it.

    Args:
        facts: the model.
        device: catalogue name of the device.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        concurrency: requests under way, each answered one followed by the next; or
        rate: requests per second at random times; or
        batch: sequences of one static batch; or
        load: the load itself, such as that of a trace; of it nothing else is read.
        gpus: devices in all; None: those of one plan. More are replicas.
        tp: devices that split each layer.
        pp: stages that split the layers.
        ep: devices that share out the experts.
        dp: groups of devices whose attention has sequences of its own.
        rounds: as in `Load`, of `concurrency` alone; None: 10.
        requests: as in `Load`, in place of `rounds`; a batch has none.
        spread: as in `Load`.
        cached: as in `Load`.
        seed: as in `Load`.
        engine: any of an engine's names.
        engine_version: its version; None: the newest known.
        chunk: most tokens of a step; None: the engine's default.
        max_sequences: most sequences that run together; None: the engine's default.
        dtype: format of activations; None: the model's.
        weights: format of the matrices; None: the model's.
        kv_dtype: format of the cache; None: that of activations.
        speculate: tokens that a step guesses and verifies for each sequence; None: none.
        acceptance: probability that a guess is accepted where those before it were; needed to speculate.
        draft: the model that guesses; None: guesses cost nothing.
        host_experts: share of the routed experts that is in the host's memory.
        power_limit_w: power limit that each device is set to, in watts; None: its own.
        clock_hz: clock that its compute units are locked to, in hertz; None: as high as the limit allows.

    Raises:
        SpecError: there is no load or more than one, one does not read `rounds` or `requests`, or a value is none that is
            possible.
    """
    sizes = {"concurrency": ("closed", concurrency), "rate": ("open", rate), "batch": ("static", batch)}
    _check_read({name for name, (_, size) in sizes.items() if size is not None}, rounds, requests)
    each = 10.0 if rounds is None else rounds
    loads = [
        Load(kind, size, input_tokens, output_tokens, each, requests, spread, cached, seed)  # type: ignore[arg-type]
        for kind, size in sizes.values() if size is not None
    ]  # fmt: skip
    loads += [] if load is None else [load]
    if len(loads) != 1:
        raise SpecError("say what load there is: one of concurrency, rate (requests per second), batch", field="load")
    plan = ParallelPlan(tp=tp, pp=pp, ep=ep, dp=dp)
    return ServingRequest(
        facts=facts, device=device, load=loads[0], formats=formats_of(facts, dtype=dtype, weights=weights, kv=kv_dtype),
        plan=plan, engine=engine_named(engine), engine_version=engine_version, replicas=replicas_of(plan, gpus), chunk=chunk,
        sequences=max_sequences, speculation=speculation_of(speculate, acceptance, draft), host_experts=host_experts,
        setting=read_setting(power_limit_w, clock_hz),
    )  # fmt: skip


def _check_read(loads: Set[str], rounds: float | None, requests: int | None) -> None:
    """That settings go together, each of which the load reads."""
    present = loads | {name for name, value in (("rounds", rounds), ("requests", requests)) if value is not None}
    for name, other in (("rounds", "batch"), ("rounds", "rate"), ("rounds", "requests"), ("requests", "batch")):
        if {name, other} <= present:
            raise SpecError(f"{name} cannot go with {other}; leave out one or the other", field=name)
