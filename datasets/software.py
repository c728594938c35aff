"""What may change how fast a device runs the same kernel, as one word of each row: the column `software`.

A pure function of a block's provenance. Rows with equal words were measured on equal software, and only those may be compared
without asking whether an update moved them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

VERSIONS = ("torch", "cuda", "cudnn", "triton", "cupy", "cutlass", "iree-base-compiler", "iree-base-runtime")
"""Libraries whose versions are part of it: those that choose or compile the kernels that campaigns run."""


def software_of(facts: Mapping[str, Any]) -> str:
    """`name=value; name=value`, sorted by name, of what `facts` know; empty for facts that know nothing of it.

    Names: `driver`, `cuda_driver` and `power_limit_w` of a GPU (the limit at the block's start where it was read), `microcode`
    and `kernel` of the host, and versions of `VERSIONS`. Facts are those of `collectors/environment.machine_facts`,
    `collectors/gpu/nvml.gpu_facts` and what campaigns, plug-ins and importers add; of any other shape they are left out.
    """
    found = dict(_versions(facts))
    gpu, before = _mapping(facts.get("gpu")), _mapping(facts.get("before"))
    for name, value in (
        ("driver", gpu.get("driver")), ("cuda_driver", gpu.get("cuda_driver")),
        ("microcode", facts.get("microcode")), ("kernel", facts.get("kernel")),
    ):  # fmt: skip
        if isinstance(value, str) and value.strip():
            found[name] = _plain(value)
    for limit in (before.get("power_limit_w"), gpu.get("power_limit_w")):
        if isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0:
            # Whole watts: that is what drivers let a person set, and a reading's digits are no change of software.
            found["power_limit_w"] = f"{limit:.0f}"
            break
    return "; ".join(f"{name}={found[name]}" for name in sorted(found))


def software_by_block(provenance: Mapping[str, Mapping[str, Any]]) -> Callable[[str | None], str | None]:
    """A function from a block's name to its software; None for an unknown block or one that says nothing of it."""
    known = {block: software_of(facts) or None for block, facts in provenance.items()}
    return lambda block: None if block is None else known.get(block)


def _versions(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Versions by library. Those a GPU's worker tells by runner come first, what the whole campaign knows replaces them.

    A CPU's worker tells only of the one library it loads; blocks of a campaign use different workers, and by these the same
    software would get several words.
    """
    workers = _mapping(facts.get("workers"))
    by_runner = [
        one for worker in workers.values() for one in _mapping(_mapping(worker).get("versions")).values()
    ]  # fmt: skip
    for versions in (*by_runner, facts.get("versions")):
        for name in VERSIONS:
            value = _mapping(versions).get(name)
            if isinstance(value, str) and value.strip():
                yield name, _plain(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: str) -> str:
    """The value without what separates values."""
    return " ".join(value.replace(";", ",").split())
