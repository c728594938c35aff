"""Which regime of a device tonight's rows belong to: what is asked before measuring, and what is decided after."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.store import Store, StoreWarning
from ..datasets.tables import text
from ..features.coded import Words
from ..models.measuring_cost import PROTOCOLS
from .context import ChosenCase, Night
from .drift.bridge import Tables, judge_bridge, rows_of, stored_rows
from .drift.bridge import bridge_cases as cases_of_bridge
from .drift.ledger import Ledger, read_ledger, seconds_of, write_ledger
from .drift.regimes import bridges_wanted, founded, settle, settle_history
from .record import Finding
from .rows import tonight
from .watching import standing

_DEFAULT_NOISE = 0.01

_COMPARED = ("family", "device", "impl", "status", "case_id", "latency_s", "software", "measured_at", "block")
"""What comparing rows of two regimes needs: a device may have millions of them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A device's regimes before tonight, the one its software is known to belong to (None: to be decided), and findings.

    `founded` says that the device has rows and had no regimes: the first was made for them, and is not on disk yet.
    """

    ledger: Ledger
    regime: str | None
    findings: tuple[Finding, ...] = ()
    founded: bool = False


def ask(store: Store, device: str, software: str, blocks: Sequence[str] = ()) -> Asked:
    """What is known of a device before tonight's rows, which are those of `blocks`.

    A device with rows and no regimes yet gets its first, founded on the software of most of them.

    Raises:
        StoreError: the store or the regimes cannot be read.
    """
    ledger, findings = read_ledger(device)
    begun = bool(ledger.regimes)
    if not begun and (found := _most_common_software(store, device, blocks)) is not None:
        ledger = founded(ledger, found)
    current = ledger.current
    known = current is not None and not bridges_wanted(ledger, software)
    return Asked(
        ledger,
        current.id if known and current is not None else None,
        tuple(findings),
        bool(ledger.regimes) and not begun,
    )


def bridging(night: Night, device: str, seconds: float) -> list[ChosenCase]:
    """Cases measured before to measure again for about `seconds`, where something has to be decided; else none.

    A device that cannot be looked at from here is taken to run what it ran last: its bridge comes a night later. Another night
    draws other cases, so that a bridge that decided nothing is not the same again.
    """
    if night.rehearsal or seconds <= 0:
        return []
    ledger = read_ledger(device)[0]
    stands = standing(night, device, ledger)
    if stands.software is None:
        return []
    ledger = ledger if ledger.regimes else ask(night.store, device, stands.software).ledger
    wanted = bridges_wanted(ledger, stands.software, drifted=stands.drifted)
    if not wanted:
        return []
    protocol = PROTOCOLS.get(night.devices.get(device).kind, PROTOCOLS["gpu"])
    each_s = protocol.overhead_s + protocol.first_call_s + protocol.warm_up_s
    n = int(seconds / each_s)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        tables = stored_rows(night.store, device)
    found: dict[str, ChosenCase] = {}
    # Half to the current regime, without which nothing is decided; the other half to an earlier one it may have returned to.
    current = ledger.current
    names = [name for name in dict.fromkeys((current.id if current else wanted[0], wanted[0])) if name in wanted]
    for name in names:
        for spec in cases_of_bridge(tables, ledger, device, n // len(names), regime=name, seed=night.seed):
            if night.measurer.can(device, spec):
                found.setdefault(spec.case_id, ChosenCase(device, spec, "bridge", each_s))
    return list(found.values())


def decide(night: Night, device: str, own: Tables) -> tuple[dict[str, Any], tuple[Finding, ...], str | None]:
    """Decide and write down which regime tonight's rows of a device belong to: facts, findings, its name (None: undecided).

    `own` are its rows of tonight by family, those without any left out. All rows that wait are judged, not only tonight's.

    Raises:
        StoreError: the store or the regimes cannot be read or written.
    """
    stands = standing(night, device, read_ledger(device)[0])
    software = _software_of(own) if stands.software is None else stands.software
    if software is None:
        return {}, (), None
    asked = ask(night.store, device, software, night.blocks())
    ledger, findings = asked.ledger, asked.findings
    wanted = bridges_wanted(ledger, software, drifted=stands.drifted)
    tables = _stored(night.store, device) if wanted or asked.founded else {}
    if asked.founded:
        history = settle_history(ledger, _without(tables, night.blocks()))
        ledger, findings = history.ledger, (*findings, *history.findings)
        wanted = bridges_wanted(ledger, software, drifted=stands.drifted)
    since = night.record.began
    before: Tables = {}
    waiting: Tables = {}
    if wanted:
        known = any(span.software == software for span in ledger.spans)
        # Rows that wait are those since the drift began; of software that has come back, those since another came.
        from_on = _moment(stands.since or since) if stands.drifted else ledger.spans[-1].since if known else ""
        before, waiting = _parted(tables, software, from_on, night.blocks())
        since = from_on if stands.drifted else _earliest(waiting, since)
    bridges = {
        name: judge_bridge(
            rows_of(before, ledger, name), waiting, noise=_DEFAULT_NOISE if stands.noise is None else stands.noise
        )
        for name in wanted
    }
    settled = settle(ledger, software, since, bridges, drifted=stands.drifted)
    # A night without a row decides nothing: the first regime opens with the first rows.
    if own or settled.state != "first":
        write_ledger(settled.ledger)
    return settled.to_json(), (*findings, *settled.findings), settled.regime


def ledgers(devices: tuple[str, ...]) -> Mapping[str, Ledger]:
    """The regimes of devices as they are on disk."""
    return {device: read_ledger(device)[0] for device in devices}


def _most_common_software(store: Store, device: str, blocks: Sequence[str]) -> str | None:
    """The software of most of a device's rows outside `blocks`, counted batch by batch; None for no rows."""
    counted: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        for family in store.families():
            for batch in store.scan(family, [device], ["software"], ~tonight(blocks)):
                counts = pa.Table.from_batches([batch])["software"].value_counts()
                counted.update({one["values"] or "": one["counts"] for one in counts.to_pylist()})
    return max(sorted(counted), key=lambda word: counted[word]) if counted else None


def _software_of(tables: Mapping[str, pa.Table]) -> str | None:
    """The software of most of the rows; None for no rows."""
    counted = Counter(word or "" for table in tables.values() for word in table["software"].to_pylist())
    return max(sorted(counted), key=lambda word: counted[word]) if counted else None


def _stored(store: Store, device: str) -> dict[str, pa.Table]:
    """What is compared of the device's stored rows, by family."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        return {family: store.read(family, [device], _COMPARED) for family in store.families()}


def _parted(tables: Tables, software: str, from_on: str, blocks: Sequence[str]) -> tuple[Tables, Tables]:
    """All other rows, and those under `software` that were measured from then on or are of `blocks`."""
    others, waiting = {}, {}
    for family, table in tables.items():
        moments = Words.of(text(table, "measured_at"))
        late = np.array([seconds_of(moment) >= seconds_of(from_on) for moment in moments.words], dtype=np.bool_)
        of_blocks = np.isin(text(table, "block"), list(blocks))
        own = (text(table, "software") == software) & (late[moments.code] | of_blocks)
        others[family], waiting[family] = table.filter(pa.array(~own)), table.filter(pa.array(own))
    return others, waiting


def _moment(when: str) -> str:
    """A night's id or a time as ISO 8601."""
    return datetime.fromtimestamp(seconds_of(when), UTC).isoformat(timespec="seconds")


def _earliest(tables: Tables, otherwise: str) -> str:
    """When the first of the rows was measured, if that was before `otherwise`."""
    moments = {moment for table in tables.values() for moment in set(text(table, "measured_at").tolist()) if moment}
    first: str = min((*moments, otherwise), key=seconds_of)
    return first


def _without(tables: Tables, blocks: Sequence[str]) -> dict[str, pa.Table]:
    gone = pa.array(sorted(blocks), pa.string())
    return {family: table.filter(pc.invert(pc.is_in(table["block"], gone))) for family, table in tables.items()}
