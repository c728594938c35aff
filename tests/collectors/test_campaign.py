"""The progress bar only has to count and to stay off standard output."""

from __future__ import annotations

import pytest
from kernelcast.collectors.campaign import progress_bar


def test_the_bar_counts_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("collecting") as progress:
        progress(3, 7)
        progress(7, 7)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "7/7" in captured.err
