"""What every stage of a night works with, its minutes among it, and what a stage gives back."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..collectors.campaign import CampaignError
from ..datasets.rows.splits import word_hash
from ..datasets.store.store import Store, StoreBusyError, StoreFullError
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..features.spec_io.rows import spec_from_row, spec_row
from ..files import home_dir, write_whole
from .measuring.protocol import Measurer
from .record.folders import CHOSEN, blocks_of
from .record.plan import Plan
from .record.record import Finding, FindingKind, NightRecord, StageStatus

LOCKED = ("cpu", "gpu")
"""Collectors that measure devices of this machine."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


_AFTER = ("check", "train", "gate", "promote", "report")
"""The stages that follow measuring."""

_FIRST_SHARE, _FIRST_AFTER_SHARE = 0.25, 0.08
"""Reserved in a first night for what follows measuring, and training: nothing is known of how long that takes here."""

_LEAST_SHARE, _MOST_SHARE = 0.25, 0.6
_HEADROOM = 1.25
"""Earlier nights' longest is taken a quarter longer: rows grow from night to night."""

_MORE = 1.5
"""How much more is reserved after a night that had no time to train."""

_NIGHTS = 3


def reserve_s(budget_s: float, earlier: Iterable[NightRecord]) -> float:
    """Seconds to keep back for the stages after measuring, by what they took in earlier nights of the plan (newest first).

    Only nights that trained count; half as much again for each of the newest that had no time to. Between a quarter, since
    measuring ends with the cases that are under way, and three fifths of the night.
    """
    nights = list(earlier)
    expected_s = _expected_s(nights, "train", _AFTER, _FIRST_SHARE * budget_s)
    short = sum(1 for _ in takewhile(_had_no_time, nights))
    return min(max(expected_s, _LEAST_SHARE * budget_s) * _MORE**short, _MOST_SHARE * budget_s)


def _had_no_time(record: NightRecord) -> bool:
    train = record.stage("train")
    return train.status == "failed" and any(finding.kind == "budget" for finding in train.findings)


def after_training_s(budget_s: float, earlier: Iterable[NightRecord]) -> float:
    """Seconds of `reserve_s` that training must leave to what follows it, by what that took in earlier nights."""
    return min(_expected_s(earlier, "gate", _AFTER[2:], _FIRST_AFTER_SHARE * budget_s), _FIRST_SHARE * budget_s)


def _expected_s(earlier: Iterable[NightRecord], done: str, stages: Sequence[str], otherwise_s: float) -> float:
    """Seconds that `stages` are expected to take, by the newest nights in which the stage `done` was."""
    took = [sum(record.stage(name).seconds for name in stages) for record in earlier
            if record.stage(done).status == "done"][:_NIGHTS]  # fmt: skip
    return _HEADROOM * max(took) if took else otherwise_s


@dataclass(slots=True)
class Budget:
    """The time of one night.

    Attributes:
        total_s: Seconds of the whole night.
        used_s: Seconds of them used before this process began.
        reserved_s: Seconds reserved for the stages after measuring.
        clock: Gives the time in seconds, only ever forward.
        began: When this process began, by the clock.
    """

    total_s: float
    used_s: float
    reserved_s: float
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def ends(self) -> float:
        """When the night has to be over, on the monotonic clock: a wall clock that is set changes no budget."""
        return self.began + self.total_s - self.used_s

    @property
    def left_s(self) -> float:
        """Seconds left of the night, not below 0."""
        return max(0.0, self.ends - self.clock())

    @property
    def measuring_until(self) -> float:
        """When no further case may be begun."""
        return self.ends - self.reserved_s

    @property
    def measuring_s(self) -> float:
        """Seconds left for measuring, not below 0."""
        return max(0.0, self.measuring_until - self.clock())


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage did.

    Attributes:
        summary: One sentence.
        facts: Plain JSON for readers and for later stages.
        findings: What the report should tell.
        status: How the stage ended.
    """

    summary: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    status: StageStatus = "done"


def kind_of_error(error: BaseException, otherwise: FindingKind) -> FindingKind:
    """What a failure is about: what the error says of itself, else what was done."""
    if isinstance(error, StoreBusyError):
        return "lock"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or isinstance(error, StoreFullError) or (isinstance(error, CampaignError) and error.kind == "storage"):
        return "storage"
    return otherwise


@dataclass(frozen=True, slots=True)
class ChosenCase:
    """A case that this night measures.

    Attributes:
        device: Where it is measured.
        spec: The kernel.
        why: Why it was chosen.
        measuring_s: Seconds that measuring it is predicted to take.
    """

    device: str
    spec: KernelSpec
    why: str
    measuring_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"device": self.device, "why": self.why, "measuring_s": self.measuring_s, "spec": spec_row(self.spec)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ChosenCase:
        """The case `to_json` wrote."""
        return cls(content["device"], spec_from_row(content["spec"]), content["why"], float(content["measuring_s"]))


@dataclass(slots=True)
class Night:
    """A night under way.

    Attributes:
        plan: What it follows.
        folder: Where its files are.
        record: What was done so far; it changes as stages end.
        devices: The catalogue.
        measurer: What measures.
        store: Where rows go.
        budget: Its time.
        progress: Shows what is being done.
        opening: Findings of opening the night; the first stage reports them.
    """

    plan: Plan
    folder: Path
    record: NightRecord
    devices: Catalogue
    measurer: Measurer
    store: Store
    budget: Budget
    progress: Progress
    opening: tuple[Finding, ...] = ()

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of an earlier stage; empty where it did not get so far."""
        return self.record.stage(stage).facts

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this machine's devices while they are measured; a fleet's are held by those who measure there."""
        with contextlib.ExitStack() as locks:
            for device in self.measurer.devices if self.plan.collector in LOCKED else ():
                locks.enter_context(self.store.lock(device))
            yield

    @property
    def seed(self) -> int:
        """The plan's seed and this night's: another night draws other candidates, the same night resumed the same."""
        return (self.plan.seed + word_hash(self.record.id)) % 2**32

    @property
    def usage_folder(self) -> Path:
        """Where the service logs its requests."""
        folder = self.plan.choose.usage_log
        return Path(folder).expanduser() if folder else home_dir() / "usage"

    def write_chosen(self, cases: list[ChosenCase]) -> None:
        """Write the chosen cases down, for the stage `collect` and for a night that is continued after a crash.

        Raises:
            OSError: the folder is full or not writable.
        """
        write_whole(self.folder / CHOSEN, "".join(json.dumps(case.to_json()) + "\n" for case in cases))

    def chosen(self) -> list[ChosenCase]:
        """What was chosen, in order; none where nothing was.

        Raises:
            SpecError: the file is damaged.
        """
        return chosen_in(self.folder)

    def blocks(self) -> list[str]:
        """Names of the blocks this night began to store."""
        return blocks_of(self.folder)


def chosen_in(folder: Path) -> list[ChosenCase]:
    """What the night in a folder chose, in order; none where nothing was.

    Raises:
        SpecError: the file is damaged.
    """
    path = folder / CHOSEN
    try:
        return [ChosenCase.from_json(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is damaged ({error}); begin a new night, or go on with --from choose") from error
