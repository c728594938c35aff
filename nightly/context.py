"""What every stage of a night works with, and what a stage gives back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..collectors.process import spec_row
from ..datasets.hashing import word_hash
from ..datasets.schema import spec_of
from ..datasets.store import Store
from ..features.device import Catalogue
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..home import home_dir
from .budget import Budget
from .folders import CHALLENGERS, CHOSEN
from .measuring.protocol import Measurer
from .plan import Plan
from .record import Finding, NightRecord, StageStatus, write_whole
from .written import blocks_of

Tell = Callable[[str, int, int], None]
"""Called with what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True)
class Did:
    """What a stage did: a sentence, facts for readers and for later stages (plain JSON), and what it found."""

    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    status: StageStatus = "done"


@dataclass(frozen=True, slots=True)
class ChosenCase:
    """A case this night measures, on which device and why, and what measuring it is thought to take in seconds."""

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
        return cls(content["device"], spec_of(content["spec"]), content["why"], float(content["measuring_s"]))


@dataclass(slots=True)
class Night:
    """A night under way. `folder` is its own.

    `tell` shows progress, `lock` holds a device while it is measured. `record` changes as stages end.
    `opening` is what there was to say when it was opened.
    """

    plan: Plan
    folder: Path
    record: NightRecord
    devices: Catalogue
    measurer: Measurer
    store: Store
    budget: Budget
    tell: Tell
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
        """Where the service writes what it is asked for."""
        given = self.plan.choose.usage_log
        return Path(given).expanduser() if given else home_dir() / "usage"

    @property
    def challengers(self) -> Path:
        """Where challengers are made, one folder each."""
        return self.folder / CHALLENGERS

    def write_chosen(self, cases: list[ChosenCase]) -> None:
        """Keep what was chosen, for the collecting stage and whoever goes on after a crash.

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
