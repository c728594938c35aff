"""What every stage of a night works with, and what a stage gives back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..datasets.rows.splits import word_hash
from ..datasets.store.store import Store
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..features.spec_io.rows import spec_from_row, spec_row
from ..files import home_dir, write_whole
from .measuring.protocol import Measurer
from .record.budget import Budget
from .record.folders import CHALLENGERS, CHOSEN, blocks_of
from .record.plan import Plan
from .record.record import Finding, NightRecord, StageStatus

Progress = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


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
        lock: Locks the devices of this machine while they are measured.
        rehearsal: Whether rows are replayed.
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
    lock: Callable[[], AbstractContextManager[None]]
    rehearsal: bool = False
    opening: tuple[Finding, ...] = ()

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of an earlier stage; empty where it did not get so far."""
        return self.record.stage(stage).facts

    @property
    def seed(self) -> int:
        """The plan's seed and this night's: another night draws other candidates, the same night resumed the same."""
        return (self.plan.seed + word_hash(self.record.id)) % 2**32

    @property
    def usage_folder(self) -> Path:
        """Where the service logs its requests."""
        folder = self.plan.choose.usage_log
        return Path(folder).expanduser() if folder else home_dir() / "usage"

    @property
    def challengers(self) -> Path:
        """Where challengers are made, one folder each."""
        return self.folder / CHALLENGERS

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
