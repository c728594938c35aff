"""TorchInductor: choices filtered before they are timed, and measured ones kept as rows.

import kernelcast.plugins.inductor
kernelcast.plugins.inductor.install()
"""

from .installing import Handle, install, report
from .reporting import Counts, PluginWarning

__all__ = ["Counts", "Handle", "PluginWarning", "install", "report"]
