"""One challenger, made in a process of its own: it can be ended when its time is over, and its memory is not the night's.

    python -P -m kernelcast.nightly.making FOLDER NAME PARENT

`FOLDER` is the night's; the result is `challengers/NAME/` and, written last, `challengers/NAME.json`: the challenger, or why
there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..collectors.child import die_with_parent
from ..datasets.store import Store, StoreError
from ..features.device import Catalogue, catalogue, load_device_file
from ..features.errors import SpecError
from .drift.ledger import read_ledger
from .folders import CHALLENGERS, PLAN_JSON, STATE
from .gate.challengers import Challenger, adapted, retrained
from .gate.hold_out import Dealt, deal
from .gate.ledger import Ledger as ModelLedger
from .outcome import serving_model
from .plan import Plan
from .plan_file import plan_of
from .record import NightRecord, write_whole
from .rows import Rows, beside, together, tonight
from .written import blocks_of

RETRAINED = "retrained"

ADAPTED_PAST = "adapted-past-"
"""What the name of an adapted past model begins with; its version follows."""


def made_file(folder: Path, name: str) -> Path:
    """What says how a challenger was made, and that it is complete."""
    return folder / CHALLENGERS / f"{name}.json"


def read_made(folder: Path, name: str) -> Challenger | str | None:
    """The challenger as it was made, why there is none, or None where it was not tried to its end.

    Raises:
        SpecError: the file is damaged.
    """
    path = made_file(folder, name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "error" in content:
            return str(content["error"])
        return Challenger(**{**content, "path": Path(content["path"]), "families": tuple(content["families"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SpecError(f"{path} is damaged ({error}); go on with --from train") from error


def write_made(folder: Path, name: str, made: Challenger | str) -> None:
    """Write down what `read_made` reads.

    Raises:
        OSError: the folder is full or not writable.
    """
    content: Mapping[str, Any] = {"error": made} if isinstance(made, str) else {**asdict(made), "path": str(made.path)}
    write_whole(made_file(folder, name), json.dumps(content) + "\n")


def read_setting(folder: Path) -> tuple[Plan, Catalogue, dict[str, Any]]:
    """The plan a night follows, the catalogue it knows, and what else was written down when it began.

    Raises:
        SpecError: the file is damaged.
    """
    path = folder / PLAN_JSON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        extra = [load_device_file(Path(name)) for name in content["device_files"]]
        return (
            plan_of(_nested(content["plan"]), str(path)),
            Catalogue(extra=tuple(extra)) if extra else catalogue(),
            content,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is damaged or missing ({error}); begin a new night") from error


def deal_rows(rows: Rows, record: NightRecord, devices: list[str], blocks: list[str]) -> Dealt:
    """The rows of the night's devices that teach tonight and those that judge: the same every time they are dealt."""
    regime = str(record.stage("sentinels").facts.get("regime") or "")
    earlier, fresh = rows.read(devices, ~tonight(blocks)), rows.read(devices, tonight(blocks))
    return deal(earlier, fresh, record.id, regime=regime, share=rows.plan.gate.hold_out)


def make(folder: Path, name: str) -> Challenger:
    """The challenger called `name`, on disk.

    Raises:
        SpecError: there are too few rows for it, or see `gate.challengers`.
        StoreError: the store cannot be read.
    """
    plan, known, setting = read_setting(folder)
    record = NightRecord.read(folder / STATE)
    devices, (champion, _) = list(setting["devices"]), serving_model()
    regimes = {device: read_ledger(device)[0] for device in devices}
    rows = Rows.of(Store(setting["store"]), plan, known, regimes)
    dealt = deal_rows(rows, record, devices, blocks_of(folder))
    out = folder / CHALLENGERS / name
    facts = {"night": record.id, "plan": plan.name}
    regime = str(record.stage("sentinels").facts.get("regime") or "")
    if name == "adapted":
        return adapted(champion, dealt.learn, out, regime=regime, facts=facts, devices=known, seed=plan.seed)
    if name.startswith(ADAPTED_PAST):
        kept = Path(ModelLedger().find(name.removeprefix(ADAPTED_PAST)).path)
        return adapted(kept, dealt.learn, out, name=name, regime=regime, facts=facts, devices=known, seed=plan.seed)
    regressors = plan.train.regressors
    regressor = regressors[0] if name == RETRAINED else name.removeprefix(f"{RETRAINED}-")
    fresh = {one.cases.family.name for one in dealt.learn}
    tables = together(dealt.learn, beside(rows, devices), plan.train.most_rows, plan.seed)
    return retrained(
        champion, tables, out, name=name, regime=regime, regressor=regressor, fresh=fresh, may_forget=plan.gate.may_forget,
        facts=facts, devices=known, seed=plan.seed,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Make the challenger that the arguments name and write down how that went."""
    die_with_parent()
    if os.getppid() != int(argv[3]):
        # The night was killed while this started; the one that goes on with it makes its own.
        return 1
    folder, name = Path(argv[1]), argv[2]
    try:
        made: Challenger | str = make(folder, name)
    except (SpecError, StoreError, MemoryError) as error:
        made = str(error) or type(error).__name__
    write_made(folder, name, made)
    return 0


def _nested(content: Mapping[str, Any]) -> dict[object, object]:
    """A plan's JSON as a plan file has it: empty parts left out, lists as lists."""
    return {
        key: _nested(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if not (isinstance(value, dict) and not any(value.values())) and value != ""
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv))
