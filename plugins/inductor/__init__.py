"""TorchInductor: choices filtered before they are timed, and measured ones kept as rows.

import kernelcast.plugins.inductor
kernelcast.plugins.inductor.install()
"""

from ..cost_model import PluginWarning
from .reporting import Counts
from .session import Handle, install, report

__all__ = ["Counts", "Handle", "PluginWarning", "install", "report"]
