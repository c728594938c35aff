"""What serving adds to steps: time per request outside them, and how far services are from their simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from ..batching.step_table import Overhead

ELSEWHERE = 1.5
"""Half-widths grow so much on devices of an architecture that a profile is not fitted to: with A100 or H100 left out of its fit
errors of LLM-Inference-Bench's vLLM grow 1.3 times, those of Splitwise 1.2 (first token) and 1.7 (others)."""
PROFILES = Path(__file__).with_name("service_profiles.yaml")


@dataclass(frozen=True, slots=True)
class ServiceProfile:
    """Numbers of a service, fitted to public services (`benchmarks/llm_serving_fit.py`) or stated.

    Attributes:
        overhead: What a service takes per step beyond the engine's own times of steps, on one device.
        rank_s: Seconds of a step per further device of a stage: before 2025 engines sent the inputs of each step to every
            worker from one Python process.
        admission: Steps, per sequence that the server is set to run, for which a request waits before it runs, where requests
            and answers share one process with the engine.
        between_s: Seconds per request outside steps: receiving, tokenising, sending the first token.
        half_widths: Half-widths of 90 % intervals in logarithms, by target (`benchmarks/llm_serving.py --widths`).
        architectures: Of the devices it is fitted to.
        source: What it is fitted to.
    """

    overhead: Overhead
    rank_s: float
    admission: float
    between_s: float
    half_widths: Mapping[str, float]
    architectures: tuple[str, ...]
    source: str

    def half_width(self, target: str, architecture: str) -> float:
        """Half-width of the interval of a target in logarithms on a device of an architecture."""
        return self.half_widths[target] * (1 if architecture in self.architectures else ELSEWHERE)

    def overhead_of(self, ranks: int) -> Overhead:
        """What a service takes per step with so many devices a stage."""
        return replace(self.overhead, step_s=self.overhead.step_s + self.rank_s * (ranks - 1))

    def running(self, sequences: int, output_tokens: float) -> int:
        """Sequences that run of those that a full server is set to run.

        By Little's law: of a request's time in the server it waits for `admission · sequences` steps and runs for
        `output_tokens`.
        """
        return max(1, round(sequences / (1 + self.admission * sequences / output_tokens)))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A profile and what it is of; an empty vendor or client is any, an empty version all."""

    engine: str
    version: str
    vendor: str
    client: str
    profile: ServiceProfile


@cache
def _entries() -> tuple[_Entry, ...]:
    raw = yaml.safe_load(PROFILES.read_text(encoding="utf-8"))["services"]
    return tuple(
        _Entry(
            item["engine"], str(item.get("version", "")), item.get("vendor", ""), item.get("client", ""),
            ServiceProfile(
                Overhead(**item.get("overhead", {})), item.get("rank_s", 0.0), item.get("admission", 0.0), item["between_s"],
                item["half_widths"], tuple(item.get("architectures", ())), item["source"],
            ),
        )
        for item in raw
    )  # fmt: skip


def service_profile(engine: str, version: str | None, vendor: str, client: str = "") -> ServiceProfile:
    """The profile of a client's services with an engine; else of the first version not below one given; else of any."""
    near = [item for item in _entries() if item.engine == engine and item.vendor in ("", vendor)]
    for item in near:
        if client and item.client == client:
            return item.profile
        if not item.client and (not item.version or (version and release(version) <= release(item.version))):
            return item.profile
    return next(item.profile for item in _entries() if item.engine == "other")


def release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version."""
    digits = ["".join(char for char in word if char.isdigit()) for word in version.split(".")[:2]]
    return tuple(int(word) if word else 0 for word in digits)
