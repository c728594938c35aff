"""Where a user's own measurements and models live."""

from __future__ import annotations

import os
from pathlib import Path

HOME_ENV = "KERNELCAST_HOME"


def home_dir() -> Path:
    """The folder named by `KERNELCAST_HOME`, `~` understood; default `~/.local/share/kernelcast`."""
    folder = os.environ.get(HOME_ENV)
    return Path(folder).expanduser() if folder else Path.home() / ".local" / "share" / "kernelcast"
