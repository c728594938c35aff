"""What is asked of a service: a model on devices under a plan, in an engine, under a load of requests."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from ...features.errors import SpecError, listed
from ...models.predict.power_law import PowerSetting, read_setting
from ..architectures.estimate import formats_of
from ..architectures.facts import ModelFacts
from ..architectures.plan import MAX_RANKS, ONE_DEVICE, ParallelPlan
from ..architectures.step import Formats
from .batching.load import MIN_RATE, Load
from .host_experts import HOST_ENGINE, check_host_experts
from .speculation import Speculation, speculation_of


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
        prefill_workers: Workers that compute prompts alone, beside the replicas, which then only decode; 0: there are none.
        prefill_plan: How one of these is split.
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
    prefill_workers: int = 0
    prefill_plan: ParallelPlan = field(default=ONE_DEVICE)

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
        if self.prefill_workers:
            self._check_prefill()
        check_host_experts(self.host_experts, self.facts)
        if self.host_experts and self.engine != HOST_ENGINE:
            raise SpecError(
                f"experts are kept in the host's memory by {HOST_ENGINE}, not by {self.engine}; use {HOST_ENGINE}",
                field="host_experts",
            )

    def _check_prefill(self) -> None:
        if not 0 < self.prefill_workers <= MAX_RANKS:
            raise SpecError(
                f"prefill_workers must be between 0 and {MAX_RANKS}, got {self.prefill_workers!r}",
                field="prefill_workers",
            )
        if self.load.kind != "open":
            raise SpecError(
                "workers of prompts are simulated for requests with times: give a rate or a trace", field="load"
            )
        for name, what in (("speculation", "guesses"), ("host_experts", "experts in the host's memory")):
            if getattr(self, name):
                raise SpecError(
                    f"workers of prompts beside {what} are not modelled; leave one out", field="prefill_workers"
                )
        self.facts.check_plan(self.prefill_plan)

    @property
    def is_like_measured(self) -> bool:
        """Whether services like it were measured: none was that guesses, has experts on the host, or workers of prompts."""
        return self.speculation is None and not self.host_experts and not self.prefill_workers

    @property
    def workers(self) -> int:
        """Workers of the kind of which there are more; replicas alone where they compute their own prompts."""
        return max(self.replicas, self.prefill_workers)

    @property
    def gpus(self) -> int:
        """Devices of all replicas, and of workers of prompts."""
        return self.plan.devices * self.replicas + self.prefill_workers * self.prefill_plan.devices


def replicas_of(plan: ParallelPlan, gpus: int | None, prefill_devices: int = 0) -> int:
    """Copies of a plan on so many devices less those of workers of prompts; None: one.

    Raises:
        SpecError: the devices are no multiple of the plan's.
    """
    if gpus is None:
        return 1
    count, rest = divmod(gpus - prefill_devices, plan.devices)
    if count < 1 or rest:
        sizes = (count, count + 1) if count > 0 else (1,)
        near = [prefill_devices + size * plan.devices for size in sizes]
        less = f" less the {prefill_devices} of prefill_workers" if prefill_devices else ""
        raise SpecError(
            f"gpus {gpus}{less} is no multiple of the {plan.devices} that the plan takes ({plan}); use "
            f"{' or '.join(map(str, near))}", field="gpus",
        )  # fmt: skip
    return count


def serving_request(
    facts: ModelFacts, device: str, *, input_tokens: float, output_tokens: float, concurrency: float | None = None,
    rate: float | None = None, batch: float | None = None, load: Load | None = None, gpus: int | None = None, tp: int = 1,
    pp: int = 1, ep: int = 1, dp: int = 1, rounds: float | None = None, requests: int | None = None, spread: float = 0.0,
    cached: float = 0.0, seed: int = 0, engine: str = "vllm", engine_version: str | None = None, chunk: int | None = None,
    max_sequences: int | None = None, dtype: str | None = None, weights: str | None = None, kv_dtype: str | None = None,
    speculate: int | None = None, acceptance: float | None = None, draft: ModelFacts | None = None, host_experts: float = 0.0,
    power_limit_w: float | None = None, clock_hz: float | None = None, prefill_workers: int = 0, prefill_tp: int | None = None,
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
        prefill_workers: workers that compute prompts alone; `gpus` has theirs, too.
        prefill_tp: devices of each; None: as many as a stage of the plan has.

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
    if prefill_tp is not None and not prefill_workers:
        raise SpecError(
            "prefill_tp is of prefill_workers, of which there are none; say how many", field="prefill_workers"
        )
    prefill_plan = ParallelPlan(tp=plan.stage_ranks if prefill_tp is None else prefill_tp)
    return ServingRequest(
        facts=facts, device=device, load=loads[0], formats=formats_of(facts, dtype=dtype, weights=weights, kv=kv_dtype),
        plan=plan, engine=engine_named(engine), engine_version=engine_version,
        replicas=replicas_of(plan, gpus, prefill_workers * prefill_plan.devices), chunk=chunk, sequences=max_sequences,
        speculation=speculation_of(speculate, acceptance, draft), host_experts=host_experts,
        setting=read_setting(power_limit_w, clock_hz), prefill_workers=prefill_workers, prefill_plan=prefill_plan,
    )  # fmt: skip


def _check_read(loads: Set[str], rounds: float | None, requests: int | None) -> None:
    """That settings go together, each of which the load reads."""
    present = loads | {name for name, value in (("rounds", rounds), ("requests", requests)) if value is not None}
    for name, other in (("rounds", "batch"), ("rounds", "rate"), ("rounds", "requests"), ("requests", "batch")):
        if {name, other} <= present:
            raise SpecError(f"{name} cannot go with {other}; leave out one or the other", field=name)
