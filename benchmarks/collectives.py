"""The law of collectives: fitted to public timings, judged with a device left out, and written to the file that ships.

.venv/bin/python benchmarks/collectives.py comm.parquet [--write]

`comm.parquet` has timings of aiconfigurator (Apache-2.0): NCCL on six devices, and the all-reduces of vLLM, SGLang and
TensorRT-LLM inside CUDA graphs. Its message sizes are elements.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from kernelcast.features.device import catalogue
from kernelcast.workloads.serving.engine.collectives import ANY, INTERCONNECTS, LAWS, sent_b
from scipy.optimize import least_squares

ITEM_B = {"bfloat16": 2, "half": 2, "int8": 1}
NAMES = {"alltoall": "all_to_all"}
COUNTS = (2, 4, 8)
START_B = 2**17
"""Every engine does smaller all-reduces itself; from there the ends are searched."""
TIGHT = 0.1
"""Errors in ln beyond it pull less than squared ones (`soft_l1`)."""

Rows = dict[str, np.ndarray[Any, Any]]
"""By device, columns ranks, bytes, seconds, shape `(n, 3)`."""


def read(path: Path) -> dict[tuple[str, str, str], Rows]:
    """By library, operation and interconnect: what was measured. NCCL as TensorRT-LLM calls it is NCCL."""
    rows: dict[tuple[str, str, str], dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for row in pq.read_table(path).to_pylist():
        if "eager" in row["kernel_source"]:
            # A host that launches one by one is the engine profile's part.
            continue
        library = "nccl" if row["kernel_source"] == "NCCL" else row["impl"].split("-")[0]
        key = library, NAMES.get(row["op_name"], row["op_name"]), link_of(row["device"])[0]
        rows[key][row["device"]].append((row["num_gpus"], row["message_size"] * ITEM_B[row["dtype"]], row["latency_s"]))
    return {key: {name: np.array(items) for name, items in devices.items()} for key, devices in rows.items()}


def link_of(name: str) -> tuple[str, float]:
    """Kind and bandwidth of a device's links."""
    device = catalogue().get(name)
    return next((kind, value) for kind, fact in INTERCONNECTS.items() if (value := device.fact(fact)) is not None)


def seconds(p: Any, kind: str, latency: Any, bandwidth: Any, rows: Any) -> Any:
    """The law (`workloads/serving/collectives.py`) for logarithms of latency and bandwidth."""
    n, size_b, _ = rows.T
    latency_s = np.exp(latency) * (n / 2) ** p[1]
    x_s = sent_b(kind, n, size_b) / (np.exp(bandwidth) * (n / 2) ** p[2])
    return latency_s + x_s + np.exp(p[0]) * np.sqrt(latency_s * x_s)


def fit(kind: str, devices: Rows) -> dict[str, Any]:
    """A law's fields by robust least squares of ln errors."""
    names = list(devices)
    which = np.repeat(np.arange(len(names)), [len(devices[name]) for name in names])
    rows, m = np.concatenate([devices[name] for name in names]), len(names)

    def errors(p: Any) -> Any:
        return np.log(seconds(p, kind, p[3 : 3 + m][which], p[3 + m :][which], rows) / rows[:, 2])

    links = np.log([link_of(name)[1] for name in names])
    start = np.concatenate([[0.0, 0.3, 0.1], np.full(m, np.log(6e-6)), links - 0.4])
    p = least_squares(errors, start, loss="soft_l1", f_scale=TIGHT).x
    own = zip(names, np.exp(p[3 : 3 + m]), np.exp(p[3 + m :] - links), strict=True)
    return {
        "curvature": float(np.exp(p[0])), "latency_exponent": float(p[1]), "bandwidth_exponent": float(p[2]),
        "devices": {name: {"latency_s": float(a), "efficiency": float(b)} for name, a, b in own},
    }  # fmt: skip


def answers(law: Mapping[str, Any], kind: str, name: str, rows: Any) -> Any:
    """Seconds of a device, by its own numbers or by the means of the others."""
    own = [law["devices"][name]] if name in law["devices"] else list(law["devices"].values())
    latency, efficiency = (np.mean(np.log([item[key] for item in own])) for key in ("latency_s", "efficiency"))
    shared = np.log(law["curvature"]), law["latency_exponent"], law["bandwidth_exponent"]
    return seconds(shared, kind, latency, efficiency + np.log(link_of(name)[1]), rows)


def left_out(kind: str, devices: Rows) -> Any:
    """Errors in ln of every device, answered by a law fitted without it and without its twin of the same architecture."""
    errors = []
    for name, rows in devices.items():
        known = catalogue().get(name).architecture
        others = {key: item for key, item in devices.items() if catalogue().get(key).architecture != known}
        errors.append(np.log(answers(fit(kind, others), kind, name, rows) / rows[:, 2]))
    return np.concatenate(errors)


def by_architecture(devices: Rows) -> dict[str, Rows]:
    """The devices of each architecture, which an engine treats alike."""
    groups: dict[str, Rows] = {}
    for name, rows in devices.items():
        groups.setdefault(catalogue().get(name).architecture, {})[name] = rows
    return groups


def own_up_to_b(nccl: Mapping[str, Any], own: Mapping[str, Any], devices: Rows) -> dict[int, int]:
    """By number of devices, the size after which NCCL's law is nearer than the engine's own."""
    best = {}
    for count in COUNTS:
        sizes = np.unique(np.concatenate([rows[rows[:, 0] == count, 1] for rows in devices.values()]))
        losses = []
        for size_b in sizes:
            loss = 0.0
            for name, rows in devices.items():
                rows = rows[rows[:, 0] == count]
                value = np.where(rows[:, 1] <= size_b, answers(own, "all_reduce", name, rows),
                                 answers(nccl, "all_reduce", name, rows))  # fmt: skip
                loss += float(np.abs(np.log(value / rows[:, 2])).sum())
            losses.append(loss)
        best[count] = int(sizes[int(np.argmin(losses))])
    return best


def up_to(devices: Rows, most_b: Mapping[str, Mapping[int, int]]) -> Rows:
    """The rows up to an engine's size."""
    limits = {
        name: np.array([most_b[catalogue().get(name).architecture][int(n)] for n in rows[:, 0]])
        for name, rows in devices.items()
    }
    return {name: rows[rows[:, 1] <= limits[name]] for name, rows in devices.items()}


def half_width(errors: Any) -> float:
    """90 % of ln errors are within it."""
    return float(np.quantile(np.abs(errors), 0.9))


def words(errors: Any) -> str:
    """Mean and median error in percent."""
    percent = 100 * np.abs(np.exp(errors) - 1)
    return f"{percent.mean():5.1f} / {np.median(percent):4.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Fit, judge, print, and write if told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("timings", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(argv)
    timings = read(given.timings)
    libraries: dict[str, Any] = {}
    ends: dict[str, dict[str, dict[int, int]]] = {}
    for (library, kind, link), devices in sorted(timings.items(), key=lambda item: (item[0][0] != "nccl", item[0])):
        law, used = fit(kind, devices), devices
        if library != "nccl":
            nccl = libraries["nccl"][kind][link]
            law = fit(kind, up_to(devices, {name: dict.fromkeys(COUNTS, START_B) for name in by_architecture(devices)}))
            for _ in range(3):
                sizes = {name: own_up_to_b(nccl, law, alike) for name, alike in by_architecture(devices).items()}
                used = up_to(devices, sizes)
                law = fit(kind, used)
            ends.setdefault(library, {}).update(sizes)
            if link == "fabric":
                ends[library][ANY] = own_up_to_b(nccl, law, devices)
        own = np.concatenate([
            np.log(answers(law, kind, name, rows) / rows[:, 2]) for name, rows in used.items()
        ])  # fmt: skip
        others = left_out(kind, used) if len(devices) > 1 else None
        law |= {
            "spread": half_width(own),
            # One device alone tells nothing of others: a judgement.
            "spread_unseen": float(np.log(2.0)) if others is None else half_width(others),
        }  # fmt: skip
        libraries.setdefault(library, {}).setdefault(kind, {})[link] = law
        print(f"{library:7} {kind:14} {link:6} {sum(map(len, used.values())):4} rows {words(own)}"
              f"   left out {'' if others is None else words(others)}")  # fmt: skip
    print("own all-reduce up to", ends)
    if given.write:
        rounded = _rounded({"own_up_to_b": ends, "libraries": libraries})
        head = (
            "# Written by benchmarks/collectives.py --write from timings of aiconfigurator (Apache-2.0); the law is in\n"
            "# collectives.py. spread: 90 % of ln errors; spread_unseen: with an architecture left out (ln 2: a judgement).\n"
        )
        LAWS.write_text(head + yaml.safe_dump(rounded, sort_keys=False, width=200, default_flow_style=None))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
