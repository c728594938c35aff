"""The measured tables that come with kernelcast: one Parquet file per family in `datasets/data/shipped/`, with its card.

Beside them, in `datasets/data/tiles/`, tables of kernels in many tile configurations each, from which compilers' choices are
learnt, and in `datasets/data/history/` nights between which libraries changed, on which retraining is compared with reusing
old models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..features.errors import SpecError, listed
from .rows.table_columns import numbers, text
from .store.parquet_files import family_schema, provenance_of, read_file

_DATA = Path(__file__).parent / "data"
SHIPPED_DIR, TILES_DIR, HISTORY_DIR = _DATA / "shipped", _DATA / "tiles", _DATA / "history"


def shipped_families(directory: Path = SHIPPED_DIR) -> list[str]:
    """Families that have a shipped table, sorted."""
    return sorted(path.stem for path in directory.glob("*.parquet"))


def read_shipped(
    family: str,
    devices: Iterable[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    directory: Path = SHIPPED_DIR,
) -> pa.Table:
    """The shipped rows of one family, of all devices or of those named, with their provenance in the metadata.

    Raises:
        SpecError: no such table or column; the message lists those there are.
        StoreError: the table is damaged.
    """
    known = shipped_families(directory)
    if family not in known:
        raise SpecError(f"no shipped table for {family!r}; shipped: {listed(known) or 'none'}", field="family")
    table = read_file(directory / f"{family}.parquet", family_schema(family, columns))
    if devices is None:
        return table
    rows = read_file(directory / f"{family}.parquet", family_schema(family, ["device"]))
    return table.filter(pc.is_in(rows["device"], pa.array(list(devices), pa.string())))


_LONG_VALUE = 80
_MOST_VALUES = 4
"""Distinct values of a fact that are written out; further ones are counted."""


def dataset_card(
    title: str, tables: Mapping[str, pa.Table], *, what: str, licence: str, gaps: Sequence[str] = ()
) -> str:
    """The card of a set of tables.

    Args:
        title: the heading.
        tables: `{family: table}` with provenance in the metadata, as the store reads them.
        what: a paragraph on what this is and why it was measured.
        licence: of the data.
        gaps: what is known to be missing, one sentence each.

    Returns:
        Markdown that ends in a newline.
    """
    facts: dict[str, Any] = {}
    for table in tables.values():
        facts.update(provenance_of(table))
    parts = [f"# {title}", what.strip(), "## What", _counts(tables), *_breakdowns(tables), "## Latency and noise",
             _noise(tables), "## Where and how", _provenance(facts), "## Known gaps",
             "\n".join(f"* {gap}" for gap in gaps) or "None known.", "## Licence", licence.strip()]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _counts(tables: Mapping[str, pa.Table]) -> str:
    rows = []
    for family, table in sorted(tables.items()):
        status = Counter(text(table, "status").tolist())
        failed = ", ".join(f"{count} {name}" for name, count in sorted(status.items()) if name != "ok")
        sensed = [int(np.sum(~np.isnan(numbers(table, name).values))) for name in ("power_w", "energy_j")]
        cases = len(set(zip(text(table, "device").tolist(), text(table, "case_id").tolist(), strict=True)))
        rows.append((family, table.num_rows, cases, status["ok"], failed or "none", *sensed))
    heads = ("family", "rows", "cases", "ok", "not ok", "with power", "with energy")
    return _markdown_table(heads, rows)


def _breakdowns(tables: Mapping[str, pa.Table]) -> Iterable[str]:
    for title, column in (("device", "device"), ("dtype", "dtype"), ("implementation", "impl"), ("threads", "threads"),
                          ("cache state", "cache_state"), ("timing", "timing"), ("source", "source")):  # fmt: skip
        counts: Counter[str] = Counter()
        for table in tables.values():
            counts.update(_words(table, column))
        if set(counts) - {"not given"}:
            shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=_natural))
            yield f"Rows by {title}: {shown}."


def _words(table: pa.Table, column: str) -> list[str]:
    if column == "threads":
        return ["all" if np.isnan(value) else f"{value:g}" for value in numbers(table, column).values]
    return [word or "not given" for word in text(table, column).tolist()]


def _natural(item: tuple[str, int]) -> tuple[float, str]:
    name = item[0]
    return (float(name) if name.isdigit() else -1.0, name)


def _noise(tables: Mapping[str, pa.Table]) -> str:
    """Latency range, and the spread of samples as (q3 - q1) / median, of the rows that have a latency."""
    rows: list[tuple[object, ...]] = []
    for family, table in sorted(tables.items()):
        median = numbers(table, "latency_s").values
        measured = ~np.isnan(median)
        if not measured.any():
            continue
        quartiles = [numbers(table, name).values[measured] for name in ("latency_q1_s", "latency_q3_s")]
        spread = (quartiles[1] - quartiles[0]) / median[measured]
        spread = spread[~np.isnan(spread)]
        noisy = np.array(text(table, "noisy"))[measured]
        judged = noisy[noisy != ""]
        rows.append((
            family, _seconds(median[measured].min()), _seconds(float(np.median(median[measured]))),
            _seconds(median[measured].max()),
            _percent(np.median(spread)) if len(spread) else "unknown",
            _percent(np.quantile(spread, 0.9)) if len(spread) else "unknown",
            _percent(np.mean(judged == "true")) if len(judged) else "unknown",
        ))  # fmt: skip
    heads = ("family", "shortest", "median", "longest", "spread, median", "spread, p90", "noisy")
    note = "Spread is (third quartile - first quartile) / median of one case's samples."
    return f"{_markdown_table(heads, rows)}\n\n{note}" if rows else "No row has a latency."


def _provenance(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Every fact of the blocks with its distinct values."""
    if not facts:
        return "No provenance is recorded."
    values: dict[str, Counter[str]] = {}
    for block in facts.values():
        for name, value in block.items():
            word = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            values.setdefault(name, Counter())[word] += 1
    rows = []
    for name, seen in sorted(values.items()):
        rows.append((name, _shown(seen)))
    blocks = f"{len(facts)} block{'s' if len(facts) > 1 else ''} of rows were collected."
    return f"{blocks}\n\n{_markdown_table(('fact', 'values'), rows)}"


def _shown(seen: Counter[str]) -> str:
    """The values of a fact, the most frequent first; of long ones that differ from block to block only how many."""
    if len(seen) > _MOST_VALUES and max(map(len, seen)) > _LONG_VALUE:
        return f"{len(seen)} values, in the tables' metadata"
    more = f"; and {len(seen) - _MOST_VALUES} more values" if len(seen) > _MOST_VALUES else ""
    return "; ".join(word for word, _ in seen.most_common(_MOST_VALUES)) + more


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def _percent(share: Any) -> str:
    return f"{100 * float(share):.2g} %"


def _markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads)]
    lines += [" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
