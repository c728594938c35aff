"""Services of language models against public measurements, beside what aiconfigurator predicted for some of them.

kernelcast llm predict --table serving.parquet --out predicted.parquet
.venv/bin/python benchmarks/llm_serving.py predicted.parquet [--peers peers.parquet] [--by table device engine]
.venv/bin/python benchmarks/llm_serving.py predicted.parquet --widths
.venv/bin/python benchmarks/llm_serving.py predicted.parquet --ranking

`--widths` says how wide intervals of each profile (`service_profiles.yaml`) must be to hold 90 % of its rows and of its models
on a device, and how many of each model on a device those of the others hold. `--ranking` judges how plans and devices are
ranked by throughput (`llm_serving_ranking.py`).

Rows that count have quality `ok` and a plan and a load; queues (`saturated`) and rows that may run speculative decoding
(`mtp_possible`) are set aside.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.workloads.serving.engine.service_profile import service_profile
from kernelcast.workloads.serving.table import request_of

Row = Mapping[str, Any]
MARGIN = 0.1
TDP_W = {"nvidia-a100-sxm-80gb": 400.0, "nvidia-h100-sxm-80gb": 700.0}
"""Board limits by which `splitwise` states power."""


def _per_token(row: Row) -> float | None:
    energy, tokens = row["energy_per_request_j"], row["osl"]
    return energy / tokens if energy and tokens else row["energy_per_token_j"]


def _power(row: Row) -> float | None:
    if row["power_w"] is not None:
        return float(row["power_w"])
    note = row["note"] or ""
    # Means of prompts of 8192 tokens are below the board's power at rest.
    if row["table"] == "splitwise" and row["isl"] >= 8192:
        return None
    return (
        TDP_W[row["device"]] * float(note.split("avg=")[1].split()[0])
        if "avg=" in note and row["device"] in TDP_W
        else None
    )


def _latency(name: str) -> Callable[[Row], float | None]:
    # What a batch of long prompts has no decode label for is scored on what it has.
    return lambda row: row[name] if row["scorable"] or (name == "tpot_s" and row["scorable_decode"]) else None


TARGETS: Mapping[str, tuple[str, str, Callable[[Row], float | None]]] = {
    "TTFT": ("ttft", "s", _latency("ttft_s")),
    "TPOT": ("tpot", "s", _latency("tpot_s")),
    "output tokens/s": ("throughput", "tok_s", lambda row: row["throughput_tok_s"]),
    "all tokens/s": ("total", "tok_s", lambda row: row["total_tok_s"]),
    "power": ("power", "w", _power),
    "J/token": ("energy_per_token", "j", _per_token),
}
"""Label, and the words of the columns that predict it."""


def counts(row: Row) -> bool:
    """Whether a row is scored."""
    usable = row["quality"] == "ok" and (row["scorable"] or row["scorable_decode"])
    return usable and not row["saturated"] and not row["mtp_possible"]


def judged(rows: Sequence[Row], target: str) -> Iterator[tuple[Row, float, tuple[float, float, float]]]:
    """Rows with a label and an answer: the row, the label, and the answer with its interval."""
    word, unit, label = TARGETS[target]
    for row in rows:
        value = label(row)
        predicted = row[f"pred_{word}_{unit}"]
        if value and predicted is not None:
            yield row, value, (predicted, row[f"pred_{word}_lo_{unit}"], row[f"pred_{word}_hi_{unit}"])


def line(items: Sequence[tuple[Row, float, tuple[float, float, float]]]) -> list[str]:
    """Errors of answers: rows, mean / median APE %, bias %, share within 10 %, inside the interval, its width."""
    label = np.array([item[1] for item in items])
    value, lower, upper = np.array([item[2] for item in items]).T
    errors = value / label - 1
    return [
        str(len(items)), f"{100 * np.mean(np.abs(errors)):.1f} / {100 * np.median(np.abs(errors)):.1f}",
        f"{100 * np.median(errors):+.1f}", f"{100 * np.mean(np.abs(errors) <= MARGIN):.0f}",
        f"{100 * np.mean((lower <= label) & (label <= upper)):.0f}", f"{np.median(upper / lower):.2f}",
    ]  # fmt: skip


GROWTH: Mapping[str, float] = {"power": 1.06}
"""By which errors grow where a model, a device or a source is left out of a fit, by target; `OTHER_GROWTH` in the median of the
others. Powers of all sources share two numbers, and a source left out errs hardly more."""
OTHER_GROWTH = 1.2


def half_width(errors: Any, groups: Sequence[tuple[str, str]], growth: float = OTHER_GROWTH) -> float:
    """Log half-width that holds 90 % of further errors, all alike, and 90 % of groups, all alike."""
    times = Counter(groups)
    widths = []
    for weights in (np.ones(len(errors)), np.array([1 / times[group] for group in groups])):
        order = np.argsort(errors)
        below = np.cumsum(weights[order])
        widths.append(errors[order][np.searchsorted(below, 0.9 * below[-1])])
    return growth * float(max(widths))


def width_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Half-widths by profile and target, and the share of rows inside those of the other models and devices."""
    items: dict[tuple[str, str], list[tuple[tuple[str, str], float]]] = {}
    for target in TARGETS:
        for row, label, value in judged([row for row in rows if counts(row)], target):
            request = request_of(row)
            vendor = request.device.split("-")[0]
            profile = service_profile(request.engine, request.engine_version, vendor, request.client)
            group = (row["model"], row["device"])
            key = (profile.source, TARGETS[target][0])
            items.setdefault(key, []).append((group, abs(float(np.log(value[0] / label)))))
    for (source, word), some in sorted(items.items()):
        groups, errors = [group for group, _ in some], np.array([error for _, error in some])
        kinds, inside = sorted(set(groups)), "–"
        growth = GROWTH.get(word, OTHER_GROWTH)
        if len(kinds) > 1:
            out = np.array([kinds.index(group) for group in groups])
            hits = [
                errors[out == kind]
                <= half_width(errors[out != kind], [group for group in groups if group != kinds[kind]], growth)
                for kind in range(len(kinds))
            ]
            inside = f"{100 * np.concatenate(hits).mean():.0f}"
        yield [source, word, str(len(some)), str(len(kinds)), f"{half_width(errors, groups, growth):.2f}", inside]


def peer_lines(rows: Sequence[Row], peers: Sequence[Row]) -> Iterator[list[str]]:
    """Aiconfigurator and this product on the rows that both answered."""
    by_id = {row["row_id"]: row for row in rows if counts(row)}
    for metric, target in (("tpot", "TPOT"), ("ttft", "TTFT")):
        theirs = {item["truth_row_id"]: item for item in peers if item["metric"] == metric}
        both = list(judged([by_id[key] for key in theirs if key in by_id], target))
        if not both:
            continue
        errors = [abs(theirs[row["row_id"]]["predicted_s"] / value - 1) for row, value, _ in both]
        yield [target, *line(both)[:3], f"{100 * np.mean(errors):.1f} / {100 * np.median(errors):.1f}"]


def page(rows: Sequence[Row], peers: Sequence[Row], by: Sequence[str]) -> str:
    """The tables as Markdown."""
    scored = [row for row in rows if counts(row)]
    heads = ["target", *by, "rows", "mean / median APE %", "bias %", "within 10 %", "inside 90 %", "upper / lower"]
    lines = [heads, ["---"] * len(heads)]
    for target in TARGETS:
        items = list(judged(scored, target))
        if items:
            lines.append([target, *["all"] * len(by), *line(items)])
        groups: dict[tuple[str, ...], list[Any]] = {}
        for item in items:
            groups.setdefault(tuple(str(item[0][name]) for name in by), []).append(item)
        lines += [[target, *key, *line(groups[key])] for key in sorted(groups)]
    refused = sum(bool(row["refused"]) for row in rows)
    out = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    out += f"\n\n{refused} of {len(rows)} rows refused ({100 * refused / len(rows):.1f} %), "
    out += f"{sum(bool(row['refused']) for row in scored)} of {len(scored)} scored ones\n"
    beside = [
        ["target", "rows", "mean / median APE %", "bias %", "aiconfigurator"],
        ["---"] * 5,
        *peer_lines(rows, peers),
    ]
    return out + "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in beside)


def main() -> None:
    """Judge a predicted table, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("predicted", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--ranking", action="store_true")
    parser.add_argument("--by", nargs="*", default=["table", "device", "engine"])
    parser.add_argument("--widths", action="store_true")
    args = parser.parse_args()
    if args.ranking:
        from llm_serving_ranking import ranking_page

        print(ranking_page([row for row in pq.read_table(args.predicted).to_pylist() if counts(row)]))
        return
    if args.widths:
        heads = ["profile", "target", "rows", "models and devices", "half-width", "inside, left out %"]
        for cells in [heads, ["---"] * len(heads), *width_lines(pq.read_table(args.predicted).to_pylist())]:
            print("| " + " | ".join(cells) + " |")
        return
    peers = pq.read_table(args.peers).to_pylist() if args.peers else []
    print(page(pq.read_table(args.predicted).to_pylist(), peers, args.by))


if __name__ == "__main__":
    main()
