"""The GPU that Triton compiles for, as a device of the catalogue."""

from __future__ import annotations

import importlib

from ...features.device import catalogue
from ...features.errors import SpecError


def current_gpu() -> str:
    """Catalogue name of the current GPU.

    Raises:
        SpecError: there is no GPU that torch sees, or the catalogue does not know it.
    """
    try:
        torch = importlib.import_module("torch")
        name = str(torch.cuda.get_device_name())
    except (ImportError, RuntimeError, AssertionError) as error:
        # A torch built without CUDA asserts, one without a driver raises; both tell at length.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise SpecError(f"there is no current GPU ({reason}); give prune(device=...) one", field="device") from error
    try:
        return catalogue().get(name).name
    except SpecError as error:
        raise SpecError(
            f"the catalogue does not know the current GPU {name!r}; give prune(device=...) the one it is most like",
            field="device",
        ) from error
