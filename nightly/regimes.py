"""Which regime of a device tonight's rows belong to: what is asked before measuring, and what is decided after."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..datasets.store import Store, StoreWarning
from ..models.measuring_cost import PROTOCOLS
from .context import ChosenCase, Night
from .drift.bridge import bridge_cases as cases_of_bridge
from .drift.bridge import judge_bridge, rows_of, stored_rows
from .drift.ledger import Ledger, read_ledger, write_ledger
from .drift.regimes import bridges_wanted, founded, settle
from .fresh import fresh_tables
from .record import Finding
from .rows import tonight

_DEFAULT_NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """A device's regimes before tonight, the one its software is known to belong to (None: to be decided), and findings."""

    ledger: Ledger
    regime: str | None
    findings: tuple[Finding, ...] = ()


def ask(store: Store, device: str, software: str, blocks: Sequence[str] = ()) -> Asked:
    """What is known of a device before tonight's rows, which are those of `blocks`.

    A device with rows and no regimes yet gets its first, founded on the software of most of them.

    Raises:
        StoreError: the store or the regimes cannot be read.
    """
    ledger, findings = read_ledger(device)
    if not ledger.regimes and (found := _most_common_software(store, device, blocks)) is not None:
        ledger = founded(ledger, found)
    current = ledger.current
    known = current is not None and not bridges_wanted(ledger, software)
    return Asked(ledger, current.id if known and current is not None else None, tuple(findings))


def bridging(night: Night, device: str, seconds: float) -> list[ChosenCase]:
    """Cases measured before to measure again for about `seconds`, where something has to be decided; else none."""
    facts = _device_facts(night, device)
    if "software" not in facts or night.rehearsal:
        return []
    ledger = ask(night.store, device, str(facts.get("software", ""))).ledger
    wanted = bridges_wanted(ledger, str(facts.get("software", "")), drifted=bool(facts.get("drifted")))
    if not wanted or seconds <= 0:
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
        for spec in cases_of_bridge(tables, ledger, device, n // len(names), regime=name, seed=night.plan.seed):
            if night.measurer.can(device, spec):
                found.setdefault(spec.case_id, ChosenCase(device, spec, "bridge", each_s))
    return list(found.values())


def decide(night: Night, device: str) -> tuple[dict[str, Any], tuple[Finding, ...], str | None]:
    """Decide and write down which regime tonight's rows of a device belong to: facts, findings, its name (None: undecided).

    Raises:
        StoreError: the store or the regimes cannot be read or written.
    """
    facts = _device_facts(night, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        fresh = {name: _of_device(table, device) for name, table in fresh_tables(night).items()}
    # A device that could not be looked at, of a fleet say, is known by its rows.
    software, drifted = facts.get("software", _software_of(fresh)), bool(facts.get("drifted"))
    if software is None:
        return {}, (), None
    asked = ask(night.store, device, software, night.blocks())
    wanted = bridges_wanted(asked.ledger, software, drifted=drifted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        before = stored_rows(night.store, device) if wanted else {}
    blocks = set(night.blocks())
    earlier = {name: _without(table, blocks) for name, table in before.items()}
    noise = facts.get("noise")
    bridges = {
        name: judge_bridge(
            rows_of(earlier, asked.ledger, name), fresh, noise=_DEFAULT_NOISE if noise is None else noise
        )
        for name in wanted
    }
    settled = settle(asked.ledger, software, night.record.began, bridges, drifted=drifted)
    # A night without a row decides nothing: the first regime opens with the first rows.
    if fresh or settled.state != "first":
        write_ledger(settled.ledger)
    return settled.to_json(), settled.findings, settled.regime


def ledgers(devices: tuple[str, ...]) -> Mapping[str, Ledger]:
    """The regimes of devices as they are on disk."""
    return {device: read_ledger(device)[0] for device in devices}


def _device_facts(night: Night, device: str) -> Mapping[str, Any]:
    facts = night.facts("sentinels")
    found: Mapping[str, Any] = facts.get("devices", {}).get(device, facts)
    return found


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


def _of_device(table: pa.Table, device: str) -> pa.Table:
    return table.filter(pc.equal(table["device"], device))


def _without(table: pa.Table, blocks: set[str]) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["block"], pa.array(sorted(blocks), pa.string()))))
