"""A device's measured descriptor as measured rows: what `kernelcast characterize` found, to calibrate a model by.

Every fact that came from a kernel names the case it was measured by, so that a rate is a latency again: operations or bytes
over it. Facts of micro-kernels, which are no kernel of any family, say nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..features.cases import Cases
from ..features.device import Catalogue, Device
from ..features.errors import SpecError
from ..features.kernel import KernelSpec, families
from ..features.work import Work, work
from .labelled import Labelled
from .tables import joined

_CASE = re.compile(r"(?P<family>\w+)\[(?P<dims>[\w=,]+)\]:(?P<dtype>\w+)(?P<rest>[^;(]*)")
"""A spec as it prints itself, in the source of a fact."""

_SECONDS: Mapping[str, Callable[[Work, float], float]] = {
    "_flops_per_s": lambda paper, rate: float(paper.flops[0]) / rate,
    "_b_per_s": lambda paper, rate: float(paper.bytes[0]) / rate,
}
"""How a rate becomes the seconds of its case, by the end of the fact's name; a `launch_graph_…_s` is those seconds itself."""


def descriptor_rows(device: Device, devices: Catalogue) -> list[Labelled]:
    """The rows a device's measured facts were made of, one table per family; empty where none came from a kernel."""
    rows: dict[str, list[tuple[KernelSpec, float]]] = {}
    for name, fact in device.measured.items():
        spec = _spec(fact.source)
        latency_s = None if spec is None else _latency_s(name, fact.value, spec, device, devices)
        if spec is not None and latency_s is not None:
            rows.setdefault(spec.family, []).append((spec, latency_s))
    tables = []
    for found in rows.values():
        cases = Cases.of([spec for spec, _ in found], [device.name] * len(found))
        latency = np.array([latency_s for _, latency_s in found])
        source = np.full(len(found), f"measured facts of {device.name}")
        tables.append(Labelled(cases, latency, np.full(len(found), np.nan), source))
    return tables


def with_descriptors(
    tables: Sequence[Labelled], names: Iterable[str], devices: Catalogue, families_known: Container[str]
) -> list[Labelled]:
    """The tables, and the rows of the named devices' measured facts beside them, of families the model knows.

    Raises:
        SpecError: an unknown device, or one whose file has no measured fact that came from such a kernel.
    """
    parts: dict[str, list[Labelled]] = {}
    for rows in tables:
        parts.setdefault(rows.cases.family.name, []).append(rows)
    for name in names:
        device = devices.get(name)
        found = [rows for rows in descriptor_rows(device, devices) if rows.cases.family.name in families_known]
        if not found:
            raise SpecError(
                f"the file of {device.name} has no measured facts of kernels the model knows; "
                "make one with `kernelcast characterize`, or give rows with --data",
                field="descriptor",
            )
        for rows in found:
            parts.setdefault(rows.cases.family.name, []).append(rows)
    return [joined(own) for own in parts.values()]


def _spec(source: str) -> KernelSpec | None:
    """The case a fact's source names, or None where it names none of a family."""
    found = _CASE.search(source)
    if found is None or found["family"] not in families():
        return None
    dims = dict(pair.split("=") for pair in found["dims"].split(","))
    words = found["rest"].split()
    knobs = dict(word.split("=") for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    variants = families()[found["family"]].variants
    variant = plain.pop(0) if plain and plain[0] in variants else ""
    sizes: dict[str, Any] = {name: int(value) for name, value in dims.items()}
    config = {name: int(value) for name, value in knobs.items()}
    try:
        return KernelSpec.of(
            found["family"], found["dtype"], variant=variant, impl=plain[0] if plain else "", config=config, **sizes
        )
    except SpecError:
        # Written by another version, with sizes or knobs that this one does not have.
        return None


def _latency_s(name: str, value: float, spec: KernelSpec, device: Device, devices: Catalogue) -> float | None:
    if name.startswith("launch_graph_"):
        return value
    for end, seconds in _SECONDS.items():
        if name.endswith(end):
            return seconds(work(Cases.of([spec], [device.name]), devices), value)
    return None
