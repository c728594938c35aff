"""Whether a device has become slower or faster: its anchor cases night by night, and one CUSUM on what they share.

    ln latency - its median over the reference nights  ->  median over cases  ->  in deviations, clipped  ->  CUSUM

The median over cases keeps one noisy case, the clipping one noisy night from deciding. The reference is the first nights under
the present software and does not move on, so that a slow creep cannot carry it along. CUSUM: Page, "Continuous inspection
schemes", Biometrika 41, 1954. `cusum` works on many histories at once: what `benchmarks/drift.py` simulates runs at night.

Readings are kept in KERNELCAST_HOME/regimes/DEVICE.anchors.jsonl, one JSON object a line, only ever appended to; they outlive
the folders of nights, since a slow creep needs all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...collectors.gpu.campaign import SENTINELS as GPU_SENTINELS
from ...collectors.kernel_campaign import SENTINEL_CASES
from ...datasets.store.store import StoreError
from ...features.batch.cases import Floats
from ...features.device import Device
from ...features.errors import SpecError
from ...features.kernel import KernelSpec
from ...files import append_line, home_dir, read_lines
from ..record.record import Finding

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

_TO_DEVIATION = 1.4826
"""Median absolute deviation to standard deviation, for a normal law."""

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class DeviceNight:
    """What one night read of a device.

    Attributes:
        night: The night's id; ids sort in the order of time.
        software: What the device ran, see `datasets.rows.schema.software_of`.
        readings: Seconds by anchor case; None where a case gave no time.
    """

    night: str
    software: str
    readings: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriftRule:
    """When a device has drifted. Sums and limits are in deviations of a quiet night.

    Attributes:
        least_nights: Nights that are needed before anything is said.
        reference_nights: The reference grows until so many nights and stays.
        allowance: Taken off the sums every night.
        clip: A night counts at most this much.
        limit: A sum beyond it is drift.
        floor: The least deviation, in ln: the resolution of a clock is no scatter of zero.
        least_move: Moves below this, in ln, are not reported.
        confirm_nights: After so many nights a person is asked to act.
    """

    least_nights: int = 10
    reference_nights: int = 30
    allowance: float = 0.75
    clip: float = 3.0
    limit: float = 12.0
    floor: float = 0.002
    least_move: float = 0.005
    confirm_nights: int = 3


@dataclass(frozen=True, slots=True)
class Sums:
    """The CUSUM over histories and nights, every array of shape `(histories, nights)`.

    Attributes:
        moved: What all cases share of a night, in ln against the reference; NaN before there is one.
        scale: The deviation of a quiet night, in ln.
        slower: The sum of moves up.
        faster: The sum of moves down.
    """

    moved: Floats
    scale: Floats
    slower: Floats
    faster: Floats


def cusum(logs: Floats, rule: DriftRule) -> Sums:
    """The sums for ln latency of shape `(histories, nights, cases)`, NaN where there is none.

    The sum after a night uses that night and those before it only.
    """
    histories, nights = logs.shape[:2]
    moved, scale = np.full((2, histories, nights), np.nan)
    slower, faster = np.zeros((2, histories, nights))
    for night in range(rule.least_nights, nights):
        if night <= rule.reference_nights or night == rule.least_nights:
            before = logs[:, :night]
            centre = _median(before, 1)
            shared = _median(before - centre[:, None], 2)
            # A deviation from few nights is itself uncertain, and so is the centre: both by about 1/sqrt(n) of a deviation.
            spread = (1.0 + 4.0 / night) * np.fmax(_TO_DEVIATION * _median(np.abs(shared), 1), rule.floor)
        moved[:, night], scale[:, night] = _median(logs[:, night] - centre, 1), spread
        deviations = moved[:, night] / spread
        score = np.nan_to_num(np.clip(deviations, -rule.clip, rule.clip))
        step = np.where(np.isnan(deviations), 0.0, rule.allowance)
        # Bounded above, so that a drift that is over is forgotten within days.
        most = rule.limit + 2 * rule.clip
        slower[:, night] = np.clip(slower[:, night - 1] + score - step, 0.0, most)
        faster[:, night] = np.clip(faster[:, night - 1] - score - step, 0.0, most)
    return Sums(moved, scale, slower, faster)


def device_drift(device: str, nights: Sequence[DeviceNight]) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and plain facts of a device whose `nights` ran one software; in order of time, the last is tonight."""
    rule = DriftRule()
    nights = [night for night in nights if any(map(_is_time, night.readings.values()))]
    facts: dict[str, Any] = {
        "state": "not enough history", "nights": len(nights), "log_ratio": None, "since": None, "confirmed_nights": 0,
        "noise": None,
    }  # fmt: skip
    if len(nights) <= rule.least_nights:
        if not nights:
            return [], facts
        message = (f"Not enough history to say whether {device} has drifted: it has {len(nights)} of the "
                   f"{rule.least_nights + 1} nights that are needed under the present software. Nothing to do.")  # fmt: skip
        return [Finding("device-drift", "info", device, message, {"nights": float(len(nights))})], facts
    sums = cusum(_logs(nights)[None], rule)
    confirmed, since = max(_beyond(side[0], rule.limit) for side in (sums.slower, sums.faster))
    facts |= {"state": "quiet", "noise": float(sums.scale[0, -1])}
    if not confirmed:
        return [], facts
    log_ratio = float(np.nanmedian(sums.moved[0, since:]))
    if abs(log_ratio) < rule.least_move:
        return [], facts
    facts |= {"state": "drifted", "log_ratio": log_ratio, "since": nights[since].night, "confirmed_nights": confirmed}
    return [_finding(device, facts, rule)], facts


def _finding(device: str, facts: Mapping[str, Any], rule: DriftRule) -> Finding:
    moved, noise = (100.0 * math.expm1(facts[name]) for name in ("log_ratio", "noise"))
    message = (
        f"{device} runs its anchor cases {abs(moved):.1f} % {'slower' if moved > 0 else 'faster'} since the night "
        f"{facts['since']}; a quiet night scatters by {noise:.1f} %. Look at the cooling, clocks and power limit, and at what "
        "else runs on this machine. Rows of before and after are learned from together until then."
    )
    numbers = {"moved_pct": moved, "noise_pct": noise, "nights": float(facts["nights"]),
               "confirmed_nights": float(facts["confirmed_nights"])}  # fmt: skip
    lasting = facts["confirmed_nights"] >= rule.confirm_nights
    return Finding("device-drift", "needs-person" if lasting else "warning", device, message, numbers)


def software_change(device: str, before: str, after: str, night: str) -> Finding:
    """The finding for a device that ran other software in its last night, `night`; it names the versions that changed."""
    old, new = _versions(before), _versions(after)
    names = [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]
    changes = [f"{name} {old.get(name, 'unknown')} -> {new.get(name, 'unknown')}" for name in names[:_MOST_NAMED]]
    changes += [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    message = (
        f"Software of {device} changed since the night {night}: {', '.join(changes) or 'in no known version'}. Rows of before "
        "and after are learned from together. Decide whether that is right: repeated cases show how far kernels moved, and "
        "`train: {software: current}` in the plan learns from rows of the present software only."
    )
    return Finding("software", "warning", device, message, {"versions": float(len(names))})


def readings_path(device: str, folder: Path | None = None) -> Path:
    """The file of a device's readings; `folder` stands for KERNELCAST_HOME/regimes.

    Raises:
        SpecError: a device name that cannot name a file.
    """
    if not _SAFE_NAME.fullmatch(device):
        raise SpecError(
            f"device name {device!r} cannot name a file; use letters, digits, '.', '_', '+' and '-'", field="device"
        )
    return (folder or home_dir() / "regimes") / f"{device}.anchors.jsonl"


def write_readings(device: str, night: DeviceNight, folder: Path | None = None) -> None:
    """Add what was read tonight; readings of an earlier line of the night that this one lacks stay.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: the disk is full or not writable.
    """
    path = readings_path(device, folder)
    try:
        append_line(path, json.dumps(asdict(night), ensure_ascii=False, allow_nan=False))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def read_readings(device: str, folder: Path | None = None) -> tuple[list[DeviceNight], int]:
    """Every night of the device in order of their ids, and the number of lines that could not be read.

    Raises:
        SpecError: a device name that cannot name a file.
        StoreError: the file is there and cannot be opened.
    """
    path = readings_path(device, folder)
    try:
        lines, damaged = read_lines(path, msgspec.json.Decoder(DeviceNight).decode)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    nights: dict[str, DeviceNight] = {}
    for night in lines:
        before = nights.get(night.night, night)
        nights[night.night] = replace(night, readings={**before.readings, **night.readings})
    return [nights[name] for name in sorted(nights)], damaged


def _is_time(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0.0


def _logs(nights: Sequence[DeviceNight]) -> Floats:
    """Ln latency of shape `(nights, cases)`; NaN where there is no positive reading."""
    names = sorted({name for night in nights for name in night.readings})
    values = [[night.readings.get(name) for name in names] for night in nights]
    return np.array([[math.log(value) if _is_time(value) else np.nan for value in row] for row in values])  # type: ignore[arg-type]


def _beyond(sums: Floats, limit: float) -> tuple[int, int]:
    """For how many nights up to the last a sum has been beyond its limit, and at which night it left zero."""
    inside = np.flatnonzero(sums <= limit)
    confirmed = len(sums) - 1 - (int(inside[-1]) if len(inside) else -1)
    zero = np.flatnonzero(sums == 0.0)
    return confirmed, min(int(zero[-1]) + 1 if len(zero) else 0, len(sums) - 1)


def _median(values: Floats, axis: int) -> Floats:
    """Median along `axis` over the numbers there are, NaN where there are none; much faster than `numpy.nanmedian`."""
    ordered = np.sort(np.moveaxis(values, axis, -1), axis=-1)
    known = np.count_nonzero(~np.isnan(ordered), axis=-1)
    places = np.maximum(np.stack([(known - 1) // 2, known // 2], axis=-1), 0)
    medians: Floats = np.take_along_axis(ordered, places, axis=-1).mean(axis=-1)
    return medians


def _versions(software: str) -> dict[str, str]:
    parts = (part.partition("=") for part in software.split(";"))
    return {name.strip(): value for name, _, value in parts if name.strip()}


_WIDE = {"rows": 4096, "cols": 4096}
_ON_GPU: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gemm", {"m": 2048, "n": 2048, "k": 2048}),
    ("gemm", {"m": 16, "n": 4096, "k": 4096}),
    ("conv2d", {"batch": 16, "in_channels": 128, "out_channels": 128, "height": 28, "width": 28, "kernel": 3, "padding": 1}),
    ("attention", {"batch": 1, "heads": 16, "kv_heads": 16, "q_len": 1024, "kv_len": 1024, "head_dim": 128}),
    ("attention", {"batch": 16, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 2048, "head_dim": 128}),
    ("moe", {"tokens": 256, "hidden": 1024, "inter": 512, "topk": 8, "experts": 32}),
    ("softmax", _WIDE), ("layernorm", _WIDE), ("reduction", _WIDE), ("copy", _WIDE),
    ("elementwise", {"variant": "gelu", **_WIDE}), ("elementwise", {"variant": "add", **_WIDE}),
)  # fmt: skip

_NARROW = {"rows": 512, "cols": 1024}
_ON_CPU: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gemm", {"m": 256, "n": 256, "k": 256}),
    ("gemm", {"m": 1, "n": 1024, "k": 1024}),
    ("conv2d", {"batch": 1, "in_channels": 64, "out_channels": 64, "height": 28, "width": 28, "kernel": 3, "padding": 1}),
    ("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 128, "kv_len": 128, "head_dim": 64}),
    ("attention", {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 1, "kv_len": 1024, "head_dim": 64}),
    ("moe", {"tokens": 8, "hidden": 256, "inter": 256, "topk": 2, "experts": 8}),
    ("softmax", _NARROW), ("layernorm", _NARROW), ("reduction", _NARROW), ("copy", _NARROW),
    ("elementwise", {"variant": "gelu", **_NARROW}), ("elementwise", {"variant": "add", **_NARROW}),
)  # fmt: skip


def anchor_cases(device: Device) -> list[KernelSpec]:
    """The kind of device's two sentinels and twelve cases over the families; always the same.

    On a CPU on one thread in float32, on a GPU in bfloat16, or float16 where the datasheet gives no bfloat16 rate.
    """
    if device.kind == "cpu":
        return [*SENTINEL_CASES, *_cases(_ON_CPU, "fp32", 1)]
    return [*GPU_SENTINELS, *_cases(_ON_GPU, "bf16" if "bf16" in device.matrix_flops_per_s else "fp16", None)]


def _cases(table: Sequence[tuple[str, Mapping[str, Any]]], dtype: str, threads: int | None) -> list[KernelSpec]:
    return [KernelSpec.of(family, dtype, impl="torch", threads=threads, **fields) for family, fields in table]
