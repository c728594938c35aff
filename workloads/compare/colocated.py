"""Kernels that share a device, read from plain mappings, and what each costs beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...client import estimate_answers as answers
from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec, get_family
from ...features.spec_io.reading import read_bare_spec
from ...models.predict.named_impl import check_specs
from ...models.predict.neighbours import Colocation, beside_each_other
from ...models.predict.predictor import ArtifactPredictor
from ..answers import known_interval, prediction_answer
from ..kernel_reading import nested
from .spec_on_devices import BARE_FIELDS, BARE_NEEDED

MAX_KERNELS = 64
"""Most kernels of a question."""


def read_neighbours(
    entries: Any, place: Device, predictor: ArtifactPredictor, name: str = "beside", least: int = 1
) -> list[KernelSpec]:
    """The specs of kernels on a device: mappings with sizes in `sizes` or beside the other fields, specs, or answers.

    Raises:
        SpecError: there are too few or too many, or the first that is not acceptable; `field` starts with its path, such as
            `beside[0].sizes.m`.
    """
    is_list = isinstance(entries, Sequence) and not isinstance(entries, str)
    if not is_list or not least <= len(entries) <= MAX_KERNELS:
        got = f"a list of {len(entries)}" if is_list else type(entries).__name__
        raise SpecError(f"{name} must be a list of {least} to {MAX_KERNELS} kernels, got {got}", field=name)
    specs = []
    for index, entry in enumerate(entries):
        try:
            specs.append(_read(entry, place, predictor))
        except SpecError as error:
            path = f"{name}[{index}]"
            raise SpecError(f"{path}: {error}", field=f"{path}.{error.field}" if error.field else path) from error
    return specs


def _read(entry: Any, place: Device, predictor: ArtifactPredictor) -> KernelSpec:
    spec = getattr(entry, "spec", entry)
    device = entry.get("device") if isinstance(entry, Mapping) else getattr(entry, "device", None)
    if device is not None and (other := predictor.devices.get(device)).name != place.name:
        raise SpecError(
            f"is on {other.name}, and the others are on {place.name}; kernels disturb each other on one device only: leave "
            "the device out",
            field="device",
        )
    if not isinstance(spec, KernelSpec):
        if isinstance(entry, Mapping) and isinstance(entry.get("family"), str):
            # Otherwise sizes of an unknown family are what is complained of.
            get_family(entry["family"])
        fields = (
            {key: value for key, value in entry.items() if key != "device"} if isinstance(entry, Mapping) else entry
        )
        spec = read_bare_spec(nested(fields), (), BARE_FIELDS, BARE_NEEDED)
    place.peak_flops_per_s(spec.dtype, get_family(spec.family).unit)
    check_specs(predictor, [spec])
    return spec


def colocated(predictor: ArtifactPredictor, specs: Sequence[KernelSpec], place: Device, coverage: float) -> Colocation:
    """What each of the kernels costs beside the others, see `beside_each_other`."""
    alone = predictor.predict(specs, [place.name] * len(specs), coverage=coverage)
    return beside_each_other(specs, alone, place)


def colocation_answer(colocation: Colocation) -> answers.Colocation:
    """The answer as it is sent."""
    return answers.Colocation(
        device=colocation.device, coverage=colocation.coverage, method=colocation.method, source=colocation.source,
        all_shortest_s=colocation.all_shortest_s, all_longest_s=colocation.all_longest_s, notes=list(colocation.notes),
        kernels=[
            answers.KernelBesideOthers(
                kernel=str(item.spec), alone=prediction_answer(item.spec, colocation.device, item.alone),
                slowdown=known_interval(item.slowdown), latency_s=known_interval(item.latency_s),
                shortest_s=item.shortest_s, longest_s=item.longest_s,
            )
            for item in colocation.kernels
        ],
    )  # fmt: skip
