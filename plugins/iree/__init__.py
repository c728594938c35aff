"""IREE: lowering configurations chosen by the cost model, as a tuning spec and as an external hook.

`tune` chooses for a module's text; `imposed` writes any choice into files and gives the flags of `iree-compile` that name them.
"""

from .compiler import Instructions, imposed
from .dispatches import Dispatch, UntunedDispatch
from .tuning import Choice, TuningResult, tune

__all__ = ["Choice", "Dispatch", "Instructions", "TuningResult", "UntunedDispatch", "imposed", "tune"]
