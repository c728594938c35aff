"""What a night writes down on its way beside its record: the names of the blocks it stores."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .folders import BLOCKS


def note_block(folder: Path, block: str) -> None:
    """Write a block's name down and have it on disk before the block is stored.

    Raises:
        OSError: the disk is full; the block must then not be stored.
    """
    with (folder / BLOCKS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(block) + "\n")
        file.flush()
        os.fsync(file.fileno())


def blocks_of(folder: Path) -> list[str]:
    """Names of the blocks a night began to store, in order; the last may not have got into the store.

    Raises:
        OSError: the file cannot be read.
    """
    path = folder / BLOCKS
    if not path.exists():
        return []
    # A line cut short by a crash names no block: it was on its way to disk before the block was.
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith('"') and line.endswith('"') and len(line) > 2]
