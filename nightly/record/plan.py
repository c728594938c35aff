"""The plan of a night. Every part has a default, so that a plan of one line works on this machine's CPU."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ...features.kernel import CACHE_STATES, KernelSpec

Collecting = Literal["cpu", "gpu", "fleet", "replay"]


@dataclass(frozen=True, slots=True)
class Characterise:
    """When the device itself is measured again (peaks, bandwidths, latencies).

    Attributes:
        every_days: Days between two characterisations; 0 for never.
    """

    every_days: float = 7.0


@dataclass(frozen=True, slots=True)
class Choose:
    """How a night's measuring time is shared; what the shares leave goes to cases that fill the space.

    Attributes:
        space_filling: Read and not used, for plans of earlier versions.
        usage: Share for what the service is asked for.
        repeats: Share for cases measured before.
        usage_log: The folder the service writes to (`KERNELCAST_USAGE_LOG`); None: KERNELCAST_HOME/usage.
    """

    space_filling: float = 0.2
    usage: float = 0.3
    repeats: float = 0.05
    usage_log: str | None = None


@dataclass(frozen=True, slots=True)
class Train:
    """Which models challenge the champion, and which rows they learn from.

    Attributes:
        regressors: What the retrained challengers learn with.
        data: Further files of measured rows.
        with_shipped: Whether the shipped tables are learned from too.
        most_rows: Rows of a family at most.
        challengers: Of `adapted`, `retrained` and `past`.
        retrain_rows: Rows of its devices from which on a model is trained anew; with fewer, calibration learns more.
        software: `all`: rows of the night's devices whatever software they were measured under; `current`: only those of
            the software that the devices run now.
    """

    regressors: tuple[str, ...] = ("blend",)
    data: tuple[str, ...] = ()
    with_shipped: bool = True
    most_rows: int = 20_000
    challengers: tuple[str, ...] = ("adapted", "retrained", "past")
    retrain_rows: int = 1500
    software: Literal["all", "current"] = "all"


@dataclass(frozen=True, slots=True)
class Gate:
    """What a challenger has to show.

    Attributes:
        hold_out: Read and not used, for plans of earlier versions: every shape judges once, before it is learned from.
        confidence: How certain it must be that it errs less.
        may_forget: Whether it may lack a family or device that the champion was measured on.
    """

    hold_out: float = 0.1
    confidence: float = 0.95
    may_forget: bool = False


@dataclass(frozen=True, slots=True)
class Keep:
    """How much stays on disk.

    Attributes:
        nights: Past nights that stay.
        models: Past models that stay and may challenge again.
    """

    nights: int = 30
    models: int = 10


@dataclass(frozen=True, slots=True)
class Fleet:
    """The Ray cluster to measure on.

    Attributes:
        address: HOST:PORT of the cluster; None for none.
        devices: Its devices to measure; empty for all.
    """

    address: str | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded rows that are replayed instead of measuring a device.

    Attributes:
        rows: A Parquet file of one family, or the folder of a store.
        speed: How many times faster than measuring they come; 0 for at once.
    """

    rows: str = ""
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a night; `docs/nightly.md` describes each key.

    Attributes:
        name: Its name; nights are named by it.
        minutes: Time of the whole night.
        device: What is measured; None for this machine.
        collector: What measures.
        store: A folder or an address such as `s3://bucket/rows`; None for KERNELCAST_HOME/measurements.
        families: Kernel families to measure; empty for all.
        dtypes: Data types to measure.
        threads: Thread counts to measure; empty for one and all.
        impls: Implementations to measure; empty for all.
        cache_states: Cache states to measure.
        drift: How far a sentinel on a CPU may move before its block is measured again, as a ratio.
        seed: Seed of everything drawn.
        energy_minutes: Time of it for energy on a GPU.
        registry: Address of an MLflow database; None: a promotion moves the champion pointer alone.
        characterise: When the device is characterised.
        choose: How measuring time is shared.
        train: Which models challenge.
        gate: What they have to show.
        keep: How much stays on disk.
        fleet: The cluster to measure on.
        replay: Rows to replay.
    """

    name: str = "nightly"
    minutes: float = 20.0
    device: str | None = None
    collector: Collecting = "cpu"
    store: str | None = None
    families: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    threads: tuple[int, ...] = ()
    impls: tuple[str, ...] = ()
    cache_states: tuple[str, ...] = CACHE_STATES
    drift: float = 0.15
    seed: int = 0
    energy_minutes: float = 0.0
    registry: str | None = None
    characterise: Characterise = field(default_factory=Characterise)
    choose: Choose = field(default_factory=Choose)
    train: Train = field(default_factory=Train)
    gate: Gate = field(default_factory=Gate)
    keep: Keep = field(default_factory=Keep)
    fleet: Fleet = field(default_factory=Fleet)
    replay: Replay = field(default_factory=Replay)

    @property
    def budget_s(self) -> float:
        """Seconds of the whole night."""
        return 60.0 * self.minutes

    @property
    def rehearsal(self) -> bool:
        """Whether rows are replayed."""
        return self.collector == "replay"

    def allows(self, spec: KernelSpec) -> bool:
        """Whether a case is of the families, dtypes, thread counts, impls and cache states to measure."""
        wanted = (
            (self.families, spec.family),
            (self.dtypes, spec.dtype),
            (self.threads, spec.threads),
            (self.impls, spec.impl),
            (self.cache_states, spec.cache_state),
        )
        return all(not values or value in values for values, value in wanted)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; equal plans give equal JSON."""
        return dict(json.loads(json.dumps(asdict(self))))

    @property
    def hash(self) -> str:
        """Sixteen hex digits of the plan's content: another plan under the same name has another."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]


def differences(before: dict[str, Any], after: dict[str, Any], under: str = "") -> list[str]:
    """What changed between two plans' JSON, in words: `minutes: 20.0 -> 6.0`."""
    changes: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += differences(old, new, f"{under}{name}.")
        elif old != new:
            changes.append(f"{under}{name}: {without_password(json.dumps(old))} -> {without_password(json.dumps(new))}")
    return changes


def without_password(text: str) -> str:
    """The text with what stands before an `@` of an address taken out: reports are read by many."""
    return re.sub(r"://[^/@\s]*@", "://…@", text)
