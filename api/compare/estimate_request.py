"""Reading requests of /v1/estimate: a shipped model, a configuration or a captured program, on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...features.device import Catalogue, Device
from ...features.errors import SpecError, listed
from ...features.kernel import MAX_THREADS
from ...features.spec_io.reading import MAX_TEXT, SETTING_FIELDS, kind_of, shown_name
from ...models.predict.carbon import ELECTRICITY_FIELDS, Electricity, read_electricity
from ...models.predict.power_law import PowerSetting, checked_setting, read_setting
from ...workloads.architectures.estimate import formats_of
from ...workloads.architectures.facts import ModelFacts
from ...workloads.architectures.forward import check_step
from ...workloads.architectures.plan import ParallelPlan
from ...workloads.architectures.step import MAX_TOKENS, Formats, Step
from ...workloads.architectures.training import training_step
from ...workloads.torch_program.captured import Program, read_program
from ..predict.model import facts_of_request
from ..transport.bodies import read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import ProblemError, invalid_field, naming_field
from .request import read_devices, read_prices

PHASES = ("prefill", "decode", "forward", "train", "encode")
MAX_ESTIMATED = 16
"""Most devices of a request: each takes some tens of milliseconds, with what could be won there."""
MAX_CALLS = 2000
"""Most calls of a captured program times devices: some half a millisecond each."""

SOURCES = ("model", "config", "program")
COMMON = ("devices", "threads", "coverage", "price_per_hour", *SETTING_FIELDS, *ELECTRICITY_FIELDS)
OF_MODELS = (
    "phase", "batch", "length", "context", "source", "recompute", "plan", "dtype", "weights", "kv_dtype", "impl",
)  # fmt: skip
_WANTED = '{"model": "meta-llama/Llama-3.1-8B", "devices": […], "phase": "prefill", "batch": 8, "length": 2048}'
_PLAN = tuple(item.name for item in fields(ParallelPlan))
_PATHS: Mapping[str, str] = {
    **{name: f"plan.{name}" for name in _PLAN}, "prefill": "length", "step": "length",
    "encode": "phase", "count": "batch", "new_tokens": "length",
}  # fmt: skip
"""Fields of a request by those that errors of steps and plans name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What every request says.

    Attributes:
        devices: The devices, each once.
        threads: Threads of the CPUs among them; None is all.
        coverage: Coverage of the intervals.
        prices: Price of an hour by catalogue name.
        setting: How the devices are set; None: as they come.
        refusals: Why devices cannot be set so, by their names.
        electricity: Where electricity is from, and what it costs; None: nobody asks.
    """

    devices: list[Device]
    threads: int | None
    coverage: float
    prices: dict[str, float]
    setting: PowerSetting | None
    refusals: dict[str, str]
    electricity: Electricity | None


@dataclass(frozen=True, slots=True)
class ModelStep:
    """A step of a model.

    Attributes:
        facts: The model.
        phase: One of `PHASES`.
        step: What runs.
        batch: Sequences.
        length: New tokens of each, or its cached positions in decode.
        plan: How it is split.
        formats: Number formats.
        impl: What runs products, attention and experts.
        recompute: Whether a step that trains runs its layers forwards again in place of keeping their activations.
    """

    facts: ModelFacts
    phase: str
    step: Step
    batch: int
    length: int
    plan: ParallelPlan
    formats: Formats
    impl: str
    recompute: bool


def read_estimate(body: bytes, catalogue: Catalogue) -> tuple[Wanted, ModelStep | Program]:
    """The request in a JSON body.

    Raises:
        ProblemError: 400 for a body that is not JSON, 413 for a program of too many calls, 422 naming what is wrong.
    """
    root = read_object(body, _WANTED)
    sources = [name for name in SOURCES if root.get(name) is not None]
    if len(sources) != 1:
        got = f", got {listed(sources)}" if sources else ""
        raise invalid_field(sources[-1] if sources else "model", f"give one of {listed(SOURCES)}{got}; {_WANTED}")
    is_program = sources == ["program"]
    known = (*SOURCES, *COMMON, *(() if is_program else OF_MODELS))
    if unknown := [name for name in root if name not in known]:
        if is_program and unknown[0] in OF_MODELS:
            raise invalid_field(unknown[0], "a captured program says its own sizes and formats; leave it out")
        raise invalid_field(shown_name(unknown[0]), f"unknown field; an estimate takes {listed(known)}")
    inner = [root[name] for name in ("config", "plan", "price_per_hour") if isinstance(root.get(name), dict)]
    refuse_duplicate_names(body, root, inner)
    devices = read_devices(root.get("devices"), catalogue, MAX_ESTIMATED)
    setting = naming_field(lambda: read_setting(root.get("power_limit_w"), root.get("clock_hz")))
    wanted = Wanted(
        devices, whole_number(root, "threads", MAX_THREADS), read_coverage(root),
        read_prices(root.get("price_per_hour"), catalogue, devices),
        setting, _refusals(setting, devices),
        naming_field(lambda: read_electricity(*map(root.get, ELECTRICITY_FIELDS))),
    )  # fmt: skip
    if not is_program:
        return wanted, _read_step(root)
    program = naming_field(lambda: read_program(root["program"]), "program", _PATHS)
    if len(program.calls) * len(devices) > MAX_CALLS:
        calls = f"a program of {len(program.calls)} calls on {len(devices)} devices"
        raise ProblemError(413, f"{calls}; at most {MAX_CALLS} calls times devices are priced, ask for fewer devices")
    return wanted, program


def _refusals(setting: PowerSetting | None, devices: Sequence[Device]) -> dict[str, str]:
    """Why devices cannot be set so, by their names.

    Raises:
        ProblemError: 422 where none of them can.
    """
    refusals: dict[str, str] = {}
    if setting is None:
        return refusals
    for device in devices:
        try:
            checked_setting(setting.power_limit_w, setting.clock_hz, device)
        except SpecError as error:
            refusals[device.name] = str(error)
            if len(refusals) == len(devices):
                raise invalid_field(error.field or "power_limit_w", "; ".join(refusals.values())) from error
    return refusals


def _read_step(root: Mapping[str, Any]) -> ModelStep:
    source = whole_number(root, "source", MAX_TOKENS)
    facts = naming_field(lambda: facts_of_request(root).with_source(source), "source", _PATHS)
    phase = root.get("phase") or ("prefill" if facts.generates else "forward")
    if phase not in PHASES:
        raise invalid_field("phase", f"must be one of {listed(PHASES)}, got {shown_name(phase)}")
    if phase == "encode":
        facts = naming_field(facts.encoder_alone, "phase", _PATHS)
    if phase in ("prefill", "decode") and not facts.generates:
        raise invalid_field("phase", f"{facts.name} generates nothing; its phase is forward, or train")
    batch = whole_number(root, "batch", MAX_TOKENS) or 1
    length = whole_number(root, "length", MAX_TOKENS, least=0 if phase == "decode" else 1)
    context = whole_number(root, "context", MAX_TOKENS, least=0) or 0
    if length is None and (length := facts.fixed_length) is None:
        raise invalid_field("length", "is missing: new tokens of each sequence, or its cached positions in decode")
    if context and phase != "prefill":
        raise invalid_field("context", f"goes with prefill, for a chunk of a prompt; in {phase} leave it out")
    recompute = root.get("recompute", False)
    if not isinstance(recompute, bool):
        raise invalid_field("recompute", f"must be true or false, not {kind_of(recompute)}")
    if recompute and phase != "train":
        raise invalid_field("recompute", f"goes with train, the phase that keeps activations; in {phase} leave it out")

    def checked() -> ModelStep:
        step = Step.decode(batch, length) if phase == "decode" else Step.prefill(batch, length, context)
        plan = ParallelPlan(**_plan(root.get("plan")))
        formats = formats_of(
            facts, dtype=_word(root, "dtype"), weights=_word(root, "weights"), kv=_word(root, "kv_dtype")
        )
        facts.check_plan(plan)
        check_step(facts, step)
        if phase == "train":
            training_step(facts, step, formats, plan, recompute=recompute)
        return ModelStep(facts, phase, step, batch, length, plan, formats, _word(root, "impl") or "", recompute)

    return naming_field(checked, "length", _PATHS)


def _plan(raw: Any) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise invalid_field("plan", f"must be an object of {listed(_PLAN)}, not {kind_of(raw)}")
    if unknown := [name for name in raw if name not in _PLAN]:
        raise invalid_field(f"plan.{shown_name(unknown[0])}", f"unknown field; a plan has {listed(_PLAN)}")
    return raw


def _word(root: Mapping[str, Any], name: str) -> str | None:
    value = root.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > MAX_TEXT):
        raise invalid_field(name, f"must be text of at most {MAX_TEXT} characters, not {kind_of(value)}")
    return value or None


def whole_number(root: Mapping[str, Any], name: str, most: int, least: int = 1) -> int | None:
    """A field that is a whole number, None where it is missing or null.

    Raises:
        ProblemError: 422, it is none between `least` and `most`.
    """
    value = root.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = shown_name(value) if type(value) in (int, float) else kind_of(value)
        raise invalid_field(name, f"must be a whole number between {least} and {most}, got {shown}")
    return value
