"""A GPU played in memory, for all tests here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Worker processes that play a GPU import the same module.
sys.path.insert(0, str(Path(__file__).parent))

from fake_gpu import FakeGpu


@pytest.fixture
def fake_gpu() -> type[FakeGpu]:
    return FakeGpu
