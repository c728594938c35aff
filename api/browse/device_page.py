"""GET /v1/devices/{name}: one device, what the served model's answers for it rest on, and what adapting would bring."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from ...client.device_answers import AnswerError, DeviceBasis, DevicePage, MeasuredAdaptation, TenMinutes
from ...features.device import Catalogue, Device
from ...models.evaluation.published_errors import measured_adaptations
from ...models.predict.device_basis import CALIBRATED, MEASURED, device_basis
from ...models.predict.prediction import Predictor
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.answers import device_answer
from ..model_source import LoadedModel, PredictorSource
from ..transport.responses import CachedContent, Endpoint
from .accuracy import AccuracyFileError, AccuracySlice, model_hash, read_accuracy
from .catalogue import known_name

COMMAND = "kernelcast adapt --minutes 10"
MINUTES = 10.0

_OWN_ROWS = "hash"
"""The split of the accuracy file whose held-out rows are shapes at random, of every device that ships rows."""

_MAX_PAGES = 512
"""Pages that are kept; a catalogue has fewer devices."""


def device_endpoint(devices: Catalogue, source: PredictorSource) -> Endpoint:
    """What answers `/v1/devices/{name}`; a page is made once per device and model."""
    name_of = known_name("name", devices.get)
    pages: dict[tuple[int, str], tuple[LoadedModel | None, CachedContent]] = {}

    def page(name: str) -> CachedContent:
        loaded = source.current
        key = id(loaded), name
        # A model that is gone may have left its id to another.
        if key not in pages or pages[key][0] is not loaded:
            if len(pages) >= _MAX_PAGES:
                pages.clear()
            answer = (
                page_without_model(devices.get(name)) if loaded is None
                else device_page(devices.get(name), loaded.predictor, loaded.name, loaded.path)
            )  # fmt: skip
            pages[key] = loaded, CachedContent(msgspec.json.encode(answer), "application/json")
        return pages[key][1]

    async def answer(request: Request) -> Response:
        return (await run_sync(page, name_of(request))).answer(request)

    return answer


def page_without_model(device: Device) -> DevicePage:
    """The page of a device where no model says what its answers rest on."""
    return _page(device, None, None)


def device_page(device: Device, predictor: Predictor, model: str, directory: Path | None) -> DevicePage:
    """The page of a device.

    Args:
        device: The device.
        predictor: What answers for it; one that is no artifact says nothing of what its answers rest on.
        model: Its name.
        directory: Its directory, where its accuracy file is; None where it has none.

    Raises:
        ArtifactError: a family of the model is damaged.
    """
    if not isinstance(predictor, ArtifactPredictor):
        return _page(device, model, None)
    errors = _own_errors(device, predictor, directory)
    lines = [
        msgspec.convert(
            {**_plain(line), "error_here": errors.get((line.family, line.target)) if line.basis == MEASURED else None},
            DeviceBasis,
            from_attributes=True,
        )
        for line in device_basis(predictor, device)
    ]
    return _page(device, model, lines)


def _page(device: Device, model: str | None, basis: list[DeviceBasis] | None) -> DevicePage:
    facts = msgspec.structs.asdict(device_answer(device))
    return DevicePage(**facts, model=model, basis=basis, ten_minutes=_ten_minutes(device, basis or ()))


def _plain(line: Any) -> dict[str, Any]:
    return {name: getattr(line, name) for name in type(line).__dataclass_fields__}


def _own_errors(
    device: Device, predictor: ArtifactPredictor, directory: Path | None
) -> dict[tuple[str, str], AnswerError]:
    """Errors on the device's own held-out rows by family and target, where the accuracy file is of this very model."""
    try:
        stored = None if directory is None else read_accuracy(directory)
    except AccuracyFileError:
        # `/v1/accuracy` says what is wrong with it.
        return {}
    if stored is None or stored.model != model_hash(predictor.manifest):
        return {}
    slices: Iterable[AccuracySlice] = (
        part for split in stored.splits if split.name == _OWN_ROWS for part in split.slices
    )
    return {
        (part.family, part.target): AnswerError(
            "own_rows", part.n, *(round(100.0 * share, 3) for share in (part.mean, part.median, part.within_10))
        )
        for part in slices
        if part.device == device.name
    }


def _ten_minutes(device: Device, basis: Iterable[DeviceBasis]) -> TenMinutes:
    can = device.kind == "cpu" or device.vendor == "nvidia"
    latency = [line for line in basis if line.target == "latency_s"]
    says = []
    if can:
        says.append(
            f"`{COMMAND}` on this machine measures cases of every family that can run there, calibrates the model by them, and "
            "reports the error before and after on shapes left out; answers that it covers then rest on this device."
        )
    else:
        says.append(
            "`kernelcast adapt` measures CPUs and NVIDIA GPUs only; measure by other means, and give the rows to "
            "`kernelcast train calibrate --data`."
        )
    with_rows = sorted({line.family for line in latency if line.basis in (MEASURED, CALIBRATED)})
    without = sorted({line.family for line in latency} - set(with_rows))
    if without:
        says.append(
            f"Without rows of this device are: {', '.join(without)}. In what was measured, such answers gained most."
        )
    if with_rows:
        says.append(
            f"With rows of this device are: {', '.join(with_rows)}. In what was measured, such answers gained less."
        )
    if not any(run.kind == device.kind and run.minutes == MINUTES for run in measured_adaptations()):
        says.append(
            f"No adaptation of a {device.kind.upper()} was measured yet: by how much errors fall there is not known."
        )
    runs = [msgspec.convert(run, MeasuredAdaptation, from_attributes=True) for run in measured_adaptations()]
    return TenMinutes(COMMAND if can else None, says, runs)
