"""When does a new regime of a device begin? Software that changed asks the question, the bridge answers it.

new software -> measure bridge cases of the current (and an earlier) regime again -> same: it joins, or returns to the
earlier one; moved beyond noise: a new regime opens; too few to say: its rows wait
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...datasets.tables import text
from ..record import Finding
from .bridge import Bridge, Tables, judge_bridge, rows_of, rows_under
from .ledger import Ledger, Regime, Span
from .robust import percent

State = Literal["first", "known", "joined", "returned", "opened", "undecided"]

_OPENING = "the first night"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Settled:
    """What was decided: the ledger after it, what happened, the regime that tonight's rows belong to (None: undecided), and
    findings.
    """

    ledger: Ledger
    state: State
    regime: str | None
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain facts for a night's record."""
        return {"state": self.state, "regime": self.regime, "regimes": [one.id for one in self.ledger.regimes]}


def founding_software(software: Iterable[str]) -> str | None:
    """The software of most rows: what the first regime of a device measured before is founded on; None for no rows."""
    counted = Counter(software)
    return max(sorted(counted), key=lambda word: counted[word]) if counted else None


def founded(ledger: Ledger, software: str, since: str = "") -> Ledger:
    """The ledger with its first regime; unchanged where there is one. `since` empty: as long as there are rows."""
    if ledger.regimes:
        return ledger
    first = Regime("r1", since, software, _OPENING)
    return replace(ledger, regimes=(first,), spans=(Span(since, software, first.id),))


def bridges_wanted(ledger: Ledger, software: str, *, drifted: bool = False) -> list[str]:
    """Regimes to bridge to before `settle`, the most telling first; none where there is nothing to decide.

    Software seen before is asked about its own last regime first. `drifted`: the device itself was found to have drifted for
    long enough (`DeviceDrift.confirmed_nights`), so that the question is asked though the software is the same.
    """
    current = ledger.current
    if current is None:
        return []
    own = [span.regime for span in reversed(ledger.spans) if span.software == software]
    if current.id in own and not drifted:
        return []
    order = [*([] if drifted else own), current.id, *(one.id for one in reversed(ledger.regimes))]
    return list(dict.fromkeys(order))


def settle(
    ledger: Ledger, software: str, since: str, bridges: Mapping[str, Bridge], *, drifted: bool = False
) -> Settled:
    """What becomes of rows measured under `software` from `since` on (UTC, ISO 8601), by what bridges said of each regime.

    The first regime of `bridges_wanted` that the bridge finds the same takes them. Where none does and the current one moved, a
    new regime opens. A bridge too small decides nothing: rows of new software wait, rows of a drifted device stay where they
    are. A bridge to the current regime is needed; others are welcome.
    """
    current = ledger.current
    if current is None:
        opened = founded(ledger, software, since)
        said = f"{ledger.device} has its first regime, r1. Nothing to do."
        return Settled(opened, "first", "r1", (Finding("regime", "info", ledger.device, said),))
    wanted = bridges_wanted(ledger, software, drifted=drifted)
    if not wanted:
        return Settled(ledger, "known", current.id)
    for name in wanted:
        if name in bridges and bridges[name].verdict == "same":
            return _joined(ledger, current, software, since, name, bridges[name], drifted)
    bridge = bridges.get(current.id)
    if bridge is None or bridge.verdict == "too few":
        return _undecided(ledger, current, software, bridge, drifted)
    return _opened(ledger, current, software, since, bridge, drifted)


def settle_history(ledger: Ledger, tables: Tables, *, noise: float = 0.01) -> Settled:
    """What becomes of stored rows whose software nobody has decided about, from cases that happen to be in both.

    For a device with rows of several softwares when its ledger begins: each is compared with the current regime, the one with
    most rows first. The same joins; what moved becomes a regime beside it, with its shifts, so that its rows can be moved; what
    cannot be told waits. The current regime stays what it is.
    """
    current = ledger.current
    if current is None:
        return Settled(ledger, "undecided", None)
    words = Counter(word for table in tables.values() for word in text(table, "software").tolist())
    undecided = [word for word, _ in words.most_common() if ledger.regime_of(word) is None]
    waiting: list[str] = []
    joined: list[str] = []
    beside: list[str] = []
    for word in undecided:
        bridge = judge_bridge(rows_of(tables, ledger, current.id), rows_under(tables, word), noise=noise)
        name = current.id if bridge.verdict == "same" else f"r{len(ledger.regimes) + 1}"
        {"same": joined, "shifted": beside, "too few": waiting}[bridge.verdict].append(word)
        if bridge.verdict == "too few":
            continue
        if bridge.verdict == "shifted":
            other = Regime(name, "", word, "cases measured in both", current.id, dict(bridge.shifts))
            ledger = replace(ledger, regimes=(*ledger.regimes, other))
        # Before all others: the last span is the one of today.
        ledger = replace(ledger, spans=(Span("", word, name), *ledger.spans))
    if not undecided:
        return Settled(ledger, "known", current.id)
    left = sum(words[word] for word in waiting)
    said = (
        f"{ledger.device} has stored rows of {len(undecided)} other softwares: {len(joined)} ran the same cases alike and "
        f"belong to regime {current.id}, {len(beside)} moved by what is known now, and {left} rows of {len(waiting)} cannot be "
        "compared and are not learned from. Nothing to do, unless those rows matter: then measure some of their cases again."
    )
    numbers = {"joined": float(len(joined)), "beside": float(len(beside)), "rows_waiting": float(left)}
    return Settled(ledger, "joined", current.id, (Finding("regime", "info", ledger.device, said, numbers),))


def _joined(
    ledger: Ledger, current: Regime, software: str, since: str, name: str, bridge: Bridge, drifted: bool
) -> Settled:
    back = name != current.id
    if drifted and not back:
        said = (
            f"The anchors of {ledger.device} drifted, but {_cases(bridge)} measured again are what they were: it stays in "
            f"regime {name}. Look at the anchor cases themselves if this goes on."
        )
        return Settled(ledger, "joined", name, (Finding("regime", "warning", ledger.device, said, _numbers(bridge)),))
    few = _unknown(bridge)
    before = f" ({few})" if few else ""
    if back:
        said = (
            f"{ledger.device} runs as it did in regime {name} by {_cases(bridge)} measured again{before}: it returned to "
            f"{name}, and rows of that regime are learned from as they are. Nothing to do."
        )
    else:
        said = (
            f"Software of {ledger.device} changed ({_changed(ledger, software)}) and {_cases(bridge)} measured again moved no "
            f"more than noise{before}: it joined regime {name}. Nothing to do."
        )
    finding = Finding("regime", "info", ledger.device, said, _numbers(bridge))
    return Settled(ledger.with_span(Span(since, software, name)), "returned" if back else "joined", name, (finding,))


def _opened(ledger: Ledger, current: Regime, software: str, since: str, bridge: Bridge, drifted: bool) -> Settled:
    name = f"r{len(ledger.regimes) + 1}"
    why = "device drift" if drifted else "bridge"
    regime = Regime(name, since, software, why, current.id, dict(bridge.shifts))
    after = replace(ledger, regimes=(*ledger.regimes, regime)).with_span(Span(since, software, name))
    reason = (
        "has drifted with nothing changed that is known"
        if drifted
        else f"has new software ({_changed(ledger, software)})"
    )
    few = _unknown(bridge)
    waiting = f" {few.capitalize()}, and their older rows are left out." if few else ""
    said = (
        f"{ledger.device} {reason}, and cases measured again moved: {_moved(bridge)}. Regime {name} was opened: older rows are "
        f"moved by what is known or left out, so that the old regime's model is not taught two truths.{waiting} "
        + (
            "Look for what changed on the machine."
            if drifted
            else "Roll the update back if it is slower than you accept."
        )
    )
    finding = Finding("regime", "needs-person" if drifted else "warning", ledger.device, said, _numbers(bridge))
    return Settled(after, "opened", name, (finding,))


def _undecided(ledger: Ledger, current: Regime, software: str, bridge: Bridge | None, drifted: bool) -> Settled:
    n = sum(shift.n for shift in bridge.shifts.values()) if bridge else 0
    what = "has drifted" if drifted else f"has new software ({_changed(ledger, software)})"
    then = (
        f"Its rows stay in regime {current.id} until more are."
        if drifted
        else "Rows of that software are kept and not learned from until more are."
    )
    said = (
        f"{ledger.device} {what}, and too few cases of before were measured again to say whether it moved ({n}). {then} "
        "Give the night more minutes if this repeats."
    )
    finding = Finding("regime", "warning", ledger.device, said, {"cases": float(n)})
    return Settled(ledger, "undecided", current.id if drifted else None, (finding,))


def _changed(ledger: Ledger, software: str) -> str:
    """What differs from the software of the last span, as `driver 550 -> 560`."""
    before = _facts(ledger.spans[-1].software) if ledger.spans else {}
    after = _facts(software)
    names = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
    told = [f"{name} {before.get(name, 'unknown')} -> {after.get(name, 'unknown')}" for name in names[:_MOST_NAMED]]
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*told, *more]) or "in no way that is known"


def _facts(software: str) -> dict[str, str]:
    return {
        name.strip(): value for name, _, value in (part.partition("=") for part in software.split(";")) if name.strip()
    }


def _cases(bridge: Bridge) -> str:
    return f"{sum(shift.n for shift in bridge.shifts.values())} cases"


def _moved(bridge: Bridge) -> str:
    """The families and impls that moved, the farthest first."""
    moved = sorted(((key, one) for key, one in bridge.shifts.items() if one.verdict == "shifted"),
                   key=lambda pair: -abs(pair[1].log_ratio))  # fmt: skip
    told = [
        f"{key} by {percent(one.log_ratio):+.1f} % ({percent(one.low):+.1f} to {percent(one.high):+.1f} %, {one.n} cases)"
        for key, one in moved[:_MOST_NAMED]
    ]
    more = [f"{len(moved) - _MOST_NAMED} more"] if len(moved) > _MOST_NAMED else []
    return ", ".join([*told, *more])


def _unknown(bridge: Bridge) -> str:
    few = sorted(key for key, shift in bridge.shifts.items() if shift.verdict == "too few")
    return f"nothing can be said of {', '.join(few)}" if few else ""


def _numbers(bridge: Bridge) -> dict[str, float | None]:
    return {f"{key}_pct": percent(shift.log_ratio) for key, shift in bridge.shifts.items()}
