"""Ray, imported late and quiet: no usage statistics, no dashboard, no log of the nodes on the terminal."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray hides the GPUs from an actor that asks for none by Ray's own count: devices are asked for by label here.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment of the driver and of every node (docs.ray.io: usage statistics; accelerators)."""

_ANSWER_S = 5.0
NO_AMDSMI = Path(__file__).parent / "no_amdsmi"


class FleetError(Exception):
    """The fleet cannot be used; the message is one sentence that says why and what to do."""


@cache
def amdsmi_is_broken() -> bool:
    """Whether `amdsmi` is installed but fails for want of ROCm's library.

    Ray 2.60 asks it for GPUs whenever it is imported, and expects nothing worse than an ImportError; the package that zeus
    brings along raises KeyError instead, and no Ray process would start.
    """
    if find_spec("amdsmi") is None:
        return False
    try:
        # It prints what it misses.
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi  # noqa: F401
    except ImportError:
        return False
    except (KeyError, OSError, AttributeError):
        return True
    return False


def load_ray() -> Any:
    """The `ray` package.

    Raises:
        ImportError: it is not installed.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules or not amdsmi_is_broken():
        import ray

        return ray
    # None makes an import fail with ImportError, which Ray understands.
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    try:
        import ray
    finally:
        del sys.modules["amdsmi"]
    return ray


def connect(given: str | None) -> Any:
    """Ray, connected to the cluster at `HOST:PORT`, by default RAY_ADDRESS; the same cluster may be connected to again.

    Raises:
        FleetError: nothing answers there, or this machine is not a node of it.
        ImportError: Ray is not installed.
    """
    ray = load_ray()
    address = given or os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise FleetError(f"the address of a cluster is HOST:PORT, such as 10.0.0.1:6379, not {address!r}")
    if ray.is_initialized():
        return ray
    try:
        # Ray itself would try for half a minute and print what it tries.
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise FleetError(
            f"no Ray cluster to be used at {address} ({words}); start this machine's node first: `kernelcast fleet start` "
            "prints the line"
        ) from error
    return ray
